"""Element-wise vector instructions against numpy."""

import numpy as np
import pytest

from execute_kernels import LANES, POISON, assert_same_floats, each, f32, f64, run, store, words
from execute_operands import RANDOM, floats, integers, low_words, u64


def fma32(a, b, c):
    exact = a.astype(np.longdouble) * b.astype(np.longdouble) + c.astype(np.longdouble)
    return exact.astype(np.float32)


def largest(a, b):
    """IEEE maxNum, +0 above -0."""
    ordered = np.where((a > b) | ((a == b) & ~np.signbit(a)), a, b)
    return np.where(np.isnan(a), b, np.where(np.isnan(b), a, ordered)).astype(a.dtype)


def smallest(a, b):
    return -largest(-a, -b)


def middle(a, b, c):
    ordered = np.sort(np.stack([a, b, c]), axis=0)[1]
    nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
    return np.where(nan, smallest(smallest(a, b), c), ordered)


FLOAT32 = {
    "v_add_f32 v20, v10, v11": lambda a, b, c: a + b,
    "v_sub_f32 v20, v10, v11": lambda a, b, c: a - b,
    "v_subrev_f32 v20, v10, v11": lambda a, b, c: b - a,
    "v_mul_f32 v20, v10, v11": lambda a, b, c: a * b,
    "v_mul_f32 v20, 0.5, v11": lambda a, b, c: np.float32(0.5) * b,
    "v_add_f32 v20, 0x40490fdb, v11": lambda a, b, c: np.float32(np.pi) + b,
    "v_fma_f32 v20, v10, v11, v12": fma32,
    "v_fma_f32 v20, -v10, |v11|, v12": lambda a, b, c: fma32(-a, abs(b), c),
    "v_fma_f32 v20, v10, v11, -|v12|": lambda a, b, c: fma32(a, b, -abs(c)),
    "v_max_f32 v20, v10, v11": lambda a, b, c: largest(a, b),
    "v_min_f32 v20, v10, v11": lambda a, b, c: smallest(a, b),
    "v_max3_f32 v20, v10, v11, v12": lambda a, b, c: largest(largest(a, b), c),
    "v_min3_f32 v20, v10, v11, v12": lambda a, b, c: smallest(smallest(a, b), c),
    "v_med3_f32 v20, v10, v11, v12": middle,
    "v_trunc_f32 v20, v10": lambda a, b, c: np.trunc(a),
    "v_ceil_f32 v20, v10": lambda a, b, c: np.ceil(a),
    "v_floor_f32 v20, v10": lambda a, b, c: np.floor(a),
    "v_rndne_f32 v20, v10": lambda a, b, c: np.rint(a),
    "v_add_f32 v20, v10, v11 clamp": lambda a, b, c: (
        np.where(np.isnan(a + b), 0, np.clip(a + b, 0, 1)) + np.float32(0)
    ),
    "v_sqrt_f32 v20, v13": lambda a, b, c: np.sqrt(np.abs(b * 0 + 1) * 2),
}


@pytest.mark.filterwarnings("ignore:.*encountered")
def test_float32_arithmetic():
    a, b, c = floats()
    results = each(FLOAT32, [a, b, c, np.full(LANES, 2, np.float32)])
    for (line, expected), row in zip(FLOAT32.items(), results, strict=True):
        if "sqrt" in line:
            expected = lambda a, b, c: np.full(LANES, np.sqrt(np.float32(2)))  # noqa: E731
        assert_same_floats(f32(row), expected(a, b, c).astype(np.float32), line)


@pytest.mark.filterwarnings("ignore:.*encountered")
def test_float32_subnormals_follow_the_mode():
    tiny = np.full(LANES, 1e-40, np.float32)
    lines = ["v_add_f32 v20, v10, v10", "v_mul_f32 v20, 1.0, v10", "v_fma_f32 v20, v10, 1.0, 0"]
    kept = each(lines, [tiny])
    assert (
        (f32(kept[0]) == tiny + tiny).all() and (f32(kept[1]) == tiny).all() and (f32(kept[2]) == tiny).all()
    )
    assert not each(lines, [tiny], flush_denormals=True).any()
    # The mode belongs to the wave and s_setreg changes it: bits 4 and 5 of hardware register 1.
    changed = each(["s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), 0\n v_mul_f32 v20, 1.0, v10"], [tiny])
    assert not changed.any()


