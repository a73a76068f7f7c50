"""Small attention problems that between them execute every path of a forward kernel."""

import contextlib
import dataclasses
import math
import struct

import torch

from .. import _C, aiter_kernel, simulator

HEAD_DIM = 128
_COMPUTE_UNITS = 304  # of an MI300X
_POISON = -1  # as int16 and int32: NaN in bfloat16 and float32


@dataclasses.dataclass(frozen=True)
class Problem:
    """One launch of a forward kernel.

    Attributes:
        seqlen_q, seqlen_kv: rows of q and of k and v; k and v are q's own sequence where they are equal.
        heads, kv_heads: query heads, and heads of k and v, which divide them.
        strided: k and v are interleaved in one tensor [batch, seqlen_kv, 2, kv_heads, 128].
        lse: whether the log-sum-exp is written.
        layout: of every tensor in memory, "bshd" or "bhsd".
    """

    seqlen_q: int
    seqlen_kv: int
    heads: int = 1
    kv_heads: int = 1
    batch: int = 1
    strided: bool = False
    lse: bool = True
    layout: str = "bshd"

    def __post_init__(self):
        for name in ("seqlen_q", "seqlen_kv", "heads", "kv_heads", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.layout not in ("bshd", "bhsd"):
            raise ValueError(f"layout must be bshd or bhsd, got {self.layout!r}")
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads must divide heads ({self.heads}), got {self.kv_heads}")

    def __str__(self):
        heads = f"{self.heads}" if self.heads == self.kv_heads else f"{self.heads}/{self.kv_heads}"
        marks = (", strided v" if self.strided else "") + ("" if self.lse else ", no lse")
        marks += "" if self.layout == "bshd" else f", {self.layout}"
        return f"{self.batch}x{heads}x{self.seqlen_q}x{self.seqlen_kv}{marks}"


# Tails of query tiles. KV tiles that end in each of their quarters and at each place of a group of four rows,
# the first tile and later ones, so that every load is the last one in bounds somewhere. One and several tiles
# of each, waves without rows, shared KV heads.
PROBLEMS = (
    Problem(40, 130),
    Problem(150, 229, heads=2, kv_heads=1, strided=True),
    Problem(64, 64, batch=2),
    Problem(1, 3),
    Problem(20, 21),
    Problem(42, 42),
    Problem(17, 83),
    Problem(33, 128),
    Problem(129, 65, lse=False, strided=True),
)
# Intact kernels only: more tiles, odd lengths, groups of query heads, and the other layout.
WIDE_PROBLEMS = (
    Problem(257, 191, heads=4, kv_heads=2, layout="bhsd"),
    Problem(77, 321, heads=3, kv_heads=1, batch=2),
    Problem(131, 449, heads=2, strided=True),
    Problem(255, 1, layout="bhsd", lse=False),
)

# For the kernel of 384 rows and 8 waves, which costs the simulator most: one and several KV tiles,
# part-filled ones, a second workgroup with waves without rows, shared KV heads.
PINGPONG_PROBLEMS = (
    Problem(1, 3),
    Problem(20, 21),
    Problem(40, 189),
    Problem(390, 76, heads=2, kv_heads=1, strided=True, lse=False),
)


def deliveries(seeds: int) -> tuple[str, ...]:
    """Values of the simulator's option `delivery`: the two extremes and `seeds` random ones."""
    return ("early", "late", *(f"random:{seed}" for seed in range(1, seeds + 1)))


@dataclasses.dataclass
class Operands:
    """Inputs and poisoned outputs of one problem, in layout bshd."""

    problem: Problem
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor

    @classmethod
    def draw(cls, problem: Problem, seed: int = 0) -> "Operands":
        """Normally distributed q, k, v; out and lse hold NaN."""
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape):
            drawn = torch.randn(*shape, generator=generator).to(torch.bfloat16)
            return drawn if problem.layout == "bshd" else drawn.transpose(1, 2).contiguous().transpose(1, 2)

        rows = (problem.batch, problem.seqlen_kv)
        q = normal(problem.batch, problem.seqlen_q, problem.heads, HEAD_DIM)
        if problem.strided:
            k, v = normal(*rows, 2, problem.kv_heads, HEAD_DIM).unbind(2)
        else:
            k, v = normal(*rows, problem.kv_heads, HEAD_DIM), normal(*rows, problem.kv_heads, HEAD_DIM)
        out = torch.empty_like(q)
        lse = torch.empty(problem.batch, problem.heads, problem.seqlen_q)
        operands = cls(problem, q, k, v, out, lse)
        operands.poison()
        return operands

    def poison(self) -> None:
        self.out.view(torch.int16).fill_(_POISON)
        self.lse.view(torch.int32).fill_(_POISON)

    def result(self) -> tuple[bytes, bytes]:
        """The bits of out and lse."""
        return tuple(t.contiguous().view(torch.uint8).numpy().tobytes() for t in (self.out, self.lse))


