"""What a call costs on each kernel, modelled: which kernel walks a list, in how many pieces, and how much
must be skipped for that to be faster than dense attention."""

import functools
import math
from dataclasses import dataclass

from .. import _C
from . import lists

# Clocks of a skipping kernel over those of the dense kernel it is made from, with every tile listed: by
# schedule, modelled, at most this over the rounding modes and the model's parameter sets.
SKIPPING_OVER_DENSE = {"forward": 1.02, "pingpong": 1.02}
# The query tiles of a workgroup, which visits what any of them lists.
QUERY_TILES_OF = {"forward": 1, "pingpong": 3}
_STEPS = 64  # numbers of visited tiles that calls are planned for


@dataclass(frozen=True)
class Listed:
    """Shares of the KV tiles: that the lists name, and that workgroups of three query tiles then visit."""

    tiles: float = 1.0
    unions: float = 1.0

    def visited(self, kernel: str) -> float:
        """The share that a kernel's workgroups visit."""
        return self.tiles if QUERY_TILES_OF[kernel] == 1 else self.unions


class Costs:
    """Modelled clocks on the busiest compute unit, for one shape.

    Args:
        pieces: as `_C.plan` counts them, for dense and skipping calls: 1, KV is not split; 0, where the plan
            says that it pays.

    Attributes:
        dense_kernel: what the plan chooses for dense attention.
        dense: its clocks.
    """

    def __init__(self, sizes, compute_units: int, pieces: int = 0):
        self._shape = sizes.batch, sizes.heads, sizes.kv_heads, sizes.seqlen_q, sizes.seqlen_kv
        self._compute_units, self._pieces = compute_units, pieces
        self._tiles = lists.kv_tiles(sizes.seqlen_kv)
        plan = _C.plan(*self._shape, compute_units, pieces=pieces)
        self.dense_kernel, self.dense = plan["kernel"], plan["modelled_clocks"]
        self.break_even = functools.cache(self._break_even)
        self._clocks = functools.cache(self._planned_clocks)

    def _planned_clocks(self, kernel: str, visited: int) -> float:
        plan = _C.skip_plan(*self._shape, self._compute_units, kernel, self._pieces, visited)
        return SKIPPING_OVER_DENSE[kernel] * plan["modelled_clocks"]

    def visited(self, kernel: str, listed: Listed) -> int:
        """KV tiles that a workgroup of the kernel visits in the mean, one at least, for a call's plan.

        In steps of a 64th of all, rounded up: lists that change by little are walked in as many pieces.
        """
        step = -(-self._tiles // _STEPS)
        steps = math.ceil(self._tiles * listed.visited(kernel) / step)
        return min(self._tiles, max(1, steps) * step)

    def clocks(self, kernel: str, listed: Listed) -> float:
        """Of the skipping kernel on a schedule."""
        tiles = min(self._tiles, max(1.0, self._tiles * listed.visited(kernel)))
        below = min(int(tiles), self._tiles - 1)
        if below == 0:
            return self._clocks(kernel, 1)
        low, high = self._clocks(kernel, below), self._clocks(kernel, below + 1)
        return low + (tiles - below) * (high - low)

    def fastest(self, listed: Listed, permitted) -> str:
        """The schedule to walk such lists with. Full lists go to the one that dense attention takes, whose
        bits they give."""
        if listed == Listed() and self.dense_kernel in permitted:
            return self.dense_kernel
        return min(permitted, key=lambda kernel: self.clocks(kernel, listed))

    def _break_even(self, kernel: str) -> float:
        """The share of tiles that workgroups must not visit for the skipping kernel to be as fast as dense
        attention."""
        fast, slow = 0, self._tiles + 1  # numbers of visited tiles
        while slow - fast > 1:
            middle = (fast + slow) // 2
            if self._clocks(kernel, middle) <= self.dense:
                fast = middle
            else:
                slow = middle
        if not 0 < fast < self._tiles:
            return 1.0 - fast / self._tiles
        low, high = self._clocks(kernel, fast), self._clocks(kernel, slow)
        return 1.0 - (fast + (self.dense - low) / (high - low)) / self._tiles
