"""The torch operators: opcheck, torch.compile, fakes, empty tensors, outputs, preparation."""

import shutil

import pytest
import torch

import liteattention_rocm
from attention_cases import LAYOUTS, Case, GuardedOut, same_bits
from liteattention_rocm import simulator

OPERATORS = torch.ops.liteattention_rocm
OPTIONS = [
    {},
    {"return_lse": True, "scale": 0.2, "rounding": "rtz"},
    {"layout": "bhsd", "return_lse": True},
]


@pytest.fixture(autouse=True)
def _nothing_compiled_before():
    torch.compiler.reset()


def inputs(options, **sizes):
    """q with strides that are not those of the result."""
    q, k, v = Case(17, 33, layout=options.get("layout", "bshd"), **sizes).inputs()
    return q.transpose(1, 2).contiguous().transpose(1, 2), k, v


@pytest.mark.parametrize("options", OPTIONS, ids=["default", "bshd", "bhsd"])
def test_opcheck(options):
    torch.library.opcheck(OPERATORS.attention.default, inputs(options), options)


@pytest.mark.parametrize("options", OPTIONS, ids=["default", "bshd", "bhsd"])
def test_opcheck_of_the_out_form(options):
    q, k, v = inputs(options, heads=6)
    strided = torch.zeros(*q.shape[:3], 200, dtype=q.dtype)[..., :128]
    without_lse = {name: value for name, value in options.items() if name != "return_lse"}
    for out in (torch.empty_like(q), strided):
        torch.library.opcheck(OPERATORS.attention_out.default, (q, k, v, out), options)
        torch.library.opcheck(OPERATORS.attention_into.default, (q, k, v, out), without_lse)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_compile_fullgraph(layout, dynamic):
    def model(q, k, v, scale):
        out, lse = liteattention_rocm.attention(q * 2, k, v, scale=scale, layout=layout, return_lse=True)
        return out + 1, lse

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for seqlen, scale in ((17, None), (40, 0.1), (65, 0.2)):
        q, k, v = Case(seqlen, 33, layout=layout).inputs()
        arguments = (q.transpose(1, 2).contiguous().transpose(1, 2), k, v, scale)
        for got, expected in zip(compiled(*arguments), model(*arguments), strict=True):
            assert torch.equal(got, expected)
            assert got.stride() == expected.stride()


def test_compile_fullgraph_with_out():
    def model(q, k, v):
        out = torch.zeros_like(q)
        liteattention_rocm.attention(q, k, v, out=out, rounding=liteattention_rocm.RoundMode.rtz)
        return out * 2

    q, k, v = inputs({})
    assert torch.equal(torch.compile(model, fullgraph=True, backend="aot_eager")(q, k, v), model(q, k, v))


@pytest.mark.full
def test_compile_with_inductor():
    def model(q, k, v):
        out = torch.empty(q.shape, dtype=q.dtype)
        lse = liteattention_rocm.attention(q * 2, k, v, out=out, rounding="rtz", return_lse=True)[1]
        return out + liteattention_rocm.attention(q + 1, k, v), lse

    compiled = torch.compile(model, fullgraph=True)
    for seqlen in (17, 40, 65):
        q, k, v = Case(seqlen, 33).inputs()
        for got, expected in zip(compiled(q, k, v), model(q, k, v), strict=True):
            assert torch.equal(got, expected)


def test_compile_writes_into_the_callers_out():
    q, k, v = inputs({})
    out = GuardedOut(q.shape, gap=8)
    compiled = torch.compile(liteattention_rocm.attention, fullgraph=True, backend="aot_eager")
    compiled(q, k, v, out=out.tensor)
    assert same_bits(out.tensor, liteattention_rocm.attention(q, k, v))
    out.check()


@pytest.mark.parametrize("options", OPTIONS, ids=["default", "bshd", "bhsd"])
def test_fakes_have_the_real_shapes_and_strides(options):
    real = inputs(options)
    on_meta = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in real]
    for fake, actual in zip(
        OPERATORS.attention(*on_meta, **options), OPERATORS.attention(*real, **options), strict=True
    ):
        assert (fake.shape, fake.stride(), fake.dtype) == (actual.shape, actual.stride(), actual.dtype)


