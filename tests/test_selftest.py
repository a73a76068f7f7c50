"""The self-test: its cases, its record, its verdicts, and what a verdict does to later launches."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import liteattention_rocm
from liteattention_rocm import _C, cli, reference, runtime, selftest, simulator, verdicts
from liteattention_rocm.calibration.hip import Device
from liteattention_rocm.commands import selftest as selftest_command
from liteattention_rocm.lite import lists
from liteattention_rocm.selftest import facts, judging
from liteattention_rocm.selftest import variants as variants_module
from liteattention_rocm.selftest.cases import CASES, Case
from liteattention_rocm.selftest.variants import Result, Variant, variants

EXACT = [case for case in CASES if case.kind == "exact"]
BOUNDED = [case for case in CASES if case.kind == "bounded"]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv(verdicts.FOLDER_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(runtime, "forced_family", "forward")
    verdicts.forget()
    yield tmp_path / "cache"
    verdicts.forget()


@pytest.fixture
def few_cases(monkeypatch):
    """One case of each kind: the whole table is tested by `test_the_record_is_current`."""
    monkeypatch.setattr(variants_module, "CASES", (EXACT[0], BOUNDED[1]))


FORWARD, SKIP, PINGPONG, PINGPONG_SPLIT, SKIP_PINGPONG, SKIP_PINGPONG_SPLIT = SHIPPED = [
    variants()[f"attention_{name}_rtz"]
    for name in (
        "forward",
        "skip_forward",
        "pingpong",
        "pingpong_split",
        "skip_pingpong",
        "skip_pingpong_split",
    )
]


def integers(case: Case, variant: Variant = FORWARD):
    """Scores, P, V of an exact case in float64: [batch, heads, rows, …]."""
    scaled, v = judging.scores(case, variant)
    scores = (scaled / case.scale).round()
    assert (scores * case.scale - scaled).nan_to_num(0).abs().max() < 1e-12
    return scores, torch.exp2(scores - scores.amax(dim=-1, keepdim=True)), v


def exact(variant: Variant) -> list[Case]:
    return [case for case in variant.cases if case.kind == "exact"]


@pytest.mark.parametrize("variant", SHIPPED, ids=lambda one: one.family)
def test_exact_cases_are_exact(variant):
    assert [case.name for case in exact(variant)] == [case.name for case in EXACT]
    for case in exact(variant):
        scores, probabilities, v = integers(case, variant)
        assert scores.where(scores.isfinite(), 0).abs().max() < 126
        mantissa, _ = torch.frexp(probabilities.sum(dim=-1))
        assert (mantissa == 0.5).all(), "row sums are powers of two"
        # A row's products P·V are multiples of the least P; their magnitudes add up to less than 2^24 of it.
        least = probabilities.where(probabilities > 0, torch.inf).amin(dim=-1, keepdim=True)
        assert (((probabilities @ v.abs()) / least).max() < 2**24).item()
        maxima = torch.stack([tile.amax(dim=-1) for tile in scores.split(64, dim=-1)])
        if variant in (PINGPONG, SKIP_PINGPONG):
            assert (maxima[0] == 0).all() and (maxima <= 0).all(), "nothing is taken off a maximum of 0"
        elif variant is PINGPONG_SPLIT:
            assert (maxima == 0).all(), "nor in any piece, wherever it starts"
        elif len(maxima) > 2 and variant is FORWARD:
            # The maximum moves from one KV tile to another, so that earlier sums are rescaled.
            assert (maxima[0] < maxima[1:].amax(dim=0)).double().mean() > 0.1


@pytest.mark.parametrize("name", [name for name, one in variants().items() if one and one.family != "order"])
def test_exact_cases_have_the_right_bits(name):
    variant = variants()[name]
    for case in exact(variant):
        scores, probabilities, v = integers(case, variant)
        expected = (probabilities @ v) / probabilities.sum(dim=-1, keepdim=True)
        expected = reference.round_to_bfloat16(expected.float(), variant.rounding or "rtne")
        result = variant.execute(case, CPU)
        out = result.out if case.layout == "bhsd" else result.out.transpose(1, 2)
        assert torch.equal(out.contiguous().view(torch.int16), expected.contiguous().view(torch.int16))
        assert (result.lse - torch.logsumexp(scores * np.log(2), dim=-1)).abs().max() < 4e-6, case.name


def test_skipping_cases_skip_and_vote():
    skips, drops = False, False
    for case in CASES:
        kept = SKIP.kept(case)
        votes = lists.unpack(SKIP.execute(case, CPU).others[0], kept.shape[-1])
        assert kept.any(dim=-1).all() and votes.any()
        assert not (votes & ~kept).any(), "only what was visited can be voted for"
        skips |= not kept.all().item()
        drops |= bool((kept & ~votes).any())
    assert skips and drops


def test_lists_are_ordered_as_they_should_be(monkeypatch):
    """By an independent count and sort of the case's own lists."""
    order, given = variants()["attention_skip_order"], []
    skip_order = torch.ops.liteattention_rocm.skip_order
    monkeypatch.setattr(
        torch.ops.liteattention_rocm,
        "skip_order",
        lambda listed, merged: given.append(listed) or skip_order(listed, merged),
    )
    counts, tiles, *_ = order.execute(order.cases[0], CPU).others
    bits = np.unpackbits(given[0].numpy().view(np.uint8), axis=-1).sum(axis=-1)
    assert np.array_equal(counts.numpy(), bits) and len(np.unique(bits)) > 10
    ordered = np.take_along_axis(bits.astype(int), tiles.numpy().astype(int), axis=-1)
    assert (np.diff(ordered, axis=-1) <= 0).all()
    assert np.array_equal(np.sort(tiles.numpy(), axis=-1), np.broadcast_to(np.arange(45), (2, 3, 45)))


