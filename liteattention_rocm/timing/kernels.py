"""The kernels that can be timed, and how a shape of theirs is traced.

torch is imported where a kernel runs: the command line works without it.
"""

import math
import re
import struct
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from .. import _C, simulator
from ..rounding import ROUNDINGS
from .parameters import value
from .recording import Recording

HEAD_DIM = 128
_AITER_QUERY_ROWS, _AITER_KV_ROWS = 256, 32
_PARTIAL_ROWS, _PARTIAL_BYTES = 16, 8704  # csrc/device/split_arguments.hpp
_SPLIT, _PIECE = "_split", "_piece"


@dataclass(frozen=True)
class Shape:
    """Attention of [batch, seqlen_q, heads, 128] over seqlen_kv rows; layout "bshd"."""

    batch: int
    heads: int
    seqlen_q: int
    seqlen_kv: int

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """From "batch,heads,seqlen" or "batch,heads,seqlen_q,seqlen_kv".

        Raises:
            ValueError: not three or four positive integers.
        """
        if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9}){2,3}", text):
            raise ValueError(f"shape must be B,H,Sq or B,H,Sq,Skv, got {text!r}")
        numbers = [int(number) for number in text.split(",")]
        if 0 in numbers:
            raise ValueError(f"shape must have positive extents, got {text!r}")
        return cls(*numbers[:3], numbers[-1])

    @property
    def flop(self) -> int:
        return 4 * self.batch * self.heads * self.seqlen_q * self.seqlen_kv * HEAD_DIM

    @property
    def bytes_once(self) -> int:
        """Q, K, V and O in bfloat16, each moved once."""
        return 2 * HEAD_DIM * self.batch * self.heads * 2 * (self.seqlen_q + self.seqlen_kv)


