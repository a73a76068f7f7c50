"""The parts of a launch that splits KV, and the kernels before and behind it."""

import math
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import simulator
from . import packing
from .recording import Recording
from .shapes import HEAD_DIM, Shape

KV_ROWS = 64  # of a tile


class _Beside:
    """A kernel that runs before or behind one that attends; `query_rows` is what a workgroup takes."""

    calibrated = False
    private_lines = True
    query_rows: int

    def workgroups(self, shape: Shape) -> int:
        return math.ceil(shape.seqlen_q / self.query_rows) * shape.heads * shape.batch


@dataclass(frozen=True)
class Merge(_Beside):
    """The kernel that merges the pieces of a split. A "KV row" of its shapes is a piece."""

    rounding: str
    block_rows: int  # query rows of a block
    path: Path | None = None
    words: int = 0  # of a skip list, whose votes are gathered too; 0: of dense attention
    query_rows, kv_rows = 64, 1  # rows of one piece

    @property
    def name(self) -> str:
        return f"{'skip_' if self.words else ''}merge:{self.rounding}"

    def trace(self, heads: int, seqlen_q: int, seqlen_kv: int, workgroups: list[int]) -> Recording:
        """As `Kernel.trace`, over `seqlen_kv` pieces."""
        import torch

        out = torch.empty(1, seqlen_q, heads, HEAD_DIM, dtype=torch.bfloat16)
        recording = Recording(workgroups)
        with ExitStack() as memory, recording.active():
            memory.enter_context(simulator.register(out, "out", True))
            tiles = math.ceil(seqlen_q / self.block_rows)
            fragments = self.block_rows // packing.PARTIAL_ROWS
            packed = packing.forward_arguments(out, out, out, out)
            packed += packing.split_arguments(memory, tiles, 0, tiles * heads, seqlen_kv, fragments)
            symbol = "merge"
            if self.words:
                symbol = "skip_merge"
                read, write = packing.lists_of(seqlen_q, self.words * packing.TILES_PER_WORD, 1.0, heads)
                packed += packing.list_arguments(memory, read, write)
                packed += packing.piece_arguments(memory, read, tiles * heads, seqlen_kv, fragments, votes=-1)
            grid = (self.workgroups(Shape(1, heads, seqlen_q, seqlen_kv)), 1, 1)
            module = simulator.Module(packing.image(self.path))
            module.launch(f"attention_{symbol}_{self.rounding}", grid, (256, 1, 1), packed)
        return recording


@dataclass(frozen=True)
class PieceLists(_Beside):
    """The kernel that prepares the lists of a split's pieces. A "query row" of its shapes is a piece."""

    block_rows: int  # query rows of a block
    listed: float
    path: Path | None = None
    query_rows, kv_rows = 4, KV_ROWS  # pieces; rows of a tile
    name = "skip_pieces"

    def trace(self, heads: int, seqlen_q: int, seqlen_kv: int, workgroups: list[int]) -> Recording:
        """As `Kernel.trace`, of `seqlen_q` blocks in one piece each."""
        import torch

        rows = seqlen_q * self.block_rows
        one = torch.empty(1, 1, 1, HEAD_DIM, dtype=torch.bfloat16)  # Q, K, V and O are not touched
        q, k = one.expand(1, rows, heads, -1), one.expand(1, seqlen_kv, heads, -1)
        recording = Recording(workgroups)
        with ExitStack() as memory, recording.active():
            fragments = self.block_rows // packing.PARTIAL_ROWS
            blocks = seqlen_q * heads
            read, write = packing.lists_of(rows, math.ceil(seqlen_kv / KV_ROWS), self.listed, heads)
            packed = packing.forward_arguments(q, k, k, q)
            packed += packing.split_arguments(memory, seqlen_q, 0, blocks, 1, fragments)
            packed += packing.list_arguments(memory, read, write)
            packed += packing.piece_arguments(memory, read, blocks, 1, fragments)
            grid = (math.ceil(blocks / self.query_rows), 1, 1)
            module = simulator.Module(packing.image(self.path))
            module.launch("attention_skip_pieces", grid, (256, 1, 1), packed)
        return recording


@dataclass(frozen=True)
class Stage:
    """A part of a launch: so many workgroups of a kernel over a shape.

    share: of a query block's work that a workgroup has. stored_bytes: moved when its workgroups end;
    least_bytes: which it can't be faster than; launched: as a kernel of its own, behind the one before.
    """

    name: str
    kernel: Any  # a Kernel, Merge or PieceLists
    shape: Shape
    workgroups: int
    share: float = 1.0
    stored_bytes: int = 0
    least_bytes: int = 0
    launched: bool = False


def of_split(
    shape: Shape,
    kernel: Any,
    piece: Any,
    merge: Merge,
    plan: dict,
    rows: int,
    lists: PieceLists | None = None,
) -> list[Stage]:
    """The stages of a launch by a plan: whole query blocks, pieces, and what runs before and behind them.

    Args:
        kernel, piece: of the whole blocks and of the pieces.
        rows: KV rows of a piece.
        lists: what prepares the pieces' lists, if they have any.
    """
    pieces, split, bytes_moved = (plan[name] for name in ("pieces", "split_blocks", "workspace_bytes"))
    merged = Shape(1, 1, split * kernel.query_rows, pieces)
    out_bytes = 2 * HEAD_DIM * split * kernel.query_rows
    prepared = Shape(1, 1, split * pieces, shape.seqlen_kv)
    parts = [
        Stage("whole", kernel, shape, plan["whole_blocks"], launched=lists is not None),
        Stage(
            "pieces", piece, Shape(shape.batch, shape.heads, shape.seqlen_q, rows), split * pieces,
            share=1 / pieces, stored_bytes=bytes_moved,
            launched=lists is not None and not plan["whole_blocks"],
        ),
        Stage(
            "merge", merge, merged, merge.workgroups(merged), share=0.0,
            least_bytes=bytes_moved + out_bytes, launched=True,
        ),
    ]  # fmt: skip
    if lists is not None:
        parts.insert(0, Stage("lists", lists, prepared, lists.workgroups(prepared), share=0.0))
    return [part for part in parts if part.workgroups]
