"""Variant "aiter_exact" against AITER's own code objects bit for bit, and what "fast" owes beside them."""

import functools
import itertools

import pytest
import torch

import liteattention_rocm
from attention_cases import LAYOUTS, ROUNDINGS, GuardedOut, same_bits
from attention_cases import Case as Strided
from liteattention_rocm import _C, agreement, aiter_kernel, reference, runtime, simulator, verdicts
from liteattention_rocm.agreement import KINDS, Agreement, Case
from liteattention_rocm.checking import problems

FINITE = [kind for kind in KINDS if not kind.startswith("special")]
KERNELS = [f"attention_aiter_exact_{rounding}" for rounding in ROUNDINGS]


@functools.cache
def theirs(case: Case):
    """AITER's (out, lse)."""
    return aiter_kernel.forward(*case.inputs(), rounding=case.rounding, scale=case.scale, return_lse=True)


def ours(case: Case, variant: str):
    options = {"rounding": case.rounding, "scale": case.scale, "return_lse": True}
    return liteattention_rocm.attention(*case.inputs(), variant=variant, **options)


def compared(case: Case, variant: str = "aiter_exact") -> Agreement:
    return agreement.agreement(*ours(case, variant), *theirs(case))


def assert_identical(found: Agreement) -> None:
    assert (found.identical, found.identical_rows) == (found.elements, found.rows), found
    assert found.keeps_bars()


def of_kind(kind: str, rounding: str) -> Case:
    """Small where subnormals slow the simulator down."""
    return Case(kind, rounding, 40 if kind.startswith("subnormal") else 140, 101, heads=2, kv_heads=2)


# Bits


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_bits_are_aiters_for_every_kind_of_input(aiter, kind, rounding):
    found = compared(of_kind(kind, rounding))
    assert_identical(found)
    assert (found.special > 0) == kind.startswith("special")


@pytest.mark.parametrize(
    ("seqlen_q", "seqlen_kv"),
    [(1, 1), (31, 33), (129, 32), (257, 65), (140, 96), (40, 321), (33, 1), (150, 31), (64, 191)],
)
def test_bits_are_aiters_at_every_length(aiter, seqlen_q, seqlen_kv):
    """One and several tiles of 32 and of 64, an odd and an even number, part-filled ones of each."""
    for rounding in ROUNDINGS:
        case = Case("x4", rounding, seqlen_q, seqlen_kv, heads=2, kv_heads=1, seed=seqlen_q)
        assert_identical(compared(case))


@pytest.mark.parametrize("scale", [0.3, 1e-3, 7.0, 1e-41, 2e38])
def test_bits_are_aiters_at_other_scales(aiter, scale):
    """Above 1/log2(e) the lowest maximum moves; a subnormal scale counts as 0, and 0 · −Inf is NaN."""
    for seqlen_kv in (64, 70):
        found = compared(Case("N(0,1)", "rtz", 40, seqlen_kv, scale=scale))
        assert_identical(found)
        assert (found.special == found.elements) == (scale < 1e-38 and seqlen_kv == 70)


PATTERNS = (0x7F80, 0xFF80, 0x7FC0, 0xFFD5, 0x7F81, 0x7FFF)  # ±Inf, NaN quiet, negative, signalling, full


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_special_values_at_single_positions(aiter, name, rounding):
    case = Case("N(0,1)", rounding, 37, 101)
    q, k, v = case.inputs()
    found = Agreement()
    for pattern, row in itertools.product(PATTERNS, (0, 34)):
        inputs = {"q": q.clone(), "k": k.clone(), "v": v.clone()}
        inputs[name].view(torch.int16)[0, row, 0, 77] = pattern - (pattern >> 15 << 16)
        found += agreement.with_aiter(case, "aiter_exact", inputs.values())
    assert_identical(found)
    assert found.special > 0


def test_overflowing_scores(aiter):
    """Infinite scores of either sign in one row: NaN from several sources, whose order shows in rtz."""
    case = Case("N(0,1)", "rtz", 70, 77)
    q, k, v = case.inputs()
    found = agreement.with_aiter(case, "aiter_exact", (q * 2.0**63, k * 2.0**63, v))
    assert_identical(found)
    assert found.special == found.elements