@pytest.mark.filterwarnings("ignore:.*encountered")
def test_invalid_operations_give_the_positive_nan():
    infinity = np.full(LANES, np.inf, np.float32)
    result = each(["v_sub_f32 v20, v10, v10", "v_mul_f32 v20, 0, v10"], [infinity])
    assert (result == 0x7FC00000).all()


TRANSCENDENTAL = {
    "v_exp_f32 v20, v10": np.exp2,
    "v_log_f32 v20, v11": np.log2,
    "v_rcp_f32 v20, v10": lambda x: 1 / x,
    "v_rsq_f32 v20, v11": lambda x: 1 / np.sqrt(x),
    "v_sqrt_f32 v20, v11": np.sqrt,
    "v_sin_f32 v20, v10": lambda x: np.sin(2 * np.pi * x),
    "v_cos_f32 v20, v10": lambda x: np.cos(2 * np.pi * x),
}


def test_transcendental_within_one_ulp():
    x = np.concatenate([np.linspace(-20, 20, 32), RANDOM.uniform(-100, 100, 32)]).astype(np.float32)
    y = np.abs(x) + np.float32(1e-3)
    results = each(TRANSCENDENTAL, [x, y])
    for (line, function), row in zip(TRANSCENDENTAL.items(), results, strict=True):
        argument = (y if "v11" in line else x).astype(np.float64)
        expected = function(argument)
        unit = np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64)
        # Near a zero of sine or cosine the error of numpy's own argument counts.
        tolerance = 0.51 * unit + (1e-13 if "sin" in line or "cos" in line else 0)
        assert (np.abs(f32(row) - expected) <= tolerance).all(), line


def test_transcendental_special_values():
    x = np.zeros(LANES, np.float32)
    x[:8] = [0, -0.0, np.inf, -np.inf, np.nan, -1, 200, -200]
    exp, log, rcp, rsq = (
        f32(r) for r in each([f"v_{name}_f32 v20, v10" for name in ("exp", "log", "rcp", "rsq")], [x])
    )
    inf, nan = np.inf, np.nan
    np.testing.assert_array_equal(exp[:8], [1, 1, inf, 0, nan, 0.5, inf, 0])
    np.testing.assert_array_equal(log[[0, 1, 2, 3, 4, 5]], [-inf, -inf, inf, nan, nan, nan])
    np.testing.assert_array_equal(rcp[:6], [inf, -inf, 0, -0.0, nan, -1])
    np.testing.assert_array_equal(rsq[[0, 2, 3, 4, 5]], [inf, 0, nan, nan, nan])


def i64(a):
    return a.view(np.int32).astype(np.int64)


def signed24(a):
    return (a.view(np.int32) << 8) >> 8


def permuted(a, b, s):
    result = np.zeros(LANES, np.uint32)
    for lane in range(LANES):
        source = int(b[lane]).to_bytes(4, "little") + int(a[lane]).to_bytes(4, "little")
        for byte in range(4):
            select = int(s[lane]) >> 8 * byte & 0xFF
            if select < 8:
                value = source[select]
            elif select < 12:
                value = 0xFF if source[2 * (select - 8) + 1] & 0x80 else 0
            else:
                value = 0 if select == 12 else 0xFF
            result[lane] |= np.uint32(value << 8 * byte)
    return result


