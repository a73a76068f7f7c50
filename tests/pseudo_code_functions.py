"""The functions that AMD's pseudo-code calls, on values."""

import math
import re
from fractions import Fraction

import floating_point as fp
from pseudo_code_values import Value, boolean, number_to_float, to_float


def through(function):
    """A function of numbers, applied to finite operands and passed over by NaN and infinities."""

    def apply(env, x):
        if x.kind == "r":
            return Value("r", 0, Fraction(function(x.raw)))
        kind = x.format()
        if fp.is_nan(x.raw, kind):
            return Value(x.kind, x.bits, fp.quiet(x.raw, kind))
        if fp.is_infinite(x.raw, kind):
            return x
        number = Fraction(function(fp.exact(x.raw, kind)))
        return Value(x.kind, x.bits, fp.rounded(number, kind, zero_sign=fp.negative(x.raw, kind)))

    return apply


def fused(env, a, b, c):
    return Value(a.kind, a.bits, fp.fused(a.raw, b.raw, c.raw, a.format()))


def magnitude(env, x):
    return Value(x.kind, x.bits, x.raw & ~x.format().sign)


def signalling(x) -> bool:
    kind = x.format()
    return fp.is_nan(x.raw, kind) and not x.raw & kind.quiet_bit


def biased_exponent(env, x):
    kind = x.format()
    return Value("i", 32, x.raw >> kind.fraction_bits & ((1 << kind.exponent_bits) - 1))


def scaled(env, x, power):
    kind = x.format()
    if fp.is_nan(x.raw, kind) or fp.is_infinite(x.raw, kind):
        return x
    number = fp.exact(x.raw, kind) * Fraction(2) ** max(-5000, min(5000, power.integer()))
    return Value(x.kind, x.bits, fp.rounded(number, kind, zero_sign=fp.negative(x.raw, kind)))


def sign_extended_from(env, value, bits):
    width = bits.raw
    if width == 0 or width >= value.bits:
        return value if width else Value(value.kind, value.bits, 0)
    raw = value.raw & ((1 << width) - 1)
    return Value(value.kind, value.bits, raw - (1 << width) if raw >> (width - 1) else raw)


def sign_extended(env, value):
    return Value("i", 64, Value("i", value.bits, value.raw).integer())


def normalised(limit, low):
    """f32_to_snorm and its like: the number in [low, 1] times the limit, to nearest even."""

    def apply(env, x):
        kind = x.format()
        if fp.is_nan(x.raw, kind):
            return Value("i", 32, 0)
        if fp.is_infinite(x.raw, kind):
            number = Fraction(low if fp.negative(x.raw, kind) else 1)
        else:
            number = min(max(fp.exact(x.raw, kind), Fraction(low)), Fraction(1))
        return Value("i", 32, round(number * limit))

    return apply


FUNCTIONS = {
    "fma": fused,
    "trunc": through(math.trunc),
    "floor": through(math.floor),
    "abs": magnitude,
    "sqrt": lambda env, x: Value(x.kind, x.bits, fp.square_root(x.raw, x.format())),
    "isNAN": lambda env, x: boolean(fp.is_nan(x.raw, x.format())),
    "isSignalNAN": lambda env, x: boolean(signalling(x)),
    "isQuietNAN": lambda env, x: boolean(fp.is_nan(x.raw, x.format()) and not signalling(x)),
    "cvtToQuietNAN": lambda env, x: Value(x.kind, x.bits, fp.quiet(x.raw, x.format())),
    "exponent": biased_exponent,
    "sign": lambda env, x: Value("u", 1, int(fp.negative(x.raw, x.format()))),
    "ldexp": scaled,
    "signext": sign_extended,
    "signext_from_bit": sign_extended_from,
    "f32_to_snorm": normalised(32767, -1),
    "f16_to_snorm": normalised(32767, -1),
    "f32_to_unorm": normalised(65535, 0),
    "f16_to_unorm": normalised(65535, 0),
    "s_ff1_i32_b64": lambda env, x: Value("i", 32, (x.raw & -x.raw).bit_length() - 1),
}
CONVERSION = re.compile(r"(bf|f|[ui])(\d+)_to_(bf|f|[ui])(\d+)$")


def conversion(env, value, source, source_bits, target, bits):
    value = value.view(source, source_bits)
    if source in ("f", "bf"):
        if target in ("f", "bf"):
            toward_zero = "ROUND_MODE" in env and env["ROUND_MODE"].raw == 3
            return to_float(value, target, bits, toward_zero=toward_zero)
        return Value(target, bits, fp.to_integer(value.raw, value.format(), bits, target == "i"))
    if target == "f":
        return number_to_float(value, "f", bits)
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if target == "i" else (0, (1 << bits) - 1)
    return Value(target, bits, min(max(value.integer(), low), high))


def call(env, name, arguments):
    if callable(env.get(name)):
        return env[name](env, arguments)
    if name in FUNCTIONS:
        return FUNCTIONS[name](env, *arguments)
    match = CONVERSION.match(name)
    if match:
        source, source_bits, target, bits = match.groups()
        return conversion(env, arguments[0], source, int(source_bits), target, int(bits))
    if name.startswith("v_") and "instructions" in env:  # another instruction on these operands
        program = env["instructions"](name)
        kind, bits = SUFFIX_OF_MNEMONIC.search(name).groups()
        inner = dict(env, declared={"D0"}, D0=Value("b", 32, 0))
        inner.update({f"S{i}": argument for i, argument in enumerate(arguments)})
        program(inner)
        return inner["D0"].view(kind, int(bits)) if kind in ("f", "i") else Value("u", 32, inner["D0"].raw)
    raise NameError(f"the pseudo-code calls {name}, which is not defined")


SUFFIX_OF_MNEMONIC = re.compile(r"_([fiu])(\d+)$")