@dataclass(frozen=True)
class Kernel:
    """One kernel: a code object and a rounding mode. `calibrated`: the model is fitted to its times.

    source: "ours", whichever of our dense kernels the plan of a shape chooses; "forward" or "pingpong", one
    of them, unsplit; "aiter_exact", ours with AITER's arithmetic; "skip" or "skip-pingpong", the skipping
    kernels on their schedules; or "aiter". Of a plan that splits KV: "forward_split" or "pingpong_split",
    whose traces are whole query blocks. path: of another code object of ours, with the geometry and arguments
    of the installed one, or of another folder of AITER's; None: the embedded one, and AITER's where `find`
    looks. listed: share of the KV tiles that a skipping kernel visits, evenly spaced, the same for all query
    rows.
    """

    source: str
    rounding: str
    path: Path | None = None
    listed: float = 1.0

    def planned(self, shape: Shape) -> "Kernel":
        """The kernel that runs for a shape: of source "ours" the one that the plan chooses."""
        if self.source != "ours":
            return self
        plan = _plan(shape)
        return replace(self, source=plan["kernel"] + (_SPLIT if plan["pieces"] > 1 else ""))

    def stages(self, shape: Shape) -> "list[Stage]":
        """What a launch consists of, one part after the other."""
        if not self.source.endswith(_SPLIT):
            return [Stage("all", self, shape, self.workgroups(shape))]
        family = self.source.removesuffix(_SPLIT)
        plan = _plan(shape, family, 0)
        pieces, split, bytes_moved = (plan[name] for name in ("pieces", "split_blocks", "workspace_bytes"))
        rows = -(-plan["kv_tiles"] // pieces) * self.kv_rows
        piece = replace(self, source=family + _PIECE)
        merge = Merge(self.rounding, self.query_rows, self.path)
        merged = Shape(1, 1, split * self.query_rows, pieces)
        out_bytes = 2 * HEAD_DIM * split * self.query_rows
        parts = [
            Stage("whole", self, shape, plan["whole_blocks"]),
            Stage(
                "pieces", piece, replace(shape, seqlen_kv=rows), split * pieces, share=1 / pieces,
                stored_bytes=bytes_moved,
            ),
            Stage(
                "merge", merge, merged, merge.workgroups(merged), share=0.0,
                least_bytes=bytes_moved + out_bytes, launched=True,
            ),
        ]  # fmt: skip
        return [part for part in parts if part.workgroups]

    @property
    def _plan_name(self) -> str:
        # Without a shape, "ours" is the kernel for large grids. Skipping kernels have a schedule's geometry.
        family = self.source.removesuffix(_SPLIT).removesuffix(_PIECE)
        return {"ours": "pingpong", "skip": "forward", "skip-pingpong": "pingpong"}.get(family, family)

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


@dataclass(frozen=True)
class Merge:
    """The kernel that merges the pieces of a split. A "KV row" of its shapes is a piece."""

    rounding: str
    block_rows: int  # query rows of a block
    path: Path | None = None
    calibrated = False
    query_rows, kv_rows = 64, 1  # of a workgroup; rows of one piece
    private_lines = True

    @property
    def name(self) -> str:
        return f"merge:{self.rounding}"

    def workgroups(self, shape: Shape) -> int:
        return math.ceil(shape.seqlen_q / self.query_rows) * shape.heads * shape.batch

    def trace(self, heads: int, seqlen_q: int, seqlen_kv: int, workgroups: list[int]) -> Recording:
        """As `Kernel.trace`, over `seqlen_kv` pieces."""
        import torch

        out = torch.empty(1, seqlen_q, heads, HEAD_DIM, dtype=torch.bfloat16)
        recording = Recording(workgroups)
        with ExitStack() as memory, recording.active():
            memory.enter_context(simulator.register(out, "out", True))
            tiles = math.ceil(seqlen_q / self.block_rows)
            fragments = self.block_rows // _PARTIAL_ROWS
            packed = _forward_arguments(out, out, out, out)
            packed += _split_arguments(memory, tiles, 0, tiles * heads, seqlen_kv, fragments)
            grid = (self.workgroups(Shape(1, heads, seqlen_q, seqlen_kv)), 1, 1)
            module = simulator.Module(_image(self.path))
            module.launch(f"attention_merge_{self.rounding}", grid, (256, 1, 1), packed)
        return recording


@dataclass(frozen=True)
class Stage:
    """A part of a launch: so many workgroups of a kernel over a shape.

    share: of a query block's work that a workgroup has. stored_bytes: moved when its workgroups end;
    least_bytes: which it can't be faster than; launched: as a kernel of its own, behind the one before.
    """

    name: str
    kernel: "Kernel | Merge"
    shape: Shape
    workgroups: int
    share: float = 1.0
    stored_bytes: int = 0
    least_bytes: int = 0
    launched: bool = False


def _plan(shape: Shape, kernel: str = "", pieces: int | None = None) -> dict:
    sizes = (shape.batch, shape.heads, shape.heads, shape.seqlen_q, shape.seqlen_kv)
    return _C.plan(*sizes, int(value("device", "compute_units")), kernel, pieces)


def _image(path: Path | None) -> bytes:
    return path.read_bytes() if path else _C.code_object(simulator.ARCHITECTURE)


def _forward_arguments(q, k, v, out) -> bytes:
    """Those of csrc/device/arguments.hpp, without LSE."""
    scale = HEAD_DIM**-0.5
    return struct.pack(
        "<5Q12q4i2fIi",
        *(t.data_ptr() for t in (q, k, v, out)),
        0,
        *(2 * t.stride(dimension) for t in (q, k, v, out) for dimension in (0, 2, 1)),
        q.shape[1],
        k.shape[1],
        q.shape[2],
        1,
        scale,
        scale * math.log2(math.e),
        0,
        0,
    )


def _split_arguments(
    memory: ExitStack, query_tiles: int, whole: int, split: int, pieces: int, fragments: int
) -> bytes:
    """What csrc/device/split_arguments.hpp adds, with a workspace."""
    import torch

    partials = torch.zeros(split * pieces * fragments * _PARTIAL_BYTES + 16, dtype=torch.uint8)
    memory.enter_context(simulator.register(partials, "workspace", True))
    return struct.pack("<Q6i", partials.data_ptr(), query_tiles, whole, split, pieces, fragments, 0)


def _launch(kernel: Kernel, q, k, v) -> None:
    """Launches a kernel of ours as the host code does."""
    import torch

    out = torch.empty_like(q)
    heads = q.shape[2]
    packed = _forward_arguments(q, k, v, out)
    with ExitStack() as memory:
        for name, tensor in (("q", q), ("k", k), ("v", v), ("out", out)):
            memory.enter_context(simulator.register(tensor, name, name == "out"))
        plan = _C.plan(1, heads, heads, q.shape[1], k.shape[1], 1, kernel._plan_name)
        symbol, grid = f"attention_{plan['kernel']}_{kernel.rounding}", plan["grid"]
        if "skip" in kernel.source:
            symbol = f"attention_skip_{plan['kernel']}_{kernel.rounding}"
            packed += _list_arguments(memory, q.shape[1], plan, kernel.listed)
        if kernel.source.endswith((_SPLIT, _PIECE)):
            symbol = f"attention_{plan['kernel']}_split_{kernel.rounding}"
            blocks = math.prod(grid)
            whole = blocks if kernel.source.endswith(_SPLIT) else 0
            fragments = kernel.query_rows // _PARTIAL_ROWS
            packed += _split_arguments(memory, grid[0], whole, blocks - whole, 1, fragments)
            grid = (blocks, 1, 1)
        simulator.Module(_image(kernel.path)).launch(symbol, grid, plan["block"], packed)


def _list_arguments(memory: ExitStack, seqlen_q: int, plan: dict, listed: float) -> bytes:
    """What csrc/device/skip_arguments.hpp adds: lists of a share of the tiles, walked forward at threshold
    −10."""
    import torch

    from ..lite import lists

    _, heads, batch = plan["grid"]
    steps = torch.floor(torch.arange(plan["kv_tiles"] + 1, dtype=torch.float64) * listed + 1e-9)
    kept = steps[1:] > steps[:-1]
    read = lists.pack(kept).expand(batch, heads, lists.query_tiles(seqlen_q), -1).contiguous()
    write = torch.zeros_like(read)
    for name, tensor in (("read_list", read), ("write_list", write)):
        memory.enter_context(simulator.register(tensor, name, name == "write_list"))
    return struct.pack("<3Qf3i", read.data_ptr(), write.data_ptr(), 0, -10.0, read.shape[-1], 0, 0)


def _tensor(heads: int, rows: int, used_heads, seed: int):
    import torch

    # Other heads stay zero: nothing reads them, so their pages are never touched.
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.zeros(1, rows, heads, HEAD_DIM, dtype=torch.bfloat16)
    for head in used_heads:
        tensor[0, :, head] = torch.randn(rows, HEAD_DIM, generator=generator).bfloat16()
    return tensor


SOURCES = ("ours", "forward", "pingpong", "aiter_exact", "skip", "skip-pingpong", "aiter")
KERNELS = {kernel.name: kernel for source in SOURCES for kernel in (Kernel(source, r) for r in ROUNDINGS)}
