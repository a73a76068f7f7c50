"""`calibrate`, rehearsed: on a simulated device that passes a parameter set's time it gives back that set."""

import copy
import json
import re
import struct

import pytest
import torch

from liteattention_rocm import _C, cli, code_object, simulator
from liteattention_rocm.calibration import clocks, counters, microbenchmarks, report
from liteattention_rocm.calibration.hip import Device, HipFailure
from liteattention_rocm.timing import Shape, narrowing, parameter_sets, profiling
from liteattention_rocm.timing import calibration as published_times
from liteattention_rocm.timing.parameters import ensemble, use
from liteattention_rocm.timing.recording import Recording

FULL_ROUNDS = Shape(2, 19, 16384, 16384)
# What one measurement resolves: hops of a chain end in slots of 4 clk.
TOLERANCES = {"lds_latency": 4, "l1_latency": 4, "l2_latency": 4, "scalar_memory_latency": 4}


@pytest.fixture(scope="module")
def device():
    return Device("cpu")


@pytest.fixture(scope="module")
def calibrations(aiter, device):
    """A calibration of a device of each member, at the clock that the member predicts for AITER's rtz."""
    taken = {}
    for name in ("A", "B"):
        ghz = report.predicted_clock_ghz(parameter_sets()[name], FULL_ROUNDS)
        with report.passing_time(device, name, ghz):
            document = report.measure(device, [report.KEY_WORKLOAD], Shape(1, 1, 256, 512), seconds=0)
        document["sustained_clock"][report.KEY_WORKLOAD]["shape"] = [2, 19, 16384, 16384]
        taken[name] = document
    return taken


def written(tmp_path, document):
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("name", ["A", "B"])
def test_microbenchmarks_give_back_the_clock_they_ran_on(calibrations, name):
    document, clock = calibrations[name], parameter_sets()[name].clock
    assert document["problems"] == [] and document["source"] == "simulator"
    assert document["clocks_per_vector_instruction"] == 4
    measured = {key: one["value"] for key, one in document["parameters"].items()}
    assert measured.pop("matrix_16x16x16_passes") == 4 and measured.pop("matrix_32x32x8_passes") == 8
    assert set(measured) <= set(clock) and len(measured) == 16
    for key, number in measured.items():
        assert number == pytest.approx(clock[key], abs=TOLERANCES.get(key, 0.01)), key
    assert calibrations["B"]["parameters"]["lds_bytes_per_clock"]["value"] == pytest.approx(64)


def test_every_parameter_is_seen(device):
    """Each one changed alone comes back changed: no microbenchmark answers what it was told."""
    documented = {**parameter_sets()["D0"].clock, "l2_miss_interval": 0}
    changes = {
        "transcendental_slots": 6,
        "double_rate_slots": 7,
        "fetch_straddle_slots": 3,
        "accumulator_slots": 2,
        "valu_after_matrix_slots": 3,
        "packed_after_matrix_slots": 5,
        "barrier_slots": 9,
        "branch_taken_slots": 11,
        "branch_not_taken_slots": 6,
        "lds_bytes_per_clock": 32,
        "lds_latency": 120,
        "l1_bytes_per_clock": 32,
        "l1_latency": 200,
        "l2_latency": 740,
        "scalar_memory_latency": 320,
    }
    with Recording([0]).active({**documented, **changes}, 1.0):
        answers = microbenchmarks.summarise(microbenchmarks.run(device, 1, 1))
    for name, number in changes.items():
        # A straddle more or less in a chain's hop.
        assert answers[name].value == pytest.approx(
            number, abs=max(TOLERANCES.get(name, 0.02), 0.03 * number)
        ), name
    with Recording([0]).active({**documented, "matrix_bubble_slots": 2}, 1.0):
        answers = microbenchmarks.summarise(microbenchmarks.run(device, 1, 1))
    assert answers["matrix_bubble_slots"].value == pytest.approx(2, abs=0.02)


def test_a_clock_that_counts_something_else_is_a_problem(calibrations):
    document = copy.deepcopy(calibrations["A"])
    document["clocks_per_vector_instruction"] = 0.4  # of a core at 1 GHz, by a clock of 100 MHz
    (problem,) = report._problems(document)
    assert "does not count core clocks" in problem
    document = copy.deepcopy(calibrations["A"])
    sustained = document["sustained_clock"][report.KEY_WORKLOAD]
    sustained |= {"launches": 100, "milliseconds": 20.0, "reference_by_events_ghz": 0.025}
    (problem,) = report._problems(document)
    assert "0.250 of the 0.1 GHz" in problem


