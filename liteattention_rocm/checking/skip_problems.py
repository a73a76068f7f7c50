"""Problems for the skipping kernels: walks of both directions over lists with holes, and lists to order."""

import contextlib
import dataclasses
import struct

import torch

from .. import simulator
from ..lite import lists
from . import problems


@dataclasses.dataclass(frozen=True)
class SkipProblem(problems.Problem):
    """One launch of a skipping forward kernel on normally distributed inputs.

    Attributes:
        share: of the KV tiles that are listed, at random; each row has one at least.
        threshold: of the votes, log2 units. Leads of normal scores over earlier tiles are about ±1.
        backward, votes_count: as the kernel's arguments.
        ordered: whether workgroups take the query tiles in reverse.
        gaps: every other query tile lists nothing.
    """

    share: float = 0.5
    threshold: float = -0.3
    backward: bool = False
    votes_count: bool = False
    ordered: bool = False
    gaps: bool = False

    def __str__(self):
        marks = [name for name in ("backward", "votes_count", "ordered", "gaps") if getattr(self, name)]
        return ", ".join([super().__str__(), f"{self.share:.0%} listed", *marks])


# Besides the tails of problems.PROBLEMS: first and last tiles listed and not, words without a tile, walks
# that cross words, votes that keep and drop, waves without rows, more than one query tile in another order.
SKIP_PROBLEMS = (
    SkipProblem(40, 130, share=1.0),
    SkipProblem(150, 229, heads=2, kv_heads=1, strided=True, ordered=True, share=0.7),
    SkipProblem(129, 65, lse=False, strided=True, share=1.0, votes_count=True),
    SkipProblem(17, 83, share=1.0),
    SkipProblem(33, 128, share=1.0),
    SkipProblem(20, 106, share=1.0),
    SkipProblem(1, 3, share=1.0, backward=True),
    SkipProblem(42, 42, share=0.0),
    SkipProblem(64, 149, batch=2, share=1.0, backward=True, votes_count=True),
    SkipProblem(17, 2200, share=0.1, backward=True),
    SkipProblem(33, 2113, share=0.1, votes_count=True),
)

# The out-of-phase schedule: query tiles of one workgroup with different lists, with an empty one, and missing
# ones.
PINGPONG_SKIP_PROBLEMS = (
    SkipProblem(20, 85, share=1.0),
    SkipProblem(1, 3, share=0.0, backward=True),
    SkipProblem(300, 189, share=0.6, gaps=True),
    SkipProblem(390, 130, heads=2, kv_heads=1, strided=True, lse=False, ordered=True, share=0.6),
    SkipProblem(300, 2200, share=0.1),
    SkipProblem(150, 2113, share=0.05, gaps=True, backward=True),
    SkipProblem(20, 3000, share=0.02),
    SkipProblem(20, 3500, share=0.04),
)


