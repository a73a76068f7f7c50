"""Skip lists: which KV tiles each query tile visits.

On the device a list is one bit per tile: int32 [batch, heads, query tiles, words], bit i of word w for KV
tile 32·w + i, the bits behind the last tile 0. At the API's edge it is the field's int16 ranges: [batch,
heads, query tiles, 2 + KV tiles], a row being [length, end_n, start_n, …, end_0, start_0] with `length`
entries behind the first, walked as range(start + step, end + step, step), range 0 first; step is +1 in phase
1 and −1 in phase 0.
"""

import torch

QUERY_ROWS_PER_TILE = 128  # kQueryRowsPerWorkgroup and kKvRowsPerTile of csrc/device/arguments.hpp
KV_ROWS_PER_TILE = 64
TILES_PER_WORD = 32
MAX_RANGE_TILES = 32767  # what int16 can name


def query_tiles(seqlen_q: int) -> int:
    return -(-seqlen_q // QUERY_ROWS_PER_TILE)


def kv_tiles(seqlen_kv: int) -> int:
    return -(-seqlen_kv // KV_ROWS_PER_TILE)


def words(tiles: int) -> int:
    return -(-tiles // TILES_PER_WORD)


def list_bytes(batch: int, heads: int, seqlen_q: int, seqlen_kv: int) -> int:
    """Memory of one attention layer's two lists, as bits."""
    return 2 * 4 * batch * heads * query_tiles(seqlen_q) * words(kv_tiles(seqlen_kv))


def range_bytes(batch: int, heads: int, seqlen_q: int, seqlen_kv: int) -> int:
    """Memory that the same two lists take as int16 ranges."""
    return 2 * 2 * batch * heads * query_tiles(seqlen_q) * (2 + kv_tiles(seqlen_kv))


def pack(kept: torch.Tensor) -> torch.Tensor:
    """bool [..., tiles] → int32 [..., words]."""
    tiles = kept.shape[-1]
    padded = torch.nn.functional.pad(kept, (0, words(tiles) * TILES_PER_WORD - tiles))
    weights = torch.ones((), dtype=torch.int64, device=kept.device) << torch.arange(
        TILES_PER_WORD, device=kept.device
    )
    values = (padded.unflatten(-1, (-1, TILES_PER_WORD)).to(torch.int64) * weights).sum(-1)
    return torch.where(values >= 1 << 31, values - (1 << 32), values).to(torch.int32)


def unpack(bits: torch.Tensor, tiles: int) -> torch.Tensor:
    """int32 [..., words] → bool [..., tiles]."""
    shifts = torch.arange(TILES_PER_WORD, dtype=torch.int32, device=bits.device)
    return ((bits.unsqueeze(-1) >> shifts) & 1).bool().flatten(-2)[..., :tiles]


def full(shape, tiles: int, device=None) -> torch.Tensor:
    """Every tile kept: int32 [*shape, words]."""
    row = pack(torch.ones(tiles, dtype=torch.bool)).to(device)
    return row.expand(*shape, -1).contiguous()


def count(bits: torch.Tensor) -> torch.Tensor:
    """Set bits of each row: int32 [..., words] → int64 [...]. Stays on the device."""
    x = bits - ((bits >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    x = x + (x >> 8)
    return ((x + (x >> 16)) & 0x3F).sum(-1)


def union(bits: torch.Tensor, merged: int) -> torch.Tensor:
    """What any of `merged` consecutive rows lists: int32 [..., rows, words] → [..., groups, words]."""
    rows = bits.shape[-2]
    padded = torch.nn.functional.pad(bits, (0, 0, 0, -rows % merged)).unflatten(-2, (-1, merged))
    result = padded[..., 0, :].clone()
    for row in range(1, merged):
        result |= padded[..., row, :]
    return result


def to_ranges(bits: torch.Tensor, tiles: int, phase: int) -> torch.Tensor:
    """int32 [..., words] → the int16 ranges [..., 2 + tiles] of a walk in `phase`; unused entries are 0.

    Raises:
        ValueError: more tiles than int16 can name.
    """
    _check_range_tiles(tiles)
    kept = unpack(bits, tiles)
    before = torch.nn.functional.pad(kept, (1, 0))[..., :-1]
    after = torch.nn.functional.pad(kept, (0, 1))[..., 1:]
    begins, ends = kept & ~before, kept & ~after
    number = begins.sum(-1, keepdim=True)
    ranges = torch.zeros(*kept.shape[:-1], tiles + 3, dtype=torch.int64, device=bits.device)
    ranges[..., :1] = 2 * number
    tile = torch.arange(tiles, device=bits.device).expand(kept.shape)
    if phase == 0:  # ranges by rising tile: the highest is walked first and stands last
        for marks, offset, value in ((begins, 1, tile), (ends, 2, tile + 1)):
            _place(ranges, marks, 2 * (marks.cumsum(-1) - 1) + offset, value)
    else:
        for marks, offset, value in ((ends, 1, tile), (begins, 2, tile - 1)):
            _place(ranges, marks, 2 * (number - marks.cumsum(-1)) + offset, value)
    return ranges[..., : tiles + 2].to(torch.int16)


def _place(ranges, marks, position, value) -> None:
    """Writes `value` to `position` where marked; the last entry of a row takes the rest."""
    spare = ranges.shape[-1] - 1
    ranges.scatter_(-1, torch.where(marks, position, spare), torch.where(marks, value, 0))


def from_ranges(ranges: torch.Tensor, phase: int) -> tuple[torch.Tensor, int]:
    """The int16 ranges [batch, heads, query tiles, 2 + KV tiles] of a walk in `phase`, as int32 [..., words],
    and the number of KV tiles.

    Raises:
        TypeError: no int16 tensor.
        ValueError: another rank; or a row that visits nothing, or whose ranges leave the tiles, are empty,
            overlap or run against the walk. Names the row and the reason.
    """
    if not isinstance(ranges, torch.Tensor) or ranges.dtype != torch.int16:
        raise TypeError(f"a skip list must be an int16 tensor, got {getattr(ranges, 'dtype', type(ranges))}")
    if ranges.dim() != 4 or ranges.shape[-1] < 3:
        raise ValueError(
            "a skip list must have shape [batch, heads, query tiles, 2 + KV tiles], got "
            f"{tuple(ranges.shape)}"
        )
    tiles = ranges.shape[-1] - 2
    _check_range_tiles(tiles)
    entries = ranges.cpu().to(torch.int64)
    length = entries[..., 0]
    _refuse(length, length <= 0, lambda n: f"visits no tile: its length is {n}")
    _refuse(length, length % 2 != 0, lambda n: f"has the odd length {n}")
    _refuse(
        length, length > tiles + 1, lambda n: f"has the length {n}, more than the row's {tiles + 1} entries"
    )
    most = (tiles + 1) // 2
    number = torch.arange(most).expand(*length.shape, most)
    used = number < (length // 2).unsqueeze(-1)
    ends, starts = entries[..., 1 : 2 * most : 2], entries[..., 2 : 2 * most + 1 : 2]
    low, high = (starts + 1, ends) if phase == 1 else (ends, starts - 1)
    where = [low.masked_fill(~used, 0), high.masked_fill(~used, 0)]
    for index in range(int((length // 2).max())):
        a, b, on = low[..., index], high[..., index], used[..., index]
        entry = f"range at entry {1 + 2 * index} that"
        _refuse(a, on & (a > b), lambda _, entry=entry: f"has a {entry} is empty")
        outside = on & ((a < 0) | (b >= tiles))
        _refuse(a, outside, lambda _, entry=entry: f"has a {entry} leaves the {tiles} KV tiles")
        if index:
            behind = low[..., index - 1] <= b if phase == 1 else a <= high[..., index - 1]
            _refuse(a, on & behind, lambda _, entry=entry: f"has a {entry} overlaps the next or is misplaced")
    change = torch.zeros(*length.shape, tiles + 1, dtype=torch.int64)
    change.scatter_add_(-1, where[0], used.to(torch.int64))
    change.scatter_add_(-1, where[1] + 1, -used.to(torch.int64))
    return pack(change.cumsum(-1)[..., :tiles] > 0).to(ranges.device), tiles


def _refuse(values, bad, reason) -> None:
    if bad.any():
        batch, head, tile = (int(i) for i in bad.nonzero()[0])
        value = int(values[batch, head, tile])
        raise ValueError(f"row (batch {batch}, head {head}, query tile {tile}) {reason(value)}")


def _check_range_tiles(tiles: int) -> None:
    if tiles > MAX_RANGE_TILES:
        raise ValueError(
            f"int16 ranges name at most {MAX_RANGE_TILES} KV tiles ({MAX_RANGE_TILES * KV_ROWS_PER_TILE} "
            f"rows), got {tiles}; the bits have no such limit"
        )


def tiles_of_tokens(name: str, token_ranges, seqlen_kv: int) -> torch.Tensor:
    """Token ranges [s0, e0, s1, e1, …], ends exclusive → bool [KV tiles]: starts round down and ends up.

    Raises:
        TypeError: no sequence of integers.
        ValueError: an odd number of entries, a negative one, an empty range, an end beyond seqlen_kv.
    """
    kept = torch.zeros(kv_tiles(seqlen_kv), dtype=torch.bool)
    try:
        entries = [int(entry) for entry in token_ranges]
        whole = all(entry == given for entry, given in zip(entries, token_ranges, strict=True))
    except (TypeError, ValueError):
        whole = False
    if not whole:
        raise TypeError(f"{name} must be a sequence of integers [start, end, …], got {token_ranges!r}")
    if len(entries) % 2:
        raise ValueError(f"{name} must have an even number of entries, got {len(entries)}: {entries}")
    for start, end in zip(entries[::2], entries[1::2], strict=True):
        if start < 0:
            raise ValueError(f"{name} must not be negative, got the range [{start}, {end})")
        if end <= start:
            raise ValueError(f"{name} must have ranges that are not empty, got [{start}, {end})")
        if end > seqlen_kv:
            raise ValueError(f"{name} must end within the {seqlen_kv} rows of k, got [{start}, {end})")
        kept[start // KV_ROWS_PER_TILE : kv_tiles(end)] = True
    return kept
