"""The kernels that can be timed, and how a shape of theirs is traced.

torch is imported where a kernel runs: the command line works without it.
"""

import math
import re
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from .. import _C, simulator
from ..rounding import ROUNDINGS
from . import packing
from .parameters import value
from .recording import Recording
from .shapes import HEAD_DIM, Shape
from .stages import Merge, PieceLists, Stage, of_split

_AITER_QUERY_ROWS, _AITER_KV_ROWS = 256, 32
_SCHEDULES = {"skip": "forward", "skip-pingpong": "pingpong"}  # of skipping kernels
_SPLIT, _PIECE = "_split", "_piece"


@dataclass(frozen=True)
class Kernel:
    """One kernel: a code object and a rounding mode. `calibrated`: the model is fitted to its times.

    source: "ours", whichever of our dense kernels the plan of a shape chooses; "forward" or "pingpong", one
    of them, unsplit; "aiter_exact", ours with AITER's arithmetic; "skipping", what `LiteAttention` launches
    for such lists; "skip" or "skip-pingpong", the skipping kernels on their schedules, unsplit; or "aiter".
    Of a plan that splits KV: one of these and "_split", whose traces are whole query blocks. path: of another
    code object of ours, with the geometry and arguments of the installed one, or of another folder of
    AITER's; None: the embedded one, and AITER's where `find` looks. listed: share of the KV tiles that a
    skipping kernel visits, evenly spaced, the same for all query rows.
    """

    source: str
    rounding: str
    path: Path | None = None
    listed: float = 1.0

    def planned(self, shape: Shape) -> "Kernel":
        """The kernel that runs for a shape: of "ours" and "skipping" the one that the plan chooses."""
        if self.source == "skipping":
            schedule, plan = self._skip_plan(shape)
            source = next(name for name, one in _SCHEDULES.items() if one == schedule)
        elif self.source == "ours":
            plan = _plan(shape)
            source = plan["kernel"]
        else:
            return self
        return replace(self, source=source + (_SPLIT if plan["pieces"] > 1 else ""))

    def _skip_plan(self, shape: Shape, schedule: str | None = None) -> tuple[str, dict]:
        """The schedule, unless it is given, and the plan of a call of `LiteAttention`."""
        from ..arguments import Sizes
        from ..lite.cost import QUERY_TILES_OF, Costs, Listed

        sizes = shape.batch, shape.heads, shape.heads, shape.seqlen_q, shape.seqlen_kv
        units, listed = int(value("device", "compute_units")), Listed(self.listed, self.listed)
        costs = Costs(Sizes(*sizes), units)
        schedule = schedule or costs.fastest(listed, list(QUERY_TILES_OF))
        return schedule, _C.skip_plan(*sizes, units, schedule, 0, costs.visited(schedule, listed))

    def stages(self, shape: Shape) -> "list[Stage]":
        """What a launch consists of, one part after the other."""
        if not self.source.endswith(_SPLIT):
            return [Stage("all", self, shape, self.workgroups(shape))]
        family = self.source.removesuffix(_SPLIT)
        tiles, lists, words = math.ceil(shape.seqlen_kv / self.kv_rows), None, 0
        if family in _SCHEDULES:
            _, plan = self._skip_plan(shape, _SCHEDULES[family])
            lists = PieceLists(self.query_rows, self.listed, self.path)
            words = math.ceil(tiles / packing.TILES_PER_WORD)
        else:
            plan = _plan(shape, family, 0)
        # A piece of a list has its share of the listed tiles, among as many times more.
        rows = math.ceil(tiles / plan["pieces"]) * self.kv_rows
        piece = replace(self, source=family + _PIECE)
        merge = Merge(self.rounding, self.query_rows, self.path, words)
        return of_split(shape, self, piece, merge, plan, rows, lists)

    @property
    def _plan_name(self) -> str:
        # Without a shape, "ours" is the kernel for large grids. Skipping kernels have a schedule's geometry.
        family = self.source.removesuffix(_SPLIT).removesuffix(_PIECE)
        return {"ours": "pingpong", "skipping": "pingpong", **_SCHEDULES}.get(family, family)

    @classmethod
    def parse(cls, text: str) -> "Kernel":
        """From "ours:rtz" or "aiter:rtz", either with "=PATH"; "skip:rtz@0.5" lists half of the tiles.

        Raises:
            ValueError: no such kernel, share or path.
        """
        name, _, path = text.partition("=")
        name, at, share = name.partition("@")
        if name not in KERNELS:
            raise ValueError(
                f"kernel must be one of {', '.join(sorted(KERNELS))}, =PATH may follow, got {text!r}"
            )
        if path and not Path(path).exists():
            raise ValueError(f"kernel {name} has the path {path!r}, which does not exist")
        source, listed = KERNELS[name].source, 1.0
        if at:
            listed = float(share) if re.fullmatch(r"0?\.[0-9]{1,6}|1", share) else 0.0
            if "skip" not in source or not listed:
                raise ValueError(
                    "kernel may have @SHARE where it skips, a share of the tiles above 0 and up to 1, got "
                    f"{text!r}"
                )
        return cls(source, KERNELS[name].rounding, Path(path) if path else None, listed)

    @property
    def name(self) -> str:
        share = "" if self.listed == 1 else f"@{self.listed:g}"
        return f"{self.source}:{self.rounding}{share}" + (f"={self.path}" if self.path else "")

    @property
    def calibrated(self) -> bool:
        return self.source == "aiter"

    @property
    def query_rows(self) -> int:
        """Of one workgroup."""
        if self.source == "aiter":
            return _AITER_QUERY_ROWS
        rows = 3 << 18  # a multiple of every kernel's
        return rows // _C.plan(1, 1, 1, rows, 64, 1, self._plan_name)["grid"][0]

    @property
    def kv_rows(self) -> int:
        """Of one tile, the unit of the steady state."""
        if self.source == "aiter":
            return _AITER_KV_ROWS
        return (1 << 16) // _C.plan(1, 1, 1, 1, 1 << 16, 1, self._plan_name)["kv_tiles"]

    def workgroups(self, shape: Shape) -> int:
        if self.source == "aiter":
            return math.ceil(shape.seqlen_q / self.query_rows) * shape.heads * shape.batch
        return math.prod(_plan(shape, self._plan_name)["grid"])

    def trace(self, heads: int, seqlen_q: int, seqlen_kv: int, workgroups: list[int]) -> Recording:
        """Executes and records workgroups of one batch entry.

        Args:
            workgroups: linear indices in the grid (query tiles, heads).

        Raises:
            FileNotFoundError: AITER's code objects are missing.
            SimulatorError: the kernel failed, or the grid lacks a workgroup.
        """
        from .. import aiter_kernel

        tiles = math.ceil(seqlen_q / self.query_rows)
        q, k, v = (
            _tensor(heads, rows, {g // tiles for g in workgroups}, seed)
            for seed, rows in enumerate((seqlen_q, seqlen_kv, seqlen_kv))
        )
        recording = Recording(workgroups)
        with recording.active():
            if self.source == "aiter":
                aiter_kernel.forward(q, k, v, rounding=self.rounding, directory=self.path)
            else:
                _launch(self, q, k, v)
        return recording


def _plan(shape: Shape, kernel: str = "", pieces: int | None = None) -> dict:
    sizes = (shape.batch, shape.heads, shape.heads, shape.seqlen_q, shape.seqlen_kv)
    return _C.plan(*sizes, int(value("device", "compute_units")), kernel, pieces)


def _launch(kernel: Kernel, q, k, v) -> None:
    """Launches a kernel of ours as the host code does."""
    import torch

    out = torch.empty_like(q)
    heads = q.shape[2]
    packed = packing.forward_arguments(q, k, v, out)
    with ExitStack() as memory:
        for name, tensor in (("q", q), ("k", k), ("v", v), ("out", out)):
            memory.enter_context(simulator.register(tensor, name, name == "out"))
        plan = _C.plan(1, heads, heads, q.shape[1], k.shape[1], 1, kernel._plan_name)
        family, grid = plan["kernel"], plan["grid"]
        splits = kernel.source.endswith((_SPLIT, _PIECE))
        if splits:
            blocks = math.prod(grid)
            whole = blocks if kernel.source.endswith(_SPLIT) else 0
            fragments = kernel.query_rows // packing.PARTIAL_ROWS
            packed += packing.split_arguments(memory, grid[0], whole, blocks - whole, 1, fragments)
        if "skip" in kernel.source:
            family = f"skip_{family}"
            read, write = packing.lists_of(q.shape[1], plan["kv_tiles"], kernel.listed, heads)
            packed += packing.list_arguments(memory, read, write)
            if splits:
                packed += packing.piece_arguments(memory, read, blocks - whole, 1, fragments)
        if splits:
            family, grid = f"{family}_split", (blocks, 1, 1)
        symbol = f"attention_{family}_{kernel.rounding}"
        simulator.Module(packing.image(kernel.path)).launch(symbol, grid, plan["block"], packed)


def _tensor(heads: int, rows: int, used_heads, seed: int):
    import torch

    # Other heads stay zero: nothing reads them, so their pages are never touched.
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.zeros(1, rows, heads, HEAD_DIM, dtype=torch.bfloat16)
    for head in used_heads:
        tensor[0, :, head] = torch.randn(rows, HEAD_DIM, generator=generator).bfloat16()
    return tensor


SOURCES = ("ours", "forward", "pingpong", "aiter_exact", "skipping", "skip", "skip-pingpong", "aiter")
KERNELS = {kernel.name: kernel for source in SOURCES for kernel in (Kernel(source, r) for r in ROUNDINGS)}