INTEGER = {
    "v_add_u32 v20, v10, v11": lambda a, b, c: a + b,
    "v_sub_u32 v20, v10, v11": lambda a, b, c: a - b,
    "v_subrev_u32 v20, v10, v11": lambda a, b, c: b - a,
    "v_add_u32 v20, v10, v11 clamp": lambda a, b, c: np.minimum(u64(a) + u64(b), 2**32 - 1),
    "v_sub_u32 v20, v10, v11 clamp": lambda a, b, c: np.where(a < b, 0, a - b),
    "v_add_i32 v20, v10, v11 clamp": lambda a, b, c: np.clip(i64(a) + i64(b), -(2**31), 2**31 - 1),
    "v_sub_i32 v20, v10, v11 clamp": lambda a, b, c: np.clip(i64(a) - i64(b), -(2**31), 2**31 - 1),
    "v_mul_lo_u32 v20, v10, v11": lambda a, b, c: a * b,
    "v_mul_hi_u32 v20, v10, v11": lambda a, b, c: u64(a) * u64(b) >> np.uint64(32),
    "v_mul_hi_i32 v20, v10, v11": lambda a, b, c: i64(a) * i64(b) >> 32,
    "v_mul_i32_i24 v20, v10, v11": lambda a, b, c: signed24(a).astype(np.int64) * signed24(b),
    "v_mul_u32_u24 v20, v10, v11": lambda a, b, c: u64(a & 0xFFFFFF) * u64(b & 0xFFFFFF),
    "v_mul_hi_u32_u24 v20, v10, v11": lambda a, b, c: u64(a & 0xFFFFFF) * u64(b & 0xFFFFFF) >> np.uint64(32),
    "v_mad_u32_u24 v20, v10, v11, v12": lambda a, b, c: u64(a & 0xFFFFFF) * u64(b & 0xFFFFFF) + u64(c),
    "v_mad_i32_i24 v20, v10, v11, v12": lambda a, b, c: signed24(a).astype(np.int64) * signed24(b) + i64(c),
    "v_and_b32 v20, v10, v11": lambda a, b, c: a & b,
    "v_or_b32 v20, v10, v11": lambda a, b, c: a | b,
    "v_xor_b32 v20, v10, v11": lambda a, b, c: a ^ b,
    "v_xnor_b32 v20, v10, v11": lambda a, b, c: ~(a ^ b),
    "v_not_b32 v20, v10": lambda a, b, c: ~a,
    "v_or3_b32 v20, v10, v11, v12": lambda a, b, c: a | b | c,
    "v_and_or_b32 v20, v10, v11, v12": lambda a, b, c: (a & b) | c,
    "v_bfi_b32 v20, v10, v11, v12": lambda a, b, c: (a & b) | (~a & c),
    "v_add3_u32 v20, v10, v11, v12": lambda a, b, c: a + b + c,
    "v_xad_u32 v20, v10, v11, v12": lambda a, b, c: (a ^ b) + c,
    "v_lshl_add_u32 v20, v10, v11, v12": lambda a, b, c: (a << (b & 31)) + c,
    "v_add_lshl_u32 v20, v10, v11, v12": lambda a, b, c: (a + b) << (c & 31),
    "v_lshl_or_b32 v20, v10, v11, v12": lambda a, b, c: (a << (b & 31)) | c,
    "v_lshlrev_b32 v20, v10, v11": lambda a, b, c: b << (a & 31),
    "v_lshrrev_b32 v20, v10, v11": lambda a, b, c: b >> (a & 31),
    "v_ashrrev_i32 v20, v10, v11": lambda a, b, c: b.view(np.int32) >> (a & 31).view(np.int32),
    "v_bfe_u32 v20, v10, v11, v12": lambda a, b, c: a >> (b & 31) & ((1 << (c & 31)) - 1),
    "v_bfm_b32 v20, v10, v11": lambda a, b, c: ((1 << (a & 31)) - 1) << (b & 31),
    "v_alignbit_b32 v20, v10, v11, v12": lambda a, b, c: (u64(a) << np.uint64(32) | u64(b)) >> u64(c & 31),
    "v_alignbyte_b32 v20, v10, v11, v12": lambda a, b, c: (
        (u64(a) << np.uint64(32) | u64(b)) >> u64(8 * (c & 3))
    ),
    "v_perm_b32 v20, v10, v11, v12": permuted,
    "v_perm_b32 v20, v10, v11, v13": lambda a, b, c: permuted(a, b, np.full(LANES, 0x07060302, np.uint32)),
    "v_min_i32 v20, v10, v11": lambda a, b, c: np.minimum(a.view(np.int32), b.view(np.int32)),
    "v_max_i32 v20, v10, v11": lambda a, b, c: np.maximum(a.view(np.int32), b.view(np.int32)),
    "v_min_u32 v20, v10, v11": lambda a, b, c: np.minimum(a, b),
    "v_max_u32 v20, v10, v11": lambda a, b, c: np.maximum(a, b),
    "v_min3_u32 v20, v10, v11, v12": lambda a, b, c: np.minimum(np.minimum(a, b), c),
    "v_max3_i32 v20, v10, v11, v12": lambda a, b, c: np.maximum.reduce([x.view(np.int32) for x in (a, b, c)]),
    "v_med3_u32 v20, v10, v11, v12": lambda a, b, c: np.sort(np.stack([a, b, c]), axis=0)[1],
    "v_med3_i32 v20, v10, v11, v12": lambda a, b, c: np.sort(np.stack([a, b, c]).view(np.int32), axis=0)[1],
    "v_sad_u32 v20, v10, v11, v12": lambda a, b, c: np.where(a > b, a - b, b - a) + c,
    "v_bfrev_b32 v20, v10": lambda a, b, c: [int(f"{x:032b}"[::-1], 2) for x in a],
    "v_bcnt_u32_b32 v20, v10, v11": lambda a, b, c: [
        (int(x).bit_count() + int(y)) % 2**32 for x, y in zip(a, b, strict=True)
    ],
    "v_ffbh_u32 v20, v10": lambda a, b, c: [32 - int(x).bit_length() if x else 2**32 - 1 for x in a],
    "v_ffbl_b32 v20, v10": lambda a, b, c: [
        (int(x) & -int(x)).bit_length() - 1 if x else 2**32 - 1 for x in a
    ],
    "v_add_u16 v20, v10, v11": lambda a, b, c: (a + b) & 0xFFFF,
    "v_mul_lo_u16 v20, v10, v11": lambda a, b, c: (a * b) & 0xFFFF,
    "v_lshlrev_b16 v20, v10, v11": lambda a, b, c: (b << (a & 15)) & 0xFFFF,
    "v_max_u16 v20, v10, v11": lambda a, b, c: np.maximum(a & 0xFFFF, b & 0xFFFF),
    "v_mad_u32_u16 v20, v10, v11, v12": lambda a, b, c: (a & 0xFFFF) * (b & 0xFFFF) + c,
    "v_cvt_pk_u16_u32 v20, v10, v11": lambda a, b, c: np.minimum(a, 0xFFFF) | np.minimum(b, 0xFFFF) << 16,
}


