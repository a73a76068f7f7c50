"""The oracle's own parts: arithmetic against numpy, and the interpreter's reading of the language."""

import numpy as np
import pytest

import floating_point as fp
import pseudo_code
from pseudo_code_values import Value

RANDOM = np.random.default_rng(3)
KINDS = {16: (np.uint16, np.float16), 32: (np.uint32, np.float32), 64: (np.uint64, np.float64)}


def patterns(bits: int, count=600) -> np.ndarray:
    """Random bits, numbers near one, and the edges of the format."""
    unsigned, kind = KINDS[bits]
    form = fp.FORMATS["f", bits]
    random = RANDOM.integers(0, 1 << bits, count, dtype=np.uint64).astype(unsigned)
    random[::2] = RANDOM.standard_normal(len(random[::2])).astype(kind).view(unsigned)
    edges = [0, 1, form.sign | 1, form.sign, form.infinity, form.infinity | form.sign, form.nan, form.largest]
    edges += [1 << form.fraction_bits, (1 << form.fraction_bits) - 1]
    random[5 : 5 + len(edges)] = edges
    return random


def same(got: int, want, form: fp.Format) -> bool:
    return got == int(want) or (fp.is_nan(got, form) and fp.is_nan(int(want), form))


@pytest.mark.parametrize("bits", KINDS)
@pytest.mark.parametrize(
    ("function", "ufunc"), [(fp.add, np.add), (fp.multiply, np.multiply), (fp.divide, np.divide)]
)
def test_arithmetic_equals_numpy(bits, function, ufunc):
    unsigned, kind = KINDS[bits]
    form, a, b = fp.FORMATS["f", bits], patterns(bits), RANDOM.permutation(patterns(bits))
    with np.errstate(all="ignore"):
        expected = ufunc(a.view(kind), b.view(kind)).view(unsigned)
    for x, y, want in zip(a, b, expected, strict=True):
        assert same(function(int(x), int(y), form), want, form), (hex(x), hex(y))


@pytest.mark.parametrize("bits", KINDS)
def test_square_root_equals_numpy(bits):
    unsigned, kind = KINDS[bits]
    form, a = fp.FORMATS["f", bits], patterns(bits)
    with np.errstate(all="ignore"):
        expected = np.sqrt(a.view(kind)).view(unsigned)
    for x, want in zip(a, expected, strict=True):
        assert same(fp.square_root(int(x), form), want, form), hex(x)


def test_fused_equals_extended_precision():
    """A float16 product and sum fit the 64 bits of a long double."""
    form = fp.FORMATS["f", 16]
    a, b, c = (RANDOM.permutation(patterns(16)) for _ in range(3))
    with np.errstate(all="ignore"):
        wide = [x.view(np.float16).astype(np.longdouble) for x in (a, b, c)]
        expected = (wide[0] * wide[1] + wide[2]).astype(np.float16).view(np.uint16)
    for x, y, z, want in zip(a, b, c, expected, strict=True):
        assert same(fp.fused(int(x), int(y), int(z), form), want, form), (hex(x), hex(y), hex(z))


@pytest.mark.parametrize(("source", "target"), [(64, 32), (32, 16), (16, 32), (32, 64)])
def test_conversion_equals_numpy(source, target):
    a = patterns(source)
    with np.errstate(all="ignore"):
        expected = a.view(KINDS[source][1]).astype(KINDS[target][1]).view(KINDS[target][0])
    form = fp.FORMATS["f", target]
    for x, want in zip(a, expected, strict=True):
        assert same(fp.convert(int(x), fp.FORMATS["f", source], form), want, form), hex(x)


def test_rounding_toward_zero_never_grows():
    single, half = fp.FORMATS["f", 32], fp.FORMATS["f", 16]
    for x in patterns(32):
        if not fp.is_nan(int(x), single) and not fp.is_infinite(int(x), single):
            truncated = fp.convert(int(x), single, half, toward_zero=True)
            assert abs(fp.exact(truncated, half)) <= abs(fp.exact(int(x), single))
            if truncated & ~half.sign < half.largest:  # the next one is beyond
                assert abs(fp.exact(truncated + 1, half)) > abs(fp.exact(int(x), single))


def bits_after(text: str, **values) -> int:
    env = {name: Value("b", 64, value) for name, value in values.items()}
    env.update(D0=Value("b", 64, 0), declared={"D0"})
    pseudo_code.parse(text)(env)
    return env["D0"].raw


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("D0.u32 = S0.u32[7 : 0] + S0.u32[7 : 0]", 0x1F0),  # bytes are added in 32 bits
        ("D0.i32 = S0.i8 >> 1U", 0xFFFFFFFC),
        ("D0.u32[31 : 0] = S0.u32[0 : 31]", 0x1FFFFFFF),
        ("D0.u32 = { S0[7 : 0], 8'0x12, 4'1 }", 0xF8121),
        ("tmp = S0.u32 == 0U ? 1U : S0.i8 < 0 ? 2U : 3U; D0.u32 = tmp", 2),
        ("for i in 1 : 3 do\nif i == 3 then\nbreak\nendif;\nD0.u32[i] = 1'1U\nendfor", 0b110),
        ("F = lambda(x, y) (\nx > y ? x - y : y - x);\nD0.u32 = F(3U, 5U) + 7U", 9),
        (
            "G = lambda(n) (\nif n < 4 then\nreturn 0U\nelse\nreturn n[7 : 0].u8\nendif);\nD0.u32 = G(0x105)",
            5,
        ),
        ("{ D1.u1, D0.u64 } = 65'B(65'U(S0.u64) + 65'U(S0.u64))", 0x1FFFFFFF0),
        ("D0.f32 = 2.0F ** 3 * 1.5F", 0x41400000),
        ("D0.f16 = 16'F(0.1F)", 0x2E66),
        ("D0.f32 = -0.0 == +0.0 ? 1.0F : 2.0F", 0x40000000),
        ("declare t : 16'B[2];\nt[1] = 0x7;\nD0.u32 = t[1] | t[0]", 7),
        ("D0.u32 = 1U << 4 - 1 & 0xf", 8),
    ],
)
def test_language(text, expected):
    assert bits_after(text, S0=0xFFFFFFF8) == expected


@pytest.mark.parametrize("text", ["SIMM16[3:0] = vmcount (vector memory) lower bits", "D0 = A (32x1) * B"])
def test_prose_is_refused(text):
    with pytest.raises(SyntaxError):
        pseudo_code.parse(text)


def test_a_name_without_a_value_is_an_error():
    with pytest.raises(NameError, match="S7"):
        bits_after("D0.u32 = S7.u32")
