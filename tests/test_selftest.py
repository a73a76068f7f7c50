"""The self-test: its cases, its record, its verdicts, and what a verdict does to later launches."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import liteattention_rocm
from liteattention_rocm import _C, cli, reference, runtime, selftest, simulator, verdicts
from liteattention_rocm.calibration.hip import Device
from liteattention_rocm.selftest import facts, judging
from liteattention_rocm.selftest.cases import CASES, Case

EXACT = [case for case in CASES if case.kind == "exact"]
BOUNDED = [case for case in CASES if case.kind == "bounded"]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv(verdicts.FOLDER_VARIABLE, str(tmp_path / "cache"))
    verdicts.forget()
    yield tmp_path / "cache"
    verdicts.forget()


@pytest.fixture
def few_cases(monkeypatch):
    """One case of each kind: the whole table is tested by `test_the_record_is_current`."""
    monkeypatch.setattr(judging, "CASES", (EXACT[1], BOUNDED[1]))


def integers(case: Case):
    """Scores, P, V of an exact case in float64: [batch, heads, rows, …]."""
    q, k, v = (t.double() if case.layout == "bhsd" else t.double().transpose(1, 2) for t in case.inputs())
    k, v = (t.repeat_interleave(case.heads // case.kv_heads, dim=1) for t in (k, v))
    scores = q @ k.transpose(2, 3)
    return scores, torch.exp2(scores - scores.amax(dim=-1, keepdim=True)), v


@pytest.mark.parametrize("case", EXACT, ids=lambda case: case.name)
def test_exact_cases_are_exact(case):
    scores, probabilities, v = integers(case)
    assert torch.equal(scores, scores.round()) and scores.abs().max() < 126
    mantissa, _ = torch.frexp(probabilities.sum(dim=-1))
    assert (mantissa == 0.5).all(), "row sums are powers of two"
    # A row's products P·V are multiples of the least P, and their magnitudes add up to less than 2^24 of it.
    least = probabilities.amin(dim=-1, keepdim=True)
    assert (((probabilities @ v.abs()) / least).max() < 2**24).item()
    # The maximum moves from one KV tile to another, so that earlier sums are rescaled.
    tiles = [tile.amax(dim=-1) for tile in scores.split(64, dim=-1)]
    if len(tiles) > 2:
        assert (tiles[0] < torch.stack(tiles[1:]).amax(dim=0)).double().mean() > 0.1


@pytest.mark.parametrize("rounding", ["rtne", "rtna", "rtz"])
@pytest.mark.parametrize("case", EXACT, ids=lambda case: case.name)
def test_exact_cases_have_the_right_bits(case, rounding):
    scores, probabilities, v = integers(case)
    expected = (probabilities @ v) / probabilities.sum(dim=-1, keepdim=True)
    expected = reference.round_to_bfloat16(expected.float(), rounding)
    result = judging.execute(case, rounding, CPU)
    out = result.out if case.layout == "bhsd" else result.out.transpose(1, 2)
    assert torch.equal(out.contiguous().view(torch.int16), expected.contiguous().view(torch.int16))
    assert (result.lse - torch.logsumexp(scores * np.log(2), dim=-1)).abs().max() < 4e-6


def test_rounding_modes_differ_in_exact_cases():
    hashes = {entry[case.name]["sha256"] for entry in judging.recorded().values() for case in EXACT}
    assert len(hashes) == len(judging.recorded()) * len(EXACT)


def test_inputs_never_change():
    digest = hashlib.sha256()
    for case in CASES:
        for tensor in case.inputs():
            digest.update(judging._bytes(tensor))
    # Torch, numpy and Python may change; a record and a device's answers must be of the same inputs.
    assert digest.hexdigest() == "e690203c97dde4648e79453c6957fea0411e5c6b418bc884ef3834e46648333c"
    ordinary = BOUNDED[0].inputs()[0].double()
    assert ordinary.std() == pytest.approx(1, abs=0.02) and abs(ordinary.mean()) < 0.02


def test_the_record_is_current():
    fresh, committed = selftest.record(), json.loads(judging.RECORD.read_text())
    assert committed["schema"] == fresh["schema"]
    assert list(committed["variants"]) == list(fresh["variants"])
    for variant, cases in fresh["variants"].items():
        assert list(committed["variants"][variant]) == [case.name for case in CASES]
        for name, entry in cases.items():
            old = committed["variants"][variant][name]
            assert old.get("sha256") == entry.get("sha256"), (variant, name)
            # Matrix arithmetic may move the errors of ordinary cases, a little.
            for key in ("error", "lse_error"):
                assert old[key] == pytest.approx(entry[key], rel=0.1), (variant, name, key)


def test_every_kernel_has_a_case_or_says_so(few_cases, monkeypatch):
    assert all(rounding is not None for rounding in judging.variants().values()), "a kernel lacks cases"
    names = [*_C.kernel_names(), "attention_of_tomorrow"]
    monkeypatch.setattr(judging._C, "kernel_names", lambda: names)
    monkeypatch.setattr(
        judging, "variants", lambda: {"attention_forward_rtz": "rtz", "attention_of_tomorrow": None}
    )
    first, second = selftest.run()["variants"]
    assert first["verdict"] == "pass" and second["verdict"] == "not run"
    assert "no case" in second["worst"]


def test_facts(monkeypatch):
    device = Device("cpu")
    assert set(facts.check(device).values()) == {True} and len(facts.check(device)) == 3
    evaluate = facts._evaluate

    def off_by_an_ulp(*arguments):
        results = evaluate(*arguments)
        results[0, 100] = torch.nextafter(results[0, 100], torch.tensor(torch.inf))
        return results

    monkeypatch.setattr(facts, "_evaluate", off_by_an_ulp)
    assert facts.check(device)["v_exp_f32 at integers"] is False


def test_inexact_hardware_is_judged_by_bounds(few_cases, monkeypatch):
    known = {"v_exp_f32 at integers": False}
    monkeypatch.setattr(facts, "check", lambda device: known)
    report = selftest.run()
    assert {case["judged"] for one in report["variants"] for case in one["cases"]} == {"bounds"}
    assert all(one["verdict"] == "pass" for one in report["variants"])


def perturbed(case: Case, rounding: str) -> judging.Result:
    """The kernel's arithmetic with every v_exp off by up to an ulp in either direction."""
    exp2, generator = torch.exp2, torch.Generator().manual_seed(5)

    def near(x):
        value = exp2(x)
        toward = torch.where(torch.rand(x.shape, generator=generator) < 0.5, 0.0, torch.inf)
        return torch.nextafter(value, toward)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "exp2", near)
        q, k, v = case.inputs()
        return judging.Result(
            *reference.replica(q, k, v, scale=case.scale, layout=case.layout, rounding=rounding)
        )