def test_integer_arithmetic():
    a, b, c = integers()
    results = each(INTEGER, [a, b, c, np.full(LANES, 0x07060302, np.uint32)])
    for (line, expected), row in zip(INTEGER.items(), results, strict=True):
        np.testing.assert_array_equal(row, low_words(expected(a, b, c)), line)


INTEGER64 = {
    "v_lshlrev_b64 v[20:21], v10, v[12:13]": lambda a, b, c, d: d << (a & np.uint64(63)),
    "v_lshrrev_b64 v[20:21], v10, v[12:13]": lambda a, b, c, d: d >> (a & np.uint64(63)),
    "v_ashrrev_i64 v[20:21], v10, v[12:13]": lambda a, b, c, d: (
        d.view(np.int64) >> (a & np.uint64(63)).view(np.int64)
    ),
    "v_lshl_add_u64 v[20:21], v[12:13], 3, v[12:13]": lambda a, b, c, d: (d << np.uint64(3)) + d,
    "v_mad_u64_u32 v[20:21], s[20:21], v10, v11, v[12:13]": lambda a, b, c, d: a * b + d,
    "v_mov_b64 v[20:21], v[12:13]": lambda a, b, c, d: d,
}


def test_integer64_arithmetic():
    a, b, c = integers()
    d = RANDOM.integers(0, 2**32, LANES, dtype=np.uint32)
    body = "\n".join(f"{line}\n {store('v20', 'v21')}" for line in INTEGER64)
    results = run(body, [a, b, c, d], 2 * len(INTEGER64))
    wide = c.astype(np.uint64) | d.astype(np.uint64) << np.uint64(32)
    for i, (line, expected) in enumerate(INTEGER64.items()):
        value = words(expected(u64(a), u64(b), u64(c), wide).astype(np.uint64, casting="unsafe"))
        np.testing.assert_array_equal(results[2 * i : 2 * i + 2], value, line)


