"""Problems for the skipping kernels that split KV, run with what prepares and what merges; and lists to share
among pieces."""

import contextlib
import dataclasses
import struct

import torch

from .. import simulator
from ..lite import lists
from . import problems, skip_problems
from .split_problems import MERGE_ROWS, PARTIAL_BYTES, InPieces

_ROWS = 16  # that vote together, csrc/device/split_arguments.hpp
_PREPARED = 4  # pieces that a workgroup prepares
_LIST_PIECE_BYTES = 16


@dataclasses.dataclass(frozen=True)
class SkipSplitProblem(InPieces, skip_problems.SkipProblem):
    """One launch each of the kernel that prepares lists, of a skipping one that splits, and of the merge."""


# As for the unsplit kernels; besides, pieces of equal and unequal length, some without tiles, words that two
# pieces share, whole blocks beside split ones and alone, and votes that the merge keeps and drops.
SKIP_SPLIT_PROBLEMS = (
    SkipSplitProblem(40, 189, share=1.0, pieces=3),
    SkipSplitProblem(150, 229, heads=2, kv_heads=1, strided=True, ordered=True, share=0.7, whole=1),
    SkipSplitProblem(129, 65, lse=False, strided=True, share=1.0, votes_count=True),
    SkipSplitProblem(20, 21, share=1.0, pieces=1),
    SkipSplitProblem(42, 42, share=0.0, gaps=True, pieces=1, backward=True),
    SkipSplitProblem(17, 83, share=1.0, pieces=1, whole=1),
    SkipSplitProblem(20, 106, share=1.0, pieces=1),
    SkipSplitProblem(33, 128, share=1.0, pieces=1),
    SkipSplitProblem(33, 128, share=0.0),
    SkipSplitProblem(64, 149, batch=2, share=1.0, backward=True, votes_count=True),
    SkipSplitProblem(17, 2200, share=0.1, backward=True),
    SkipSplitProblem(33, 2113, share=0.1, votes_count=True, whole=1),
)
PINGPONG_SKIP_SPLIT_PROBLEMS = (
    SkipSplitProblem(20, 149, share=1.0, pieces=3),
    SkipSplitProblem(1, 3, share=0.0, backward=True),
    SkipSplitProblem(300, 189, share=0.6, gaps=True),
    SkipSplitProblem(
        390, 130, heads=2, kv_heads=1, strided=True, lse=False, ordered=True, share=0.6, whole=2
    ),
    SkipSplitProblem(300, 2200, share=0.1),
    SkipSplitProblem(150, 2113, share=0.05, gaps=True, backward=True, whole=1),
    SkipSplitProblem(20, 85, share=1.0, whole=1),
    SkipSplitProblem(40, 64, share=1.0, whole=1),
    SkipSplitProblem(20, 3000, share=0.03),
    SkipSplitProblem(20, 4200, share=0.03, pieces=1),
    SkipSplitProblem(20, 3500, share=0.04, pieces=1),
)
SKIP_MERGE_PROBLEMS = (
    SkipSplitProblem(17, 130, share=1.0),
    SkipSplitProblem(1, 140, share=1.0, pieces=3, lse=False, backward=True),
    SkipSplitProblem(33, 230, share=1.0, pieces=4),
    SkipSplitProblem(130, 320, heads=2, batch=2, pieces=5, whole=3, ordered=True),
    SkipSplitProblem(20, 366, share=1.0, pieces=6, threshold=-1.0),
    SkipSplitProblem(1, 366, share=1.0, pieces=6, threshold=-0.01),
    SkipSplitProblem(2, 320, share=1.0, pieces=5, threshold=-0.01, backward=True),
    SkipSplitProblem(20, 64, share=1.0, pieces=1, threshold=float("inf")),
    SkipSplitProblem(3, 64 * 32 * 80, share=0.01, threshold=-3.0, pieces=1),
)


