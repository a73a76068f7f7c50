"""Modelled profiles: steady state of AITER's kernels, the device, intervals, the command line."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from liteattention_rocm import _C, cli
from liteattention_rocm.commands.profile import calibration_text
from liteattention_rocm.timing import (
    KERNELS,
    Kernel,
    Shape,
    calibration,
    parameter_sets,
    parameters,
    profile,
    profiling,
    ratio,
    timeline,
)
from liteattention_rocm.timing import device as device_model
from liteattention_rocm.timing.stages import Stage
from liteattention_rocm.timing.steady import Steady, TracedStage, Traces, traced_lengths

SHAPE = Shape(1, 4, 16384, 16384)


@pytest.fixture(scope="module")
def aiter_traces():
    return {mode: Traces(KERNELS[f"aiter:{mode}"], SHAPE) for mode in ("rtz", "rtna", "rtne")}


def clocks_per_tile(traces: Traces, name: str = "D0") -> float:
    answer = traces.steady(parameter_sets()[name], traces.residents)
    return answer.per_row(lambda one: one["clocks"]) * traces.kernel.kv_rows


def test_every_parameter_has_unit_value_and_source():
    for group in ("clock", "device", "energy", "claims"):
        for name, entry in parameters.document()[group].items():
            assert set(entry) == {"value", "unit", "meaning", "source"}, (group, name)
            assert all(entry[key] for key in ("unit", "meaning", "source")), (group, name)
    for name, entry in parameters.document()["sets"].items():
        for group in ("clock", "energy"):
            assert set(entry.get(group, {})) <= set(parameters.document()[group]), name


def test_steady_state_of_aiter(aiter, aiter_traces):
    # An independent model of the same documented values gave 2,158 clocks, 1.159 and 1.285.
    base = clocks_per_tile(aiter_traces["rtz"])
    assert base == pytest.approx(2158, rel=0.01)
    assert clocks_per_tile(aiter_traces["rtna"]) / base == pytest.approx(1.159, rel=0.01)
    assert clocks_per_tile(aiter_traces["rtne"]) / base == pytest.approx(1.285, rel=0.01)


def test_aiter_per_tile_counts(aiter, aiter_traces):
    # Per wave and tile of 32 KV rows, counted in the disassembly: 32 MFMAs, 17 exps, 124 / 172 / 196 VALU.
    for mode, vector in (("rtz", 124), ("rtna", 172), ("rtne", 196)):
        answer = aiter_traces[mode].steady(parameter_sets()["D0"], 1)
        per_tile = {
            category: answer.per_row(lambda one, c=category: one["executed"][c]) * 32 / 8
            for category in ("matrix", "transcendental", "vector", "lds")
        }
        assert per_tile["matrix"] == pytest.approx(32)
        assert per_tile["transcendental"] == pytest.approx(17)
        assert per_tile["vector"] == pytest.approx(vector, abs=2)
        assert per_tile["lds"] == pytest.approx(27, abs=4)


def test_aiter_has_no_bank_conflicts(aiter, aiter_traces):
    answer = aiter_traces["rtz"].steady(parameter_sets()["D0"], 1).answers[-1]
    assert answer["lds_conflict_clocks"] == 0 < answer["lds_clocks"]


def test_extrapolation_meets_a_longer_trace(aiter, aiter_traces):
    traces = aiter_traces["rtna"]
    longer = traces.kernel.trace(SHAPE.heads, 512, 6144, [0])
    clock = traces.parameters(parameter_sets()["D0"], 1)
    predicted = Steady(traces.lengths, traces.steady(parameter_sets()["D0"], 1).answers, 6144).clocks
    assert predicted == pytest.approx(longer.clock(clock)["clocks"], rel=0.003)


def test_traces_repeat(aiter):
    answers = [
        KERNELS["aiter:rtz"]
        .trace(2, 256, 640, [1])
        .clock({**parameter_sets()["D0"].clock, "l2_miss_interval": 4})
        for _ in range(2)
    ]
    assert answers[0] == answers[1]


def test_a_code_object_in_a_file(tmp_path):
    path = tmp_path / "kernels.hsaco"
    path.write_bytes(_C.code_object("gfx942"))
    embedded, file = (Kernel.parse(text) for text in ("forward:rtna", f"forward:rtna={path}"))
    clock = {**parameter_sets()["D0"].clock, "l2_miss_interval": 3}
    answers = [kernel.trace(2, 200, 130, [1, 2]).clock(clock) for kernel in (embedded, file)]
    assert answers[0] == answers[1]


def test_traced_lengths():
    assert traced_lengths(512) == [512]
    assert traced_lengths(4216) == [4216]
    assert traced_lengths(32760) == [1144, 2168, 4216]
    assert all((32760 - length) % 128 == 0 for length in traced_lengths(32760))


def test_extrapolation_is_linear():
    answers = [{"clocks": 100 + 7 * rows} for rows in (10, 20, 40)]
    line = Steady([10, 20, 40], answers, 1000)
    assert line.clocks == 100 + 7 * 1000
    assert line.drift == pytest.approx(0)
    answers[0]["clocks"] -= 35  # the first ten rows took half a tile less
    assert Steady([10, 20, 40], answers, 1000).drift == pytest.approx(7 / 10.5 - 1)


class FakeTraces:
    """Workgroups of 1,000 clocks and 4,000 VALU operations, one on a CU."""

    residents = 1
    shape = Shape(1, 1, 1, 1)

    def __init__(self, workgroups: int):
        self.workgroups = workgroups
        self.stages = [TracedStage(Stage("all", None, self.shape, workgroups), self)]

    def steady(self, parameter_set, residents):
        counts = {"vector": 4000, "transcendental": 0}
        matrix = {"mfma_16x16x16": 0, "mfma_other": 0, "mfma_32x32x8": 0}
        return Steady([1], [{"clocks": 1000, "executed": counts, **matrix}], 1)


def test_quantisation_and_tail():
    documented = parameter_sets()["D0"]
    one_round = device_model.time_ms(FakeTraces(304), documented)
    assert device_model.time_ms(FakeTraces(8), documented) == one_round
    assert device_model.time_ms(FakeTraces(305), documented) == pytest.approx(2 * one_round)
    assert device_model.time_ms(FakeTraces(608), documented) == pytest.approx(2 * one_round)
    # 296 workgroups more than a round, but 39 of them on one XCD of 38 CUs, are a round and a tail.
    assert len(device_model.phases(FakeTraces(304), documented)) == 1
    assert len(device_model.phases(FakeTraces(305), documented)) == 2


def test_power_law():
    powered = parameter_sets()["A"]
    exponent = powered.energy["energy_exponent"]
    low, high = (device_model.Phase(1.0, power) for power in (100.0, 200.0))
    fast, slow = (device_model.clock_ghz(phase, powered, 1.0) for phase in (low, high))
    assert slow / fast == pytest.approx(2**-exponent)
    assert device_model.clock_ghz(low, powered, 1e6) == parameters.value("device", "peak_clock")
    # A tail on 5 of 38 CUs draws less than a full round.
    (tail,) = device_model.phases(FakeTraces(38), powered)
    (whole,) = device_model.phases(FakeTraces(304), powered)
    idle = powered.energy["idle_power"]
    assert tail.power == pytest.approx(whole.power * (5 + 33 * idle) / 38)
    # time ∝ cycles^(1 - exponent) · energy^exponent
    assert 1 / slow == pytest.approx(200.0**exponent)


def test_interval_is_the_widened_hull():
    same = dict.fromkeys(parameter_sets(), 1.0)
    narrow = profiling.interval({**same, "A": 1.1}, dict.fromkeys(same, 0.01))
    assert (narrow["low"], narrow["high"]) == pytest.approx((0.98, 1.122))
    assert narrow["prediction"]
    wide = profiling.interval({**same, "A": 1.3}, dict.fromkeys(same, 0.01))
    assert not wide["prediction"]
    # D0 is not in the ensemble.
    assert profiling.interval({**same, "D0": 9.0}, dict.fromkeys(same, 0.0))["high"] == 1.0


def fake_profile(name: str, **times) -> dict:
    return {
        "name": name,
        "calibrated": "aiter" in name,
        "sets": {key: {"time_ms": t} for key, t in times.items()},
    }


@pytest.mark.parametrize(
    ("second", "faster"),
    [(1.3, "ours:rtz"), (1.05, None), (0.7, "aiter:rtz")],
    ids=["wins", "close", "loses"],
)
def test_who_is_faster_needs_every_member(second, faster):
    first = fake_profile("ours:rtz", D0=1, A=1, A2=1, B=1)
    assert ratio(first, fake_profile("aiter:rtz", D0=1, A=second, A2=second, B=second))["faster"] == faster
    split = ratio(first, fake_profile("aiter:rtz", D0=1, A=second, A2=second, B=1))
    assert split["faster"] is None


def test_an_unseen_kernel_gets_a_wider_interval():
    first = fake_profile("ours:rtz", D0=1, A=1, A2=1, B=1)
    unseen = ratio(first, fake_profile("aiter:rtz", D0=1, A=1, A2=1, B=1))
    assert unseen["half_width"] == pytest.approx(parameters.value("claims", "transfer_residual"), rel=0.01)
    modes = ratio(
        fake_profile("aiter:rtz", D0=1, A=1, A2=1, B=1), fake_profile("aiter:rtne", D0=1, A=1, A2=1, B=1)
    )
    assert modes["half_width"] < unseen["half_width"]


def test_profile_command(aiter, tmp_path, capsys):
    arguments = [
        "profile",
        "--shape",
        "1,2,600,700",
        "--kernel",
        "ours:rtz",
        "--kernel",
        "aiter:rtz",
        "--json",
    ]
    assert cli.main([*arguments, "--timeline", str(tmp_path)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["modelled"] and report["shape"] == {
        "batch": 1,
        "heads": 2,
        "seqlen_q": 600,
        "seqlen_kv": 700,
    }
    assert set(report["ratio"]["sets"]) == {"D0", "A", "A2", "B"} and report["ratio"]["documented"] > 0
    for one in report["kernels"]:
        assert one["modelled"] and one["traced_kv_lengths"] == [700]
        assert 0 < one["time_ms"]["low"] < one["time_ms"]["high"]
        for result in one["sets"].values():
            assert all(0 <= share <= 1 for share in result["utilisation"].values())
            assert result["clocks_per_tile"] > 0 and 0 < result["sustained_clock_ghz"] <= 2.1
        waves_per_workgroup = one["resources"]["waves_per_workgroup"]
        waves = sum(
            stage["workgroups"] * (4 if stage["name"] == "merge" else waves_per_workgroup)
            for stage in one["stages"]
        )
        assert one["counters"]["SQ_WAVES"] == waves
        mfma = one["counters"]["SQ_INSTS_MFMA"]
        assert 0 < mfma < one["counters"]["SQ_INSTS_VALU"]
        assert len(one["stalls"]) == 12 and one["stalls"][0]["text"]
        stem = one["name"].replace(":", "-")
        drawing = ElementTree.fromstring((tmp_path / f"{stem}.svg").read_text())
        assert len(drawing) > 100
        events = json.loads((tmp_path / f"{stem}.json").read_text())["traceEvents"]
        waves = {event["tid"] for event in events if event["ph"] == "X"}
        assert waves == set(range(one["resources"]["waves_per_workgroup"]))
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == 0)
        assert all(before[1] <= after[0] + 1e-9 for before, after in itertools.pairwise(spans))


def test_drawing():
    """Each character is what took most of its clocks; the matrix pipe is busy for a MFMA's passes."""

    def entry(wave, category, text, begin, issue, stall=""):
        return {
            "wave": wave, "simd": wave % 4, "address": 0, "text": text, "category": category,
            "begin": begin, "issue": issue, "stall": stall,
        }  # fmt: skip

    mfma = "v_mfma_f32_16x16x16_bf16 v[0:3], v[4:5], v[6:7], v[0:3]"
    lines = {
        "begin": 100,
        "end": 180,
        "entries": [
            entry(0, "matrix", mfma, 100, 100),
            entry(0, "matrix", mfma, 104, 116, "matrix_busy"),
            entry(0, "barrier", "s_barrier", 120, 176, "barrier"),
            entry(1, "vector", "v_add_f32 v0, v0, v0", 100, 100),  # another SIMD
            entry(4, "vector", "v_add_f32 v0, v0, v0", 100, 136, "lds_wait"),
            entry(4, "transcendental", "v_exp_f32 v0, v0", 140, 140),
            entry(4, "matrix", mfma, 156, 164, "dependency"),
        ],
    }
    scale, first, second, pipe, legend = timeline.drawing(lines, columns=8).splitlines()
    assert scale == "clocks 100 to 180, 10 a character; modelled"
    assert first == "wave 0 |MMbbbbbb|" and legend == timeline.LEGEND
    assert second == "wave 4 |...ve.M |"
    assert pipe == "matrix |###2006#|"


