"""Operands of matrix products that reach every branch of the matrix core's arithmetic.

A case is (A, B, C) for `waves` products of size x size: A[wave, row, k] and B[wave, column, k] as the bits of
a format, C[wave, row, column] as the 32 bits of float32.
"""

from dataclasses import dataclass

import numpy as np

SIGN32 = np.uint32(1 << 31)


@dataclass(frozen=True)
class Format:
    name: str
    fraction_bits: int
    dtype: type = np.uint16

    @property
    def sign(self):
        return self.dtype(np.iinfo(self.dtype).max // 2 + 1)

    @property
    def infinity(self) -> int:
        return (int(self.sign) - 1) >> self.fraction_bits << self.fraction_bits

    @property
    def narrow(self) -> bool:
        """No product overflows a float32."""
        return self.name == "f16"

    def bits(self, values: np.ndarray) -> np.ndarray:
        """float64 to this format, toward zero or to nearest: it doesn't matter which."""
        with np.errstate(over="ignore"):
            if self.name == "f16":
                return values.astype(np.float16).view(np.uint16)
            single = values.astype(np.float32).view(np.uint32)
            return (single >> 16).astype(np.uint16) if self.dtype == np.uint16 else single


BF16, F16 = Format("bf16", 7), Format("f16", 10)
F32, XF32 = Format("f32", 23, np.uint32), Format("xf32", 23, np.uint32)  # of xf32 the low bits are ignored


@dataclass
class Draw:
    """Random operands of one case."""

    random: np.random.Generator
    format: Format
    waves: int
    size: int
    depth: int

    @property
    def operand(self) -> tuple[int, int, int]:
        return self.waves, self.size, self.depth

    @property
    def addend(self) -> tuple[int, int, int]:
        return self.waves, self.size, self.size

    def normal(self, shape, spread: float = 0, exponent: float = 0) -> np.ndarray:
        """Normal numbers times 2^(exponent + spread * normal numbers)."""
        draw = self.random.standard_normal
        return draw(shape) * np.exp2(exponent + spread * draw(shape))

    def operands(self, spread: float = 0, exponent: float = 0):
        return [self.format.bits(self.normal(self.operand, spread, exponent)) for _ in range(2)]

    def c(self, spread: float = 0, exponent: float = 0) -> np.ndarray:
        return self.normal(self.addend, spread, exponent).astype(np.float32).view(np.uint32)

    def raw(self, shape, dtype) -> np.ndarray:
        return self.random.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)

    def finite(self) -> np.ndarray:
        """Any bits but infinities and NaN."""
        bits = self.raw(self.operand, self.format.dtype)
        return np.where((bits & self.format.infinity) == self.format.infinity, bits & self.format.sign, bits)

    def some(self, shape, share: float) -> np.ndarray:
        return self.random.random(shape) < share


def ordinary(draw: Draw):
    return *draw.operands(), draw.c()


def wide_exponents(draw: Draw):
    return *draw.operands(spread=4 if draw.format.narrow else 12), draw.c(spread=20)


def any_finite_bits(draw: Draw):
    """Exponents all over their range, those of C as well."""
    c = draw.raw(draw.addend, np.uint32)
    return draw.finite(), draw.finite(), np.where((c & 0x7F800000) == 0x7F800000, c & SIGN32, c)


def large_addend(draw: Draw):
    """Sums whose last bits the alignment to C drops."""
    return *draw.operands(spread=3), draw.c(spread=6, exponent=10)


def near_power_of_two(draw: Draw):
    """C is a power of two and the products are small: bits 31 and 32 below E decide, on both sides of 2^E.

    In the lower half of the rows the products are near half of a result's last bit.
    """
    half = draw.size // 2
    a, b = draw.normal(draw.operand), draw.normal(draw.operand)
    sparse = draw.random.choice([0, 0, 0, 2.0**-8, 2.0**-7, 2.0**-6, 1.0], draw.operand)
    a[:, half:] = np.copysign(sparse, a)[:, half:]
    b[:, ::2] = np.copysign(1, b)[:, ::2]
    exponent = draw.random.integers(8, 23, draw.addend)
    exponent[:, half:] = draw.random.integers(24, 27, draw.addend)[:, half:]
    c = draw.random.choice([-1.0, 1.0], draw.addend) * np.exp2(exponent)
    return draw.format.bits(a), draw.format.bits(b), c.astype(np.float32).view(np.uint32)


