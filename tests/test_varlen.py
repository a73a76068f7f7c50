"""`liteattention_rocm.attention_varlen`: packed sequences against the same sequences one by one."""

import itertools

import pytest
import torch

import liteattention_rocm
from liteattention_rocm import arguments, runtime, simulator
from simulated_hip import ALLOWED_DURING_CAPTURE

OPERATOR = torch.ops.liteattention_rocm.attention_varlen
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 128
# Lengths of the queries and of the keys: below, at and beyond a tile; without queries, without keys, without
# either; one and several query tiles.
QUERIES = (5, 150, 0, 33, 0, 1, 128)
KEYS = (70, 129, 3, 0, 0, 1, 64)


@pytest.fixture(autouse=True)
def same_kernel(monkeypatch):
    """The dense kernel whose bits these are."""
    monkeypatch.setattr(runtime, "forced_family", "forward")


def cumulative(lengths):
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)


def packed(queries=QUERIES, keys=KEYS, heads=HEADS, kv_heads=KV_HEADS):
    """The positional arguments of a call."""
    q = torch.randn(sum(queries), heads, HEAD_DIM).to(torch.bfloat16)
    k, v = torch.randn(2, sum(keys), kv_heads, HEAD_DIM).to(torch.bfloat16)
    return q, k, v, cumulative(queries), cumulative(keys), max(queries), max(keys)


def one_by_one(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, **options):
    """out and lse, each sequence in a call of its own."""
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    lse = torch.full((q.shape[1], q.shape[0]), -torch.inf)
    rows = zip(*(itertools.pairwise(t.tolist()) for t in (cu_seqlens_q, cu_seqlens_k)), strict=True)
    for (begin, end), (kv_begin, kv_end) in rows:
        if end > begin and kv_end > kv_begin:
            parts = q[None, begin:end], k[None, kv_begin:kv_end], v[None, kv_begin:kv_end]
            result, log_sum = liteattention_rocm.attention(*parts, return_lse=True, **options)
            out[begin:end], lse[:, begin:end] = result[0], log_sum[0]
    return out, lse


def check_same(results, expected):
    """The same bits of out; of lse, two kernels may contract m·scale + ln(sum) to either multiply-add."""
    (out, lse), (expected_out, expected_lse) = results, expected
    assert torch.equal(out.contiguous().view(torch.int16), expected_out.contiguous().view(torch.int16))
    torch.testing.assert_close(lse, expected_lse, rtol=3e-7, atol=1e-6)


@pytest.mark.parametrize(("rounding", "scale"), [("rtne", None), ("rtna", 0.3), ("rtz", -0.07)])
def test_bits_of_the_sequences_by_themselves(rounding, scale):
    call, options = packed(), {"rounding": rounding, "scale": scale}
    results = liteattention_rocm.attention_varlen(*call, return_lse=True, **options)
    check_same(results, one_by_one(*call, **options))
    assert torch.equal(liteattention_rocm.attention_varlen(*call, **options), results[0])


def test_one_launch_whatever_the_sequences():
    call = packed()
    liteattention_rocm.attention_varlen(*call)
    simulator.reset_statistics()
    liteattention_rocm.attention_varlen(*call)
    statistics = simulator.statistics()
    assert {name: kernel["launches"] for name, kernel in statistics["kernels"].items()} == {
        "attention_varlen_rtne": 1
    }
    made = {name for name, count in statistics["hip_calls"].items() if count}
    assert made <= ALLOWED_DURING_CAPTURE


@pytest.mark.parametrize("heads", [(1, 1), (3, 3), (6, 2), (4, 1)])
def test_grouped_heads(heads):
    call = packed((40, 90), (65, 7), *heads)
    check_same(liteattention_rocm.attention_varlen(*call, return_lse=True), one_by_one(*call))