def test_profile_command_in_words(capsys):
    command = ["profile", "--shape", "1,1,256,256", "--kernel", "ours:rtne", "--top", "3", "--draw"]
    assert cli.main(command) == 0
    text = capsys.readouterr().out
    assert "  wave 0 |" in text and "  matrix |" in text and timeline.LEGEND in text
    assert text.startswith("MODELLED") and "D0" in text and "SQ_LDS_BANK_CONFLICT" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--shape is missing"),
        (["--shape", "1,2"], "shape must be B,H,Sq or B,H,Sq,Skv, got '1,2'"),
        (["--shape", "1,0,64"], "positive extents"),
        (["--shape", "1,1,64", "--top", "-1"], "--top must not be negative, got -1"),
        (["--shape", "1,1,64", *["--kernel", "ours:rtz"] * 3], "once or twice, got 3"),
        (["--shape", "1,1,64", "--kernel", "ours:rtx"], "kernel must be one of aiter:rtna"),
        (["--shape", "1,1,64", "--kernel", "ours:rtz=nowhere"], "'nowhere', which does not exist"),
    ],
)
def test_profile_refuses(arguments, message, capsys):
    assert cli.main(["profile", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_published_times():
    points = calibration.published()
    assert len(points) == 27
    (last,) = (p for p in points if p.rounding == "rtz" and p.shape.seqlen_q == 131072)
    assert last.milliseconds == pytest.approx(4 * 16 * 131072**2 * 128 / 587e12 * 1e3)


def test_fit_finds_the_reference_clock(monkeypatch):
    points = [SimpleNamespace(milliseconds=2.0), SimpleNamespace(milliseconds=8.0)]
    monkeypatch.setattr(calibration, "traces_of", lambda point: point)
    monkeypatch.setattr(
        device_model, "time_ms", lambda traces, _, reference: traces.milliseconds * 3 / reference
    )
    assert calibration.fit(parameter_sets()["B"], points) == pytest.approx(3)


@pytest.mark.full
def test_calibration_is_the_stored_one(aiter):
    table = calibration.calibrate()
    for name, parameter_set in parameter_sets().items():
        one = table["sets"][name]
        assert one["reference_clock_ghz"] == pytest.approx(parameter_set.reference_clock_ghz, rel=1e-3)
        assert one["residual"] == pytest.approx(parameter_set.residual, abs=1e-3)
        assert max(r["residual"] for r in one["mode_ratios"].values()) == pytest.approx(
            parameter_set.mode_residual, abs=1e-3
        )
    page = (Path(__file__).parent.parent / "docs" / "timing.md").read_text()
    assert calibration_text(table) in page
    assert table["coverage"] >= 0.95
    assert table["half_width"] < parameters.value("claims", "prediction_half_width")


def test_profile_of_one_shape_is_within_its_interval(aiter):
    """A published time that is quick to trace: 1,16,131072 in rtz."""
    (point,) = (p for p in calibration.published() if p.shape.seqlen_q == 131072 and p.rounding == "rtz")
    answer = profile(KERNELS[point.kernel], point.shape)["time_ms"]
    assert answer["low"] < point.milliseconds < answer["high"] and answer["prediction"]
