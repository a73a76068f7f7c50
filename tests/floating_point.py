"""Floating-point arithmetic on bit patterns, exact before one rounding: an oracle without a host's unit.

A format is described by its exponent and fraction bits; values are unsigned integers that hold the pattern.
"""

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Format:
    exponent_bits: int
    fraction_bits: int

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent_bits) - 1) << self.fraction_bits

    @property
    def sign(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def quiet_bit(self) -> int:
        return 1 << (self.fraction_bits - 1)

    @property
    def nan(self) -> int:
        return self.infinity | self.quiet_bit

    @property
    def largest(self) -> int:
        return self.infinity - 1


FORMATS = {
    ("f", 16): Format(5, 10),
    ("f", 32): Format(8, 23),
    ("f", 64): Format(11, 52),
    ("bf", 16): Format(8, 7),
}


def is_nan(pattern: int, kind: Format) -> bool:
    return pattern & (kind.sign - 1) > kind.infinity


def is_infinite(pattern: int, kind: Format) -> bool:
    return pattern & (kind.sign - 1) == kind.infinity


def is_subnormal(pattern: int, kind: Format) -> bool:
    return 0 < pattern & (kind.sign - 1) < 1 << kind.fraction_bits


def negative(pattern: int, kind: Format) -> bool:
    return bool(pattern & kind.sign)


def exact(pattern: int, kind: Format) -> Fraction:
    """The number that a finite pattern stands for."""
    fraction = pattern & ((1 << kind.fraction_bits) - 1)
    exponent = pattern >> kind.fraction_bits & ((1 << kind.exponent_bits) - 1)
    if exponent:
        fraction |= 1 << kind.fraction_bits
    scale = max(exponent, 1) - kind.bias - kind.fraction_bits
    value = Fraction(fraction << scale) if scale >= 0 else Fraction(fraction, 1 << -scale)
    return -value if negative(pattern, kind) else value


def rounded(value: Fraction, kind: Format, *, zero_sign: int = 0, toward_zero: bool = False) -> int:
    """The pattern nearest to a number (ties to even) or the next one toward zero.

    Args:
        zero_sign: the sign bit of an exact zero.
    """
    if value == 0:
        return kind.sign if zero_sign else 0
    sign = kind.sign if value < 0 else 0
    numerator, denominator = abs(value.numerator), value.denominator
    exponent = numerator.bit_length() - denominator.bit_length()
    if (numerator << max(-exponent, 0)) < (denominator << max(exponent, 0)):
        exponent -= 1
    unit = max(exponent, 1 - kind.bias) - kind.fraction_bits
    if unit >= 0:
        denominator <<= unit
    else:
        numerator <<= -unit
    steps, rest = divmod(numerator, denominator)
    if not toward_zero and (2 * rest > denominator or (2 * rest == denominator and steps & 1)):
        steps += 1
    # A carry out of the fraction walks into the exponent.
    pattern = steps + ((unit + kind.bias + kind.fraction_bits - 1) << kind.fraction_bits)
    if pattern >= kind.infinity:
        pattern = kind.largest if toward_zero else kind.infinity
    return sign | pattern


def quiet(pattern: int, kind: Format) -> int:
    return pattern | kind.quiet_bit


def convert(pattern: int, source: Format, target: Format, *, toward_zero: bool = False) -> int:
    """To another format. A NaN keeps its upper payload bits and stays signalling where it was."""
    if source == target:
        return pattern
    sign = target.sign if negative(pattern, source) else 0
    if is_nan(pattern, source):
        payload = pattern & ((1 << source.fraction_bits) - 1)
        shift = target.fraction_bits - source.fraction_bits
        payload = payload << shift if shift >= 0 else payload >> -shift
        return sign | target.infinity | (payload or target.quiet_bit)
    if is_infinite(pattern, source):
        return sign | target.infinity
    return rounded(exact(pattern, source), target, zero_sign=sign, toward_zero=toward_zero)


def _invalid_or_nan(operands, kind: Format) -> int:
    return next((quiet(x, kind) for x in operands if is_nan(x, kind)), kind.nan)


def add(a: int, b: int, kind: Format) -> int:
    if is_nan(a, kind) or is_nan(b, kind):
        return _invalid_or_nan((a, b), kind)
    if is_infinite(a, kind) or is_infinite(b, kind):
        if is_infinite(a, kind) and is_infinite(b, kind) and a != b:
            return kind.nan
        return a if is_infinite(a, kind) else b
    zero_sign = negative(a, kind) and negative(b, kind)
    return rounded(exact(a, kind) + exact(b, kind), kind, zero_sign=zero_sign)


def multiply(a: int, b: int, kind: Format) -> int:
    if is_nan(a, kind) or is_nan(b, kind):
        return _invalid_or_nan((a, b), kind)
    sign = (a ^ b) & kind.sign
    if is_infinite(a, kind) or is_infinite(b, kind):
        zero = 0 in (a & ~kind.sign, b & ~kind.sign)
        return kind.nan if zero else sign | kind.infinity
    return rounded(exact(a, kind) * exact(b, kind), kind, zero_sign=sign)


def divide(a: int, b: int, kind: Format) -> int:
    if is_nan(a, kind) or is_nan(b, kind):
        return _invalid_or_nan((a, b), kind)
    sign = (a ^ b) & kind.sign
    a, b = a & ~kind.sign, b & ~kind.sign
    if (a == 0 and b == 0) or (a == b == kind.infinity):
        return kind.nan
    if a == kind.infinity or b == 0:
        return sign | kind.infinity
    if b == kind.infinity:
        return sign
    return sign | rounded(exact(a, kind) / exact(b, kind), kind)


def fused(a: int, b: int, c: int, kind: Format) -> int:
    """a * b + c, rounded once."""
    product_invalid = any(is_infinite(x, kind) and y & ~kind.sign == 0 for x, y in ((a, b), (b, a)))
    if any(is_nan(x, kind) for x in (a, b, c)) or product_invalid:
        return _invalid_or_nan((a, b, c), kind)
    sign = (a ^ b) & kind.sign
    if is_infinite(a, kind) or is_infinite(b, kind):
        product = sign | kind.infinity
        return kind.nan if is_infinite(c, kind) and c != product else product
    if is_infinite(c, kind):
        return c
    zero_sign = sign and negative(c, kind)
    return rounded(exact(a, kind) * exact(b, kind) + exact(c, kind), kind, zero_sign=zero_sign)


def square_root(a: int, kind: Format) -> int:
    if is_nan(a, kind):
        return quiet(a, kind)
    if a & ~kind.sign == 0 or a == kind.infinity:
        return a
    if negative(a, kind):
        return kind.nan
    value = exact(a, kind)
    shift = 2 * (kind.fraction_bits + kind.bias + 8)
    scaled = (value.numerator << 2 * shift) // value.denominator
    root = math.isqrt(scaled)
    # A sticky bit stands for what lies below the integer root.
    sticky = root * root != scaled or (value.numerator << 2 * shift) % value.denominator
    return rounded(Fraction(2 * root + bool(sticky), 2 << shift), kind)


def compare(a: int, b: int, kind: Format) -> int | None:
    """-1, 0 or 1; None where an operand is NaN."""
    if is_nan(a, kind) or is_nan(b, kind):
        return None
    keys = [-(x & ~kind.sign) if negative(x, kind) else x for x in (a, b)]
    return (keys[0] > keys[1]) - (keys[0] < keys[1])


def to_integer(pattern: int, kind: Format, bits: int, signed: bool, rounding=math.trunc) -> int:
    """Saturating; NaN gives 0."""
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    if is_nan(pattern, kind):
        return 0
    if is_infinite(pattern, kind):
        return low if negative(pattern, kind) else high
    return min(max(rounding(exact(pattern, kind)), low), high)