def test_strides_are_honoured():
    """A slice of a fused projection, rows in reverse order of heads, and what must be copied first."""
    q, k, v, *lengths = packed()
    expected = liteattention_rocm.attention_varlen(q, k, v, *lengths)
    fused = torch.stack((k, v), dim=1)
    assert torch.equal(liteattention_rocm.attention_varlen(q, *fused.unbind(1), *lengths), expected)
    by_head = [t.transpose(0, 1).contiguous().transpose(0, 1) for t in (q, k, v)]
    assert by_head[0].stride(1) != HEAD_DIM
    assert torch.equal(liteattention_rocm.attention_varlen(*by_head, *lengths), expected)
    apart = [torch.stack((t, t), dim=-1)[..., 0] for t in (q, k, v)]
    assert torch.equal(liteattention_rocm.attention_varlen(*apart, *lengths), expected)


def test_sequences_do_not_see_each_other():
    q, k, v, *lengths = packed((64, 64), (64, 64))
    before = liteattention_rocm.attention_varlen(q, k, v, *lengths)
    k[64:], v[64:], q[64:] = float("nan"), float("inf"), float("nan")
    after = liteattention_rocm.attention_varlen(q, k, v, *lengths)
    assert torch.equal(after[:64], before[:64]) and after[64:].isnan().all()


def test_equal_lengths_are_a_batch():
    q, k, v, *lengths = packed((96,) * 3, (80,) * 3, 2, 2)
    batch = [t.unflatten(0, (3, -1)) for t in (q, k, v)]
    out, lse = liteattention_rocm.attention(*batch, return_lse=True)
    packed_out, packed_lse = liteattention_rocm.attention_varlen(q, k, v, *lengths, return_lse=True)
    check_same((packed_out, packed_lse), (out.flatten(0, 1), lse.transpose(0, 1).flatten(1)))


def test_nothing_to_do():
    q, k, v, *lengths = packed((0, 0), (3, 4))
    out, lse = liteattention_rocm.attention_varlen(q, k, v, *lengths, return_lse=True)
    assert out.shape == (0, HEADS, HEAD_DIM) and lse.shape == (HEADS, 0)
    q, k, v, *lengths = packed((3, 4), (0, 0))
    out, lse = liteattention_rocm.attention_varlen(q, k, v, *lengths, return_lse=True)
    assert out.eq(0).all() and lse.eq(-torch.inf).all()


def test_lengths_that_only_the_device_knows_stay_within_the_tensors():
    """What a GPU gets unchecked, given to the kernel: every access is in registered memory."""
    from liteattention_rocm import varlen

    q, k, v, *_ = packed((100,), (100,), 1, 1)
    target = runtime.target(q.device)
    sizes = arguments.Sizes(1, 1, 1, 100, 100)
    for wild_q, wild_k in (
        ([0, 10**6], [0, 10**9]),
        ([-5, 40], [-70, 50]),
        ([90, 10], [0, 100]),
        ([0, 100], [80, 7]),
    ):
        bounds = {"cu_seqlens_q": wild_q, "cu_seqlens_k": wild_k}
        bounds = {name: torch.tensor(values, dtype=torch.int32) for name, values in bounds.items()}
        out, lse = torch.empty_like(q), torch.empty(1, 100)
        varlen._launch(target, q, k, v, out, lse, bounds, sizes, 100, 0.1, "rtne")


def replaced(index, value):
    call = list(packed())
    call[index] = value(call[index]) if callable(value) else value
    return call