@dataclasses.dataclass
class SkipOperands(problems.Operands):
    """Operands with lists; the written one starts with one tile pinned."""

    read_list: torch.Tensor = None
    write_list: torch.Tensor = None
    pinned: torch.Tensor = None

    @classmethod
    def draw(cls, problem: SkipProblem, seed: int = 0) -> "SkipOperands":
        """Normally distributed q, k, v; a random list; out and lse hold NaN."""
        tiles, rows = lists.kv_tiles(problem.seqlen_kv), lists.query_tiles(problem.seqlen_q)
        generator = torch.Generator().manual_seed(seed)
        shape = (problem.batch, problem.heads, rows, tiles)
        kept = torch.rand(shape, generator=generator) < problem.share
        kept[..., tiles // 2] = True
        if problem.gaps:
            kept[:, :, 1::2] = False
        pinned = torch.zeros(shape, dtype=torch.bool)
        pinned[..., tiles - 1] = True
        base = problems.Operands.draw(problem, seed)
        tensors = {field.name: getattr(base, field.name) for field in dataclasses.fields(base)}
        pinned = lists.pack(pinned)
        return cls(**tensors, read_list=lists.pack(kept), write_list=pinned.clone(), pinned=pinned)

    def poison(self) -> None:
        super().poison()
        if self.write_list is not None:
            self.write_list.copy_(self.pinned)

    def result(self) -> tuple[bytes, ...]:
        """The bits of out, lse and the written list."""
        return (*super().result(), self.write_list.numpy().tobytes())

    def arguments(self, order: torch.Tensor) -> bytes:
        """SkipArguments of csrc/device/skip_arguments.hpp."""
        problem = self.problem
        return problems.arguments_of(self) + struct.pack(
            "<3Qf3i",
            self.read_list.data_ptr(),
            self.write_list.data_ptr(),
            order.data_ptr() if problem.ordered else 0,
            problem.threshold,
            self.read_list.shape[-1],
            problem.backward,
            problem.votes_count,
        )

    @contextlib.contextmanager
    def registered(self, order: torch.Tensor):
        tensors = {"read_list": self.read_list, "write_list": self.write_list, "order": order}
        with contextlib.ExitStack() as memory:
            memory.enter_context(problems.registered(self))
            for name, tensor in tensors.items():
                memory.enter_context(simulator.register(tensor, name, name == "write_list"))
            yield

    def launch(self, module: simulator.Module, kernel: str) -> tuple[bytes, ...]:
        self.poison()
        batch, heads, rows = self.read_list.shape[:3]
        workgroups, threads = (-(-rows // 3), 512) if "pingpong" in kernel else (rows, 256)
        order = torch.arange(workgroups - 1, -1, -1, dtype=torch.int32).repeat(batch, heads, 1)
        with self.registered(order):
            module.launch(kernel, (workgroups, heads, batch), (threads, 1, 1), self.arguments(order))
        return self.result()


@dataclasses.dataclass(frozen=True)
class OrderProblem:
    """One launch of the kernel that orders query tiles by work."""

    heads: int
    query_tiles: int
    words: int
    merged: int = 1

    def __str__(self):
        return f"{self.heads}x{self.query_tiles} rows of {self.words} words, {self.merged} at a time"


ORDER_PROBLEMS = (
    OrderProblem(2, 5, 1),
    OrderProblem(1, 1, 7),
    OrderProblem(1, 258, 2),
    OrderProblem(2, 8, 2, merged=3),
    OrderProblem(1, 194, 1, merged=3),
)


@dataclasses.dataclass
class OrderOperands:
    """A random list with ties in its counts, and poisoned results."""

    problem: OrderProblem
    list: torch.Tensor
    counts: torch.Tensor
    order: torch.Tensor

    @classmethod
    def draw(cls, problem: OrderProblem, seed: int = 0) -> "OrderOperands":
        generator = torch.Generator().manual_seed(seed)
        rows = (problem.heads, problem.query_tiles)
        words = torch.randint(-(2**31), 2**31, (*rows, problem.words), generator=generator).to(torch.int32)
        groups = (problem.heads, -(-problem.query_tiles // problem.merged))
        operands = cls(problem, words, *(torch.empty(groups, dtype=torch.int32) for _ in range(2)))
        operands.poison()
        return operands

    def poison(self) -> None:
        self.counts.fill_(-1)
        self.order.fill_(-1)

    def result(self) -> tuple[bytes, bytes]:
        return self.counts.numpy().tobytes(), self.order.numpy().tobytes()

    def launch(self, module: simulator.Module, kernel: str) -> tuple[bytes, bytes]:
        self.poison()
        tensors = (self.list, self.counts, self.order)
        problem = self.problem
        arguments = struct.pack(
            "<3Q4i",
            *(tensor.data_ptr() for tensor in tensors),
            problem.query_tiles,
            problem.words,
            problem.merged,
            0,
        )
        with contextlib.ExitStack() as memory:
            for name, tensor in zip(("list", "counts", "order"), tensors, strict=True):
                memory.enter_context(simulator.register(tensor, name, name != "list"))
            grid = (-(-self.counts.shape[1] // 4096), problem.heads, 1)
            module.launch(kernel, grid, (256, 1, 1), arguments)
        return self.result()


def as_skip_problem(problem: problems.Problem) -> SkipProblem:
    """The same sizes with half of the tiles listed, walked backward."""
    return SkipProblem(**dataclasses.asdict(problem), backward=True)
