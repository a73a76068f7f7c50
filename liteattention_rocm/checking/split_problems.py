"""Problems for the kernels that split KV, each run together with the merge."""

import contextlib
import dataclasses
import struct

import torch

from .. import _C, simulator
from . import problems

PARTIAL_BYTES = 8704  # of 16 query rows, csrc/device/split_arguments.hpp
_ROWS = 16
MERGE_ROWS = 64  # query rows that a workgroup of the merge has


@dataclasses.dataclass(frozen=True)
class InPieces:
    """What makes a problem one of a kernel that splits.

    Attributes:
        pieces: of each split query block.
        whole: query blocks that are not split.
    """

    pieces: int = 2
    whole: int = 0

    def __str__(self):
        whole = f", {self.whole} whole" if self.whole else ""
        return f"{super().__str__()}, {self.pieces} pieces{whole}"


@dataclasses.dataclass(frozen=True)
class SplitProblem(InPieces, problems.Problem):
    """One launch of a splitting kernel and one of the merge. At most as many pieces as KV tiles."""


# Pieces of equal and unequal length, a part-filled last tile in a piece of its own and not, whole blocks
# beside split ones and alone, waves without rows; and, in one piece, the tails of problems.PROBLEMS.
SPLIT_PROBLEMS = (
    SplitProblem(1, 3, pieces=1),
    SplitProblem(20, 21, pieces=1),
    SplitProblem(42, 42, pieces=1),
    SplitProblem(17, 83, pieces=1),
    SplitProblem(33, 128, pieces=1),
    SplitProblem(40, 130, whole=1),
    SplitProblem(40, 189, pieces=2),
    SplitProblem(150, 330, heads=2, kv_heads=1, strided=True, pieces=3, whole=1),
    SplitProblem(20, 65, batch=2, pieces=2, lse=False),
)
# Of 384 rows: whole blocks through the paths of problems.PINGPONG_PROBLEMS, pieces of one tile and of more.
PINGPONG_SPLIT_PROBLEMS = (
    SplitProblem(1, 3, pieces=1, whole=1),
    SplitProblem(20, 21, pieces=1, whole=1),
    SplitProblem(40, 189, pieces=1, whole=1),
    SplitProblem(20, 149, pieces=3),
    SplitProblem(40, 317, pieces=2),
    SplitProblem(390, 76, heads=2, kv_heads=1, strided=True, pieces=2, whole=2, lse=False),
)
MERGE_PROBLEMS = (
    SplitProblem(17, 83, pieces=2),
    SplitProblem(1, 140, pieces=3, lse=False),
    SplitProblem(33, 230, pieces=4),
    SplitProblem(130, 320, heads=2, batch=2, pieces=5, whole=3),
    SplitProblem(20, 366, pieces=6),
)


@dataclasses.dataclass
class SplitOperands(problems.Operands):
    """Operands with a poisoned workspace."""

    workspace: torch.Tensor = None

    @classmethod
    def draw(cls, problem: SplitProblem, seed: int = 0) -> "SplitOperands":
        base = problems.Operands.draw(problem, seed)
        return cls(**{field.name: getattr(base, field.name) for field in dataclasses.fields(base)})

    def result(self) -> tuple[bytes, ...]:
        """The bits of out, lse and the workspace."""
        return (*super().result(), self.workspace.numpy().tobytes())

    def launch(self, module: simulator.Module, kernel: str) -> tuple[bytes, ...]:
        """Runs `kernel` and its counterpart: the merge behind a splitting kernel, and before the merge the
        splitting kernel of 128 rows."""
        problem, rounding = self.problem, kernel.rsplit("_", 1)[1]
        splitting = kernel if "split" in kernel else f"attention_forward_split_{rounding}"
        family = "pingpong" if "pingpong" in splitting else "forward"
        plan = _C.plan(
            problem.batch, problem.heads, problem.kv_heads, problem.seqlen_q, problem.seqlen_kv, 1, family
        )
        query_tiles, heads, batch = plan["grid"]
        fragments = (384 if family == "pingpong" else 128) // _ROWS
        split = query_tiles * heads * batch - problem.whole
        partials = problem.pieces * split
        self.workspace = torch.full((partials * fragments * PARTIAL_BYTES,), 255, dtype=torch.uint8)
        self.poison()
        arguments = problems.arguments_of(self) + struct.pack(
            "<Q6i", self.workspace.data_ptr(), query_tiles, problem.whole, split, problem.pieces, fragments, 0
        )
        with contextlib.ExitStack() as memory:
            memory.enter_context(problems.registered(self))
            memory.enter_context(simulator.register(self.workspace, "workspace", True, unwritten=True))
            module.launch(splitting, (problem.whole + partials, 1, 1), plan["block"], arguments)
            merging = -(-split * fragments * _ROWS // MERGE_ROWS)
            if merging:
                module.launch(f"attention_merge_{rounding}", (merging, 1, 1), (256, 1, 1), arguments)
        return self.result()


def split_problems_for(kernel: str, chosen=()) -> tuple:
    """What a splitting kernel or the merge is run on: `chosen`, split where there are tiles enough, or its
    set."""
    if chosen:
        return tuple(map(as_split_problem, chosen))
    if "merge" in kernel:
        return MERGE_PROBLEMS
    return PINGPONG_SPLIT_PROBLEMS if "pingpong" in kernel else SPLIT_PROBLEMS


def as_split_problem(problem: problems.Problem) -> SplitProblem:
    """The same sizes, in up to three pieces."""
    pieces = min(3, -(-problem.seqlen_kv // 64))
    return SplitProblem(**dataclasses.asdict(problem), pieces=pieces)