@pytest.mark.parametrize("name", ["A", "B"])
def test_the_sustained_clock_is_the_device_s(calibrations, name):
    sustained = calibrations[name]["sustained_clock"][report.KEY_WORKLOAD]
    expected = report.predicted_clock_ghz(parameter_sets()[name], FULL_ROUNDS)
    assert sustained["ghz"]["value"] == pytest.approx(expected, rel=0.005)
    assert sustained["launches"] == 1 and sustained["milliseconds"] > 0
    # Simulated launches come one after the other, so no sample was taken while the kernel ran.
    assert sustained["during"] is None


def test_samples_within_a_window(device):
    module = device.module(_C.calibration_code_object("gfx942"))
    records = torch.full((8, 200, 3), -1, dtype=torch.int64)
    with Recording([0]).active({**parameter_sets()["D0"].clock, "l2_miss_interval": 0}, 1.7):
        packed = struct.pack("<Qi4x", records.data_ptr(), 200)
        module.launch("calibrate_samples", (8, 1, 1), (64, 1, 1), packed, (records,))
    core, reference = records[0, :, 0], records[0, :, 1]
    assert (records[1:] == -1).all(), "one CU runs one of the eight"
    step = core.diff()
    assert (step > 127 * 64).all() and (step < 127 * 64 + 600).all()
    assert (core[-1] - core[0]).item() / (reference[-1] - reference[0]).item() == pytest.approx(17, rel=0.001)
    eight = records[:1].repeat(8, 1, 1)
    answer = clocks._within(eight, int(reference[0]), int(reference[-1]), 0.1)
    assert answer["value"] == pytest.approx(1.7, rel=0.001) and answer["samples"] == 8 * 6
    assert clocks._within(eight, int(reference[-1]) + 1, int(reference[-1]) + 2, 0.1) is None
    assert clocks._within(records, int(reference[0]), int(reference[-1]), 0.1) is None, "too few"


def mnemonics(image: bytes, kernel: str) -> list[str]:
    listing = simulator.disassemble(image)
    (span,) = [one for one in listing["kernels"] if one["name"] == kernel]
    end = span["address"] + span["size"]
    return [i["text"].split()[0] for i in listing["instructions"] if span["address"] <= i["address"] < end]


@pytest.mark.parametrize("rounding", ["rtne", "rtna", "rtz"])
def test_the_instrumented_kernel_is_the_shipped_one(rounding):
    shipped = mnemonics(_C.code_object("gfx942"), f"attention_forward_{rounding}")
    instrumented = mnemonics(_C.calibration_code_object("gfx942"), f"calibrate_phases_{rounding}")
    assert instrumented.count("s_memtime") == 6 and "s_memtime" not in shipped
    heavy = re.compile(r"v_mfma|v_exp|v_rcp|v_log|ds_|buffer_load|buffer_store|s_barrier")
    for name in sorted({one for one in shipped + instrumented if heavy.match(one)}):
        assert instrumented.count(name) == shipped.count(name), name
    # And in the same order, but for a few that the compiler swaps where registers are short.
    order = [[one for one in each if heavy.match(one)] for each in (shipped, instrumented)]
    same = sum(a == b for a, b in zip(*order, strict=True)) / len(order[0])
    assert same > 0.98 and (rounding == "rtne" or order[0] == order[1])


def test_phases(device):
    parameters = {**parameter_sets()["D0"].clock, "l2_miss_interval": 0}
    with Recording([0]).active(parameters, 1.0):
        one = clocks.phases(device, "rtz", 1, 128, 512)
    assert list(one["phases"]) == list(clocks.PHASES) and one["tiles"] == 8
    values = [phase["value"] for phase in one["phases"].values()]
    # The phases are the kernel's loop; what is before and behind it is its loads of Q and its stores.
    assert 0.85 < 8 * sum(values) / one["kernel_clocks"] < 1
    # 64 MFMAs of 4 slots for the two query tiles in either phase, one wave on a SIMD; the softmax has
    # 2 · 17 v_exp of 4 slots.
    assert one["phases"]["scores"]["value"] > 64 * 16 and one["phases"]["accumulate"]["value"] > 64 * 16
    assert one["phases"]["softmax"]["value"] > 34 * 16
    with Recording([0]).active({**parameters, "transcendental_slots": 16}, 1.0):
        slower = clocks.phases(device, "rtz", 1, 128, 512)
    grown = {name: slower["phases"][name]["value"] - one["phases"][name]["value"] for name in clocks.PHASES}
    assert grown["softmax"] == pytest.approx(34 * 12 * 4, rel=0.1)
    assert all(abs(grown[name]) < 100 for name in ("scores", "accumulate"))


