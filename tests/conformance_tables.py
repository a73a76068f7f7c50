"""AMD's pseudo-code by mnemonic, from the tinygrad wheel, and what replaces it where it is coarse."""

import functools
import math

import numpy as np
import torch

# pip's tinygrad, which holds the ISA document's texts as data.
from tinygrad.runtime.autogen.amd.cdna.str_pcode import PCODE

import floating_point as fp
import pseudo_code
from pseudo_code_values import Value, f32

TEXTS = {key.name.lower(): text for key, text in PCODE.items()}
# The document gives the texts of the unfused instructions in these encodings; gfx942 has the fused ones.
for _kind in ("_f32", "lo_f16", "hi_f16"):
    TEXTS[f"v_fma_mix{_kind}"] = TEXTS[f"v_mad_mix{_kind}"].replace(
        "in[0] * in[1] + in[2]", "fma(in[0], in[1], in[2])"
    )
CONSTANTS = {
    "WAVE_MODE.IEEE": Value("u", 1, 1),
    "ROUND_MODE": Value("u", 2, 0),
    # The document prints the table: the operand as a signed 4-bit integer, over 16.
    "CVT_OFF_TABLE": [f32((i - 16 * (i > 7)) / 16) for i in range(16)],
    "given": ("CVT_OFF_TABLE",),
}


def text_of(mnemonic: str, form: str = "") -> str | None:
    """The pseudo-code of an instruction; of its long or short form where the document tells them apart."""
    suffixes = ("_e64", "", "_e32") if form.startswith("VOP3") else ("_e32", "", "_e64")
    for suffix in suffixes:
        if mnemonic + suffix in TEXTS:
            return TEXTS[mnemonic + suffix]
    return None


@functools.cache
def program_of(mnemonic: str, form: str = ""):
    if mnemonic in REPLACED:
        return REPLACED[mnemonic][2]
    text = text_of(mnemonic, form)
    if text is None:
        raise LookupError(f"no pseudo-code of {mnemonic}")
    return pseudo_code.parse(text)


def pseudo_code_of(mnemonic: str, form: str = ""):
    """(program, the environment's constants)"""
    return program_of(mnemonic, form), dict(CONSTANTS, instructions=program_of)


# Other oracles: numpy, torch or the host's double precision

NUMPY = {
    "f16": (np.uint16, np.float16),
    "f32": (np.uint32, np.float32),
    "f64": (np.uint64, np.float64),
    "i16": (np.uint16, np.int16),
    "i32": (np.uint32, np.int32),
}


def number(env, slot: int, kind: str):
    bits, view = NUMPY[kind]
    return np.array([env[f"S{slot}"].raw & ((1 << 8 * bits().itemsize) - 1)], bits).view(view)[0]


def on_numbers(function, result: str, *operands: str):
    """A program that applies a function of numpy scalars to S0, S1, ... and puts its value into D0."""
    bits, view = NUMPY[result]

    def program(env):
        with np.errstate(all="ignore"):
            value = function(*(number(env, slot, kind) for slot, kind in enumerate(operands)))
            raw = int(np.array([value]).astype(view).view(bits)[0])
        size = 8 * bits().itemsize
        old = env["D0"].raw & ~((1 << size) - 1)
        env["D0"] = Value("b", env["D0"].bits, old | raw)

    return program


def fraction(x):
    part = x - np.floor(x)
    return np.minimum(part, np.nextafter(x.dtype.type(1), x.dtype.type(0)))


def finite_only(function, otherwise):
    return lambda x: function(x) if np.isfinite(x) else otherwise(x)


def flushed(x):
    return np.copysign(x.dtype.type(0), x) if x.dtype == np.float32 and abs(x) < np.finfo(x.dtype).tiny else x


def in_double(function):
    """A function that the machine approximates: subnormal float32 operands and results count as zero."""

    def apply(x):
        result = function(np.float64(flushed(x)))
        return flushed(x.dtype.type(result))

    return apply


