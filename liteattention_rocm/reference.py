"""Attention in plain PyTorch: float64, and a float32 replica of the kernel's rounding rules."""

import math

import torch

from .rounding import rounding_name

KV_ROWS_PER_TILE = 64  # kKvRowsPerTile of csrc/device/arguments.hpp: how often the running maximum moves
_NAN = 0x7FFF


def _scale(scale, head_dim: int) -> float:
    return 1.0 / math.sqrt(head_dim) if scale is None else float(scale)


def _per_head(q, k, v, layout: str, dtype):
    """q, k, v as [batch, heads, rows, dim] of `dtype`; kv heads repeated for their query heads."""
    if layout == "bshd":
        q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    repeat = q.shape[1] // k.shape[1]
    return (
        q.to(dtype),
        k.to(dtype).repeat_interleave(repeat, dim=1),
        v.to(dtype).repeat_interleave(repeat, dim=1),
    )


def attention(q, k, v, *, scale=None, layout="bshd"):
    """softmax(q kᵀ · scale) v in float64.

    Args:
        q, k, v: [batch, rows, heads, dim] for layout "bshd", [batch, heads, rows, dim] for "bhsd".
        scale: softmax scale; None stands for 1/sqrt(dim).

    Returns:
        (out, lse): float64 of q's shape, and float64 [batch, heads, seqlen_q], natural logarithm.
    """
    scale = _scale(scale, q.shape[-1])
    q, k, v = _per_head(q, k, v, layout, torch.float64)
    scores = q @ k.transpose(2, 3) * scale
    out = torch.softmax(scores, dim=-1) @ v
    return (out.transpose(1, 2) if layout == "bshd" else out), torch.logsumexp(scores, dim=-1)


def round_to_bfloat16(x, rounding):
    """float32 → bfloat16 in one of the three modes, with AITER's treatment of NaN.

    rtne and rtna turn every NaN into 0x7FFF; rtz truncates, NaN included (a NaN whose upper mantissa bits are
    zero becomes an infinity).
    """
    rounding = rounding_name(rounding)
    bits = x.to(torch.float32).contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    if rounding == "rtne":
        bits = bits + ((bits >> 16) & 1) + 0x7FFF
    elif rounding == "rtna":
        bits = bits + 0x8000
    upper = bits >> 16
    if rounding != "rtz":
        upper = torch.where(torch.isnan(x), _NAN, upper)
    # int16 holds the same 16 bits; its range is signed.
    return torch.where(upper >= 0x8000, upper - 0x10000, upper).to(torch.int16).view(torch.bfloat16)


def replica(q, k, v, *, scale=None, layout="bshd", rounding="rtne", tile=KV_ROWS_PER_TILE):
    """What the kernel computes, in float32 with the same tiles and the same rounding.

    A running maximum over tiles of `tile` KV rows; P = 2^((S − m)·scale·log2 e) rounded to bfloat16 for the
    product with V, but summed unrounded; the output divided by that sum and rounded. Only the order of
    float32 additions differs from the kernel.

    Returns:
        (out, lse): bfloat16 of q's shape, and float32 [batch, heads, seqlen_q].
    """
    scale = _scale(scale, q.shape[-1])
    q, k, v = _per_head(q, k, v, layout, torch.float32)
    if scale < 0:
        q, scale = -q, -scale
    to_log2 = q.new_tensor(scale * math.log2(math.e))
    batch, heads, rows, dim = q.shape
    maximum = q.new_full((batch, heads, rows, 1), torch.finfo(torch.float32).min)
    total = q.new_zeros(batch, heads, rows, 1)
    out = q.new_zeros(batch, heads, rows, dim)
    for first in range(0, k.shape[2], tile):
        scores = q @ k[:, :, first : first + tile].transpose(2, 3)
        raised = torch.maximum(maximum, scores.amax(dim=-1, keepdim=True))
        shrink = torch.exp2((maximum - raised) * to_log2)
        maximum = raised
        probabilities = torch.exp2((scores - maximum) * to_log2)
        total = total * shrink + probabilities.sum(dim=-1, keepdim=True)
        rounded = round_to_bfloat16(probabilities, rounding).to(torch.float32)
        out = out * shrink + rounded @ v[:, :, first : first + tile]
    out = round_to_bfloat16(out / total, rounding)
    lse = (maximum * scale + torch.log(total)).squeeze(-1)
    return (out.transpose(1, 2) if layout == "bshd" else out), lse


def rmse(actual, expected) -> float:
    """Root of the mean squared difference, computed in float64."""
    return (actual.to(torch.float64) - expected.to(torch.float64)).square().mean().sqrt().item()