FLOAT64 = {
    "v_add_f64 v[20:21], v[10:11], v[12:13]": lambda a, b, c: a + b,
    "v_mul_f64 v[20:21], v[10:11], v[12:13]": lambda a, b, c: a * b,
    "v_add_f64 v[20:21], -v[10:11], |v[12:13]|": lambda a, b, c: -a + abs(b),
    "v_max_f64 v[20:21], v[10:11], v[12:13]": lambda a, b, c: largest(a, b),
    "v_min_f64 v[20:21], v[10:11], v[12:13]": lambda a, b, c: smallest(a, b),
    "v_floor_f64 v[20:21], v[10:11]": lambda a, b, c: np.floor(a),
    "v_rndne_f64 v[20:21], v[10:11]": lambda a, b, c: np.rint(a),
    "v_mul_f64 v[20:21], v[10:11], 0.5": lambda a, b, c: a * 0.5,
    "v_ldexp_f64 v[20:21], v[10:11], 7": lambda a, b, c: a * 128,
}


@pytest.mark.filterwarnings("ignore:.*encountered")
@pytest.mark.parametrize("flush", [False, True], ids=["keep", "flush_f32"])
def test_float64_arithmetic(flush):
    """Also under a mode that flushes float32 subnormals only."""
    a, b, c = floats(np.float64)
    a[40:44], b[40:44] = 1e-310, 3e-310
    body = "\n".join(f"{line}\n {store('v20', 'v21')}" for line in FLOAT64)
    results = run(body, [*words(a), *words(b)], 2 * len(FLOAT64), flush_denormals=flush)
    for i, (line, expected) in enumerate(FLOAT64.items()):
        assert_same_floats(f64(*results[2 * i : 2 * i + 2]), expected(a, b, c), line)


FLOAT16 = {
    "v_add_f16 v20, v10, v11": lambda a, b, c: a + b,
    "v_sub_f16 v20, v10, v11": lambda a, b, c: a - b,
    "v_mul_f16 v20, v10, v11": lambda a, b, c: a * b,
    "v_max_f16 v20, v10, v11": lambda a, b, c: largest(a, b),
    "v_rndne_f16 v20, v10": lambda a, b, c: np.rint(a),
    "v_fma_f16 v20, v10, v11, v12": lambda a, b, c: (
        a.astype(np.longdouble) * b.astype(np.longdouble) + c.astype(np.longdouble)
    ).astype(np.float16),
    "v_add_f16 v20, -v10, |v11|": lambda a, b, c: -a + abs(b),
}


@pytest.mark.filterwarnings("ignore:.*encountered")
def test_float16_arithmetic():
    a, b, c = floats(np.float16)
    rows = [x.view(np.uint16).astype(np.uint32) for x in (a, b, c)]
    results = each(FLOAT16, rows)
    for (line, expected), row in zip(FLOAT16.items(), results, strict=True):
        assert_same_floats(row.astype(np.uint16).view(np.float16), expected(a, b, c).astype(np.float16), line)
        # v_fma_f16 leaves the upper half, the older instructions clear it.
        assert ((row >> 16) == (POISON >> 16 if "fma" in line else 0)).all(), line
    halves = rows[0] | rows[1] << 16
    high = each(["v_fma_f16 v20, v10, v11, v10 op_sel:[1,0,0,1]"], [halves, rows[2]])[0]
    expected = (b.astype(np.longdouble) * c.astype(np.longdouble) + a.astype(np.longdouble)).astype(
        np.float16
    )
    assert_same_floats((high >> 16).astype(np.uint16).view(np.float16), expected, "op_sel")
    assert ((high & 0xFFFF) == (POISON & 0xFFFF)).all()


