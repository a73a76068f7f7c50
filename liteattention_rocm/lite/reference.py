"""Skipping attention in plain PyTorch, independent of the kernel: outputs, votes, and their margins."""

import math
from dataclasses import dataclass

import torch

from . import lists


@dataclass
class Step:
    """One call.

    Attributes:
        out: float64, shape and layout of q.
        lse: float64 [batch, heads, seqlen_q], natural logarithm.
        kept: bool [batch, heads, query tiles, KV tiles], the next list, without what is pinned.
        margin: float64 of kept's shape, log2 units: how far the deciding row is from the threshold. A
            vote may differ from the kernel's only where this is within rounding. Inf for tiles that were not
            visited, and for the first visited tile.
    """

    out: torch.Tensor
    lse: torch.Tensor
    kept: torch.Tensor
    margin: torch.Tensor


def step(
    q,
    k,
    v,
    visited,
    *,
    threshold,
    backward=False,
    scale=None,
    layout="bshd",
    query_rows=lists.QUERY_ROWS_PER_TILE,
    leaving_out_rows=0,
    dtype=torch.float64,
) -> Step:
    """Attention over the listed tiles, and the votes on them.

    Args:
        q, k, v: as `liteattention_rocm.attention` takes them.
        visited: bool [batch, heads, query tiles, KV tiles].
        threshold: log2 units.
        backward: walk from the last tile to the first.
        query_rows: rows of a query tile.
        leaving_out_rows: so many rows together leave out of this very call what is negligible for them all;
            0: votes don't change the output. A wave of the kernel has 32.
        dtype: of the arithmetic.
    """
    if layout == "bshd":
        q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    repeat = q.shape[1] // k.shape[1]
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    rows, tiles = q.shape[2], visited.shape[-1]
    row_tile = torch.arange(rows, device=q.device) // query_rows
    visits = visited[:, :, row_tile]  # per row
    scores = q @ k.transpose(2, 3) * scale

    def of_tile(tile):
        return scores[..., tile * lists.KV_ROWS_PER_TILE : (tile + 1) * lists.KV_ROWS_PER_TILE]

    running = torch.full(q.shape[:3], -math.inf, dtype=dtype, device=q.device)
    started = torch.zeros_like(visited[..., 0])
    kept = torch.zeros_like(visited)
    used = visits.clone()
    group = torch.arange(rows, device=q.device) // (leaving_out_rows or rows or 1)
    margin = torch.full(visited.shape, math.inf, dtype=dtype, device=q.device)
    for tile in reversed(range(tiles)) if backward else range(tiles):
        here = visited[..., tile]
        maximum = of_tile(tile).amax(-1)
        lead = (maximum - running) * math.log2(math.e)
        best = _per_tile_maximum(lead, row_tile, visited.shape[2])
        kept[..., tile] = here & (~started | (best > threshold) | (threshold == -math.inf))
        decided = here & started
        if leaving_out_rows:
            wanted = _per_tile_maximum(lead, group, int(group.max()) + 1)[..., group] > threshold
            used[..., tile] &= wanted | ~started[:, :, row_tile] | math.isinf(threshold)
        margin[..., tile] = torch.where(decided, (best - threshold).abs(), math.inf)
        started |= here
        running = torch.where(visits[..., tile], torch.maximum(running, maximum), running)
    mask = used.repeat_interleave(lists.KV_ROWS_PER_TILE, -1)[..., : k.shape[2]]
    scores = scores.masked_fill(~mask, -math.inf)
    out = torch.softmax(scores, -1) @ v
    return Step(out.transpose(1, 2) if layout == "bshd" else out, torch.logsumexp(scores, -1), kept, margin)


def _per_tile_maximum(values, row_tile, tiles: int):
    """[batch, heads, rows] → [batch, heads, tiles]."""
    result = values.new_full((*values.shape[:2], tiles), -math.inf)
    return result.scatter_reduce_(2, row_tile.expand_as(values), values, "amax")