def arguments_of(operands: Operands) -> bytes:
    """The kernel arguments of csrc/device/arguments.hpp, with the scale 1/sqrt(128)."""
    problem, lse = operands.problem, operands.lse.data_ptr() if operands.problem.lse else 0
    tensors = (operands.q, operands.k, operands.v, operands.out)
    strides = [2 * tensor.stride(dimension) for tensor in tensors for dimension in (0, 2, 1)]
    scale = 1 / math.sqrt(HEAD_DIM)
    return struct.pack(
        "<5Q12q4i2f2I",
        *(tensor.data_ptr() for tensor in tensors),
        lse,
        *strides,
        problem.seqlen_q,
        problem.seqlen_kv,
        problem.heads,
        problem.heads // problem.kv_heads,
        scale,
        scale * math.log2(math.e),
        0,
        0,
    )


def problems_for(kernel: str, chosen=()) -> tuple:
    """What a kernel of this package's interface is run on, by its name: `chosen`, made its own where the
    kernel takes lists or packed sequences, or its full set."""
    from . import skip_problems, skip_split_problems, split_problems, varlen_problems

    if kernel.startswith("attention_skip_") and any(part in kernel for part in ("split", "merge", "pieces")):
        return skip_split_problems.skip_split_problems_for(kernel, chosen)
    if "varlen" in kernel:
        return tuple(map(varlen_problems.as_varlen_problem, chosen)) or varlen_problems.VARLEN_PROBLEMS
    if "split" in kernel or "merge" in kernel:
        return split_problems.split_problems_for(kernel, chosen)
    if kernel.endswith("skip_order"):
        return skip_problems.ORDER_PROBLEMS
    if "skip" in kernel:
        own = skip_problems.PINGPONG_SKIP_PROBLEMS if "pingpong" in kernel else skip_problems.SKIP_PROBLEMS
        return tuple(map(skip_problems.as_skip_problem, chosen)) or own
    return tuple(chosen) or (PINGPONG_PROBLEMS if "pingpong" in kernel else PROBLEMS)


def operands_of(problem, seed: int = 0):
    """Inputs and poisoned outputs of any problem."""
    from . import skip_problems, skip_split_problems, split_problems, varlen_problems

    kinds = {
        skip_split_problems.PiecesProblem: skip_split_problems.PiecesOperands,
        skip_split_problems.SkipSplitProblem: skip_split_problems.SkipSplitOperands,
        varlen_problems.VarlenProblem: varlen_problems.VarlenOperands,
        split_problems.SplitProblem: split_problems.SplitOperands,
        skip_problems.OrderProblem: skip_problems.OrderOperands,
        skip_problems.SkipProblem: skip_problems.SkipOperands,
    }
    return kinds.get(type(problem), Operands).draw(problem, seed)


@contextlib.contextmanager
def registered(operands: Operands):
    """Lets kernels touch the tensors' bytes and no others, and store only to the outputs."""
    with contextlib.ExitStack() as memory:
        for name in ("q", "k", "v", "out", "lse"):
            written = name in ("out", "lse")
            memory.enter_context(
                simulator.register(getattr(operands, name), name, written, unwritten=written)
            )
        yield


def launch(module: simulator.Module, kernel: str, operands: Operands) -> tuple[bytes, bytes]:
    """Runs a forward kernel of this package's interface on poisoned outputs.

    Returns:
        The bits of out and of lse.

    Raises:
        SimulatorError: the kernel failed, or a check that ends launches found something.
    """
    if hasattr(operands, "launch"):
        return operands.launch(module, kernel)
    problem = operands.problem
    operands.poison()
    sizes = (problem.batch, problem.heads, problem.kv_heads, problem.seqlen_q, problem.seqlen_kv)
    plan = _C.plan(*sizes, _COMPUTE_UNITS, "pingpong" if "pingpong" in kernel else "forward")
    with registered(operands):
        module.launch(kernel, plan["grid"], plan["block"], arguments_of(operands))
    return operands.result()


def launch_aiter(rounding: str, operands: Operands) -> tuple[bytes, bytes]:
    """Runs AITER's kernel of a rounding mode on the problem.

    Returns, raises: as `launch`, and FileNotFoundError.
    """
    answer = aiter_kernel.forward(
        operands.q, operands.k, operands.v, rounding=rounding, return_lse=operands.problem.lse
    )
    out, lse = answer if operands.problem.lse else (answer, None)
    return tuple(b"" if t is None else t.contiguous().view(torch.uint8).numpy().tobytes() for t in (out, lse))


def parse_shape(text: str) -> Problem:
    """BATCH,HEADS,SEQ_Q[,SEQ_KV[,KV_HEADS]], with strided v.

    Raises:
        ValueError: malformed, or sizes that no kernel takes.
    """
    try:
        sizes = [int(word) for word in text.split(",")]
    except ValueError:
        sizes = []
    if not 3 <= len(sizes) <= 5:
        raise ValueError(f"shape must be BATCH,HEADS,SEQ_Q[,SEQ_KV[,KV_HEADS]], got {text!r}")
    batch, heads, seqlen_q = sizes[:3]
    seqlen_kv = sizes[3] if len(sizes) > 3 else seqlen_q
    kv_heads = sizes[4] if len(sizes) > 4 else heads
    return Problem(seqlen_q, seqlen_kv, heads=heads, kv_heads=kv_heads, batch=batch, strided=True)