def test_what_the_kinds_of_input_reach(aiter):
    """That each is what its name says, in AITER's own results."""
    flushed = theirs(of_kind("subnormal", "rtne"))[0]
    exact, _ = reference.attention(*of_kind("subnormal", "rtne").inputs())
    assert (exact.abs() < 2.0**-126).double().mean() > 0.5
    assert (flushed[exact.abs() < 0.9 * 2.0**-126] == 0).all()  # as bf16 they would not be 0
    low = theirs(of_kind("low logits", "rtne"))[1]
    assert low.min() > -2e6 and low.max() < -5e5
    ones = theirs(of_kind("constant V", "rtne"))[0]
    assert (ones == 1).all()
    spiky, _ = reference.per_head(*Case("spiky rows", "rtne", 140, 101).inputs(), "bshd", torch.float64)[:2]
    assert spiky.square().sum(-1).max() > 500 * spiky.square().sum(-1).median()


def test_the_comparison_finds_one_bit(aiter):
    """Of output, of a special value's place and sign, of lse."""
    case = Case("special Q and V", "rtz", 37, 101)
    out, lse = theirs(case)
    assert agreement.agreement(out, lse, out, lse).keeps_bars()
    finite = out.isfinite().flatten().nonzero().flatten()[7]
    infinite = out.isinf().flatten().nonzero().flatten()[0]

    def changed(at, mask):
        other = out.clone()
        other.view(torch.int16).flatten()[at] ^= mask
        return agreement.agreement(other, lse, out, lse)

    assert changed(finite, 1).identical == out.numel() - 1 and changed(finite, 1).beyond_one_ulp == 0
    assert changed(finite, 2).beyond_one_ulp == 1 and not changed(finite, 2).keeps_bars()
    assert changed(finite, 0x7F80).misplaced or changed(finite, 0x7F80).beyond_one_ulp
    for mask in (-0x8000, 1, 0x4000):  # another sign, NaN, finite
        assert changed(infinite, mask).misplaced == 1 and not changed(infinite, mask).keeps_bars()
    assert agreement.agreement(out, lse + 3e-5, out, lse).lse_excess > 1
    far = agreement.ordinal(torch.tensor([0x0001, 0x8001, 0x0000, 0x8000, 0x7F7F, 0xFF7F]))
    assert far.tolist() == [1, -1, 0, 0, 0x7F7F, -0x7F7F]


def test_other_arithmetic_is_told_apart(aiter):
    """The bars bite: the fast variant, one tile size and one rounding away, misses them."""
    found = compared(of_kind("N(0,1)", "rtz"), "fast")
    assert found.share < 0.9 and found.beyond_one_ulp > 100 and not found.keeps_bars()


@pytest.mark.full
def test_ten_million_elements(aiter, tmp_path, capsys):
    """By the command, in two parts: every bit is AITER's."""
    import json

    from liteattention_rocm import cli

    file = tmp_path / "counts.json"
    for elements in ("3000000", "10000000"):
        assert cli.main(["agree", "--elements", elements, "--resume", str(file), "--json"]) == 0
        total = json.loads(capsys.readouterr().out)["total"]
    assert total["identical"] == total["elements"] >= 10_000_000
    assert total["identical_rows"] == total["rows"] and total["special"] > 100_000


# The same bits in every legal order


@pytest.mark.parametrize("kernel", KERNELS)
def test_bits_do_not_depend_on_the_order(kernel):
    """Of loads, of the waves' turns, of workgroups, and of the machine's threads."""
    module = simulator.Module(_C.code_object("gfx942"))
    operands = problems.Operands.draw(problems.Problem(150, 229, heads=2, kv_heads=1))
    expected = problems.launch(module, kernel, operands)
    try:
        for delivery, threads in zip(problems.deliveries(4), ("1", "2", "3", "1", "2", "3"), strict=True):
            simulator.set_option("delivery", delivery)
            simulator.set_option("threads", threads)
            assert problems.launch(module, kernel, operands) == expected, delivery
    finally:
        simulator.set_option("delivery", "early")
        simulator.set_option("threads", runtime_threads())
    reversed_rows = problems.Operands.draw(problems.Problem(150, 229, heads=2, kv_heads=1))
    reversed_rows.q.copy_(operands.q.flip(2))  # heads in the other order: other workgroups
    problems.launch(module, kernel, reversed_rows)
    out, lse = reversed_rows.out.flip(2), reversed_rows.lse.flip(1)
    assert tuple(t.contiguous().view(torch.uint8).numpy().tobytes() for t in (out, lse)) == expected


