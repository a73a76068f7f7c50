"""Reports that concern values and places, in what computes attention beside the dense kernels: KV in pieces,
AITER's arithmetic, packed sequences, skip lists. By the report's number, as in test_user_reports.py.
"""

import math
from types import SimpleNamespace

import pytest
import torch

import hip_stub
import liteattention_rocm
from attention_cases import Case, same_bits
from liteattention_rocm import _C, dispatch, reference, runtime, verdicts
from liteattention_rocm.lite import lists
from test_user_reports import SPECIAL_VALUES, restrided, sparse_memory, with_bits

INFINITY = float("inf")


def in_pieces(family):
    def attend(q, k, v):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runtime, "forced_family", family)
            patch.setattr(runtime, "forced_pieces", 2)
            return liteattention_rocm.attention(q, k, v, return_lse=True)

    return attend


def aiter_exact(q, k, v):
    return liteattention_rocm.attention(q, k, v, return_lse=True, variant="aiter_exact")


def packed(q, k, v):
    """Batch entries as sequences."""
    ends = (torch.arange(q.shape[0] + 1, dtype=torch.int32) * t.shape[1] for t in (q, k))
    rows = (t.flatten(0, 1) for t in (q, k, v))
    out, lse = liteattention_rocm.attention_varlen(*rows, *ends, q.shape[1], k.shape[1], return_lse=True)
    return out.unflatten(0, q.shape[:2]), lse.unflatten(1, q.shape[:2]).transpose(0, 1)


def listing_every_tile(kernel):
    def attend(q, k, v):
        shape = q.shape[0], q.shape[2], lists.query_tiles(q.shape[1])
        read = lists.full(shape, lists.kv_tiles(k.shape[1]))
        options = {"threshold": -INFINITY, "backward": False, "return_lse": True, "kernel": kernel}
        return torch.ops.liteattention_rocm.attention_skip(q, k, v, read, torch.zeros_like(read), **options)

    return attend


OPERATORS = {
    "in pieces, forward": in_pieces("forward"),
    "in pieces, pingpong": in_pieces("pingpong"),
    "aiter_exact": aiter_exact,
    "packed": packed,
    "listed, forward": listing_every_tile("forward"),
    "listed, pingpong": listing_every_tile("pingpong"),
}


@pytest.fixture(params=OPERATORS.values(), ids=OPERATORS)
def attend(request):
    return request.param


def contiguous_inputs(*arguments, **options):
    return [t.contiguous() for t in Case(*arguments, **options).inputs()]


def test_row_01_strides_of_every_operator(attend):
    """Strides of q, k and v that run as they are, and some that are copied: the bits of contiguous inputs."""
    inputs = contiguous_inputs(40, 70, batch=1, heads=2, kv_heads=2)
    expected, expected_lse = attend(*inputs)
    for index in range(3):
        rows = inputs[index].shape[1]
        last_outermost = (0, 1, rows, 2 * rows)
        for strides in ((0, 128, rows * 128, 1), (0, 2 * 136, 136, 1), (0, 2 * 129, 129, 1), last_outermost):
            changed = list(inputs)
            changed[index] = restrided(inputs[index], strides)
            out, lse = attend(*changed)
            assert same_bits(out, expected), ("qkv"[index], strides)
            assert torch.equal(lse, expected_lse), ("qkv"[index], strides)


@pytest.mark.parametrize("far", ["rows", "heads"])
def test_row_02_offsets_beyond_32_bits_of_every_operator(attend, far):
    """Keys and values whose last rows, and queries and keys whose second head, lie beyond 2^31 elements."""
    inputs = contiguous_inputs(20, 290 if far == "rows" else 70, batch=1, heads=2, kv_heads=2)
    strides = (0, 2**23, 128, 1) if far == "rows" else (0, 128, 2**31 + 64, 1)
    changed = list(inputs)
    for index in (1, 2) if far == "rows" else (0, 1, 2):
        shape = inputs[index].shape
        last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        assert last > 2**31
        changed[index] = sparse_memory(last + 1).as_strided(shape, strides).copy_(inputs[index])
    (out, lse), (expected, expected_lse) = attend(*changed), attend(*inputs)
    assert same_bits(out, expected) and torch.equal(lse, expected_lse)


