"""Values of AMD's pseudo-code: bits with a type, and the operators of the language on them.

Integers of up to 32 bits are computed in 32, as in C; floating-point results are rounded to nearest even
after every operation.
"""

import math
from fractions import Fraction

import floating_point as fp


class Value:
    """Bits, and what they are: u, i (two's complement), b (untyped), f, bf, r (an exact real number) or w (an
    integer without bounds)."""

    __slots__ = ("bits", "kind", "raw")

    def __init__(self, kind, bits, raw):
        self.kind, self.bits = kind, bits
        self.raw = raw if kind in "rw" else raw & ((1 << bits) - 1)

    def __repr__(self):
        return f"{self.kind}{self.bits}:{self.raw:#x}" if self.kind not in "rw" else f"{self.kind}:{self.raw}"

    def integer(self) -> int:
        if self.kind == "i" and self.raw >> (self.bits - 1):
            return self.raw - (1 << self.bits)
        return self.raw

    def is_float(self) -> bool:
        return self.kind in ("f", "bf", "r")

    def format(self) -> fp.Format:
        return fp.FORMATS[self.kind, self.bits]

    def view(self, kind, bits) -> "Value":
        """The `.f32` suffix: other bits of the same register; between float formats a conversion."""
        if self.is_float() and kind in ("f", "bf") and (self.kind, self.bits) != (kind, bits):
            return to_float(self, kind, bits)
        return saturated(self, kind, bits) if self.kind == "w" else Value(kind, bits, self.raw)

    def slice(self, high, low) -> "Value":
        if high < low:
            width = low - high + 1
            field = self.raw >> high & ((1 << width) - 1)
            return Value("u", width, int(f"{field:0{width}b}"[::-1], 2))
        return Value("u", high - low + 1, self.raw >> low)


class SignedZero(Value):
    """+0.0 or -0.0, written with its sign: what is compared with it must have that sign."""

    __slots__ = ()


class Special:
    """A name that stands for a property rather than a number: DENORM, or BYTE1 of SDWA."""

    def __init__(self, name):
        self.name = name

    def view(self, kind, bits):
        return self

    def slice(self, high, low):
        return self


def saturated(value: Value, kind: str, bits: int) -> Value:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind == "i" else (0, (1 << bits) - 1)
    return Value(kind, bits, min(max(value.raw, low), high))


TRUE, FALSE = Value("u", 1, 1), Value("u", 1, 0)


def truth(value) -> bool:
    return value.raw != 0


def boolean(condition) -> Value:
    return TRUE if condition else FALSE


def to_float(value: Value, kind: str, bits: int, toward_zero=False) -> Value:
    target = fp.FORMATS[kind, bits]
    if value.kind == "r":
        return Value(kind, bits, fp.rounded(value.raw, target, toward_zero=toward_zero))
    if value.is_float():
        return Value(kind, bits, fp.convert(value.raw, value.format(), target, toward_zero=toward_zero))
    return Value(kind, bits, value.raw)


def number_to_float(value: Value, kind: str, bits: int) -> Value:
    return Value(kind, bits, fp.rounded(Fraction(value.integer()), fp.FORMATS[kind, bits]))


def cast(value: Value, kind: str, bits: int) -> Value:
    """The `32'U(...)` notation: of an integer the number, of a float the number in another format, and from
    an integer to a float the pattern."""
    if kind in ("f", "bf"):
        return to_float(value, kind, bits)
    return Value(kind, bits, value.raw if value.is_float() else value.integer())


def common_float(a: Value, b: Value) -> tuple[str, int]:
    kinds = [(x.kind, x.bits) for x in (a, b) if x.kind in ("f", "bf")]
    return max(kinds, key=lambda kind: kind[1])


def exact_operands(a: Value, b: Value):
    """Both as Fractions if one is an exact real number and the other finite, else None."""
    if a.kind != "r" and b.kind != "r":
        return None
    numbers = []
    for x in (a, b):
        if x.kind == "r":
            numbers.append(x.raw)
        elif fp.is_nan(x.raw, x.format()) or fp.is_infinite(x.raw, x.format()):
            return None
        else:
            numbers.append(fp.exact(x.raw, x.format()))
    return numbers


def float_operation(operator: str, a: Value, b: Value) -> Value:
    if a.kind == b.kind == "r":
        x, y = a.raw, b.raw
        return Value("r", 0, {"+": x + y, "-": x - y, "*": x * y, "/": x / y if y else Fraction(0)}[operator])
    kind, bits = common_float(a, b)
    target = fp.FORMATS[kind, bits]
    numbers = exact_operands(a, b)
    if numbers:
        x, y = numbers
        zero_sign = any(v.is_float() and v.kind != "r" and fp.negative(v.raw, v.format()) for v in (a, b))
        result = {"+": x + y, "-": x - y, "*": x * y, "/": x / y if y else Fraction(0)}[operator]
        return Value(kind, bits, fp.rounded(result, target, zero_sign=zero_sign))
    x, y = (to_float(v, kind, bits).raw for v in (a, b))
    if operator == "-":
        # Not by negation of a NaN, whose sign would change.
        y = y if fp.is_nan(y, target) else y ^ target.sign
        operator = "+"
    function = {"+": fp.add, "*": fp.multiply, "/": fp.divide}[operator]
    return Value(kind, bits, function(x, y, target))


