"""The kernels that split KV and the merge, simulated: against the unsplit kernels and float64."""

import os

import pytest
import torch

import liteattention_rocm
from attention_cases import Case, GuardedOut, same_bits
from liteattention_rocm import _C, reference, runtime, simulator, verdicts

SIMULATOR_THREADS = os.environ["LITEATTENTION_ROCM_SIM_THREADS"]
INFINITY = float("inf")
# rtna differs from rtne in one instruction of each rounding.
ROUNDINGS = ["rtne", pytest.param("rtna", marks=pytest.mark.full), "rtz"]


@pytest.fixture(autouse=True)
def family(dense_kernel):
    return dense_kernel


def run(inputs, pieces, **options):
    """(out, lse) with every query block in so many pieces."""
    before, runtime.forced_pieces = runtime.forced_pieces, pieces
    try:
        return liteattention_rocm.attention(*inputs, return_lse=True, **options)
    finally:
        runtime.forced_pieces = before


def normal(seqlen_q=130, seqlen_kv=330, heads=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(1, rows, heads, 128, generator=generator).bfloat16()
        for rows in (seqlen_q, seqlen_kv, seqlen_kv)
    ]


def spiky():
    """Every row has one key far above the rest, in another piece from row to row."""
    q, k, v = normal(seed=1)
    k[0, ::29] = 6 * q[0, :12]
    return q, k, v


def huge_negative():
    """Logits of about −1e6, equal in halves of the sequence: other maxima from piece to piece."""
    q, k, v = normal(seed=2)
    q[:] = 256.0
    k[0, :200], k[0, 200:] = -350.0, -352.0
    return q, k, v


def scaled(factor):
    q, k, v = normal(seed=3)
    return q * factor, k * factor, v


INPUTS = {
    "normal": normal,
    "x2": lambda: scaled(2),
    "x4": lambda: scaled(4),
    "spiky": spiky,
    "huge negative": huge_negative,
    "few rows": lambda: normal(24, 193),
}


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", INPUTS)
def test_the_error_is_no_worse_than_unsplit(name, rounding):
    inputs = INPUTS[name]()
    expected, expected_lse = reference.attention(*inputs)
    whole, whole_lse = run(inputs, 1, rounding=rounding)
    bar = 1.02 * reference.rmse(whole, expected)
    lse_bar = 5e-6 + 2.0**-23 * expected_lse.abs().max()
    assert (whole_lse - expected_lse).abs().max() <= lse_bar
    for pieces in (2, 3, 6):
        out, lse = run(inputs, pieces, rounding=rounding)
        assert reference.rmse(out, expected) <= bar, pieces
        assert (lse - expected_lse).abs().max() <= lse_bar, pieces


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_every_layout(rounding):
    """Batches, heads that share K and V, strided V, either layout, guard zones around the output."""
    for layout, heads, kv_heads in (("bshd", 2, 1), ("bhsd", 3, 3)):
        case = Case(40, 131, rounding, layout, batch=2, heads=heads, kv_heads=kv_heads)
        out = GuardedOut(case.inputs()[0].shape, gap=8)
        _, lse = run(case.inputs(), 3, out=out.tensor, layout=layout, rounding=rounding)
        expected, expected_lse = reference.attention(*case.inputs(), layout=layout)
        replica, _ = reference.replica(*case.inputs(), layout=layout, rounding=rounding)
        assert reference.rmse(out.tensor, expected) <= 1.05 * reference.rmse(replica, expected)
        assert (lse - expected_lse).abs().max() <= 5e-6
        out.check()


def test_lse_is_not_written_unless_asked_for():
    inputs = normal(20, 140)
    wanted, _ = run(inputs, 2)
    runtime_pieces, runtime.forced_pieces = runtime.forced_pieces, 2
    try:
        assert same_bits(liteattention_rocm.attention(*inputs), wanted)
    finally:
        runtime.forced_pieces = runtime_pieces