def test_time_passes_in_simulated_launches(device):
    """Three stamps around launches: one clock for all, events included."""
    module = device.module(_C.calibration_code_object("gfx942"))
    with Recording([0]).active({**parameter_sets()["D0"].clock, "l2_miss_interval": 0}, 2.0):
        stamps = clocks.Stamps(device, module)
        stamps.take()
        milliseconds = device.elapsed_ms(lambda: [stamps.take() for _ in range(50)])
        taken = stamps.by_xcd()
    cores = [one[0][0] for one in taken]
    assert cores == sorted(cores) and len(set(cores)) == 51
    period = (cores[-1] - cores[0]) / 50
    assert milliseconds == pytest.approx(50 * period / 2.0 * 1e-6, rel=0.01)
    # Outside, the clocks count wait states again and events the host's time.
    stamps = clocks.Stamps(device, module)
    stamps.take()
    assert stamps.by_xcd()[0][0][0] < 100


def test_a_kernel_whose_work_depends_on_the_time_cannot_be_timed(device):
    import device_compiler

    source = """
extern "C" __attribute__((global)) void spin(unsigned long long* out) {
  unsigned long long n = 0;
  while (__builtin_amdgcn_s_memtime() % 1000 < 500) ++n;
  *out = n;
}
"""
    module = device.module(device_compiler.compile_hip(source))
    out = torch.zeros(1, dtype=torch.int64)
    with (
        Recording([0]).active({**parameter_sets()["D0"].clock, "l2_miss_interval": 0}, 1.0),
        pytest.raises(HipFailure, match="depends on the clocks that it reads"),
    ):
        for _ in range(20):  # the time at which one begins moves on
            module.launch("spin", (1, 1, 1), (64, 1, 1), struct.pack("<Q", out.data_ptr()), (out,))


def test_recordings_refuse_a_clock_of_nothing():
    parameters = {**parameter_sets()["D0"].clock, "l2_miss_interval": 0}
    with pytest.raises(simulator.SimulatorError, match="core_ghz"), Recording([0]).active(parameters, 0.0):
        pass
    with pytest.raises(simulator.SimulatorError, match="missing"), Recording([0]).active({}, 1.0):
        pass
    with Recording([0]).active(parameters, 1.0):  # what was refused is over
        pass


def test_aiter_s_launch_is_the_product_s(aiter, device):
    """The workload that `calibrate` launches computes what `aiter_kernel.forward` does."""
    workload = clocks.Workload.make(device, "aiter:rtz", Shape(2, 3, 300, 200))
    simulator.reset_statistics()
    workload.launch()
    (kernel,) = simulator.statistics()["kernels"].values()
    assert kernel["workgroups"] == 2 * 3 * 2
    q, k, v, out = operands(workload)
    assert torch.equal(out, aiter.forward(q, k, v, rounding="rtz"))


def operands(workload):
    names = workload.launch.__code__.co_freevars
    cells = dict(zip(names, workload.launch.__closure__, strict=True))
    return [cells[name].cell_contents for name in ("q", "k", "v", "out")]


@pytest.mark.parametrize("name", ["ours", "ours:rtx", "theirs:rtz", ""])
def test_unknown_workloads(device, name):
    with pytest.raises(ValueError, match="workload must be"):
        clocks.Workload.make(device, name, Shape(1, 1, 1, 1))


@pytest.fixture
def one_shape(monkeypatch):
    """Sets are fitted to three published times, not to 27."""
    points = [point for point in published_times.published() if point.shape == Shape(1, 32, 16384, 16384)]
    monkeypatch.setattr(published_times, "published", lambda: points)


@pytest.mark.full
@pytest.mark.parametrize("name", ["A", "B"])
def test_all_published_times_leave_the_same_member(calibrations, name):
    assert narrowing.narrow(calibrations[name]).members == (name,)


@pytest.mark.parametrize(("name", "others"), [("A", {"A2", "B"}), ("B", {"A", "A2"})])
def test_a_calibration_leaves_the_member_it_came_from(calibrations, one_shape, name, others):
    narrowed = narrowing.narrow(calibrations[name])
    assert narrowed.members == (name,) and set(narrowed.dropped) == others
    assert narrowed.predicted_ghz[name] == pytest.approx(narrowed.clock_ghz, rel=0.02)
    # Documented values stay documented, whatever was measured.
    assert narrowed.sets["D0"] == parameter_sets()["D0"]
    assert narrowed.sets[name].clock["lds_bytes_per_clock"] == {"A": 128, "B": 64}[name]
    assert narrowed.sets[name].residual < 0.03
    with use(narrowed.sets, narrowed.members):
        assert ensemble() == [name] and parameter_sets()["A"].clock != parameter_sets()["D0"].clock
    assert ensemble() == ["A", "A2", "B"]