@dataclasses.dataclass
class SkipSplitOperands(skip_problems.SkipOperands):
    """Operands with lists and a poisoned workspace."""

    workspace: "_Workspace | None" = None

    def result(self) -> tuple[bytes, ...]:
        """The bits of out, lse, the written list and the workspace."""
        return (*super().result(), *self.workspace.result())

    def launch(self, module: simulator.Module, kernel: str) -> tuple[bytes, ...]:
        """Runs `kernel` and its counterparts: for the merge, the splitting kernel of 128 rows."""
        problem, rounding = self.problem, kernel.rsplit("_", 1)[1]
        splitting = kernel if "split" in kernel else f"attention_skip_forward_split_{rounding}"
        merged, threads = (3, 512) if "pingpong" in splitting else (1, 256)
        batch, heads, rows, words = self.read_list.shape
        blocks = -(-rows // merged)
        split = blocks * heads * batch - problem.whole
        fragments = 8 * merged
        self.poison()
        self.workspace = _Workspace.of(problem.pieces * split, merged, words)
        order = torch.arange(blocks - 1, -1, -1, dtype=torch.int32).repeat(batch, heads, 1)
        arguments = problems.arguments_of(self) + _arguments(
            problem, self.read_list, self.write_list, order, self.workspace,
            query_tiles=blocks, split=split, merged=merged,
        )  # fmt: skip
        with contextlib.ExitStack() as memory:
            memory.enter_context(self.registered(order))
            memory.enter_context(self.workspace.registered())
            prepared = problem.pieces * split
            if prepared:
                grid = (-(-prepared // _PREPARED), 1, 1)
                module.launch("attention_skip_pieces", grid, (256, 1, 1), arguments)
            module.launch(splitting, (problem.whole + prepared, 1, 1), (threads, 1, 1), arguments)
            if split:
                merging = -(-split * fragments * _ROWS // MERGE_ROWS)
                module.launch(f"attention_skip_merge_{rounding}", (merging, 1, 1), (256, 1, 1), arguments)
        return self.result()


@dataclasses.dataclass
class _Workspace:
    partials: torch.Tensor
    list_pieces: torch.Tensor
    piece_lists: torch.Tensor
    votes: torch.Tensor

    @classmethod
    def of(cls, pieces: int, merged: int, words: int) -> "_Workspace":
        """Poisoned, for so many pieces in all, of blocks of so many query tiles."""
        fragments = 8 * merged
        sizes = (
            pieces * fragments * PARTIAL_BYTES,
            pieces * _LIST_PIECE_BYTES,
            pieces * merged * words * 4,
            pieces * (fragments + merged - 1) * words * 4,
        )
        return cls(*(torch.full((size,), 255, dtype=torch.uint8) for size in sizes))

    @contextlib.contextmanager
    def registered(self):
        with contextlib.ExitStack() as memory:
            for name, tensor in vars(self).items():
                memory.enter_context(simulator.register(tensor, name, True, unwritten=True))
            yield

    def result(self) -> tuple[bytes, ...]:
        return tuple(tensor.numpy().tobytes() for tensor in vars(self).values())


def _arguments(problem, read, write, order, workspace, *, query_tiles, split, merged) -> bytes:
    """What SkipSplitArguments of csrc/device/skip_split_arguments.hpp adds to those of the dense kernels."""
    return struct.pack(
        "<Q6i3Qf3i3Q2i",
        workspace.partials.data_ptr(),
        query_tiles,
        problem.whole,
        split,
        problem.pieces,
        8 * merged,
        0,
        read.data_ptr(),
        write.data_ptr(),
        order.data_ptr() if problem.ordered else 0,
        problem.threshold,
        read.shape[-1],
        problem.backward,
        problem.votes_count,
        workspace.list_pieces.data_ptr(),
        workspace.piece_lists.data_ptr(),
        workspace.votes.data_ptr(),
        merged,
        0,
    )


@dataclasses.dataclass(frozen=True)
class PiecesProblem:
    """One launch of the kernel that prepares the lists of pieces.

    Attributes:
        heads, query_tiles, kv_tiles: of random lists.
        merged: query tiles of a block.
        pieces, whole, share, gaps, backward, ordered: as of the splitting kernels.
    """

    heads: int
    query_tiles: int
    kv_tiles: int
    merged: int = 1
    pieces: int = 3
    whole: int = 0
    share: float = 0.5
    gaps: bool = False
    backward: bool = False
    ordered: bool = False
    threshold: float = -1.0
    votes_count: bool = False

    def __str__(self):
        marks = [name for name in ("gaps", "backward", "ordered") if getattr(self, name)]
        sizes = f"{self.heads}x{self.query_tiles}x{self.kv_tiles} tiles, {self.merged} at a time"
        return ", ".join([sizes, f"{self.share:.0%} listed", f"{self.pieces} pieces", *marks])


# Words that several pieces share and that none has, rows of more words than lanes, blocks that lack query
# tiles, lists without tiles, fewer tiles than pieces, waves that have no piece.
PIECES_PROBLEMS = (
    PiecesProblem(1, 2, 45),
    PiecesProblem(2, 4, 100, merged=3, pieces=2, whole=1, ordered=True, backward=True),
    PiecesProblem(1, 5, 2500, merged=3, share=0.02, gaps=True),
    PiecesProblem(1, 3, 2500, share=0.001, backward=True, pieces=5),
    PiecesProblem(1, 1, 32, share=1.0, pieces=9, backward=True),
    PiecesProblem(1, 2, 7, share=0.0, merged=3, gaps=True, pieces=2),
)


@dataclasses.dataclass
class PiecesOperands:
    """A random list and poisoned results."""

    problem: PiecesProblem
    read_list: torch.Tensor
    write_list: torch.Tensor
    workspace: _Workspace

    @classmethod
    def draw(cls, problem: PiecesProblem, seed: int = 0) -> "PiecesOperands":
        generator = torch.Generator().manual_seed(seed)
        shape = (problem.heads, problem.query_tiles, problem.kv_tiles)
        kept = torch.rand(shape, generator=generator) < problem.share
        kept[..., problem.kv_tiles // 2] = True
        if problem.gaps:
            kept[:, 1::2] = False
        read = lists.pack(kept)
        # Bits behind the last tile, which don't count.
        read[..., -1] |= -1 << (problem.kv_tiles - 1) % lists.TILES_PER_WORD << 1
        operands = cls(problem, read, torch.zeros_like(read), None)
        operands.poison()
        return operands

    @property
    def _blocks(self) -> int:
        return -(-self.problem.query_tiles // self.problem.merged)

    @property
    def _split(self) -> int:
        return self._blocks * self.problem.heads - self.problem.whole

    def poison(self) -> None:
        self.write_list.zero_()
        pieces = self.problem.pieces * self._split
        self.workspace = _Workspace.of(pieces, self.problem.merged, self.read_list.shape[-1])

    def result(self) -> tuple[bytes, ...]:
        return (self.write_list.numpy().tobytes(), *self.workspace.result()[1:])

    def launch(self, module: simulator.Module, kernel: str) -> tuple[bytes, ...]:
        self.poison()
        problem = self.problem
        order = torch.arange(self._blocks - 1, -1, -1, dtype=torch.int32).repeat(problem.heads, 1)
        seqlen_q = problem.query_tiles * lists.QUERY_ROWS_PER_TILE
        seqlen_kv = problem.kv_tiles * lists.KV_ROWS_PER_TILE
        arguments = struct.pack(
            "<5Q12q4i2f2I", *17 * [0], seqlen_q, seqlen_kv, problem.heads, 1, 1.0, 1.0, 0, 0
        ) + _arguments(
            problem, self.read_list, self.write_list, order, self.workspace,
            query_tiles=self._blocks, split=self._split, merged=problem.merged,
        )  # fmt: skip
        tensors = {"read_list": self.read_list, "write_list": self.write_list, "order": order}
        with contextlib.ExitStack() as memory:
            memory.enter_context(self.workspace.registered())
            for name, tensor in tensors.items():
                memory.enter_context(simulator.register(tensor, name, name == "write_list"))
            grid = (-(-problem.pieces * self._split // _PREPARED), 1, 1)
            module.launch(kernel, grid, (256, 1, 1), arguments)
        return self.result()


def skip_split_problems_for(kernel: str, chosen=()) -> tuple:
    """What one of these kernels is run on: `chosen`, with half of the tiles listed and walked backward in up
    to three pieces, or its set. The kernel that prepares lists has its set alone."""
    if kernel.endswith("skip_pieces"):
        return PIECES_PROBLEMS
    if chosen:
        return tuple(map(as_skip_split_problem, chosen))
    if "merge" in kernel:
        return SKIP_MERGE_PROBLEMS
    return PINGPONG_SKIP_SPLIT_PROBLEMS if "pingpong" in kernel else SKIP_SPLIT_PROBLEMS


def as_skip_split_problem(problem: problems.Problem) -> SkipSplitProblem:
    """The same sizes with half of the tiles listed, walked backward in three pieces."""
    return SkipSplitProblem(**dataclasses.asdict(problem), backward=True, pieces=3)