@pytest.mark.parametrize("rounding", ["rtne", "rtz"])
@pytest.mark.parametrize("case", BOUNDED, ids=lambda case: case.name)
def test_bounds_admit_other_last_bits_and_nothing_coarser(case, rounding):
    recorded = judging.recorded()[f"attention_forward_{rounding}"][case.name]
    simulated = judging.execute(case, rounding, CPU)
    passed, text, _ = judging.judge(case, recorded, perturbed(case, rounding), False, simulated)
    assert passed, text
    # One element of 25,000 and more, three bfloat16 ulps off.
    wrong = judging.Result(simulated.out.clone(), simulated.lse)
    index = wrong.out.abs().argmax()
    wrong.out.view(-1)[index] *= 1 + 3 / 128
    assert not judging.judge(case, recorded, wrong, False, simulated)[0]
    for lse in (simulated.lse + 1e-5, torch.where(simulated.lse > 5, torch.nan, simulated.lse)):
        if not torch.equal(lse, simulated.lse):
            wrong = judging.Result(simulated.out, lse)
            assert not judging.judge(case, recorded, wrong, False, simulated)[0]


def a_matrix_product(kernel: str) -> int:
    listing = simulator.disassemble(_C.code_object("gfx942"))
    (span,) = [k for k in listing["kernels"] if k["name"] == kernel]
    inside = [
        i["address"]
        for i in listing["instructions"]
        if span["address"] <= i["address"] < span["address"] + span["size"] and i["text"].startswith("v_mfma")
    ]
    return inside[len(inside) // 2]


def attention(rounding):
    q, k, v = (torch.ones(1, 3, 1, 128, dtype=torch.bfloat16) for _ in range(3))
    return liteattention_rocm.attention(q, k, v, rounding=rounding)


def test_a_failing_kernel_is_refused_until_it_passes(few_cases, own_folder, capsys):
    with simulator.checking("none", mutation=f"skip:{a_matrix_product('attention_forward_rtna'):#x}"):
        assert cli.main(["selftest", "--device", "simulator"]) == 1
    out = capsys.readouterr().out
    assert "FAIL     attention_forward_rtna" in out and "refused on this device" in out
    assert "PASS     attention_forward_rtne" in out and "PASS     attention_forward_rtz" in out

    attention("rtne"), attention("rtz")
    with pytest.raises(verdicts.RefusedVariant) as refused:
        attention("rtna")
    (file,) = own_folder.iterdir()
    for expected in ("attention_forward_rtna", str(file), "selftest --device simulator", "bits differ"):
        assert expected in str(refused.value)
    # A process that starts now is bound as well.
    code = (
        "import torch, liteattention_rocm as l; t = torch.ones(1, 3, 1, 128, dtype=torch.bfloat16); "
        "l.attention(t, t, t, rounding='rtna')"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert other.returncode == 1 and "RefusedVariant: kernel attention_forward_rtna" in other.stderr
    with pytest.raises(RuntimeError, match="attention_forward_rtna"):
        liteattention_rocm.prepare("cpu", rounding="rtna")
    liteattention_rocm.prepare("cpu", rounding="rtne")
    liteattention_rocm.prepare("cpu")

    assert cli.main(["selftest", "--device", "simulator", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {one["verdict"] for one in report["variants"]} == {"pass"} and report["simulated"] is True
    attention("rtna")


def test_a_crash_leaves_a_refusal(few_cases, monkeypatch):
    """A process may die with its kernel: what was begun and not judged is refused, what was stopped isn't."""
    states = []

    def watch(case, rounding, device):
        states.append(verdicts.load(runtime.target(CPU)))
        raise KeyboardInterrupt

    monkeypatch.setattr(judging, "execute", watch)
    with pytest.raises(KeyboardInterrupt):
        selftest.run()
    assert states[0]["attention_forward_rtne"]["verdict"] == "unfinished"
    attention("rtne")  # Ctrl-C took it back
    verdicts.store(runtime.target(CPU), states[0])
    with pytest.raises(verdicts.RefusedVariant, match="did not finish"):
        attention("rtne")


def test_a_fault_is_a_failure(few_cases, monkeypatch):
    def fault(case, rounding, device):
        raise RuntimeError("hipErrorIllegalAddress")

    monkeypatch.setattr(judging, "execute", fault)
    assert {one["verdict"] for one in selftest.run()["variants"]} == {"fail"}
    with pytest.raises(verdicts.RefusedVariant, match="hipErrorIllegalAddress"):
        attention("rtz")


def test_verdicts_hold_for_one_code_object_and_device(monkeypatch):
    where = runtime.target(CPU)
    verdicts.store(where, {"attention_forward_rtz": {"verdict": "fail", "worst": "w"}})
    with pytest.raises(verdicts.RefusedVariant):
        attention("rtz")
    monkeypatch.setattr(verdicts, "code_object_hash", lambda architecture: "another")
    verdicts.forget()
    attention("rtz")


def test_unreadable_verdicts_refuse_nothing_and_are_logged(caplog):
    path = verdicts.store(runtime.target(CPU), {})
    for text in ("{", "[]", '{"schema": 99, "variants": {}}', '{"schema": 1, "variants": {"x": 3}}'):
        path.write_text(text)
        verdicts.forget()
        caplog.clear()
        attention("rtz")
        assert str(path) in caplog.text


def test_folder(monkeypatch, tmp_path):
    monkeypatch.setenv(verdicts.FOLDER_VARIABLE, str(tmp_path))
    assert verdicts.folder() == tmp_path
    monkeypatch.delenv(verdicts.FOLDER_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert verdicts.folder() == tmp_path / "x" / "liteattention_rocm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "h"))
    assert verdicts.folder() == tmp_path / "h" / ".cache" / "liteattention_rocm"


def test_the_file_is_read_once_per_process(monkeypatch):
    reads = []
    load = verdicts.load
    monkeypatch.setattr(verdicts, "load", lambda where: reads.append(where) or load(where))
    verdicts.forget()
    for _ in range(3):
        attention("rtz")
    assert len(reads) == 1


def test_no_rocm_device(capsys):
    assert cli.main(["selftest", "--device", "hip"]) == 1
    assert "no ROCm build" in capsys.readouterr().err