def test_fakes_refuse_what_the_operator_refuses():
    q, k, v = (t.to("meta") for t in inputs({}))
    with pytest.raises(TypeError, match=r"q must have dtype torch\.bfloat16"):
        OPERATORS.attention(q.float(), k, v)
    for operator in (OPERATORS.attention_out, OPERATORS.attention_into):
        with pytest.raises(ValueError, match="out must have shape"):
            operator(q, k, v, q[:1])


def test_lse_is_empty_unless_asked_for():
    q, k, v = inputs({})
    _, lse = OPERATORS.attention(q, k, v)
    assert lse.shape == (0,) and lse.dtype == torch.float32
    assert isinstance(liteattention_rocm.attention(q, k, v), torch.Tensor)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("batch", [0, 2])
def test_empty_output(layout, batch):
    case = Case(0, 33, layout=layout, batch=batch)
    q, k, v = (torch.zeros(case.shape(3, rows), dtype=torch.bfloat16) for rows in (0, 33, 33))
    out, lse = liteattention_rocm.attention(q, k, v, layout=layout, return_lse=True)
    assert out.shape == q.shape
    assert lse.shape == (batch, 3, 0)
    assert liteattention_rocm.attention(q, k, v, out=torch.empty_like(q), layout=layout).shape == q.shape


def test_out_is_returned():
    q, k, v = inputs({})
    out = torch.empty_like(q)
    assert liteattention_rocm.attention(q, k, v, out=out) is out
    returned, _ = liteattention_rocm.attention(q, k, v, out=out, return_lse=True)
    assert returned is out


@pytest.mark.parametrize(("layout", "other"), [("bshd", "bhsd"), ("bhsd", "bshd")])
def test_the_result_is_contiguous(layout, other):
    """Whatever the strides of q are."""
    transposed = (t.transpose(1, 2) for t in Case(9, 9, layout=layout).inputs())
    assert liteattention_rocm.attention(*transposed, layout=other).is_contiguous()


def test_inputs_are_left_as_they_were():
    originals = inputs({})
    copies = [t.clone() for t in originals]
    liteattention_rocm.attention(*copies)
    assert all(torch.equal(a, b) for a, b in zip(originals, copies, strict=True))


def test_prepare():
    liteattention_rocm.prepare("cpu")
    liteattention_rocm.prepare(torch.device("cpu"))
    with pytest.raises(ValueError, match="supported are"):
        liteattention_rocm.prepare("meta")


def test_another_hip_library_serves_cpu_tensors(monkeypatch, tmp_path):
    """LITEATTENTION_ROCM_HIP_LIBRARY names it, here a copy of the simulator; a missing one is an error."""
    q, k, v = inputs({})
    expected = liteattention_rocm.attention(q, k, v)
    copy = tmp_path / "another_hip.so"
    shutil.copy(simulator.path(), copy)
    simulator.reset_statistics()
    monkeypatch.setenv("LITEATTENTION_ROCM_HIP_LIBRARY", str(copy))
    assert same_bits(liteattention_rocm.attention(q, k, v), expected)
    assert simulator.statistics()["kernels"] == {}
    monkeypatch.setenv("LITEATTENTION_ROCM_HIP_LIBRARY", str(tmp_path / "missing.so"))
    with pytest.raises(RuntimeError, match=r"missing\.so"):
        liteattention_rocm.attention(q, k, v)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("return_lse", [True, False])
def test_autograd_notices_that_out_was_written(return_lse, aligned):
    """A tensor that a backward pass will read must not change behind autograd's back."""
    q, k, v = Case(17, 33).inputs()
    out = torch.ones(q.numel() + 1, dtype=q.dtype)[0 if aligned else 1 :][: q.numel()].view(q.shape)
    factor = torch.ones_like(q, requires_grad=True)
    product = factor * out
    liteattention_rocm.attention(q, k, v, out=out, return_lse=return_lse)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    with torch.inference_mode():
        liteattention_rocm.attention(q, k, v, out=torch.empty_like(q), return_lse=return_lse)
