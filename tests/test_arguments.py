"""Every refusal: before anything is launched, with the argument, its value and what is allowed."""

import math
import re

import pytest
import torch

import liteattention_rocm
from liteattention_rocm import RoundMode, runtime, views

SHAPE_Q, SHAPE_KV = (2, 5, 4, 128), (2, 7, 2, 128)


def tensor(shape, dtype=torch.bfloat16, **options):
    return torch.zeros(shape, dtype=dtype, **options)


def call(q=None, k=None, v=None, **options):
    q = tensor(SHAPE_Q) if q is None else q
    k = tensor(SHAPE_KV) if k is None else k
    v = tensor(SHAPE_KV) if v is None else v
    return liteattention_rocm.attention(q, k, v, **options)


@pytest.fixture
def no_launch(monkeypatch):
    """Fails the test when anything reaches the device."""

    def launched(*_):
        raise AssertionError("a launch was made")

    monkeypatch.setattr(runtime, "launch", launched)


REFUSALS = {
    "q of another type": ({"q": [1.0]}, TypeError, "q must be a torch.Tensor, got list"),
    "k of another type": ({"k": 3}, TypeError, "k must be a torch.Tensor, got int"),
    "v missing": ({"v": "v"}, TypeError, "v must be a torch.Tensor, got str"),
    "out of another type": ({"out": 1}, TypeError, "out must be a torch.Tensor, got int"),
    "q float32": (
        {"q": tensor(SHAPE_Q, torch.float32)},
        TypeError,
        "q must have dtype torch.bfloat16, got torch.float32",
    ),
    "k float16": (
        {"k": tensor(SHAPE_KV, torch.float16)},
        TypeError,
        "k must have dtype torch.bfloat16, got torch.float16",
    ),
    "v int16": (
        {"v": tensor(SHAPE_KV, torch.int16)},
        TypeError,
        "v must have dtype torch.bfloat16, got torch.int16",
    ),
    "q of rank 3": (
        {"q": tensor((5, 4, 128))},
        ValueError,
        "q must have 4 dimensions [batch, seqlen, heads, 128], got shape (5, 4, 128)",
    ),
    "k of rank 5": ({"k": tensor((1, 2, 7, 2, 128))}, ValueError, "k must have 4 dimensions"),
    "q of head dim 80": (
        {"q": tensor((2, 5, 4, 80))},
        ValueError,
        "q must have head dim 128 as its last dimension [batch, seqlen, heads, 128], got 80",
    ),
    "v of head dim 64": ({"v": tensor((2, 7, 2, 64))}, ValueError, "v must have head dim 128"),
    "rank in bhsd": ({"q": tensor((5, 128)), "layout": "bhsd"}, ValueError, "[batch, heads, seqlen, 128]"),
    "k on another device": (
        {"k": tensor(SHAPE_KV, device="meta")},
        ValueError,
        "k must be on the device of q (cpu), got meta",
    ),
    "v on another device": (
        {"v": tensor(SHAPE_KV, device="meta")},
        ValueError,
        "v must be on the device of q (cpu), got meta",
    ),
    "k of another batch": (
        {"k": tensor((3, 7, 2, 128))},
        ValueError,
        "k must have the batch size of q (2), got 3",
    ),
    "v of another batch": (
        {"v": tensor((1, 7, 2, 128))},
        ValueError,
        "v must have the batch size of q (2), got 1",
    ),
    "v of other heads": (
        {"v": tensor((2, 7, 4, 128))},
        ValueError,
        "v must have as many heads as k (2), got 4",
    ),
    "v of other rows": (
        {"v": tensor((2, 8, 2, 128))},
        ValueError,
        "v must have as many rows as k (7), got 8",
    ),
    "kv heads that do not divide": (
        {"k": tensor((2, 7, 3, 128)), "v": tensor((2, 7, 3, 128))},
        ValueError,
        "the heads of k (3) must divide the heads of q (4)",
    ),
    "more kv heads": (
        {"k": tensor((2, 7, 8, 128)), "v": tensor((2, 7, 8, 128))},
        ValueError,
        "the heads of k (8) must divide",
    ),
    "no heads": ({"q": tensor((2, 5, 0, 128))}, ValueError, "q must have at least one head, got 0"),
    "no kv heads": (
        {"k": tensor((2, 7, 0, 128)), "v": tensor((2, 7, 0, 128))},
        ValueError,
        "k must have at least one head, got 0",
    ),
    "no kv rows": (
        {"k": tensor((2, 0, 2, 128)), "v": tensor((2, 0, 2, 128))},
        ValueError,
        "k must have at least one row (seqlen_kv >= 1), got 0",
    ),
    "too many heads": (
        {"q": tensor((1, 1, 1, 128)).expand(2, 5, 65536, 128)},
        ValueError,
        "q must have at most 65535 heads, got 65536",
    ),
    "too many rows": (
        {"q": tensor((1, 1, 1, 128)).expand(2, 2**31, 4, 128)},
        ValueError,
        "q must have at most 2147483519 rows, got 2147483648",
    ),
    "unknown layout": ({"layout": "sbhd"}, ValueError, "layout must be one of 'bshd', 'bhsd', got 'sbhd'"),
    "layout of another type": (
        {"layout": None},
        ValueError,
        "layout must be one of 'bshd', 'bhsd', got None",
    ),
    "unknown rounding": (
        {"rounding": "rne"},
        ValueError,
        "rounding must be one of 'rtne', 'rtna', 'rtz', got 'rne'",
    ),
    "rounding by number": ({"rounding": 2}, TypeError, "rounding must be a RoundMode or its name, got 2"),
    "scale of another type": ({"scale": "1"}, TypeError, "scale must be a finite number or None, got '1'"),
    "scale a bool": ({"scale": True}, TypeError, "scale must be a finite number or None, got True"),
    "scale a tensor": ({"scale": torch.tensor(1.0)}, TypeError, "scale must be a finite number or None"),
    "scale NaN": (
        {"scale": math.nan},
        ValueError,
        "scale · log2(e) must be finite in float32, got scale=nan",
    ),
    "scale infinite": (
        {"scale": -math.inf},
        ValueError,
        "scale · log2(e) must be finite in float32, got scale=-inf",
    ),
    "scale beyond float32": ({"scale": 1e39}, ValueError, "finite in float32, got scale=1e+39"),
    "scale a huge int": ({"scale": 10**400}, ValueError, "finite in float32"),
    "return_lse of another type": ({"return_lse": 1}, TypeError, "return_lse must be a bool, got 1"),
    "q sparse": (
        {"q": tensor(SHAPE_Q).to_sparse()},
        ValueError,
        "q must be a dense strided tensor, got layout torch.sparse_coo",
    ),
    "k nested": (
        {"k": torch.nested.nested_tensor([tensor((7, 2, 128))] * 2)},
        ValueError,
        "k must be a dense strided tensor, got nested tensor",
    ),
    "out sparse": (
        {"out": tensor(SHAPE_Q).to_sparse()},
        ValueError,
        "out must be a dense strided tensor, got layout torch.sparse_coo",
    ),
    "q that requires grad": ({"q": tensor(SHAPE_Q, requires_grad=True)}, ValueError, "q requires grad"),
    "v that requires grad": ({"v": tensor(SHAPE_KV, requires_grad=True)}, ValueError, "v requires grad"),
    "out of another shape": (
        {"out": tensor((2, 4, 5, 128))},
        ValueError,
        "out must have shape (2, 5, 4, 128), got (2, 4, 5, 128)",
    ),
    "out of another rank": (
        {"out": tensor((2, 5, 512))},
        ValueError,
        "out must have shape (2, 5, 4, 128), got (2, 5, 512)",
    ),
    "out of another dtype": (
        {"out": tensor(SHAPE_Q, torch.float32)},
        TypeError,
        "out must have dtype torch.bfloat16, got torch.float32",
    ),
    "out on another device": (
        {"out": tensor(SHAPE_Q, device="meta")},
        ValueError,
        "out must be on the device of q (cpu), got meta",
    ),
    "out that requires grad": ({"out": tensor(SHAPE_Q, requires_grad=True)}, ValueError, "out requires grad"),
    "out expanded": (
        {"out": tensor((2, 1, 4, 128)).expand(SHAPE_Q)},
        ValueError,
        "out must not overlap itself",
    ),
    "out overlapping rows": (
        {"out": tensor(8192).as_strided(SHAPE_Q, (4096, 256, 64, 1))},
        ValueError,
        "out must not overlap itself",
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_refused(no_launch, refusal):
    options, error, sentence = refusal
    with pytest.raises(error, match=re.escape(sentence)):
        call(**options)


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_out_may_not_overlap_an_input(no_launch, name):
    memory = tensor(2 * 7 * 4 * 128 + 128)
    shape = SHAPE_Q if name == "q" else SHAPE_KV
    view = memory[: math.prod(shape)].view(shape)
    out = memory[128 : 128 + math.prod(SHAPE_Q)].view(SHAPE_Q)
    with pytest.raises(ValueError, match=f"out must not overlap an input, but shares memory with {name}"):
        call(**{name: view}, out=out)


def test_out_may_lie_between_the_rows_of_an_input():
    """A fused buffer: q, k, v and out are slices that interleave and share no element."""
    fused = torch.randn(1, 9, 4, 2, 128).bfloat16()
    q, k, v, out = fused.unbind(2)
    expected = liteattention_rocm.attention(q, k, v)
    assert liteattention_rocm.attention(q, k, v, out=out) is out
    assert torch.equal(out, expected)


@pytest.mark.parametrize("device", ["xla", "mps", "xpu"])
def test_other_kinds_of_device(device):
    with pytest.raises(
        ValueError, match=f"q is on device '{device}:0'; supported are .*gfx942.* and CPU tensors"
    ):
        runtime.target(torch.device(device, 0))


def test_grad_is_refused_by_the_operators_too(no_launch):
    q = tensor(SHAPE_Q, requires_grad=True)
    k = v = tensor(SHAPE_KV)
    operators = torch.ops.liteattention_rocm
    with pytest.raises(ValueError, match="q requires grad"):
        operators.attention(q, k, v)
    with pytest.raises(ValueError, match="q requires grad"):
        operators.attention_out(q, k, v, tensor(SHAPE_Q))
    with pytest.raises(ValueError, match="q requires grad"):
        operators.attention_into(q, k, v, tensor(SHAPE_Q))


def test_grad_is_ignored_where_grad_mode_is_off():
    q = tensor(SHAPE_Q, requires_grad=True)
    with torch.no_grad():
        assert not call(q).requires_grad
    with torch.inference_mode():
        assert call(q).shape == SHAPE_Q


def test_rounding_by_name_and_by_mode():
    q, k, v = (torch.randn(1, 4, 1, 128).bfloat16() for _ in range(3))
    for mode in RoundMode:
        named = liteattention_rocm.attention(q, k, v, rounding=mode.name)
        assert torch.equal(named, liteattention_rocm.attention(q, k, v, rounding=mode))


def test_the_modes_have_aiters_numbers():
    assert {mode.name: mode.value for mode in RoundMode} == {"rtne": 0, "rtna": 1, "rtz": 2}


@pytest.mark.parametrize(
    ("shape", "strides", "overlapping"),
    [
        ((2, 3, 4), (12, 4, 1), False),
        ((2, 3, 4), (1, 8, 2), False),  # permuted
        ((2, 3, 4), (100, 8, 2), False),  # with gaps
        ((2, 1, 4), (4, 0, 1), False),  # a stride that is never used
        ((2, 3, 4), (12, 0, 1), True),
        ((2, 3, 4), (4, 4, 1), True),
        ((2, 3, 4), (11, 4, 1), True),  # the last element of one block is the first of the next
        ((2, 0, 4), (0, 0, 0), False),
    ],
)
def test_overlaps_itself(shape, strides, overlapping):
    view = torch.zeros(400).as_strided(shape, strides)
    addresses = torch.arange(400).as_strided(shape, strides).flatten()
    assert (addresses.unique().numel() < addresses.numel()) == overlapping
    assert views.overlaps_itself(view) == overlapping


def test_share_memory_against_sets_of_addresses():
    """Never misses a shared element, and lets the slices of fused buffers pass."""
    memory = torch.arange(600)
    generator = torch.Generator().manual_seed(0)

    def view():
        size = [int(x) for x in torch.randint(1, 4, (3,), generator=generator)]
        stride = [int(x) for x in torch.randint(0, 30, (3,), generator=generator)]
        return memory.as_strided(size, stride, int(torch.randint(0, 60, (1,), generator=generator)))

    shared = 0
    for _ in range(3000):
        a, b = view(), view()
        if set(a.flatten().tolist()) & set(b.flatten().tolist()):
            shared += 1
            assert views.share_memory(a, b)
    assert shared > 500
    slices = memory[:480].view(5, 4, 6, 4).unbind(1)
    assert not any(views.share_memory(a, b) for a in slices for b in slices if a is not b)
    assert all(views.share_memory(a, a) for a in slices)


def test_extent_is_exact():
    view = torch.zeros(1000, dtype=torch.bfloat16)[8:].as_strided((2, 3, 4), (100, 10, 1), 8)
    assert views.extent(view) == (view.data_ptr(), 2 * (100 + 20 + 3 + 1))
    assert views.extent(view[:0])[1] == 0
