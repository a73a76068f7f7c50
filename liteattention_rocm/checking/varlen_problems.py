"""Problems for the kernels of packed sequences."""

import contextlib
import dataclasses
import itertools
import struct

import torch

from .. import simulator
from . import problems


@dataclasses.dataclass(frozen=True)
class VarlenProblem(problems.Problem):
    """One launch on normally distributed inputs. seqlen_q and seqlen_kv are totals.

    Attributes:
        queries, keys: rows of each sequence.
    """

    queries: tuple[int, ...] = ()
    keys: tuple[int, ...] = ()

    def __str__(self):
        return f"{super().__str__()}, sequences of {self.queries} by {self.keys}"


def _problem(queries, keys, **options) -> VarlenProblem:
    return VarlenProblem(sum(queries), sum(keys), queries=queries, keys=keys, **options)


# The tails of problems.PROBLEMS, each beside others: sequences without queries, without keys and without
# either, workgroups behind the end of theirs, waves without rows, shared KV heads.
VARLEN_PROBLEMS = (
    _problem((1, 20, 0), (3, 21, 7)),
    _problem((40, 3, 42), (130, 0, 42)),
    _problem((17, 0, 64), (83, 0, 64)),
    _problem((33, 150), (128, 37), heads=2, kv_heads=1, strided=True),
    _problem((129, 1), (65, 2), lse=False, strided=True),
    _problem((5, 130), (9, 0)),
)


@dataclasses.dataclass
class VarlenOperands(problems.Operands):
    """Packed operands, held as one batch entry, and the cumulative lengths."""

    cu_seqlens_q: torch.Tensor = None
    cu_seqlens_k: torch.Tensor = None

    @classmethod
    def draw(cls, problem: VarlenProblem, seed: int = 0) -> "VarlenOperands":
        base = problems.Operands.draw(problem, seed)
        tensors = {field.name: getattr(base, field.name) for field in dataclasses.fields(base)}
        bounds = (
            torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
            for lengths in (problem.queries, problem.keys)
        )
        return cls(**tensors, **dict(zip(("cu_seqlens_q", "cu_seqlens_k"), bounds, strict=True)))

    def arguments(self) -> bytes:
        """VarlenArguments of csrc/device/varlen_arguments.hpp."""
        pointers = self.cu_seqlens_q.data_ptr(), self.cu_seqlens_k.data_ptr()
        return problems.arguments_of(self) + struct.pack("<2Q", *pointers)

    def launch(self, module: simulator.Module, kernel: str) -> tuple[bytes, bytes]:
        self.poison()
        tiles = -(-max(self.problem.queries) // 128)
        with contextlib.ExitStack() as memory:
            memory.enter_context(problems.registered(self))
            for name in ("cu_seqlens_q", "cu_seqlens_k"):
                memory.enter_context(simulator.register(getattr(self, name), name, False))
            grid = (tiles, self.problem.heads, len(self.problem.queries))
            module.launch(kernel, grid, (256, 1, 1), self.arguments())
        return self.result()


def as_varlen_problem(problem: problems.Problem) -> VarlenProblem:
    """The same rows in two sequences, cut at a third of the queries and at half of the keys."""
    queries, keys = problem.seqlen_q // 3, problem.seqlen_kv // 2
    sizes = dataclasses.asdict(problem) | {"batch": 1}
    return VarlenProblem(
        **sizes,
        queries=(queries, problem.seqlen_q - queries),
        keys=(keys, problem.seqlen_kv - keys),
    )