def cancellation(draw: Draw):
    """C near the negated sum of products: exact zeros, results of few bits, and ties."""
    integer = draw.random.integers
    a = integer(-4, 5, draw.operand).astype(float)
    b = integer(-4, 5, draw.operand) * np.exp2(-integer(0, 12, draw.operand))
    c = np.where(draw.some(draw.addend, 0.3), 0, integer(-2, 3, draw.addend)) * np.exp2(
        -integer(0, 30, draw.addend)
    )
    c = (c - np.einsum("wrk,wck->wrc", a, b)).astype(np.float32)
    return draw.format.bits(a), draw.format.bits(b), c.view(np.uint32)


def subnormal_operands(draw: Draw):
    a, b = draw.finite(), draw.finite()
    fraction = draw.format.sign | draw.format.dtype((1 << draw.format.fraction_bits) - 1)
    a = np.where(draw.some(a.shape, 0.5), a & fraction, a)
    b = np.where(draw.some(b.shape, 0.3), b & fraction, b)
    c = draw.raw(draw.addend, np.uint32)
    return a, b, np.where(draw.some(c.shape, 0.6), c & 0x807FFFFF, c & 0xBFFFFFFF)


def subnormal_results(draw: Draw):
    """D around the smallest normal float32 and below the smallest subnormal; products of f16 are zero."""
    a = draw.normal(draw.operand, 3, -67) * np.where(draw.some((draw.waves, draw.size, 1), 0.3), 2.0**-45, 1)
    b = draw.normal(draw.operand, 3, -67)
    c = draw.c(spread=6, exponent=-134)
    return draw.format.bits(a), draw.format.bits(b), np.where(draw.some(c.shape, 0.3), c & SIGN32, c)


def zeros(draw: Draw):
    """Mostly zeros of either sign, in C too."""
    a, b = draw.operands(spread=2)
    c = draw.c(spread=10)
    a = np.where(draw.some(a.shape, 0.8), a & draw.format.sign, a)
    b = np.where(draw.some(b.shape, 0.7), b & draw.format.sign, b)
    return a, b, np.where(draw.some(c.shape, 0.7), c & SIGN32, c)


def infinities_and_nan(draw: Draw):
    dtype = draw.format.dtype
    special = np.array([0, 1, 1 << draw.format.fraction_bits >> 1], dtype) | dtype(draw.format.infinity)
    choices = np.concatenate([np.repeat(special[:1], 8), special, np.zeros(2, dtype)])

    def put(bits, share):
        chosen = draw.random.choice(choices, bits.shape) | draw.raw(bits.shape, dtype) & draw.format.sign
        return np.where(draw.some(bits.shape, share), chosen, bits)

    a, b = draw.operands(spread=2)
    c = draw.c()
    special_c = np.uint32(0x7F800000) | draw.random.choice(
        np.array([0, 0, 0, 1, 0x400000], np.uint32), c.shape
    )
    c = np.where(draw.some(c.shape, 0.1), special_c | c & SIGN32, c)
    return put(a, 0.03), put(b, 0.03), c


def overflow(draw: Draw):
    """Products on both sides of 2^128, and C near float32's largest number."""
    c = np.clip(draw.normal(draw.addend, 2, 125), -3.4e38, 3.4e38).astype(np.float32)
    return *draw.operands(spread=1.5, exponent=62), c.view(np.uint32)


CASES = {
    function.__name__: function
    for function in (
        ordinary,
        wide_exponents,
        any_finite_bits,
        large_addend,
        near_power_of_two,
        cancellation,
        subnormal_operands,
        subnormal_results,
        zeros,
        infinities_and_nan,
        overflow,
    )
}


def draw(case: str, form: Format, size: int, waves: int, seed: int = 0, depth: int | None = None):
    """(A, B, C) of a case, with 256 / size products an element unless `depth` says otherwise."""
    random = np.random.default_rng([seed, size, form.fraction_bits, list(CASES).index(case)])
    a, b, c = CASES[case](Draw(random, form, waves, size, depth or 256 // size))
    return a.astype(form.dtype), b.astype(form.dtype), c.astype(np.uint32)
