"""A test kit: one dataclass per attention case, poisoned outputs with guard zones, comparison of bits."""

import itertools
from dataclasses import dataclass

import torch

LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 100, 255, 256, 257, 511, 1000)
ROUNDINGS = ("rtne", "rtna", "rtz")
LAYOUTS = ("bshd", "bhsd")
HEAD_DIM = 128
POISON = 0x7FA5  # a NaN that no rounding mode makes from the NaNs of arithmetic
GUARD = 4096  # elements before and after an output


@dataclass(frozen=True)
class Case:
    seqlen_q: int
    seqlen_kv: int
    rounding: str = "rtne"
    layout: str = "bshd"
    batch: int = 2
    heads: int = 3
    kv_heads: int = 3
    seed: int = 0

    def __str__(self):
        return f"{self.rounding}-{self.layout}-{self.seqlen_q}x{self.seqlen_kv}"

    def shape(self, heads: int, rows: int) -> tuple[int, ...]:
        if self.layout == "bshd":
            return self.batch, rows, heads, HEAD_DIM
        return self.batch, heads, rows, HEAD_DIM

    def inputs(self):
        """q, k, v ~ N(0, 1); v with the strides of a slice of a fused projection, as SGLang passes it."""
        generator = torch.Generator().manual_seed(self.seed)
        q = torch.randn(self.shape(self.heads, self.seqlen_q), generator=generator).bfloat16()
        k = torch.randn(self.shape(self.kv_heads, self.seqlen_kv), generator=generator).bfloat16()
        fused = (self.batch, self.seqlen_kv, 3, self.kv_heads, HEAD_DIM)
        v = torch.randn(fused, generator=generator).bfloat16()[:, :, 2]
        assert self.seqlen_kv == 1 or v.stride(1) == 3 * self.kv_heads * HEAD_DIM
        return q, k, v if self.layout == "bshd" else v.transpose(1, 2)


def paired_cases() -> list[Case]:
    """Every length on either side in every mode and layout, with other partners in each."""
    cases = []
    for shift, (rounding, layout) in enumerate(itertools.product(ROUNDINGS, LAYOUTS)):
        for index, seqlen_q in enumerate(LENGTHS):
            # 5 and the number of lengths have no common divisor, so the partners are a permutation.
            seqlen_kv = LENGTHS[(5 * index + 3 + 2 * shift) % len(LENGTHS)]
            cases.append(Case(seqlen_q, seqlen_kv, rounding, layout))
    return cases


def all_cases() -> list[Case]:
    """The full cross product of lengths, modes and layouts."""
    product = itertools.product(LENGTHS, LENGTHS, ROUNDINGS, LAYOUTS)
    return [Case(seqlen_q, seqlen_kv, rounding, layout) for seqlen_q, seqlen_kv, rounding, layout in product]


def bits(tensor):
    """The bit patterns of a bfloat16 tensor, contiguous."""
    return tensor.contiguous().view(torch.int16)


def same_bits(a, b) -> bool:
    return torch.equal(bits(a), bits(b))


class GuardedOut:
    """An output of a given shape inside poisoned memory; `gap` poisoned elements follow each row of 128."""

    def __init__(self, shape, gap: int = 0):
        rows = shape[0] * shape[1] * shape[2]
        self.memory = torch.full((GUARD + rows * (HEAD_DIM + gap) + GUARD,), POISON, dtype=torch.int16)
        body = self.memory[GUARD : GUARD + rows * (HEAD_DIM + gap)]
        self.tensor = body.view(torch.bfloat16).view(*shape[:3], HEAD_DIM + gap)[..., :HEAD_DIM]

    def check(self) -> None:
        """Every element is written, and nothing around them."""
        assert not (self.tensor.view(torch.int16) == POISON).any(), "an element of out was not written"
        self.tensor.view(torch.int16).fill_(POISON)
        assert (self.memory == POISON).all(), "memory outside out was written"
