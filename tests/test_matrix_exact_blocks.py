"""The matrix instructions beside the two shapes of 16-bit floats, against MMA-Sim's model of CDNA3."""

import dataclasses

import numpy as np
import pytest
import torch
from mmasim.amd import MFMA

import matrix_cases
import matrix_kernels
import oracles
from liteattention_rocm import simulator
from matrix_cases import BF16, F16, F32, XF32
from matrix_kernels import Instruction

pytestmark = pytest.mark.usefixtures("exact_matrices")
FORMATS = {form.name: form for form in (BF16, F16, F32, XF32)}
CORE = [
    "f32_32x32x4_2b_bf16",
    "f32_16x16x4_4b_bf16",
    "f32_4x4x4_16b_bf16",
    "f32_32x32x4_2b_f16",
    "f32_16x16x4_4b_f16",
    "f32_4x4x4_16b_f16",
    "f32_16x16x8_xf32",
    "f32_32x32x4_xf32",
]
FUSED = [
    "f32_32x32x1_2b_f32",
    "f32_16x16x1_4b_f32",
    "f32_4x4x1_16b_f32",
    "f32_32x32x2_f32",
    "f32_16x16x4_f32",
]
DOUBLE = ["f64_16x16x4_f64", "f64_4x4x4_4b_f64"]
SMALL = [
    f"f32_{shape}_{a}_{b}"
    for shape in ("16x16x32", "32x32x16")
    for a in ("fp8", "bf8")
    for b in ("fp8", "bf8")
]
oracles.declare("MMA-Sim", [f"v_mfma_{name}" for name in (*CORE, *FUSED, *DOUBLE, *SMALL)])
TORCH = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "xf32": torch.float32,
    "f64": torch.float64,
    "fp8": torch.float8_e4m3fnuz,
    "bf8": torch.float8_e5m2fnuz,
}
SIGNED = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


def as_torch(bits, name):
    return torch.from_numpy(bits.view(SIGNED[bits.dtype.itemsize])).view(TORCH[name])


def model(instruction, a, b, c):
    """D[wave, block, row, column] of MMA-Sim, bits of c's dtype."""
    operation = MFMA("CDNA3", instruction.mnemonic)
    shape = (*c.shape, instruction.depth)
    a, b = (as_torch(x, name) for x, name in zip((a, b), instruction.formats, strict=True))
    a = a[..., :, None, :].expand(shape).contiguous()
    b = b[..., None, :, :].expand(shape).contiguous()
    d = operation.dpa(a, b, as_torch(c, instruction.result).clone())
    return d.view(torch.int64 if instruction.result == "f64" else torch.int32).numpy().view(c.dtype)


def same(got, expected):
    different = np.argwhere(got != expected)
    shown = [f"{tuple(map(int, i))}: {got[tuple(i)]:#x}, not {expected[tuple(i)]:#x}" for i in different[:5]]
    assert not len(different), f"{len(different)} of {got.size} differ: {shown}"


def blocks_of(instruction, values):
    return values.reshape(-1, instruction.blocks, *values.shape[1:])