@pytest.mark.filterwarnings("ignore:.*encountered")
def test_conversions():
    a, b, _ = floats()
    a[32:36] = [65504, 65519.9, 65520, 6.1e-5]
    integer = integers()[0]
    half = RANDOM.integers(0, 2**16, LANES, dtype=np.uint16)
    wide = a.astype(np.float64) * 1.0000001
    truncate = np.nan_to_num(np.trunc(a.astype(np.float64)), nan=0, posinf=1e300, neginf=-1e300)
    with np.errstate(over="ignore"):
        rtz = np.where(
            np.abs(a.astype(np.float16).astype(np.float32)) > np.abs(a),
            np.nextafter(a.astype(np.float16), np.float16(0)),
            a.astype(np.float16),
        )
    expected = {
        "v_cvt_f32_u32 v20, v11": integer.astype(np.float32).view(np.uint32),
        "v_cvt_f32_i32 v20, v11": integer.view(np.int32).astype(np.float32).view(np.uint32),
        "v_cvt_u32_f32 v20, v10": np.clip(truncate, 0, 2**32 - 1).astype(np.uint32),
        "v_cvt_i32_f32 v20, v10": np.clip(truncate, -(2**31), 2**31 - 1).astype(np.int32).view(np.uint32),
        "v_cvt_f32_ubyte2 v20, v11": (integer >> 16 & 0xFF).astype(np.float32).view(np.uint32),
        "v_cvt_f32_f64 v20, v[14:15]": wide.astype(np.float32).view(np.uint32),
        "v_cvt_i32_f64 v20, v[14:15]": np.clip(np.nan_to_num(np.trunc(wide), nan=0), -(2**31), 2**31 - 1)
        .astype(np.int32)
        .view(np.uint32),
    }
    results = each(expected, [a, integer, half.astype(np.uint32), b, *words(wide)])
    for (line, value), row in zip(expected.items(), results, strict=True):
        same = (row == value) | (np.isnan(f32(row)) & np.isnan(f32(value)) if "f32_f64" in line else False)
        assert same.all(), (line, row[~same], value[~same])
    to_half, from_half, packed = each(
        ["v_cvt_f16_f32 v20, v10", "v_cvt_f32_f16 v20, v12", "v_cvt_pkrtz_f16_f32 v20, v10, v13"],
        [a, integer, half.astype(np.uint32), b],
    )
    assert_same_floats(to_half.astype(np.uint16).view(np.float16), a.astype(np.float16), "to half")
    assert_same_floats(f32(from_half), half.view(np.float16).astype(np.float32), "from half")
    finite = np.isfinite(a)
    assert_same_floats(
        (packed & 0xFFFF).astype(np.uint16).view(np.float16)[finite], rtz.astype(np.float16)[finite], "rtz"
    )


def halves(row):
    return (row & 0xFFFF).astype(np.uint16), (row >> 16).astype(np.uint16)


@pytest.mark.filterwarnings("ignore:.*encountered")
def test_packed():
    a, b, c = integers()
    (al, ah), (bl, bh), (cl, ch) = (halves(x) for x in (a, b, c))

    def pair(low, high):
        return low.astype(np.uint16).astype(np.uint32) | high.astype(np.uint16).astype(np.uint32) << 16

    expected = {
        "v_pk_add_u16 v20, v10, v11": pair(al + bl, ah + bh),
        "v_pk_add_u16 v20, v10, v11 op_sel:[1,0] op_sel_hi:[0,1]": pair(ah + bl, al + bh),
        "v_pk_mul_lo_u16 v20, v10, v11": pair(al * bl, ah * bh),
        "v_pk_mad_u16 v20, v10, v11, v12": pair(al * bl + cl, ah * bh + ch),
        "v_pk_max_i16 v20, v10, v11": pair(
            *(np.maximum(x.view(np.int16), y.view(np.int16)) for x, y in ((al, bl), (ah, bh)))
        ),
        "v_pk_lshrrev_b16 v20, v10, v11": pair(bl >> (al & 15), bh >> (ah & 15)),
        "v_pk_add_u16 v20, v10, v11 clamp": pair(
            *(np.minimum(x.astype(int) + y, 0xFFFF) for x, y in ((al, bl), (ah, bh)))
        ),
    }
    for (line, value), row in zip(expected.items(), each(expected, [a, b, c]), strict=True):
        np.testing.assert_array_equal(row, value, line)
    x, y, z = floats(np.float16)
    packed = [
        p.view(np.uint16).astype(np.uint32) | q.view(np.uint16).astype(np.uint32) << 16
        for p, q in ((x, y), (y, z))
    ]
    row = each(["v_pk_mul_f16 v20, v10, v11", "v_pk_add_f16 v20, v10, v11 neg_lo:[1,0] neg_hi:[0,1]"], packed)
    for got, want in zip(halves(row[0]), (x * y, y * z), strict=True):
        assert_same_floats(got.view(np.float16), want)
    for got, want in zip(halves(row[1]), (-x + y, y - z), strict=True):
        assert_same_floats(got.view(np.float16), want)