@pytest.mark.parametrize(("seqlen_q", "seqlen_kv"), [(1, 1), (1, 70), (70, 1)])
def test_row_04_single_rows_of_every_operator(attend, seqlen_q, seqlen_kv):
    q, k, v = Case(seqlen_q, seqlen_kv).inputs()
    out, lse = attend(q, k, v)
    expected, expected_lse = reference.attention(q, k, v)
    assert (out.double() - expected).abs().max() <= 2 * 2**-8 * v.double().abs().max()
    assert (lse.double() - expected_lse).abs().max() <= 5e-6


def test_row_05_empty_sequences_of_every_operator(attend):
    q, k, v = Case(4, 4).inputs()
    out, lse = attend(q[:, :0], k, v)
    assert out.shape == (2, 0, 3, 128) and lse.shape == (2, 3, 0)
    if attend is packed:
        out, lse = attend(q, k[:, :0], v[:, :0])
        assert (out == 0).all() and (lse == -INFINITY).all()
    else:
        with pytest.raises(ValueError, match=r"k must have at least one row \(seqlen_kv >= 1\), got 0"):
            attend(q, k[:, :0], v[:, :0])


@pytest.mark.parametrize("seqlen_kv", [1, 65, 200])
def test_row_06_very_negative_logits_of_every_operator(attend, seqlen_kv):
    """Equal logits of −1e6 over V = 1; AITER's own division may miss 1 by a step."""
    q = torch.full((1, 5, 2, 128), 62.5 * 128**0.5).bfloat16()
    k = torch.full((1, seqlen_kv, 2, 128), -125.0).bfloat16()
    out, lse = attend(q, k, torch.ones_like(k))
    assert ((out - 1).abs() <= (2**-7 if attend is aiter_exact else 0)).all()
    logit = (q[0, 0, 0].double() @ k[0, 0, 0].double()) * 128**-0.5
    assert torch.allclose(lse, (logit + math.log(seqlen_kv)).float(), rtol=2e-7, atol=0)


def test_row_07_ones_stay_ones_in_every_operator(attend):
    """AITER's own arithmetic, which makes 0.996 of it, is there for its bits."""
    q, k, _ = Case(16, 300, batch=1, heads=2, kv_heads=2).inputs()
    v = torch.ones_like(k)
    for seqlen_kv in (1, 2, 31, 33, 63, 65, 127, 191, 256, 300):
        out, _ = attend(q, k[:, :seqlen_kv], v[:, :seqlen_kv])
        assert ((out - 1).abs() <= (2**-7 if attend is aiter_exact else 0)).all(), seqlen_kv


@pytest.fixture
def new_tensors_hold_nan(monkeypatch):
    def poisoned(make):
        return lambda *arguments, **options: make(*arguments, **options).fill_(math.nan)

    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))
    new_empty = torch.Tensor.new_empty

    def new(tensor, *arguments, **options):
        made = new_empty(tensor, *arguments, **options)
        return made.fill_(math.nan) if made.is_floating_point() else made

    monkeypatch.setattr(torch.Tensor, "new_empty", new)


@pytest.mark.parametrize("seqlen_q", [1, 33, 129, 200])
def test_row_09_every_row_is_written_by_every_operator(attend, seqlen_q, new_tensors_hold_nan):
    """The simulator refuses stores outside out and lse."""
    q, k, v = Case(seqlen_q, 62).inputs()
    assert q.new_empty(3).isnan().all() and torch.empty_like(q).isnan().all()
    out, lse = attend(q, k, v)
    assert out.isfinite().all() and lse.isfinite().all()


@pytest.fixture
def recording(monkeypatch, tmp_path):
    """CPU tensors pretend to lie on a ROCm device whose HIP library records its calls and runs nothing."""
    stub = hip_stub.Stub(hip_stub.copy(tmp_path / "libhip.so"))
    rocm = dispatch.Hip(runtime.Target(_C.open_hip(str(stub.path)), 0, "gfx942", 304))
    _C.prepare(rocm.target.hip, 0, "gfx942", 304)
    monkeypatch.setattr(dispatch, "serving", lambda device: rocm)
    monkeypatch.setattr(verdicts, "refused", lambda where: {})  # would ask the device its name
    return stub


def dense(q, k, v):
    return liteattention_rocm.attention(q, k, v, return_lse=True)


def in_skip_order(q, k, v):
    return torch.ops.liteattention_rocm.skip_order(lists.full((2, 3, 5), 7), 3)


LAUNCHING = {**OPERATORS, "dense": dense, "order": in_skip_order}