@pytest.mark.parametrize(("ghz", "left"), [(0.96, ("A",)), (1.16, ("A2",)), (1.31, ("B",))])
def test_the_clock_alone_decides_between_members(calibrations, monkeypatch, ghz, left):
    document = copy.deepcopy(calibrations["A"])
    document["parameters"] = {}
    document["sustained_clock"][report.KEY_WORKLOAD]["ghz"] = {"value": ghz, "low": ghz, "high": ghz}
    monkeypatch.setattr(narrowing, "refit", lambda one: one)  # nothing was replaced, so nothing would change
    narrowed = narrowing.narrow(document)
    assert narrowed.members == left
    assert all("measured is" in why for why in narrowed.dropped.values())


def test_measurements_that_contradict_each_other_leave_nothing(calibrations, one_shape):
    document = copy.deepcopy(calibrations["B"])  # LDS at 64 B/clk …
    sustained = document["sustained_clock"][report.KEY_WORKLOAD]
    sustained["ghz"] = {"value": 0.96, "low": 0.95, "high": 0.97}  # … and the clock of 128
    with pytest.raises(ValueError, match=r"no member of the ensemble describes this device: .*B has a clock"):
        narrowing.narrow(document)


def test_passes_that_the_model_has_not_are_told(calibrations, monkeypatch):
    document = copy.deepcopy(calibrations["A"])
    document["parameters"]["matrix_32x32x8_passes"]["value"] = 16.0
    monkeypatch.setattr(narrowing, "refit", lambda one: one)
    (remark,) = narrowing.narrow(document).remarks
    assert "matrix_32x32x8_passes is 16.00" in remark


def test_what_the_clock_resolves():
    assert narrowing.resolved("lds_bytes_per_clock", 127.4) == 128
    assert narrowing.resolved("lds_bytes_per_clock", 93.09) == 1024 / 11
    assert (
        narrowing.resolved("barrier_slots", 4.3) == 4 and narrowing.resolved("accumulator_slots", -0.2) == 0
    )


def test_modelled_never_passes_for_measured(calibrations, tmp_path, capsys):
    path = written(tmp_path, calibrations["A"])
    with pytest.raises(report.RefusedCalibration, match="comes from the simulator"):
        report.load(path)
    assert report.load(path, rehearsal=True) == calibrations["A"]
    assert cli.main(["profile", "--shape", "1,1,256", "--calibration-json", str(path)]) == 1
    assert "comes from the simulator" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.clear(), "no calibration of schema 1"),
        (lambda d: d.update(schema=2), "no calibration of schema 1"),
        (lambda d: d.update(source="a friend"), "comes from 'a friend'"),
        (lambda d: d.pop("parameters"), "no calibration of schema 1"),
        (lambda d: d["parameters"]["barrier_slots"].update(low=9), "not in order"),
        (lambda d: d["parameters"]["barrier_slots"].update(value="x"), "no calibration of schema 1"),
        (lambda d: d["sustained_clock"]["aiter:rtz"].update(shape=[1]), "no calibration of schema 1"),
        (lambda d: d["problems"].append("the sun was in its eyes"), "the sun was in its eyes"),
    ],
)
def test_documents_that_narrow_nothing(calibrations, tmp_path, change, said):
    document = copy.deepcopy(calibrations["A"])
    document["source"] = "hardware"
    assert report.load(written(tmp_path, document))
    change(document)
    with pytest.raises(report.RefusedCalibration, match=re.escape(said)):
        report.load(written(tmp_path, document))


def test_a_file_that_is_no_json(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"\xff{")
    with pytest.raises(report.RefusedCalibration, match="no JSON"):
        report.load(path)