@pytest.mark.parametrize(
    ("index", "value", "error", "message"),
    [
        (0, lambda q: q[None], ValueError, r"q must have 3 dimensions \[total, heads, 128\]"),
        (0, lambda q: q.float(), TypeError, r"q must have dtype torch\.bfloat16, got torch\.float32"),
        (1, lambda k: k[..., :64], ValueError, r"k must have head dim 128 .* got 64"),
        (1, lambda k: k[:, :1].expand(-1, 3, -1), ValueError, r"v must have the rows and heads of k"),
        (2, lambda v: v[1:], ValueError, r"v must have the rows and heads of k \(267, 2\), got \(266, 2\)"),
        (2, lambda v: v.to("meta"), ValueError, r"v must be on the device of q"),
        (2, [1.0], TypeError, r"v must be a torch\.Tensor, got list"),
        (3, lambda c: c.long(), TypeError, r"cu_seqlens_q must have dtype torch\.int32, got torch\.int64"),
        (3, lambda c: c[:1], ValueError, r"cu_seqlens_q must have shape \[sequences \+ 1\]"),
        (
            4,
            lambda c: c[:-1],
            ValueError,
            r"cu_seqlens_k must have as many entries as cu_seqlens_q \(8\), got 7",
        ),
        (4, lambda c: c.to("meta"), ValueError, r"cu_seqlens_k must be on the device of q"),
        (5, 149, ValueError, r"cu_seqlens_q\[1:3\] must step by 0 to the largest length of 149, got 5, 155"),
        (5, 318, ValueError, r"max_seqlen_q must be from 0 to the total of 317 rows, got 318"),
        (6, -1, ValueError, r"max_seqlen_k must be from 0 to the total of 267 rows, got -1"),
        (6, 1.0, TypeError, r"max_seqlen_k must be an int, got 1\.0 \(float\)"),
        (
            3,
            lambda c: c + 1,
            ValueError,
            r"cu_seqlens_q must run from 0 to the total of 317 rows, got 1 to 318",
        ),
        (4, lambda c: c.flip(0), ValueError, r"cu_seqlens_k must run from 0 to .* got 267 to 0"),
    ],
)
def test_bad_arguments_are_named(index, value, error, message):
    with pytest.raises(error, match=message):
        liteattention_rocm.attention_varlen(*replaced(index, value))


def test_options_are_checked():
    for options, error in (
        ({"rounding": "up"}, ValueError),
        ({"scale": "1"}, TypeError),
        ({"return_lse": 1}, TypeError),
    ):
        with pytest.raises(error):
            liteattention_rocm.attention_varlen(*packed(), **options)
    q, *rest = packed()
    with pytest.raises(ValueError, match="q requires grad"):
        liteattention_rocm.attention_varlen(q.float().requires_grad_().to(torch.bfloat16), *rest)
    with pytest.raises(ValueError, match=r"heads of k \(3\) must divide the heads of q \(4\)"):
        liteattention_rocm.attention_varlen(*packed((4,), (4,), 4, 3))


def test_operator_passes_torchs_checks():
    for options in ({}, {"rounding": "rtz", "scale": 0.2, "return_lse": True}):
        torch.library.opcheck(OPERATOR, packed((9, 20), (33, 5)), options)


def test_compiled_in_one_graph_for_any_lengths():
    def model(q, k, v, *lengths):
        out, lse = liteattention_rocm.attention_varlen(q * 2, k, v, *lengths, rounding="rtz", return_lse=True)
        return out + 1, lse

    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    for queries, keys in (((9, 20), (33, 5)), ((40, 1), (7, 65))):
        call = packed(queries, keys)
        for got, expected in zip(compiled(*call), model(*call), strict=True):
            assert torch.equal(got, expected)


def test_the_reference_agrees(monkeypatch):
    call = packed()
    ours, log_sum = liteattention_rocm.attention_varlen(*call, return_lse=True)
    monkeypatch.setenv("LITEATTENTION_ROCM_KERNEL", "reference")
    simulator.reset_statistics()
    out, lse = liteattention_rocm.attention_varlen(*call, return_lse=True)
    assert simulator.statistics()["kernels"] == {}
    assert torch.allclose(ours.float(), out.float(), atol=2e-2)
    assert torch.allclose(log_sum, lse, atol=1e-5)


def test_triton_serves_no_packed_sequences(monkeypatch):
    from liteattention_rocm import dispatch

    monkeypatch.setattr(dispatch, "serving", lambda device: dispatch.Triton("sm_90"))
    with pytest.raises(RuntimeError, match="packed sequences run in the HIP code object alone"):
        liteattention_rocm.attention_varlen(*packed())


def test_a_refused_kernel_is_not_launched(monkeypatch):
    from liteattention_rocm import verdicts

    monkeypatch.setattr(
        verdicts, "refused", lambda where: {"attention_varlen_rtne": {"verdict": "fail", "worst": "x"}}
    )
    with pytest.raises(verdicts.RefusedVariant, match="attention_varlen_rtne"):
        liteattention_rocm.attention_varlen(*packed())
