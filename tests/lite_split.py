"""Which tiles the pieces of a split walk have, and how their votes are gathered: in plain PyTorch,
independent of the kernels."""

import math

import torch

from liteattention_rocm.lite import lists

ROWS = 16  # that vote together


def shares(kept, merged: int, pieces: int, backward: bool):
    """The tiles of each piece: bool [batch, heads, query tiles, KV tiles] → [pieces, …].

    Pieces share what any of `merged` query tiles lists by its rank in the walk; the first have one more.
    """
    kept = kept.clone()
    kept[..., 0] |= ~kept.any(-1)
    result = torch.zeros(pieces, *kept.shape, dtype=torch.bool)
    for batch, head, group in torch.cartesian_prod(
        *(torch.arange(n) for n in (*kept.shape[:2], -(-kept.shape[2] // merged)))
    ).tolist():
        block = kept[batch, head, merged * group : merged * (group + 1)]
        walk = block.any(0).nonzero().flatten().tolist()
        walk = walk[::-1] if backward else walk
        for piece in range(pieces):
            least, rest = divmod(len(walk), pieces)
            first = piece * least + min(piece, rest)
            own = torch.zeros(kept.shape[-1], dtype=torch.bool)
            own[walk[first : first + least + (piece < rest)]] = True
            result[piece, batch, head, merged * group : merged * (group + 1)] = block & own
    return result


def step(q, k, kept, *, merged, pieces, threshold, backward=False, scale=None):
    """The list that a call in pieces writes, bool as `kept`, and the margin of each of its entries: how far,
    in log2 units, the scores are from where it would change."""
    q, k = (t.transpose(1, 2).double() for t in (q, k))
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    tiles = kept.shape[-1]
    scores = q @ k.transpose(2, 3) * (scale * math.log2(math.e))
    scores = torch.nn.functional.pad(
        scores, (0, tiles * lists.KV_ROWS_PER_TILE - k.shape[2]), value=-math.inf
    )
    maxima = scores.unflatten(-1, (tiles, -1)).amax(-1)  # [batch, heads, rows, tiles]
    rows = q.shape[2]
    query_tile = torch.arange(rows) // lists.QUERY_ROWS_PER_TILE
    lowest = torch.full((*maxima.shape[:2], -(-rows // ROWS)), -math.inf, dtype=torch.float64)

    def of_fragments(values):
        """The largest of 16 rows: [batch, heads, rows] → [batch, heads, fragments]."""
        index = (torch.arange(rows) // ROWS).expand_as(values)
        return lowest.scatter_reduce(2, index, values, "amax")

    written = torch.zeros_like(kept)
    margin = torch.full(kept.shape, math.inf, dtype=torch.float64)
    before = torch.full(q.shape[:3], -math.inf, dtype=torch.float64)
    tile_of = torch.arange(lowest.shape[2]) * ROWS // lists.QUERY_ROWS_PER_TILE
    order = list(reversed(range(tiles))) if backward else list(range(tiles))
    first = torch.ones_like(kept[..., 0])
    for own in shares(kept, merged, pieces, backward):
        here = own[:, :, query_tile]  # by row
        whole = maxima.masked_fill(~here, -math.inf).amax(-1)
        gate = of_fragments(torch.where(before == -math.inf, math.inf, whole - before))
        running = torch.full_like(before, -math.inf)
        for tile in order:
            listed = own[..., tile]
            lead = torch.where(running == -math.inf, math.inf, maxima[..., tile] - running)
            lead = lead.masked_fill(~here[..., tile], -math.inf)
            both = torch.minimum(of_fragments(lead), gate)  # both must exceed the threshold, in 16 rows
            best = torch.full_like(first, -math.inf, dtype=torch.float64)
            best.scatter_reduce_(2, tile_of.expand_as(both), both, "amax")
            written[..., tile] |= listed & ((best > threshold) | first)
            margin[..., tile] = torch.where(listed & ~first, (best - threshold).abs(), margin[..., tile])
            first &= ~listed
            running = torch.where(here[..., tile], torch.maximum(running, maxima[..., tile]), running)
        before = torch.maximum(before, running)
    return written, margin