def test_rounding_modes_differ_in_exact_cases():
    families = ("forward", "pingpong", "aiter_exact", "skip_forward", "skip_pingpong", "forward_split")
    splits = ("pingpong_split", "merge", "skip_forward_split", "skip_pingpong_split")
    for family in (*families, *splits):
        entries = [judging.recorded()[f"attention_{family}_{mode}"] for mode in ("rtne", "rtna", "rtz")]
        for case in EXACT:
            assert len({entry[case.name]["sha256"] for entry in entries}) == 3, (family, case.name)


def test_the_kernel_that_is_named_runs(few_cases):
    for name, variant in variants().items():
        simulator.reset_statistics()
        variant.execute(variant.cases[0], CPU)
        ran = {name}
        if any(part in name for part in ("split", "merge", "pieces")):
            mode = variant.rounding or "rtne"
            skip = "skip_" if variant.skips else ""
            splitting = name if "split" in name else f"attention_{skip}forward_split_{mode}"
            ran = {splitting, f"attention_{skip}merge_{mode}"} | (
                {"attention_skip_pieces"} if skip else set()
            )
        assert set(simulator.statistics()["kernels"]) == ran


def test_inputs_never_change():
    digest = hashlib.sha256()
    for case in (*CASES, *exact(PINGPONG), *exact(PINGPONG_SPLIT)):
        for tensor in case.inputs():
            digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    # Torch, numpy and Python may change; a record and a device's answers must be of the same inputs.
    assert digest.hexdigest() == "26b57ef016a6f82ec80a42f505f9b0e899cae2a7ad531a9757a01f76931e8b0b"
    ordinary = BOUNDED[0].inputs()[0].double()
    assert ordinary.std() == pytest.approx(1, abs=0.02) and abs(ordinary.mean()) < 0.02


def test_the_record_is_current():
    fresh, committed = selftest.record(), json.loads(judging.RECORD.read_text())
    assert committed["schema"] == fresh["schema"]
    assert list(committed["variants"]) == list(fresh["variants"])
    for variant, cases in fresh["variants"].items():
        assert list(committed["variants"][variant]) == list(cases)
        for name, entry in cases.items():
            old = committed["variants"][variant][name]
            assert old.get("sha256") == entry.get("sha256"), (variant, name)
            # Matrix arithmetic may move the errors of ordinary cases, a little.
            for key in entry.keys() - {"sha256"}:
                assert old[key] == pytest.approx(entry[key], rel=0.1), (variant, name, key)


