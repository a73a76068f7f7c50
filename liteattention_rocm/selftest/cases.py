"""The inputs of the self-test. They depend on nothing but this file: no generator of torch or numpy is used.

`exact` cases have one right answer, bit for bit. The softmax scale is ln 2, so that P = 2^(S − m) with
integer scores S; K has two ones a row, so that S is the sum of two entries of Q; each row's P are powers of
two whose sum is one as well; V is small integers. Every product and sum is then exact in float32 in any
order and on any adder. What is left to the hardware is that v_exp_f32 is exact at integers, and v_rcp_f32
and v_log_f32 at powers of two (`facts.py` asks the device), the conversions to bfloat16, and all the
addressing.

`bounded` cases are of an ordinary kind; v_exp's last bit may differ from the simulator's.
"""

import functools
import math
import random
from dataclasses import dataclass, replace

import torch

HEAD_DIM = 128
_TILE = HEAD_DIM // 2  # columns of Q that choose a key within a tile; the others choose the tile
_MOST_SPLITS = 9
_LEAST_REST = 4  # keys of a part-filled last tile of a level case, exclusive
_MASK = (1 << 32) - 1


@dataclass(frozen=True)
class Case:
    """One attention problem.

    Attributes:
        kind: "exact" or "bounded".
        fused: k and v lie interleaved in one tensor, as a fused projection leaves them.
        steady: of exact cases: the running maximum of every row is 0 from the first KV tile on, so that a
            kernel may take an ulp off it.
        level: the same, and every KV tile has that maximum: a kernel may start anywhere. The KV tiles are a
            power of two.
    """

    name: str
    kind: str
    batch: int
    heads: int
    kv_heads: int
    seqlen_q: int
    seqlen_kv: int
    layout: str = "bshd"
    fused: bool = False
    steady: bool = False
    level: bool = False

    @property
    def scale(self) -> float:
        """softmax scale: its product with log2(e) is 1 in float32 for the exact cases."""
        return math.log(2) if self.kind == "exact" else 1 / math.sqrt(HEAD_DIM)

    def levelled(self) -> "Case":
        """The exact case with fewer KV rows and `level`."""
        if self.kind != "exact":
            return self
        tiles, rest = -(-self.seqlen_kv // _TILE), self.seqlen_kv % _TILE
        rest = rest if rest > _LEAST_REST else _TILE
        return replace(self, level=True, seqlen_kv=((1 << tiles.bit_length() - 1) - 1) * _TILE + rest)

    def inputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k, v, bfloat16, in the case's layout, on the CPU."""
        return _inputs(self)


CASES = (
    Case("self", "exact", 1, 2, 2, 192, 192),
    Case("cross", "exact", 2, 1, 1, 40, 77, layout="bhsd"),
    Case("partial tiles", "exact", 1, 1, 1, 150, 331, fused=True),
    Case("grouped heads", "exact", 1, 4, 2, 65, 129),
    Case("many rows", "exact", 1, 1, 1, 401, 140),
    Case("one row", "exact", 1, 3, 3, 1, 700),
    Case("many tiles", "exact", 1, 1, 1, 17, 1030, layout="bhsd"),
    Case("self, ordinary", "bounded", 1, 2, 2, 200, 200),
    Case("cross, ordinary", "bounded", 2, 1, 1, 100, 77, layout="bhsd"),
    Case("grouped heads, ordinary", "bounded", 1, 4, 1, 64, 257, fused=True),
)


@functools.cache
def _inputs(case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = (_exact if case.kind == "exact" else _ordinary)(case)
    if case.fused:
        k, v = torch.stack((k, v), dim=2).unbind(2)
    return tuple(t if case.layout == "bshd" else t.transpose(1, 2).contiguous() for t in (q, k, v))


def _split(parts: int, rng: random.Random) -> list[int]:
    """Exponents e with sum 2^e = 1, so many of them, in random order."""
    exponents = [0]
    while len(exponents) < parts:
        i = int(rng.random() * len(exponents))
        if exponents[i] > -_MOST_SPLITS:
            exponents[i] -= 1
            exponents.append(exponents[i])
    for i in range(parts - 1, 0, -1):
        j = int(rng.random() * (i + 1))
        exponents[i], exponents[j] = exponents[j], exponents[i]
    return exponents


def _query_row(seqlen_kv: int, rng: random.Random) -> list[int]:
    """Scores' two summands: by place in the tile, then by tile."""
    tiles = -(-seqlen_kv // _TILE)
    rest = seqlen_kv - (tiles - 1) * _TILE
    if rest == _TILE:
        places, last = _split(_TILE, rng), 0
    else:  # the last tile has half of a tile's weight
        places = [e - 1 for e in _split(rest, rng)] + [e - 1 for e in _split(_TILE - rest, rng)]
        last = 1
    by_tile = _split(tiles, rng)
    by_tile[-1] += last
    shift = int(rng.random() * 41) - 20
    by_tile = [e + shift for e in by_tile]
    return places + by_tile + [0] * (HEAD_DIM - _TILE - tiles)


def _steady_query_row(seqlen_kv: int, rng: random.Random) -> list[int]:
    """As `_query_row`, the largest score 0 and in the first tile."""
    tiles = -(-seqlen_kv // _TILE)
    rest = seqlen_kv - (tiles - 1) * _TILE
    while True:
        row = _query_row(seqlen_kv, rng)
        places, by_tile = row[:_TILE], row[_TILE : _TILE + tiles]
        first = max(places[: seqlen_kv if tiles == 1 else _TILE])
        most = max(range(tiles - 1), key=by_tile.__getitem__) if tiles > 2 else 0
        by_tile[0], by_tile[most] = by_tile[most], by_tile[0]
        if tiles > 1 and max(places[:rest]) + by_tile[-1] > first + by_tile[0]:
            continue
        return places + [e - first - by_tile[0] for e in by_tile] + row[_TILE + tiles :]


def _level_query_row(seqlen_kv: int, rng: random.Random) -> list[int]:
    """As `_query_row`, the largest score of every tile 0: all have the same weight."""
    tiles = -(-seqlen_kv // _TILE)
    rest = seqlen_kv - (tiles - 1) * _TILE
    last = rest < _TILE  # that tile has half of the places' weight, and twice the others' scores
    while True:
        places = _query_row(seqlen_kv, rng)[:_TILE]
        most = max(places[:rest]) + last
        if max(places) == most or tiles == 1:
            by_tile = [-most] * (tiles - 1) + [last - most]
            return places + by_tile + [0] * (HEAD_DIM - _TILE - tiles)


def _exact(case: Case):
    rng = random.Random(f"{case.name} {case.seqlen_q} {case.seqlen_kv}".encode())
    make = _level_query_row if case.level else _steady_query_row if case.steady else _query_row
    rows = [make(case.seqlen_kv, rng) for _ in range(case.batch * case.seqlen_q * case.heads)]
    q = torch.tensor(rows, dtype=torch.float32)
    q = q.reshape(case.batch, case.seqlen_q, case.heads, HEAD_DIM)
    key = torch.zeros(case.seqlen_kv, HEAD_DIM)
    row = torch.arange(case.seqlen_kv)
    key[row, row % _TILE] = 1
    key[row, _TILE + row // _TILE] = 1
    k = key[None, :, None].repeat(case.batch, 1, case.kv_heads, 1)
    v = random_bits(case.batch * case.seqlen_kv * case.kv_heads * HEAD_DIM, seed=1) % 15 - 7
    v = v.reshape(case.batch, case.seqlen_kv, case.kv_heads, HEAD_DIM)
    return q.bfloat16(), k.bfloat16(), v.bfloat16()


def random_bits(count: int, seed: int) -> torch.Tensor:
    """int64 [count] in [0, 2^32), mixed from the index by products and shifts that fit 64 bits."""
    x = torch.arange(count, dtype=torch.int64) * 0x9E3779B1 + seed * 0x85EBCA6B & _MASK
    for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39)):
        x = (x ^ x >> shift) * factor & _MASK
    return x ^ x >> 15


def _ordinary(case: Case):
    """Sums of four uniform numbers of variance 1, about normal."""

    def tensor(heads, rows, seed):
        count = case.batch * rows * heads * HEAD_DIM
        total = sum((random_bits(count, 4 * seed + i) >> 16) - 32768 for i in range(4))
        values = total.to(torch.float64) / 65536 * math.sqrt(3)
        return values.reshape(case.batch, rows, heads, HEAD_DIM).to(torch.bfloat16)

    return (
        tensor(case.heads, case.seqlen_q, 1),
        tensor(case.kv_heads, case.seqlen_kv, 2),
        tensor(case.kv_heads, case.seqlen_kv, 3),
    )