@pytest.mark.parametrize("attend", LAUNCHING.values(), ids=LAUNCHING)
def test_row_10_the_callers_stream_of_every_operator(attend, recording, monkeypatch):
    """Every launch goes to the stream that is current, and no call does more than launch."""
    inputs = Case(40, 200).inputs()
    launches = {}
    for stream in (0x5000, 0x7F00DEADBEE0, 0, 0x5000):
        current = SimpleNamespace(cuda_stream=stream)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda index, current=current: current)
        recording.clear()
        attend(*inputs)
        assert set(recording.functions()) == {"hipGetDevice", "hipModuleLaunchKernel"}
        launches[stream] = [launch["kernel"] for launch in recording.launches()]
        assert {launch["stream"] for launch in recording.launches()} == {stream}
    assert len(set(map(tuple, launches.values()))) == 1 and launches[0]


def test_row_18_refused_by_every_operator(attend, recording):
    """Of q, k or v another dtype or head dim, or fewer rows or heads than the others have: no launch."""
    inputs = dict(zip("qkv", Case(4, 4, heads=4, kv_heads=4).inputs(), strict=True))
    changes = {"head dim": lambda t: t[..., :64]}
    for dtype in (torch.float32, torch.float16, torch.int16):
        changes[dtype] = lambda t, to=dtype: t.to(to)
    if attend is not packed:  # which folds the batch entries here
        changes["batch"] = lambda t: t[:1]
    for what, change in {**changes, "rows": lambda t: t[:, :2], "heads": lambda t: t[:, :, :3]}.items():
        for name in "v" if what in ("rows", "heads") else "qkv":
            recording.clear()
            with pytest.raises((TypeError, ValueError), match=r"^[qkv] must have "):
                attend(**inputs | {name: change(inputs[name])})
            assert recording.functions() == [], (what, name)


@pytest.mark.parametrize("family", ["forward", "pingpong"])
def test_row_11_no_call_keeps_its_workspace(family, recording, monkeypatch):
    """A workspace is torch's memory of the launch's stream, new in each call: two streams never share one."""
    made = []
    new_empty = torch.Tensor.new_empty

    def watched(tensor, *arguments, **options):
        made.append(new_empty(tensor, *arguments, **options))
        return made[-1]

    monkeypatch.setattr(torch.Tensor, "new_empty", watched)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: SimpleNamespace(cuda_stream=0x5000))
    inputs = Case(40, 200).inputs()
    for _ in range(3):
        in_pieces(family)(*inputs)
    workspaces = [tensor.data_ptr() for tensor in made if tensor.dtype == torch.uint8]
    used = [launch["arguments"]["partials"] for launch in recording.launches()]
    assert len(set(workspaces)) == 3 and used == [address for address in workspaces for _ in range(2)]


def test_row_14_the_layout_of_lse_of_every_operator(attend):
    q, k, v = Case(5, 70, heads=5, kv_heads=5).inputs()
    lse = attend(q, k, v)[1]
    assert lse.shape == (2, 5, 5) and lse.dtype == torch.float32
    assert (lse.double() - reference.attention(q, k, v)[1]).abs().max() <= 5e-6


def test_row_15_batch_entries_are_independent_in_every_operator(attend):
    q, k, v = Case(40, 70, batch=3, heads=2, kv_heads=2).inputs()
    out, lse = attend(q, k, v)
    order = [2, 0, 1]
    permuted, permuted_lse = attend(q[order], k[order], v[order])
    assert same_bits(permuted, out[order]) and torch.equal(permuted_lse, lse[order])
    for index in range(3):
        entry = slice(index, index + 1)
        assert same_bits(attend(q[entry], k[entry], v[entry])[0], out[entry])


def test_row_26_inf_and_nan_land_where_the_dense_kernels_do(attend, monkeypatch):
    monkeypatch.setattr(runtime, "forced_family", "forward")
    q, k, v = contiguous_inputs(40, 130, batch=1, heads=1, kv_heads=1)
    for name, index in (("q", (0, 33, 0, 5)), ("k", (0, 31, 0, 77)), ("k", (0, 129, 0, 77))):
        for pattern in list(SPECIAL_VALUES.values())[:3]:
            changed = {"q": q, "k": k, "v": v}
            changed[name] = with_bits(changed[name], index, pattern)
            inputs, where = changed.values(), (name, index, pattern)
            out, expected = attend(*inputs)[0], liteattention_rocm.attention(*inputs)
            assert torch.equal(out.isnan(), expected.isnan()), where
            assert torch.equal(out.isinf(), expected.isinf()), where
            finite = expected.isfinite()
            assert torch.allclose(out[finite].float(), expected[finite].float(), atol=2e-2), where