def arithmetic(operator: str, a: Value, b: Value, saturate=False) -> Value:
    """With `saturate` integers grow without bounds, to be clamped where they are assigned."""
    if a.is_float() or b.is_float():
        if operator == "**":
            exponent = max(-5000, min(5000, b.integer()))
            return Value("r", 0, Fraction(2) ** exponent)
        return float_operation(operator, a, b)
    bits = max(32, a.bits, b.bits)
    kind = "i" if a.kind == b.kind == "i" else "u"
    x, y = a.integer(), b.integer()
    if saturate and operator in "+-*":
        kind = "w"
    if operator in "/%":
        quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        return Value(kind, bits, quotient if operator == "/" else x - quotient * y)
    return Value(
        kind, bits, {"+": x + y, "-": x - y, "*": x * y, "&": x & y, "|": x | y, "^": x ^ y}[operator]
    )


def bitwise(operator: str, a: Value, b: Value) -> Value:
    bits = max(a.bits, b.bits)
    kind = a.kind if a.kind == b.kind else "u"
    x, y = a.integer(), b.integer()
    return Value(kind, bits, {"&": x & y, "|": x | y, "^": x ^ y}[operator])


def shift(operator: str, a: Value, b: Value) -> Value:
    bits = max(32, a.bits)
    amount = b.raw
    number = a.integer()
    if a.kind == "w":
        return Value("w", bits, number >> amount if operator == ">>" else number << amount)
    if operator == ">>":
        return Value(a.kind, bits, number >> amount)
    return Value(a.kind, bits, number << amount if amount < bits else 0)


def ordering(a, b):
    """-1, 0, 1, or None for unordered."""
    for x, y in ((a, b), (b, a)):
        if isinstance(x, Special) and x.name == "DENORM":
            return 0 if fp.is_subnormal(y.raw, y.format()) else 2
    if isinstance(a, Special) or isinstance(b, Special):
        names = [x.name if isinstance(x, Special) else x.raw for x in (a, b)]
        return 0 if names[0] == names[1] else 2
    for x, y in ((a, b), (b, a)):
        if isinstance(x, SignedZero):
            return 0 if to_float(y, x.kind, x.bits).raw == x.raw else 2
    if a.is_float() or b.is_float():
        # 1.0 / x is compared in double, where the text says so by its literal.
        if "r" in (a.kind, b.kind):
            other = common_float(a, b)
            a, b = (to_float(v, *other) for v in (a, b))
        kind, bits = common_float(a, b)
        a, b = (to_float(v, kind, bits) for v in (a, b))
        return fp.compare(a.raw, b.raw, fp.FORMATS[kind, bits])
    x, y = a.integer(), b.integer()
    return (x > y) - (x < y)


COMPARISONS = {
    "==": lambda o: o == 0,
    "!=": lambda o: o != 0,
    "<>": lambda o: o in (-1, 1),
    "<": lambda o: o == -1,
    "<=": lambda o: o in (-1, 0),
    ">": lambda o: o == 1,
    ">=": lambda o: o in (0, 1),
}


def negated(value: Value) -> Value:
    if value.kind == "r":
        return Value("r", 0, -value.raw)
    if value.is_float():
        return Value(value.kind, value.bits, value.raw ^ value.format().sign)
    return Value(value.kind, max(32, value.bits), -value.integer())


def inverted(value: Value) -> Value:
    return Value(value.kind, value.bits, ~value.integer())


def f32(value: float) -> Value:
    return Value("f", 32, fp.rounded(Fraction(value), fp.FORMATS["f", 32]))


def f64(value: float) -> Value:
    return Value("f", 64, fp.rounded(Fraction(value), fp.FORMATS["f", 64]))


SPECIALS = {
    "INF": Value("f", 64, fp.FORMATS["f", 64].infinity),
    "NAN": Value("f", 64, fp.FORMATS["f", 64].nan),
    "PI": f64(math.pi),
    "DENORM": Special("DENORM"),
    "ROUND_NEAREST_EVEN": Value("u", 2, 0),
    "ROUND_TOWARD_ZERO": Value("u", 2, 3),
    "UNDERFLOW_F32": Value("f", 32, 0),
    "UNDERFLOW_F64": Value("f", 64, 0),
    "OVERFLOW_F32": Value("f", 32, fp.FORMATS["f", 32].infinity),
    "OVERFLOW_F64": Value("f", 64, fp.FORMATS["f", 64].infinity),
    **{f"BYTE{i}": Value("u", 3, i) for i in range(4)},
    "WORD0": Value("u", 3, 4),
    "WORD1": Value("u", 3, 5),
}