def in_turns(function, at_zero):
    def apply(x):
        if not np.isfinite(x):
            return x - x
        # Beyond 256 turns the operand is out of range.
        return x.dtype.type(function(2 * math.pi * (float(x) - math.floor(x))) if abs(x) <= 256 else at_zero)

    return apply


APPROXIMATE = {
    "exp": in_double(np.exp2),
    "log": in_double(np.log2),
    "rcp": in_double(lambda x: 1 / x),
    "rsq": in_double(lambda x: 1 / np.sqrt(x)),
    "sqrt": in_double(np.sqrt),
    "sin": in_turns(math.sin, 0.0),
    "cos": in_turns(math.cos, 1.0),
}
UNROUNDED = "adds one half, or takes the whole part off, in the operand's own precision, which isn't exact"
EXPONENT = "reads the exponent field, which subnormal numbers and zero don't have"
LAST_BIT = (
    "the machine approximates it to about one unit in the last place, and takes float32 subnormals as zero"
)

# mnemonic -> (oracle, why the text is not the last word, program)
REPLACED = {}
for _f in ("f16", "f32", "f64"):
    REPLACED[f"v_rndne_{_f}"] = ("numpy", UNROUNDED, on_numbers(np.rint, _f, _f))
    REPLACED[f"v_fract_{_f}"] = ("numpy", UNROUNDED, on_numbers(fraction, _f, _f))
    REPLACED[f"v_frexp_mant_{_f}"] = (
        "numpy",
        EXPONENT,
        on_numbers(finite_only(lambda x: np.frexp(x)[0], lambda x: x), _f, _f),
    )
    _i = "i16" if _f == "f16" else "i32"
    REPLACED[f"v_frexp_exp_{_i}_{_f}"] = (
        "numpy",
        EXPONENT,
        on_numbers(finite_only(lambda x: np.frexp(x)[1], lambda x: 0), _i, _f),
    )
REPLACED["v_ldexp_f16"] = (
    "numpy",
    "rounds the power of two to float16 before it multiplies",
    on_numbers(lambda x, n: np.ldexp(np.float64(x), max(-60, min(60, int(n)))), "f16", "f16", "i16"),
)
for _name, _function in APPROXIMATE.items():
    for _f in ("f16", "f32"):
        REPLACED[f"v_{_name}_{_f}"] = ("float64", LAST_BIT, on_numbers(_function, _f, _f))
REPLACED["v_rcp_iflag_f32"] = REPLACED["v_rcp_f32"]
REPLACED["v_exp_legacy_f32"] = REPLACED["v_exp_f32"]
REPLACED["v_log_legacy_f32"] = REPLACED["v_log_f32"]


def tolerance_of(mnemonic: str) -> int:
    """Units in the last place by which a result may differ."""
    return int(mnemonic in REPLACED and REPLACED[mnemonic][0] == "float64")


# 8-bit floats: the text calls functions that it doesn't define

SMALL = {"fp8": torch.float8_e4m3fnuz, "bf8": torch.float8_e5m2fnuz}


def small_to_float(kind: str, byte: int) -> int:
    value = torch.tensor([byte], dtype=torch.uint8).view(SMALL[kind]).float()
    return int(value.view(torch.int32)) & 0xFFFFFFFF


def float_to_small(kind: str, raw: int) -> int:
    value = torch.from_numpy(np.array([raw], np.uint32).view(np.float32))
    return int(value.to(SMALL[kind]).view(torch.uint8))


def unpack_small(kind: str, count: int):
    def program(env):
        word = env["S0"].raw
        parts = [small_to_float(kind, word >> 8 * i & 0xFF) for i in range(count)]
        env["D0"] = Value("b", 32 * count, sum(part << 32 * i for i, part in enumerate(parts)))

    return program


