"""The torch operator `liteattention_rocm::attention_varlen`: packed sequences of any lengths, one launch."""

import itertools

import torch

from . import _C, arguments, dispatch, reference, runtime, verdicts, views
from .rounding import ROUNDINGS

NAME = "liteattention_rocm::attention_varlen"

torch.library.define(
    NAME,
    "(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q, "
    "SymInt max_seqlen_k, *, float? scale=None, str rounding='rtne', bool return_lse=False) "
    "-> (Tensor out, Tensor lse)",
)


def attention_varlen(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    *,
    scale=None,
    rounding="rtne",
    return_lse=False,
):
    """`attention` within each of several sequences whose rows lie behind one another, for inference.

    Sequence i has the rows of q from cu_seqlens_q[i] up to cu_seqlens_q[i + 1], and those of k and v from
    cu_seqlens_k[i] up to cu_seqlens_k[i + 1]. All sequences are served by one launch on the caller's current
    stream, and nothing on the device is read by the host: the call can be captured in a graph, and a replay
    takes the lengths that the tensors hold by then.

    Args:
        q: bfloat16 [total_q, heads, 128].
        k, v: bfloat16 [total_k, kv_heads, 128]; kv_heads divides heads, and query head h reads kv head
            h // (heads / kv_heads).
        cu_seqlens_q, cu_seqlens_k: int32 [sequences + 1] on q's device, 1 to 65535 sequences, never falling,
            from 0 to total_q and total_k. On a GPU these values are not checked: rows that belong to no
            sequence are undefined then, and no memory outside the tensors is touched.
        max_seqlen_q: rows of q in the longest sequence; more rows of a sequence are undefined on a GPU.
        max_seqlen_k: rows of k in the longest sequence.
        scale, rounding: as of `attention`.
        return_lse: also return the log-sum-exp of the scaled scores.

    Strides are honoured as by `attention`.

    Returns:
        A contiguous tensor [total_q, heads, 128]; with return_lse also the log-sum-exp, float32
        [heads, total_q], natural logarithm. The queries of a sequence without keys get 0, and −inf.

    Raises:
        TypeError: an argument's type or dtype.
        ValueError: rank, head dim, device, sizes, an input that requires grad while grad mode is on; on CPU
            tensors also cumulative lengths that are none.
        RuntimeError: a device that no kernel here serves, or an error of the HIP runtime. Triton serves no
            packed sequences.
    """
    arguments.check_tensor_types(q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    rounding, scale = arguments.check_options("bshd", rounding, scale)
    if not isinstance(return_lse, bool):
        raise TypeError(f"return_lse must be a bool, got {return_lse!r}")
    lengths = {"max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k}
    arguments.check_packed(q, k, v, {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}, lengths)
    out, lse = torch.ops.liteattention_rocm.attention_varlen(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        scale=scale,
        rounding=rounding,
        return_lse=return_lse,
    )
    return (out, lse) if return_lse else out


def _outputs(q, return_lse):
    lse_shape = (q.shape[1], q.shape[0]) if return_lse else (0,)
    return q.new_empty(q.shape), q.new_empty(lse_shape, dtype=torch.float32)


@torch.library.impl(NAME, "default")
def _attention_varlen(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    *,
    scale=None,
    rounding="rtne",
    return_lse=False,
):
    rounding, scale = arguments.check_options("bshd", rounding, scale)
    cumulative = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    longest = {"max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k}
    sizes = arguments.check_packed(q, k, v, cumulative, longest)
    if q.device.type == "cpu":
        totals = (sizes.seqlen_q, sizes.seqlen_kv)
        for (name, tensor), total, most in zip(cumulative.items(), totals, longest.values(), strict=True):
            arguments.check_cumulative(name, tensor.tolist(), total, most)
    kernel = dispatch.serving(q.device)
    if kernel.name == "triton":
        raise RuntimeError(
            f"q is on {q.device}, which Triton serves; packed sequences run in the HIP code object alone"
        )
    out, lse = _outputs(q, return_lse)
    if sizes.empty:
        return out, lse
    if sizes.seqlen_kv == 0:
        return out.zero_(), lse.fill_(-torch.inf)
    if kernel.name == "reference":
        _by_reference(q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, scale, rounding)
    else:
        _launch(kernel.target, q, k, v, out, lse, cumulative, sizes, max_seqlen_q, scale, rounding)
    return out, lse


def _launch(target, q, k, v, out, lse, cumulative, sizes, max_seqlen_q, scale, rounding) -> None:
    verdicts.require(target, runtime.kernel_symbol("varlen", rounding))
    dimensions = arguments.LAYOUTS["bshd"]
    q, k, v = (views.addressable(tensor[None], dimensions[2]) for tensor in (q, k, v))
    cumulative = {name: tensor.contiguous() for name, tensor in cumulative.items()}
    tensors = {"q": q, "k": k, "v": v, "out": out, "lse": lse, **cumulative}
    with runtime.stream_for(target, tensors, ("out", "lse")) as stream:
        _C.varlen_forward(
            target.hip,
            target.device,
            target.architecture,
            target.compute_units,
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            out.data_ptr(),
            lse.data_ptr() if lse.numel() else 0,
            sizes.heads,
            sizes.kv_heads,
            sizes.seqlen_q,
            sizes.seqlen_kv,
            *(views.kernel_strides(tensor, dimensions) for tensor in (q, k, v, out[None])),
            scale,
            ROUNDINGS[rounding].value,
            stream,
            *(tensor.data_ptr() for tensor in cumulative.values()),
            cumulative["cu_seqlens_q"].shape[0] - 1,
            max_seqlen_q,
        )


def _by_reference(q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, scale, rounding) -> None:
    """Sequence by sequence in plain PyTorch, for comparisons; waits for the device."""
    rows = zip(
        itertools.pairwise(cu_seqlens_q.tolist()), itertools.pairwise(cu_seqlens_k.tolist()), strict=True
    )
    for (begin, end), (kv_begin, kv_end) in rows:
        if begin == end:
            continue
        if kv_begin == kv_end:
            out[begin:end], lse[..., begin:end] = 0, -torch.inf
            continue
        parts = q[None, begin:end], k[None, kv_begin:kv_end], v[None, kv_begin:kv_end]
        result, log_sum = reference.replica(*parts, scale=scale, layout="bshd", rounding=rounding)
        out[begin:end] = result[0]
        if lse.numel():
            lse[:, begin:end] = log_sum[0]


@torch.library.register_fake(NAME)
def _attention_varlen_fake(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    *,
    scale=None,
    rounding="rtne",
    return_lse=False,
):
    arguments.check_options("bshd", rounding, scale)
    cumulative = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    longest = {"max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k}
    arguments.check_packed(q, k, v, cumulative, longest)
    return _outputs(q, return_lse)
