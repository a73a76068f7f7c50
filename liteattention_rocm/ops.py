"""The torch operators of `attention`: `liteattention_rocm::attention` with the log-sum-exp and
`attention_output` without make their output, `attention_out` and `attention_into` are given it.

They are defined with `torch.library.define` and `impl`: `custom_op` would add 10 µs to every call.
"""

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from . import arguments, dispatch, views
from .rounding import rounding_name

_OPTIONS = "float? scale=None, str layout='bshd', str rounding='rtne', str variant='fast'"
_INPUTS = "Tensor q, Tensor k, Tensor v"
_LSE = "bool return_lse=False"
FUNCTIONAL = "liteattention_rocm::attention"
OUTPUT = "liteattention_rocm::attention_output"
OUT = "liteattention_rocm::attention_out"
INTO = "liteattention_rocm::attention_into"

# Positional throughout: the dispatcher takes half a microsecond for each keyword, and torch.compile refuses a
# strided tensor as a keyword `out`.
torch.library.define(FUNCTIONAL, f"({_INPUTS}, {_OPTIONS}, {_LSE}) -> (Tensor out, Tensor lse)")
torch.library.define(OUTPUT, f"({_INPUTS}, {_OPTIONS}) -> Tensor")
torch.library.define(OUT, f"({_INPUTS}, Tensor(a!) out, {_OPTIONS}, {_LSE}) -> Tensor")
# An operator that must return a tensor would have to make one, which takes as long as all checks of `out`.
torch.library.define(INTO, f"({_INPUTS}, Tensor(a!) out, {_OPTIONS}) -> ()")


def attention(
    q, k, v, *, out=None, scale=None, layout="bshd", rounding="rtne", return_lse=False, variant="fast"
):
    """softmax(q kᵀ · scale) v, not causal, for inference.

    GPU tensors run on their device and the caller's current stream: on an MI300X in the HIP code object, on
    GPUs without one in a Triton kernel. CPU tensors run in the simulated MI300X, or in the HIP library that
    LITEATTENTION_ROCM_HIP_LIBRARY names. LITEATTENTION_ROCM_KERNEL (hip, triton, reference) forces a kernel.

    Args:
        q: bfloat16 [batch, seqlen_q, heads, 128] for layout "bshd", [batch, heads, seqlen_q, 128] for "bhsd".
        k, v: the same with seqlen_kv >= 1 rows and kv_heads heads; kv_heads divides heads, and query head h
            reads kv head h // (heads / kv_heads).
        out: tensor of q's shape that receives the result, any strides; overlaps neither itself nor an input.
        scale: softmax scale, a number that is finite in float32; None stands for 1/sqrt(128).
        layout: "bshd" or "bhsd".
        rounding: a `RoundMode` or its name; how probabilities and outputs become bfloat16.
        return_lse: also return the log-sum-exp of the scaled scores.
        variant: "fast", or "aiter_exact" for the bits of AITER's own kernel of that rounding mode: slower,
            in the HIP code object only, and for a scale above 0.

    Any strides are honoured. Views whose last dimension is contiguous, whose address is a multiple of 16
    bytes, whose strides are multiples of 8 elements and whose row stride is at most 16 MiB run as they are,
    expanded ones included; others are copied first.

    Returns:
        `out`, or a new contiguous tensor; with return_lse also the log-sum-exp, float32
        [batch, heads, seqlen_q], natural logarithm. seqlen_q = 0 or batch = 0 gives empty tensors.

    Raises:
        TypeError: an argument's type or dtype.
        ValueError: rank, head dim, layout, variant, device, sizes, an overlapping out, or an input that
            requires grad while grad mode is on.
        RuntimeError: a device that no kernel here serves, or none in this variant; an error of the HIP
            runtime.
    """
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        arguments.check_tensor_types(q=q, k=k, v=v)
    if not isinstance(return_lse, bool):
        raise TypeError(f"return_lse must be a bool, got {return_lse!r}")
    if not isinstance(rounding, str):
        rounding = rounding_name(rounding)
    if scale is not None:
        scale = arguments.check_scale(scale)
    if layout != "bshd":
        arguments.check_layout(layout)
    if variant != "fast":
        variant = arguments.check_variant(variant, arguments.check_scale(scale))
    try:
        if out is None and not return_lse:
            return _output(q, k, v, scale, layout, rounding, variant)
        if out is None:
            return _functional(q, k, v, scale, layout, rounding, variant, True)
        if not isinstance(out, Tensor):
            arguments.check_tensor_types(out=out)
        if return_lse:
            return out, _out(q, k, v, out, scale, layout, rounding, variant, True)
        _into(q, k, v, out, scale, layout, rounding, variant)
        return out
    except NotImplementedError:  # the dispatcher's, which has no operator for nested tensors
        arguments.check_tensor_types(q=q, k=k, v=v, **({} if out is None else {"out": out}))
        raise


_functional = torch.ops.liteattention_rocm.attention.default
_output = torch.ops.liteattention_rocm.attention_output.default
_out = torch.ops.liteattention_rocm.attention_out.default
_into = torch.ops.liteattention_rocm.attention_into.default