def runtime_threads() -> str:
    import os

    return os.environ["LITEATTENTION_ROCM_SIM_THREADS"]


# What both variants owe


def check_bars(kind, rounding, variant):
    rows = 40 if kind.startswith("subnormal") else 200  # which take the simulator longer, and differ by far
    case = Case(kind, rounding, rows, 200, seed=3)
    out, lse = ours(case, variant)
    expected, expected_lse = reference.attention(*case.inputs())
    bar = 1.02 * reference.rmse(theirs(case)[0], expected)
    assert reference.rmse(out, expected) <= bar
    assert ((lse.double() - expected_lse).abs() <= agreement.lse_allowance(expected_lse)).all()
    return agreement.agreement(out, lse, *theirs(case))


# Shares of bit-identical elements of the fast variant in rtne and rtz, rounded down: P is rounded relative to
# a maximum of 64 rows instead of 32.
SHARES = {
    "N(0,1)": (0.8, 0.65),
    "x4": (0.98, 0.6),
    "x16": (0.99, 0.05),
    "spiky rows": (0.99, 0.45),
    "constant V": (1.0, 0.99),
    "low logits": (0.3, 0.0),
    "subnormal": (0.0, 0.0),
    "subnormal inputs": (0.0, 0.0),
}


@pytest.mark.parametrize("kind", FINITE)
def test_error_and_lse_of_the_fast_variant(aiter, kind, dense_kernel):
    for index, rounding in enumerate(("rtne", "rtz")):
        found = check_bars(kind, rounding, "fast")
        assert found.misplaced == 0 and found.lse_excess <= 1
        assert found.share >= SHARES[kind][index], found.share


@pytest.mark.parametrize("kind", FINITE)
def test_error_and_lse_of_the_exact_variant(aiter, kind):
    assert_identical(check_bars(kind, "rtz", "aiter_exact"))


# The argument


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_strides_groups_and_out(aiter, layout):
    case = Strided(70, 130, "rtna", layout, batch=2, heads=4, kv_heads=2)
    q, k, v = case.inputs()
    options = {"layout": layout, "rounding": "rtna", "return_lse": True}
    out, lse = liteattention_rocm.attention(q, k, v, variant="aiter_exact", **options)
    expected, expected_lse = aiter_kernel.forward(q, k, v, **options)
    assert same_bits(out, expected) and torch.equal(lse, expected_lse)
    guarded = GuardedOut(q.shape, gap=8)
    liteattention_rocm.attention(
        q, k, v, out=guarded.tensor, layout=layout, rounding="rtna", variant="aiter_exact"
    )
    assert same_bits(guarded.tensor, expected)
    guarded.check()
    for dim in range(3):
        expanded = [t.narrow(dim, 0, 1).expand_as(t) for t in (k, v)]
        got = liteattention_rocm.attention(q, *expanded, layout=layout, variant="aiter_exact")
        dense = [t.contiguous() for t in expanded]
        assert same_bits(got, liteattention_rocm.attention(q, *dense, layout=layout, variant="aiter_exact"))


def test_the_kernel_of_the_variant_runs(monkeypatch):
    q, k, v = Case("N(0,1)", "rtne", 5, 5).inputs()
    for forced in ("", "pingpong"):  # what is forced is the kernel of the fast variant
        monkeypatch.setattr(runtime, "forced_family", forced)
        for rounding in ROUNDINGS:
            simulator.reset_statistics()
            liteattention_rocm.attention(q, k, v, rounding=rounding, variant="aiter_exact")
            assert list(simulator.statistics()["kernels"]) == [f"attention_aiter_exact_{rounding}"]