@pytest.mark.filterwarnings("ignore:.*encountered")
def test_packed_float32():
    a, b, c = floats()
    d = np.roll(a, 5)
    lines = {
        "v_pk_mul_f32 v[20:21], v[10:11], v[12:13]": (a * c, b * d),
        "v_pk_add_f32 v[20:21], v[10:11], v[12:13] op_sel_hi:[1,0]": (a + c, b + c),
        "v_pk_fma_f32 v[20:21], v[10:11], v[12:13], v[10:11] neg_lo:[0,0,1]": (
            fma32(a, c, -a),
            fma32(b, d, b),
        ),
        "v_pk_mov_b32 v[20:21], v[10:11], v[12:13] op_sel:[1,0]": (b, c),
    }
    results = run(
        "\n".join(f"{line}\n {store('v20', 'v21')}" for line in lines), [a, b, c, d], 2 * len(lines)
    )
    for i, (line, (low, high)) in enumerate(lines.items()):
        assert_same_floats(f32(results[2 * i]), low, line)
        assert_same_floats(f32(results[2 * i + 1]), high, line)


@pytest.mark.filterwarnings("ignore:.*encountered")
def test_mixed_precision_fma():
    a, b, c = floats()
    half = a.astype(np.float16)
    rows = [b.view(np.uint32), half.view(np.uint16).astype(np.uint32) << 16, c.view(np.uint32)]
    lines = [
        "v_fma_mix_f32 v20, v10, v11, -v12 op_sel:[0,1,0] op_sel_hi:[0,1,0]",
        "v_fma_mixhi_f16 v20, v10, |v11|, v12 op_sel:[0,1,0] op_sel_hi:[0,1,0]",
    ]
    mixed, high = each(lines, rows)
    assert_same_floats(f32(mixed), fma32(b, half.astype(np.float32), -c))
    expected = fma32(b, np.abs(half).astype(np.float32), c).astype(np.float16)
    assert_same_floats((high >> 16).astype(np.uint16).view(np.float16), expected)
    assert ((high & 0xFFFF) == (POISON & 0xFFFF)).all()


MODE_FIELDS = {"ieee": 0x200, "dx10_clamp": 0x100, "denormals": 0xF0}
OMOD = {"mul:2": 2, "mul:4": 4, "div:2": 0.5}


@pytest.mark.filterwarnings("ignore:.*encountered")
@pytest.mark.parametrize("kept", [[], ["ieee"], ["denormals"]], ids=["effective", "ieee", "denormals"])
def test_output_modifier(kept):
    """It multiplies, and flushes subnormal results and -0, unless MODE has IEEE or keeps subnormals."""
    a = np.array([3, -7.5, -0.0, 1.5e-38, -2e-38, 3e38, np.inf, 0] * 8, np.float32)
    mode = sum(MODE_FIELDS[name] for name in kept)
    lines = [f"v_add_f32_e64 v20, v10, 0 {omod}" for omod in OMOD]
    lines += [f"v_add_f64 v[20:21], v[12:13], 0 {omod}" for omod in OMOD]
    body = f"s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 6), {mode >> 4:#x}\n s_nop 2\n"
    body += "\n".join(f"{line}\n s_nop 4\n {store('v20', 'v21')}" for line in lines)
    wide = np.array([3, -7.5, -0.0, 1.5e-308, -2.3e-308, 1.5e308, np.inf, 0] * 8)
    results = run(body, [a, a, *words(wide)], 2 * len(lines))
    for i, factor in enumerate(OMOD.values()):
        for values, got in ((a, f32(results[2 * i])), (wide, f64(*results[2 * i + 6 : 2 * i + 8]))):
            expected = values + values.dtype.type(0)
            if "denormals" not in kept:
                expected = np.where(abs(expected) < np.finfo(values.dtype).tiny, 0 * expected, expected)
            if not kept:
                expected = expected * values.dtype.type(factor)
                expected[abs(expected) < np.finfo(values.dtype).tiny] = 0
            np.testing.assert_array_equal(got, expected)
            assert (np.signbit(got) == np.signbit(expected)).all()