def _new_lse(q, sizes, return_lse):
    return q.new_empty(sizes.lse_shape() if return_lse else (0,), dtype=torch.float32)


@torch.library.impl(FUNCTIONAL, "default")
def _attention(q, k, v, scale=None, layout="bshd", rounding="rtne", variant="fast", return_lse=False):
    call = arguments.check_call(q, k, v, scale, layout, rounding, variant)
    kernel = dispatch.serving(q.device)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = _new_lse(q, call.sizes, return_lse)
    kernel.launch(call, q, k, v, out, lse)
    return out, lse


@torch.library.impl(OUTPUT, "default")
def _attention_output(q, k, v, scale=None, layout="bshd", rounding="rtne", variant="fast"):
    call = arguments.check_call(q, k, v, scale, layout, rounding, variant)
    kernel = dispatch.serving(q.device)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    kernel.launch(call, q, k, v, out, None)
    return out


def _check_place(call, q, k, v, out) -> bool:
    """Refuses an `out` that a call can't be written to; whether the kernel can address it."""
    kept = "out", out.shape, out.stride(), out.dtype, out.device, out.requires_grad
    answer = call.bound.get(kept)
    if answer is None:
        arguments.check_out(out, q, call.sizes, call.layout)
        if views.overlaps_itself(out):
            raise ValueError(f"out must not overlap itself, got strides {out.stride()}")
        extents = [views.extent(x)[1] for x in (q, k, v, out)]
        answer = *extents, views.strides_run(out, arguments.LAYOUTS[call.layout][2])
        if not out.requires_grad:  # which is refused or not as the grad mode says
            call.bound[kept] = answer
    q_bytes, k_bytes, v_bytes, out_bytes, runs = answer
    begin = out.data_ptr()
    end = begin + out_bytes
    if (
        ((first := q.data_ptr()) < end and begin < first + q_bytes)
        or ((first := k.data_ptr()) < end and begin < first + k_bytes)
        or ((first := v.data_ptr()) < end and begin < first + v_bytes)
    ):
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            if views.share_memory(out, tensor):
                raise ValueError(f"out must not overlap an input, but shares memory with {name}")
    return runs and begin % views.ALIGNMENT_BYTES == 0


def _launch_into(call, q, k, v, out, lse) -> None:
    """Launches a call whose output is given."""
    place = out if _check_place(call, q, k, v, out) else q.new_empty(out.shape)
    dispatch.serving(q.device).launch(call, q, k, v, place, lse)
    if place is out:
        increment_version(out)  # autograd may have kept it for a backward pass
    else:
        out.copy_(place)


@torch.library.impl(OUT, "default")
def _attention_out(
    q, k, v, out, scale=None, layout="bshd", rounding="rtne", variant="fast", return_lse=False
):
    call = arguments.check_call(q, k, v, scale, layout, rounding, variant)
    lse = _new_lse(q, call.sizes, return_lse)
    _launch_into(call, q, k, v, out, lse)
    return lse


@torch.library.impl(INTO, "default")
def _attention_into(q, k, v, out, scale=None, layout="bshd", rounding="rtne", variant="fast"):
    call = arguments.check_call(q, k, v, scale, layout, rounding, variant)
    _launch_into(call, q, k, v, out, None)


@torch.library.register_fake(FUNCTIONAL)
def _attention_fake(q, k, v, scale=None, layout="bshd", rounding="rtne", variant="fast", return_lse=False):
    _, scale = arguments.check_options(layout, rounding, scale)
    arguments.check_variant(variant, scale)
    sizes = arguments.check_inputs(q, k, v, layout)
    return q.new_empty(sizes.out_shape(layout)), _new_lse(q, sizes, return_lse)


@torch.library.register_fake(OUTPUT)
def _attention_output_fake(q, k, v, scale=None, layout="bshd", rounding="rtne", variant="fast"):
    _, scale = arguments.check_options(layout, rounding, scale)
    arguments.check_variant(variant, scale)
    return q.new_empty(arguments.check_inputs(q, k, v, layout).out_shape(layout))


def _check_fakes_out(q, k, v, out, scale, layout, rounding, variant) -> arguments.Sizes:
    _, scale = arguments.check_options(layout, rounding, scale)
    arguments.check_variant(variant, scale)
    sizes = arguments.check_inputs(q, k, v, layout)
    arguments.check_out(out, q, sizes, layout)
    return sizes


@torch.library.register_fake(OUT)
def _attention_out_fake(
    q, k, v, out, scale=None, layout="bshd", rounding="rtne", variant="fast", return_lse=False
):
    return _new_lse(q, _check_fakes_out(q, k, v, out, scale, layout, rounding, variant), return_lse)


@torch.library.register_fake(INTO)
def _attention_into_fake(q, k, v, out, scale=None, layout="bshd", rounding="rtne", variant="fast"):
    _check_fakes_out(q, k, v, out, scale, layout, rounding, variant)