@pytest.mark.parametrize("sizes", [(1, 12, 12, 32760, 32760), (1, 1, 1, 40, 60_000)])
def test_the_plan_never_splits_and_never_chooses_it(sizes):
    for compute_units in (304, 80, 1):
        assert _C.plan(*sizes, compute_units)["kernel"] in runtime.DENSE_FAMILIES
        for pieces in (0, 1, 3):
            plan = _C.plan(*sizes, compute_units, "aiter_exact", pieces)
            assert plan["grid"] == (-(-sizes[3] // 128), sizes[1], 1) and plan["block"] == (256, 1, 1)
            assert [launch["grid"] for launch in plan["launches"]] == [plan["grid"]]
            tiles, share = plan["kv_tiles"], plan["workgroups_per_compute_unit"]
            clocks = share // 2 * (7300 + 6340 * tiles) + share % 2 * (4000 + 4620 * tiles)
            assert plan["modelled_clocks"] == clocks


def test_operators_under_compilation():
    q, k, v = Case("N(0,1)", "rtne", 17, 33).inputs()
    options = {"variant": "aiter_exact", "return_lse": True}
    operators = torch.ops.liteattention_rocm
    quick = ("test_schema", "test_faketensor")
    torch.library.opcheck(operators.attention.default, (q, k, v), options, test_utils=quick)
    out = torch.empty_like(q)
    torch.library.opcheck(operators.attention_out.default, (q, k, v, out), options, test_utils=quick)
    torch.compiler.reset()
    compiled = torch.compile(liteattention_rocm.attention, fullgraph=True, backend="aot_eager")
    assert same_bits(
        compiled(q, k, v, variant="aiter_exact"), liteattention_rocm.attention(q, k, v, variant="aiter_exact")
    )
    with pytest.raises(ValueError, match="variant must be one of"):
        operators.attention(q, k, v, variant="exact")


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"variant": "exact"}, ValueError, "variant must be one of 'fast', 'aiter_exact', got 'exact'"),
        ({"variant": None}, TypeError, "variant must be a string, got None"),
        ({"variant": "aiter_exact", "scale": 0}, ValueError, "scale must be above 0 .* got 0.0"),
        ({"variant": "aiter_exact", "scale": -0.1}, ValueError, "scale must be above 0 .* got -0.1"),
    ],
)
def test_refusals_before_anything_is_launched(options, error, sentence):
    q, k, v = Case("N(0,1)", "rtne", 5, 5).inputs()
    simulator.reset_statistics()
    with pytest.raises(error, match=sentence):
        liteattention_rocm.attention(q, k, v, **options)
    assert simulator.statistics()["kernels"] == {}


def test_the_binding_refuses_what_the_kernel_has_no_meaning_for():
    hip, row = _C.open_hip(runtime.cpu_library()), (0, 0, 128)
    for scale in (0.0, -0.5):
        with pytest.raises(ValueError, match=r"scale is -?0\.[05]0*, allowed is a positive number"):
            _C.forward(
                hip, 0, "gfx942", 0, 16, 16, 16, 16, 0, 1, 1, 1, 4, 4, row, row, row, row, scale, 0, 0,
                "aiter_exact"
            )  # fmt: skip


@pytest.mark.parametrize("serving", ["reference", "triton"])
def test_other_kernels_refuse_the_variant(monkeypatch, serving):
    monkeypatch.setenv("LITEATTENTION_ROCM_KERNEL", serving)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    q, k, v = Case("N(0,1)", "rtne", 5, 5).inputs()
    with pytest.raises(RuntimeError, match=f"'aiter_exact' runs in the HIP code object only.*'{serving}'"):
        liteattention_rocm.attention(q, k, v, variant="aiter_exact")


def test_a_kernel_that_failed_the_self_test_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv(verdicts.FOLDER_VARIABLE, str(tmp_path))
    q, k, v = Case("N(0,1)", "rtne", 5, 5).inputs()
    where = runtime.target(q.device)
    try:
        verdicts.store(where, {"attention_aiter_exact_rtz": {"verdict": "fail", "worst": "bits"}})
        with pytest.raises(verdicts.RefusedVariant, match="attention_aiter_exact_rtz failed"):
            liteattention_rocm.attention(q, k, v, rounding="rtz", variant="aiter_exact")
        liteattention_rocm.attention(q, k, v, rounding="rtne", variant="aiter_exact")
        liteattention_rocm.attention(q, k, v, rounding="rtz")
    finally:
        verdicts.forget()


def test_the_command(aiter, tmp_path, capsys):
    from liteattention_rocm import cli

    file = tmp_path / "counts.json"
    for elements in ("1", "65537"):  # the second goes on behind the first part
        assert cli.main(["agree", "--elements", elements, "--resume", str(file)]) == 0
    first, second = capsys.readouterr().out.split("against", 2)[1:]
    assert "simulated, 1 problems" in first and "512 of 512 identical" in first
    assert "simulated, 2 problems" in second and "1,024 of 1,024 identical" in second
    assert "100.0000%" in second
    assert cli.main(["agree", "--variant", "fast", "--resume", str(file)]) == 1
    assert "counts of another variant" in capsys.readouterr().err
    assert cli.main(["agree", "--elements", "0"]) == 1
