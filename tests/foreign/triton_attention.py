"""Attention in Triton, compiled for gfx942 without a device."""

import functools

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

POINTERS = ("query", "key", "value", "out", "lse")
INTEGERS = ("heads", "rows", "columns")


@triton.jit
def attention(
    query, key, value, out, lse, scale, heads, rows, columns,
    SIZE: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """[batch * heads, rows, SIZE] in tiles of TALL rows by WIDE columns; `scale` includes log2(e)."""
    head = tl.program_id(1) * heads + tl.program_id(2)
    row = tl.program_id(0) * TALL + tl.arange(0, TALL)
    lane = tl.arange(0, SIZE)
    q_at = head * rows * SIZE + row[:, None] * SIZE + lane[None, :]
    q = tl.load(query + q_at, mask=row[:, None] < rows, other=0.0)
    top = tl.full([TALL], -float("inf"), tl.float32)
    total = tl.zeros([TALL], tl.float32)
    sums = tl.zeros([TALL, SIZE], tl.float32)
    for start in range(0, columns, WIDE):
        column = start + tl.arange(0, WIDE)
        at = head * columns * SIZE + column[:, None] * SIZE + lane[None, :]
        k = tl.load(key + at, mask=column[:, None] < columns, other=0.0)
        score = tl.dot(q, k.T, input_precision=PRECISION) * scale
        score = tl.where(column[None, :] < columns, score, -float("inf"))
        new = tl.maximum(top, tl.max(score, 1))
        weight = tl.math.exp2(score - new[:, None])
        fade = tl.math.exp2(top - new)
        total = total * fade + tl.sum(weight, 1)
        v = tl.load(value + at, mask=column[:, None] < columns, other=0.0)
        sums = tl.dot(weight.to(v.dtype), v, sums * fade[:, None], input_precision=PRECISION)
        top = new
    tl.store(out + q_at, sums / total[:, None], mask=row[:, None] < rows)
    tl.store(lse + head * rows + row, top + tl.log2(total), mask=row < rows)


@functools.cache
def build(element, size, tall, wide, precision="ieee", **options):
    """The compiled kernel for Triton's name of an element type: `.asm["hsaco"]`, `.metadata`."""
    signature = dict.fromkeys(POINTERS[:3], f"*{element}")
    signature |= {"out": "*fp32", "lse": "*fp32", "scale": "fp32"} | dict.fromkeys(INTEGERS, "i32")
    constants = {"SIZE": size, "TALL": tall, "WIDE": wide, "PRECISION": precision}
    signature |= dict.fromkeys(constants, "constexpr")
    # 16-byte alignment, and offsets of 32 bits: buffer instructions instead of global ones.
    attributes = {(i,): [["tt.divisibility", 16], ["tt.pointer_range", 32]] for i in range(len(POINTERS))}
    source = ASTSource(attention, signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("hip", "gfx942", 64), options=options)