def test_every_kernel_has_a_case_or_says_so(few_cases, monkeypatch):
    assert list(variants()) == _C.kernel_names()
    assert None not in variants().values(), "a kernel lacks cases"
    monkeypatch.setattr(
        variants_module._C, "kernel_names", lambda: ["attention_forward_rtz", "attention_new"]
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
    judged = {
        case["judged"] for one in report["variants"] for case in one["cases"] if case["name"] != "lists"
    }
    assert judged == {"bounds"}
    assert all(one["verdict"] == "pass" for one in report["variants"])


def perturbed(case: Case, rounding: str) -> Result:
    """The kernel's arithmetic with every v_exp off by up to an ulp in either direction."""
    exp2, generator = torch.exp2, torch.Generator().manual_seed(5)

    def near(x):
        value = exp2(x)
        toward = torch.where(torch.rand(x.shape, generator=generator) < 0.5, 0.0, torch.inf)
        return torch.nextafter(value, toward)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "exp2", near)
        q, k, v = case.inputs()
        return Result(*reference.replica(q, k, v, scale=case.scale, layout=case.layout, rounding=rounding))


@pytest.mark.parametrize("rounding", ["rtne", "rtz"])
@pytest.mark.parametrize("case", BOUNDED, ids=lambda case: case.name)
def test_bounds_admit_other_last_bits_and_nothing_coarser(case, rounding):
    variant = variants()[f"attention_forward_{rounding}"]
    recorded = judging.recorded()[variant.name][case.name]
    simulated = variant.execute(case, CPU)
    passed, text, _ = judging.judge(case, variant, recorded, perturbed(case, rounding), False, simulated)
    assert passed, text
    # One element of 25,000 and more, three bfloat16 ulps off.
    wrong = Result(simulated.out.clone(), simulated.lse)
    index = wrong.out.abs().argmax()
    wrong.out.view(-1)[index] *= 1 + 3 / 128
    assert not judging.judge(case, variant, recorded, wrong, False, simulated)[0]
    for lse in (simulated.lse + 1e-5, torch.where(simulated.lse > 5, torch.nan, simulated.lse)):
        if not torch.equal(lse, simulated.lse):
            wrong = Result(simulated.out, lse)
            assert not judging.judge(case, variant, recorded, wrong, False, simulated)[0]


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
    environment = {**os.environ, runtime.FAMILY_VARIABLE: "forward"}
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert other.returncode == 1 and "RefusedVariant: kernel attention_forward_rtna" in other.stderr
    assert cli.main(["doctor"]) == 1
    assert "PROBLEM        cpu: attention_forward_rtna failed the self-test" in capsys.readouterr().out

    assert cli.main(["selftest", "--device", "simulator", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {one["verdict"] for one in report["variants"]} == {"pass"} and report["simulated"] is True
    attention("rtna")


def test_another_family_takes_over_until_all_are_refused(monkeypatch):
    monkeypatch.setattr(runtime, "forced_family", "")
    where, failed = runtime.target(CPU), {"verdict": "fail", "worst": "w"}
    simulator.reset_statistics()
    attention("rtna")
    (planned,) = simulator.statistics()["kernels"]
    verdicts.store(where, {planned: failed})
    simulator.reset_statistics()
    attention("rtna")
    (other,) = simulator.statistics()["kernels"]
    assert {planned, other} == {"attention_forward_rtna", "attention_pingpong_rtna"}
    liteattention_rocm.prepare("cpu", rounding="rtna")
    verdicts.store(where, {planned: failed, other: failed})
    with pytest.raises(verdicts.RefusedVariant, match=planned):
        attention("rtna")
    with pytest.raises(RuntimeError, match="rtna"):
        liteattention_rocm.prepare("cpu", rounding="rtna")
    liteattention_rocm.prepare("cpu", rounding="rtne")
    liteattention_rocm.prepare("cpu")
    attention("rtz")


def test_skipping_kernels_are_refused_too():
    failed = {"verdict": "fail", "worst": "w"}
    where, layer = runtime.target(CPU), liteattention_rocm.LiteAttention(rounding="rtz")
    q = torch.ones(1, 3, 1, 128, dtype=torch.bfloat16)
    for name in ("attention_skip_forward_rtz", "attention_skip_order"):
        layer(q, q, q)
        verdicts.store(where, {name: failed})
        with pytest.raises(verdicts.RefusedVariant, match=name):
            layer(q, q, q)
        verdicts.store(where, {})


def test_other_kernels_never_stand_in(few_cases, monkeypatch):
    """What serves attention otherwise says nothing about the code object."""
    monkeypatch.setenv("LITEATTENTION_ROCM_KERNEL", "reference")
    simulator.reset_statistics()
    variants()["attention_pingpong_rtz"].execute(EXACT[1], CPU)
    assert list(simulator.statistics()["kernels"]) == ["attention_pingpong_rtz"]
    assert os.environ["LITEATTENTION_ROCM_KERNEL"] == "reference" and runtime.forced_family == "forward"


def test_a_crash_leaves_a_refusal(few_cases, monkeypatch):
    """A process may die with its kernel: what was begun and not judged is refused, what was stopped isn't."""
    states = []

    def watch(self, case, device):
        states.append(verdicts.load(runtime.target(CPU)))
        raise KeyboardInterrupt

    monkeypatch.setattr(Variant, "execute", watch)
    with pytest.raises(KeyboardInterrupt):
        selftest.run()
    assert states[0]["attention_forward_rtne"]["verdict"] == "unfinished"
    attention("rtne")  # Ctrl-C took it back
    verdicts.store(runtime.target(CPU), states[0])
    with pytest.raises(verdicts.RefusedVariant, match="did not finish"):
        attention("rtne")


def test_a_fault_is_a_failure(few_cases, monkeypatch):
    def fault(self, case, device):
        raise RuntimeError("hipErrorIllegalAddress")

    monkeypatch.setattr(Variant, "execute", fault)
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


@pytest.mark.parametrize("index", [-1, 2])
@pytest.mark.parametrize("command", ["selftest", "calibrate"])
def test_no_device_of_that_index(command, index, monkeypatch, capsys):
    monkeypatch.setattr(torch.version, "hip", "7.2.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert cli.main([command, "--device", "hip", "--index", str(index)]) == 1
    error = capsys.readouterr().err
    assert error == (
        f"liteattention-rocm {command}: --index counts the visible devices and must be below 2, got {index}\n"
    )
    options = SimpleNamespace(device=None, index=1)
    assert selftest_command.choose_device(options) == "cuda:1"


def test_verdicts_that_cannot_be_written_stop_nothing(few_cases, monkeypatch, tmp_path, capsys):
    """Every variant is judged, and the report says in a sentence that nothing is kept."""
    (tmp_path / "file").touch()
    monkeypatch.setenv(verdicts.FOLDER_VARIABLE, str(tmp_path / "file" / "x"))
    with simulator.checking("none", mutation=f"skip:{a_matrix_product('attention_forward_rtna'):#x}"):
        assert cli.main(["selftest", "--device", "simulator", "--json"]) == 1
        report = json.loads(capsys.readouterr().out)
    judged = {one["name"]: one["verdict"] for one in report["variants"]}
    assert list(judged) == _C.kernel_names() and set(judged.values()) == {"pass", "fail"}
    assert judged["attention_forward_rtna"] == "fail"
    assert report["file"] is None and f"let {verdicts.FOLDER_VARIABLE} name" in report["not_kept"]
    assert str(tmp_path / "file" / "x") in report["not_kept"]
    text = selftest_command.report_text(report)
    assert text.endswith(report["not_kept"]) and "refused on this device" not in text
    attention("rtna")


def test_no_home_directory():
    """`attention` runs where HOME is unset and the user has no entry that names one."""
    code = (
        "import os, pwd, torch\n"
        "def none(user): raise KeyError(user)\n"
        "pwd.getpwuid = none\n"
        "import liteattention_rocm as l\n"
        "from liteattention_rocm import verdicts\n"
        "t = torch.ones(1, 3, 1, 128, dtype=torch.bfloat16)\n"
        "l.attention(t, t, t)\n"
        "print(verdicts.folder())\n"
    )
    homes = ("HOME", "XDG_CACHE_HOME", verdicts.FOLDER_VARIABLE)
    environment = {name: value for name, value in os.environ.items() if name not in homes}
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert process.returncode == 0, process.stderr
    expected = Path(tempfile.gettempdir()) / f"liteattention_rocm-{os.getuid()}"
    assert process.stdout.strip() == str(expected)