def round_stochastically(kind: str):
    """Adds the random number's upper bits to the fraction and drops what doesn't fit."""
    dropped = 20 if kind == "fp8" else 21

    def program(env):
        raw = (env["S0"].raw & 0xFFFFFFFF) + (env["S1"].raw >> (32 - dropped)) >> dropped << dropped
        shift = 8 * (env["OPSEL"].raw >> 2)
        byte = float_to_small(kind, raw)
        env["D0"] = Value("b", 32, (env["D0"].raw & ~(0xFF << shift)) | byte << shift)

    return program


def pack_small(kind: str):
    def program(env):
        pair = float_to_small(kind, env["S0"].raw) | float_to_small(kind, env["S1"].raw) << 8
        high = env["OPSEL"].raw >> 3
        keep = 0xFFFF if high else 0xFFFF0000
        env["D0"] = Value("b", 32, (env["D0"].raw & keep) | pair << 16 * high)

    return program


for _kind in SMALL:
    _reason = "calls a conversion that it doesn't define"
    REPLACED[f"v_cvt_f32_{_kind}"] = ("torch", _reason, unpack_small(_kind, 1))
    REPLACED[f"v_cvt_pk_f32_{_kind}"] = ("torch", _reason, unpack_small(_kind, 2))
    REPLACED[f"v_cvt_sr_{_kind}_f32"] = (
        "torch",
        "lets the sum of fraction and random number wrap around, and then rounds it",
        round_stochastically(_kind),
    )
    REPLACED[f"v_cvt_pk_{_kind}_f32"] = ("torch", _reason, pack_small(_kind))


# Operands for which the text can't be right

F32, F64 = (fp.FORMATS["f", bits] for bits in (32, 64))


def nan_estimate(form):
    def holds(env):
        quotient, *rest = (env[f"S{i}"].raw & ((1 << form.bits) - 1) for i in range(3))
        return fp.is_nan(quotient, form) and not any(fp.is_nan(x, form) for x in rest)

    return holds


def fractional(env):
    x = np.array([env["S0"].raw & 0xFFFFFFFF], np.uint32).view(np.float32)[0]
    return np.isfinite(x) and 0 < x < 255 and x != np.floor(x)


def below_normal(kind):
    """Outside the normal range of the 8-bit format, where the place of the random number isn't described."""
    least = torch.finfo(SMALL[kind]).tiny

    def holds(env):
        x = abs(float(np.array([env["S0"].raw & 0xFFFFFFFF], np.uint32).view(np.float32)[0]))
        return not least <= x < math.inf

    return holds


def subnormal_reciprocal(env):
    x = np.array([env["S1"].raw & 0xFFFFFFFF], np.uint32).view(np.float32)[0]
    with np.errstate(all="ignore"):
        return 0 < abs(np.float32(1) / x) < np.finfo(np.float32).tiny


def scaled_quotient(env):
    return env["VCC"].raw >> env["laneId"].raw & 1


# mnemonic -> (what is left out, why)
UNSPECIFIED = {
    "v_div_fixup_f32": (
        nan_estimate(F32),
        "a NaN estimate of an ordinary quotient, whose iteration overflowed",
    ),
    "v_div_fixup_f64": (
        nan_estimate(F64),
        "a NaN estimate of an ordinary quotient, whose iteration overflowed",
    ),
    "v_div_fmas_f32": (
        scaled_quotient,
        "scales by 2^32 what v_div_scale has scaled by 2^64; programs divide right",
    ),
    "v_div_fmas_f64": (
        scaled_quotient,
        "scales by 2^64 what v_div_scale has scaled by 2^128; programs divide right",
    ),
    "v_cvt_sr_fp8_f32": (below_normal("fp8"), "results that are subnormal in the 8-bit format"),
    "v_cvt_sr_bf8_f32": (below_normal("bf8"), "results that are subnormal in the 8-bit format"),
    "v_div_scale_f32": (subnormal_reciprocal, "compares a reciprocal with the subnormal range of float64"),
    "v_cvt_pk_u8_f32": (fractional, "doesn't say how numbers that aren't whole are rounded"),
}


def unspecified(mnemonic: str, env) -> bool:
    return mnemonic in UNSPECIFIED and bool(UNSPECIFIED[mnemonic][0](env))