def waves_for(instruction, products):
    return -(-products // (instruction.size**2 * instruction.blocks))


def drawn(instruction, case, products):
    """A, B and C of a case, in blocks."""
    form = FORMATS[instruction.formats[0]]
    waves = waves_for(instruction, products) * instruction.blocks
    operands = matrix_cases.draw(case, form, instruction.size, waves, depth=instruction.depth)
    return [blocks_of(instruction, x) for x in operands]


COUNTS = [500, pytest.param(5_000, marks=pytest.mark.full)]


@pytest.mark.parametrize("products", COUNTS)
@pytest.mark.parametrize("case", matrix_cases.CASES)
@pytest.mark.parametrize("mnemonic", CORE)
def test_equals_mma_sim(mnemonic, case, products):
    instruction = Instruction(mnemonic)
    a, b, c = drawn(instruction, case, products)
    image = matrix_kernels.assemble(instruction)
    same(matrix_kernels.simulate(instruction, image, a, b, c), model(instruction, a, b, c))


def canonical(bits, floating):
    """Every NaN as the same one: which payload a chain of fused multiply-adds keeps is not established."""
    return np.where(np.isnan(bits.view(floating)), np.float64(np.nan).astype(floating).view(bits.dtype), bits)


@pytest.mark.parametrize("case", matrix_cases.CASES)
@pytest.mark.parametrize("mnemonic", FUSED)
def test_float32_is_a_chain_of_fused_multiply_adds(mnemonic, case):
    instruction = Instruction(mnemonic)
    a, b, c = drawn(instruction, case, 1_000)
    got = matrix_kernels.simulate(instruction, matrix_kernels.assemble(instruction), a, b, c)
    same(canonical(got, np.float32), canonical(model(instruction, a, b, c), np.float32))


@pytest.mark.parametrize("spread", [0, 30, 400])
@pytest.mark.parametrize("mnemonic", DOUBLE)
def test_float64_is_a_chain_of_fused_multiply_adds(mnemonic, spread):
    instruction = Instruction(mnemonic)
    random = np.random.default_rng(spread)

    def draw(*shape):
        values = random.standard_normal(shape) * np.exp2(spread * random.uniform(-2, 2, shape))
        return values.view(np.uint64)

    waves, blocks, size, depth = 4, instruction.blocks, instruction.size, instruction.depth
    a, b = (draw(waves, blocks, size, depth) for _ in range(2))
    c = draw(waves, blocks, size, size)
    got = matrix_kernels.simulate(instruction, matrix_kernels.assemble(instruction), a, b, c)
    same(canonical(got, np.float64), canonical(model(instruction, a, b, c), np.float64))


# ---- 8-bit floats: any code is a number, but for one NaN ----


@dataclasses.dataclass
class SmallDraw:
    random: np.random.Generator
    instruction: Instruction
    waves: int

    def codes(self, low=0, high=0x80):
        """Codes of A or B whose magnitudes are `low` to `high` - 1; none is NaN."""
        shape = self.waves, 1, self.instruction.size, self.instruction.depth
        magnitude = self.random.integers(low, high, shape, np.uint8)
        sign = self.random.integers(0, 2, shape, np.uint8) << 7
        return np.where(magnitude == 0, magnitude, magnitude | sign)

    def c(self, spread=0, exponent=0):
        shape = self.waves, 1, self.instruction.size, self.instruction.size
        draw = self.random.standard_normal
        values = draw(shape) * np.exp2(exponent + spread * draw(shape))
        return values.astype(np.float32).view(np.uint32)


def mid(draw):
    return draw.codes(0x20, 0x60), draw.codes(0x20, 0x60), draw.c(exponent=2)


def all_codes(draw):
    return draw.codes(), draw.codes(), draw.c(spread=12)


def subnormal_codes(draw):
    return draw.codes(0, 12), draw.codes(0, 12), draw.c(spread=4, exponent=-20)


def large_addend(draw):
    return draw.codes(), draw.codes(), draw.c(spread=6, exponent=24)


def small_addend(draw):
    """C at the distance from the products at which the core drops it."""
    exponent = -12 + 6 * draw.instruction.formats.count("bf8")
    return draw.codes(0x60), draw.codes(0x60), draw.c(spread=3, exponent=exponent)


def zeros(draw):
    a, b, c = all_codes(draw)
    keep = draw.random.random
    # In the first rows every product with even k is zero, in the last all are.
    a[:, :, :4, ::2] = 0
    a[:, :, -4:] = 0
    return (
        a * (keep(a.shape) < 0.3),
        b * (keep(b.shape) < 0.3),
        np.where(keep(c.shape) < 0.5, c & (1 << 31), c),
    )


def any_addend(draw):
    """Every exponent of C, subnormal ones too."""
    a, b, c = all_codes(draw)
    c = draw.random.integers(0, 1 << 32, c.shape, np.uint64).astype(np.uint32)
    return a, b, np.where((c & 0x7F800000) == 0x7F800000, c & 0x807FFFFF, c)


def not_numbers(draw):
    """NaN in A and B; NaN and infinities in C, whose products stay below the largest exponents."""
    a, b, c = draw.codes(0, 0x50), draw.codes(0, 0x50), draw.c()
    a[draw.random.random(a.shape) < 0.01] = 0x80
    b[draw.random.random(b.shape) < 0.01] = 0x80
    special = draw.random.choice(
        np.array([0x7F800000, 0xFF800000, 0x7F800001, 0xFFC00000], np.uint32), c.shape
    )
    return a, b, np.where(draw.random.random(c.shape) < 0.1, special, c)


SMALL_CASES = {
    function.__name__: function
    for function in (
        mid,
        all_codes,
        subnormal_codes,
        large_addend,
        small_addend,
        zeros,
        any_addend,
        not_numbers,
    )
}


def drawn_small(instruction, case, products):
    random = np.random.default_rng([len(case), instruction.size])
    a, b, c = SMALL_CASES[case](SmallDraw(random, instruction, waves_for(instruction, products)))
    return a.astype(np.uint8), b.astype(np.uint8), c.astype(np.uint32)


@pytest.mark.parametrize("products", COUNTS)
@pytest.mark.parametrize("case", SMALL_CASES)
@pytest.mark.parametrize("mnemonic", SMALL)
def test_small_floats_equal_mma_sim(mnemonic, case, products):
    instruction = Instruction(mnemonic)
    a, b, c = drawn_small(instruction, case, products)
    image = matrix_kernels.assemble(instruction)
    same(matrix_kernels.simulate(instruction, image, a, b, c), model(instruction, a, b, c))


@pytest.mark.parametrize("mnemonic", ["f32_16x16x32_fp8_fp8", "f32_32x32x16_bf8_fp8"])
def test_small_cases_hold_what_they_are_named_for(mnemonic):
    instruction = Instruction(mnemonic)

    def results(case):
        return model(instruction, *drawn_small(instruction, case, 2_000)).view(np.float32)

    found = results("not_numbers")
    assert np.isnan(found).mean() > 0.1 and np.isinf(found).any() and np.isfinite(found).mean() > 0.3
    a, b, c = drawn_small(instruction, "zeros", 2_000)
    assert (model(instruction, a, b, c) == c)[:, :, -4:].mean() > 0.4  # no product at all
    a, b, c = drawn_small(instruction, "small_addend", 2_000)
    changed = model(instruction, a, b, c) != model(instruction, a, b, np.zeros_like(c))
    assert 0.05 < changed.mean() < 0.95


# ---- All of them ----


@pytest.mark.parametrize("mnemonic", ["f32_16x16x8_xf32", "f32_4x4x4_16b_bf16", "f32_16x16x32_fp8_fp8"])
def test_differs_from_float32_sums(mnemonic):
    instruction = Instruction(mnemonic)
    if mnemonic in CORE:
        a, b, c = drawn(instruction, "wide_exponents", 4_000)
    else:
        a, b, c = drawn_small(instruction, "all_codes", 4_000)
    image = matrix_kernels.assemble(instruction)
    got = matrix_kernels.simulate(instruction, image, a, b, c)
    simulator.set_option("matrix", "float32")
    plain = matrix_kernels.simulate(instruction, image, a, b, c)
    assert 0.001 < (got != plain).mean() < 0.9


def test_every_executed_matrix_instruction_has_a_known_arithmetic():
    """`coverage` says what exact arithmetic an instruction has; this file and its neighbour test each."""
    found = {
        row["name"].removeprefix("v_mfma_"): row["arithmetic"]
        for row in simulator.coverage()
        if "arithmetic" in row
    }
    executed = {row["name"] for row in simulator.coverage() if row["implemented"] and "v_mfma" in row["name"]}
    assert {f"v_mfma_{name}" for name in found} == executed
    neighbour = [f"f32_{shape}_{name}" for shape in ("16x16x16", "32x32x8") for name in ("bf16", "f16")]
    expected = dict.fromkeys([*CORE, *SMALL, *neighbour], "core")
    expected |= dict.fromkeys([*FUSED, *DOUBLE], "fused")
    assert {name: kind for name, kind in found.items() if kind != "integer"} == expected
    assert all(name.startswith("i32_") for name, kind in found.items() if kind == "integer")