def test_profile_says_what_narrowed_it(calibrations, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(narrowing, "refit", lambda one: one)
    path = written(tmp_path, calibrations["B"])
    arguments = ["profile", "--shape", "1,4,4096", "--kernel", "aiter:rtz"]
    assert cli.main([*arguments, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["narrowed"] is None
    narrow = [*arguments, "--calibration-json", str(path), "--rehearsal"]
    assert cli.main([*narrow, "--json"]) == 0
    less = json.loads(capsys.readouterr().out)
    assert less["narrowed"]["source"] == "simulator" and "B" in less["narrowed"]["members"]
    assert less["kernels"][0]["documented_ms"] == whole["kernels"][0]["documented_ms"]
    assert less["kernels"][0]["time_ms"] != whole["kernels"][0]["time_ms"]
    assert cli.main(narrow) == 0
    text = capsys.readouterr().out
    assert (
        "REHEARSAL" in text and "lds_bytes_per_clock 64" in text and "clock under AITER rtz 1.30 GHz" in text
    )


def test_rocprof_input(tmp_path, capsys):
    path = tmp_path / "counters.txt"
    counters.write(path)
    lines = path.read_text().splitlines()
    assert all(re.fullmatch(r"pmc:( [A-Za-z_0-9]+){1,4}", line) for line in lines)
    listed = " ".join(lines).replace("pmc:", "").split()
    for name in ("SQ_INSTS_MFMA", "SQ_LDS_BANK_CONFLICT", "TCP_TCC_READ_REQ_sum", "GRBM_GUI_ACTIVE"):
        assert listed.count(name) == 1
    command = counters.command(path, "aiter:rtz", "2,19,16384").split(" -- ")
    assert command[0].startswith(f"rocprofv3 -i {path} ")
    # What the profiler is told to run does run.
    program, *rest = command[1].split()
    assert program == "liteattention-rocm" and rest[:3] == ["calibrate", "--workload", "aiter:rtz"]
    rest[-1] = "1,1,16"
    simulator.reset_statistics()
    assert cli.main([*rest, "--device", "simulator"]) == 0
    assert sum(one["launches"] for one in simulator.statistics()["kernels"].values()) == 1


def test_command(aiter, tmp_path, capsys):
    path, inputs = tmp_path / "calibration.json", tmp_path / "counters.txt"
    arguments = ["calibrate", "--device", "simulator", "--no-aiter", "--json", str(path)]
    assert cli.main([*arguments, "--counters", str(inputs)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("SIMULATED: every number is modelled, nothing is measured")
    for expected in ("lds_bytes_per_clock", "128.00", "ours:rtz", "softmax", "rocprofv3 -i", str(path)):
        assert expected in out
    document = json.loads(path.read_text())
    assert document["source"] == "simulator" and list(document["sustained_clock"]) == ["ours:rtz"]
    assert cli.main(["calibrate", "--seconds", "0"]) == 1
    assert cli.main(["calibrate", "--member", "C"]) == 1


def test_calibration_kernels_neither_spill_nor_leave_their_budget():
    kernels = code_object.parse(_C.calibration_code_object("gfx942"))
    assert code_object.violations(kernels) == []
    assert {f"calibrate_{name}" for name in microbenchmarks.KERNELS} < {one.name for one in kernels.kernels}


def test_one_member_is_an_interval(monkeypatch):
    one = parameter_sets()["B"]
    with use({"D0": parameter_sets()["D0"], "B": one}, ["B"]):
        answer = profiling.interval({"D0": 9.0, "B": 2.0}, {"D0": 0.0, "B": 0.02})
    assert (answer["low"], answer["high"]) == pytest.approx((1.92, 2.08))


def test_missing_code_objects_are_told_before_anything_is_measured(monkeypatch, tmp_path, capsys):
    def measured(*arguments, **options):
        raise AssertionError("measured")

    monkeypatch.setattr(report, "measure", measured)
    monkeypatch.setattr(report, "predicted_clock_ghz", lambda *arguments: 1.0)  # no device asks for that
    monkeypatch.setenv("LITEATTENTION_ROCM_AITER_HSA", str(tmp_path))
    assert cli.main(["calibrate", "--device", "simulator"]) == 1
    assert f"AITER's code objects are not under {tmp_path}" in capsys.readouterr().err


def test_a_failure_is_taken_from_the_runtime_s_record():
    """What looks at the runtime's last error next, as torch does, finds none."""
    device = Device("cpu")
    with pytest.raises(HipFailure, match=r"hipModuleLoadData: hipErrorInvalidImage\n.+"):
        device.module(b"no code object")
    assert device._hip.hipGetLastError() == 0


def test_the_sampler_runs_as_long_as_it_is_said_to():
    """A tenth of a second: a sample takes its s_sleep, 127 · 64 clocks, at 2.1 GHz, or 1.3 under
    load."""
    seconds = [clocks._SAMPLES * 127 * 64 / (ghz * 1e9) for ghz in (2.1, 1.3)]
    assert 0.05 < seconds[0] < 0.1 < seconds[1] < 0.15
