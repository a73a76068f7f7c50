"""The torch operators `liteattention_rocm::attention` and `liteattention_rocm::attention_out`."""

import torch

from . import arguments, dispatch, views

_OPTIONS = (
    "float? scale=None, str layout='bshd', str rounding='rtne', bool return_lse=False, str variant='fast'"
)
_INPUTS = "Tensor q, Tensor k, Tensor v"
FUNCTIONAL = "liteattention_rocm::attention"
OUT = "liteattention_rocm::attention_out"

torch.library.define(FUNCTIONAL, f"({_INPUTS}, *, {_OPTIONS}) -> (Tensor out, Tensor lse)")
# `out` is positional: torch.compile refuses a strided tensor as a keyword of that name.
torch.library.define(OUT, f"({_INPUTS}, Tensor(a!) out, *, {_OPTIONS}) -> Tensor")


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
    arguments.check_tensor_types(q=q, k=k, v=v)
    rounding, scale = arguments.check_options(layout, rounding, scale)
    if not isinstance(return_lse, bool):
        raise TypeError(f"return_lse must be a bool, got {return_lse!r}")
    arguments.check_variant(variant, scale)
    options = {
        "scale": scale,
        "layout": layout,
        "rounding": rounding,
        "return_lse": return_lse,
        "variant": variant,
    }
    if out is None:
        out, lse = torch.ops.liteattention_rocm.attention(q, k, v, **options)
    else:
        arguments.check_tensor_types(out=out)
        lse = torch.ops.liteattention_rocm.attention_out(q, k, v, out, **options)
    return (out, lse) if return_lse else out


def _new_lse(q, sizes, return_lse):
    return q.new_empty(sizes.lse_shape() if return_lse else (0,), dtype=torch.float32)


@torch.library.impl(FUNCTIONAL, "default")
def _attention(q, k, v, *, scale=None, layout="bshd", rounding="rtne", return_lse=False, variant="fast"):
    rounding, scale = arguments.check_options(layout, rounding, scale)
    arguments.check_variant(variant, scale)
    sizes = arguments.check_inputs(q, k, v, layout)
    kernel = dispatch.serving(q.device)
    out = q.new_empty(sizes.out_shape(layout))
    lse = _new_lse(q, sizes, return_lse)
    kernel.launch((q, k, v), out, lse, sizes, layout=layout, scale=scale, rounding=rounding, variant=variant)
    return out, lse


@torch.library.impl(OUT, "default")
def _attention_out(
    q, k, v, out, *, scale=None, layout="bshd", rounding="rtne", return_lse=False, variant="fast"
):
    rounding, scale = arguments.check_options(layout, rounding, scale)
    arguments.check_variant(variant, scale)
    sizes = arguments.check_inputs(q, k, v, layout)
    arguments.check_out(out, q, sizes, layout)
    if views.overlaps_itself(out):
        raise ValueError(f"out must not overlap itself, got strides {out.stride()}")
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if views.share_memory(out, tensor):
            raise ValueError(f"out must not overlap an input, but shares memory with {name}")
    kernel = dispatch.serving(q.device)
    lse = _new_lse(q, sizes, return_lse)
    place = out if views.runs_as_it_is(out, arguments.LAYOUTS[layout][2]) else q.new_empty(out.shape)
    kernel.launch(
        (q, k, v), place, lse, sizes, layout=layout, scale=scale, rounding=rounding, variant=variant
    )
    if place is not out:
        out.copy_(place)
    return lse


@torch.library.register_fake(FUNCTIONAL)
def _attention_fake(q, k, v, *, scale=None, layout="bshd", rounding="rtne", return_lse=False, variant="fast"):
    _, scale = arguments.check_options(layout, rounding, scale)
    arguments.check_variant(variant, scale)
    sizes = arguments.check_inputs(q, k, v, layout)
    return q.new_empty(sizes.out_shape(layout)), _new_lse(q, sizes, return_lse)


@torch.library.register_fake(OUT)
def _attention_out_fake(
    q, k, v, out, *, scale=None, layout="bshd", rounding="rtne", return_lse=False, variant="fast"
):
    _, scale = arguments.check_options(layout, rounding, scale)
    arguments.check_variant(variant, scale)
    sizes = arguments.check_inputs(q, k, v, layout)
    arguments.check_out(out, q, sizes, layout)
    return _new_lse(q, sizes, return_lse)