@pytest.mark.parametrize("seqlen_kv", [65, 127, 128, 129, 191, 257])
def test_pieces_of_every_length(seqlen_kv):
    """Every number of pieces up to a KV tile each, a part-filled last tile in a piece of its own and not."""
    inputs = normal(17, seqlen_kv, seed=4)
    expected, _ = reference.attention(*inputs)
    bar = 1.02 * reference.rmse(run(inputs, 1)[0], expected)
    for pieces in range(2, -(-seqlen_kv // 64) + 1):
        assert reference.rmse(run(inputs, pieces)[0], expected) <= bar, pieces


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_exact_where_the_unsplit_kernels_are(rounding):
    """Constant V comes out as it is, also at equal logits of a million; a row that sees nothing is 0."""
    for q, k, v in (normal(), huge_negative()):
        out, _ = run((q, k, torch.ones_like(v)), 4, rounding=rounding)
        if rounding != "rtz":
            assert (out == 1).all()
        else:  # P is rounded toward zero in the sum of outputs alone
            assert ((out <= 1) & (out >= 1 - 2**-6)).all()
    q, k, v = (tensor.abs() for tensor in normal())
    k = torch.full_like(k, -INFINITY)
    out, lse = run((q, k, v), 3, rounding=rounding)
    assert (out == 0).all() and (lse == -INFINITY).all()


def test_pieces_that_see_nothing():
    """K rows of −Inf logits that fill whole pieces, the first, one between, or the last, weigh nothing."""
    q, k, v = (tensor.abs() for tensor in normal())
    for first, last in ((0, 128), (128, 256), (200, 330)):
        hidden = k.clone()
        hidden[:, first:last] = -INFINITY
        seen = torch.ones(330, dtype=torch.bool)
        seen[first:last] = False
        expected, expected_lse = reference.attention(q, k[:, seen], v[:, seen])
        whole, _ = run((q, hidden, v), 1)
        out, lse = run((q, hidden, v), 6)
        assert reference.rmse(out, expected) <= 1.02 * reference.rmse(whole, expected)
        assert (lse - expected_lse).abs().max() <= 5e-6


@pytest.mark.parametrize("value", [INFINITY, -INFINITY, float("nan")])
@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_inf_and_nan_land_where_the_unsplit_kernel_has_them(where, value):
    for row in (3, 100):
        inputs = dict(zip("qkv", normal(seed=5), strict=True))
        inputs[where][0, row, 0, 7] = value
        whole, whole_lse = run(inputs.values(), 1)
        out, lse = run(inputs.values(), 4)
        for ours, unsplit in ((out.float(), whole.float()), (lse, whole_lse)):
            assert torch.equal(ours.isnan(), unsplit.isnan())
            assert torch.equal(ours.isposinf(), unsplit.isposinf())
            assert torch.equal(ours.isneginf(), unsplit.isneginf())
        assert whole.isfinite().logical_not().any() or (where, value) == ("k", -INFINITY)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_the_same_bits_every_time(rounding):
    """Whatever the number of host threads, and whenever loads are delivered within their waits."""
    inputs = normal(200, 270, seed=6)
    runs = []
    try:
        for threads in (1, 2, 3):
            simulator.set_option("threads", threads)
            runs.append(run(inputs, 3, rounding=rounding))
    finally:
        simulator.set_option("threads", SIMULATOR_THREADS)
    for delivery in ("early", "late", "random:3"):
        with simulator.checking("all", delivery=delivery):
            runs.append(run(inputs, 3, rounding=rounding))
    for out, lse in runs[1:]:
        assert same_bits(out, runs[0][0]) and torch.equal(lse, runs[0][1])


@pytest.fixture
def small_device(monkeypatch, request, family):
    """A device of three compute units, and the plan's own choice of pieces within the family."""
    simulator.set_option("compute_units", 3)
    request.addfinalizer(lambda: simulator.set_option("compute_units", 304))
    monkeypatch.setattr(runtime, "forced_pieces", 0)
    verdicts.forget()


def test_the_plan_splits_the_last_round(small_device, family):
    """Whole blocks beside split ones in one launch, then the merge, as `_C.plan` says."""
    rows = {"forward": 128, "pingpong": 384}[family]
    blocks = {"forward": 7, "pingpong": 4}[family]
    q, k, v = normal(rows * blocks - 50, 1280, seed=7)
    plan = _C.plan(1, 1, 1, q.shape[1], 1280, 3, family, 0)
    assert plan["whole_blocks"] > 0 and plan["split_blocks"] == 1 and plan["pieces"] > 1
    simulator.reset_statistics()
    out, lse = liteattention_rocm.attention(q, k, v, return_lse=True)
    counted = simulator.statistics()["kernels"]
    assert {name: one["workgroups"] for name, one in counted.items()} == {
        f"attention_{launch['kernel']}_rtne": launch["grid"][0] for launch in plan["launches"]
    }
    whole, whole_lse = run((q, k, v), 1)
    expected, expected_lse = reference.attention(q, k, v)
    assert reference.rmse(out, expected) <= 1.02 * reference.rmse(whole, expected)
    assert (lse - expected_lse).abs().max() <= 5e-6
    # Blocks that are whole have the unsplit kernel's bits.
    first = plan["whole_blocks"] * rows
    assert same_bits(out[:, :first], whole[:, :first]) and torch.equal(
        lse[..., :first], whole_lse[..., :first]
    )
    assert not same_bits(out[:, first:], whole[:, first:])


def forward(inputs, **changes):
    """One call of the binding with pieces=2."""
    q, k, v = inputs
    out = torch.empty_like(q)
    target = runtime.target(torch.device("cpu"))
    call = {
        "hip": target.hip, "device": 0, "arch": "gfx942", "compute_units": 304,
        "query": q.data_ptr(), "key": k.data_ptr(), "value": v.data_ptr(), "out": out.data_ptr(), "lse": 0,
        "batch": 1, "heads": 1, "kv_heads": 1, "seqlen_q": q.shape[1], "seqlen_kv": k.shape[1],
        **{f"{name}_strides": (0, 128, 128) for name in ("query", "key", "value", "out")},
        "scale": 0.1, "rounding": 0, "stream": 0, "kernel": "forward", "pieces": 2, **changes,
    }  # fmt: skip
    _C.forward(**call)


def test_workspaces_that_are_refused():
    inputs = normal(20, 140)
    needed = _C.workspace_bytes(1, 1, 1, 20, 140, 304, "forward", 2)
    memory = torch.empty(needed + 16, dtype=torch.uint8)
    address = memory.data_ptr()
    with pytest.raises(ValueError, match=f"workspace is {needed - 1} bytes, allowed is at least {needed}"):
        forward(inputs, workspace=address, workspace_bytes=needed - 1)
    with pytest.raises(ValueError, match="workspace address is 0x0, allowed is a nonzero multiple of 16"):
        forward(inputs)
    with pytest.raises(ValueError, match=r"workspace address is .*, allowed is a nonzero multiple of 16"):
        forward(inputs, workspace=address + 8, workspace_bytes=needed)
    with pytest.raises(ValueError, match="pieces is -1, allowed are 0 to"):
        forward(inputs, pieces=-1)


def test_kernels_that_failed_the_self_test_do_not_split(monkeypatch, tmp_path, small_device, family):
    """A refused merge or splitting kernel makes the plan's split unsplit, and a forced one an error."""
    monkeypatch.setenv(verdicts.FOLDER_VARIABLE, str(tmp_path))
    where = runtime.target(torch.device("cpu"))
    for kernel in (f"{family}_split", "merge"):
        failed = {"verdict": verdicts.FAIL, "worst": "a test"}
        verdicts.store(where, {f"attention_{kernel}_rtz": failed})
        assert runtime.permitted_pieces(where, family, "rtz") == 1
        assert runtime.permitted_pieces(where, family, "rtne") == 0
        monkeypatch.setattr(runtime, "forced_pieces", 2)
        with pytest.raises(verdicts.RefusedVariant, match=f"attention_{kernel}_rtz failed"):
            runtime.permitted_pieces(where, family, "rtz")
        monkeypatch.setattr(runtime, "forced_pieces", 0)
    verdicts.forget()
