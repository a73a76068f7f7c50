"""What a call costs on each kernel, modelled: which kernel walks a list, and how much must be skipped for
that to be faster than dense attention."""

from dataclasses import dataclass

from .. import _C
from . import lists

# Clocks of a skipping kernel over those of the dense kernel it is made from, with every tile listed: by
# schedule, modelled, at most this over the rounding modes and the model's parameter sets.
SKIPPING_OVER_DENSE = {"forward": 1.01, "pingpong": 1.02}
# The query tiles of a workgroup, which visits what any of them lists.
QUERY_TILES_OF = {"forward": 1, "pingpong": 3}


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

    Attributes:
        dense_kernel: what the plan chooses for dense attention.
        dense: its clocks.
    """

    def __init__(self, sizes, compute_units: int):
        self._shape = sizes.batch, sizes.heads, sizes.kv_heads, sizes.seqlen_q
        self._tiles, self._compute_units = lists.kv_tiles(sizes.seqlen_kv), compute_units
        plan = _C.plan(*self._shape, sizes.seqlen_kv, compute_units)
        self.dense_kernel, self.dense = plan["kernel"], plan["modelled_clocks"]
        self._lines = {kernel: self._line(kernel) for kernel in QUERY_TILES_OF}

    def _line(self, kernel: str) -> tuple[float, float]:
        """Clocks of the skipping kernel: without tiles, and for each tile that its workgroups visit."""
        one, two = (
            _C.plan(*self._shape, tiles * lists.KV_ROWS_PER_TILE, self._compute_units, kernel)[
                "modelled_clocks"
            ]
            for tiles in (1, 2)
        )
        over = SKIPPING_OVER_DENSE[kernel]
        return over * (2 * one - two), over * (two - one)

    def clocks(self, kernel: str, listed: Listed) -> float:
        """Of the skipping kernel on a schedule."""
        fixed, per_tile = self._lines[kernel]
        return fixed + per_tile * self._tiles * listed.visited(kernel)

    def fastest(self, listed: Listed, permitted) -> str:
        """The schedule to walk such lists with. Full lists go to the one that dense attention takes, whose
        bits they give."""
        if listed == Listed() and self.dense_kernel in permitted:
            return self.dense_kernel
        return min(permitted, key=lambda kernel: self.clocks(kernel, listed))

    def break_even(self, kernel: str) -> float:
        """The share of tiles that workgroups must not visit for the skipping kernel to be as fast as dense
        attention."""
        fixed, per_tile = self._lines[kernel]
        return min(1.0, max(0.0, 1.0 - (self.dense - fixed) / (per_tile * self._tiles)))
