"""Element-wise vector instructions against numpy."""

import numpy as np
import pytest

from execute_kernels import LANES, POISON, assert_same_floats, each, f32, f64, run, store, words

RANDOM = np.random.default_rng(7)
SPECIAL = np.array(
    [0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3.4e38, -3.4e38, 1.2e-38, 0.5, 2, 1e10, -7.5], np.float32
)
INTEGERS = np.array([0, 1, 2, 31, 32, 63, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFF, 0x8000, 0x800000], np.uint32)


def floats(kind=np.float32):
    """Three operands: pairs of special values, then random ones."""
    special = SPECIAL.astype(kind)
    operands = []
    for repeat in range(3):
        random = (RANDOM.standard_normal(LANES) * 10 ** RANDOM.uniform(-3, 3, LANES)).astype(kind)
        random[:16] = np.roll(special, 3 * repeat)
        random[16:32] = np.roll(special, 7 * repeat + 1)
        operands.append(random)
    return operands


def integers():
    operands = []
    for repeat in range(3):
        random = RANDOM.integers(0, 2**32, LANES, dtype=np.uint32)
        random[:12] = np.roll(INTEGERS, repeat)
        random[12:24] = np.roll(INTEGERS, 5 * repeat + 1)
        operands.append(random)
    return operands


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
    "v_add_f32 v20, v10, v11 clamp": lambda a, b, c: np.where(np.isnan(a + b), 0, np.clip(a + b, 0, 1)) + np.float32(0),
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
    assert (f32(kept[0]) == tiny + tiny).all() and (f32(kept[1]) == tiny).all() and (f32(kept[2]) == tiny).all()
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
    exp, log, rcp, rsq = (f32(r) for r in each([f"v_{name}_f32 v20, v10" for name in ("exp", "log", "rcp", "rsq")], [x]))
    inf, nan = np.inf, np.nan
    np.testing.assert_array_equal(exp[:8], [1, 1, inf, 0, nan, 0.5, inf, 0])
    np.testing.assert_array_equal(log[[0, 1, 2, 3, 4, 5]], [-inf, -inf, inf, nan, nan, nan])
    np.testing.assert_array_equal(rcp[:6], [inf, -inf, 0, -0.0, nan, -1])
    np.testing.assert_array_equal(rsq[[0, 2, 3, 4, 5]], [inf, 0, nan, nan, nan])


def u64(a):
    return a.astype(np.uint64)


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
    "v_bfm_b32 v20, v10, v11": lambda a, b, c: (((1 << (a & 31)) - 1) << (b & 31)),
    "v_alignbit_b32 v20, v10, v11, v12": lambda a, b, c: (u64(a) << np.uint64(32) | u64(b)) >> u64(c & 31),
    "v_alignbyte_b32 v20, v10, v11, v12": lambda a, b, c: (u64(a) << np.uint64(32) | u64(b)) >> u64(8 * (c & 3)),
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
    "v_bcnt_u32_b32 v20, v10, v11": lambda a, b, c: [(int(x).bit_count() + int(y)) % 2**32 for x, y in zip(a, b, strict=True)],
    "v_ffbh_u32 v20, v10": lambda a, b, c: [32 - int(x).bit_length() if x else 2**32 - 1 for x in a],
    "v_ffbl_b32 v20, v10": lambda a, b, c: [(int(x) & -int(x)).bit_length() - 1 if x else 2**32 - 1 for x in a],
    "v_add_u16 v20, v10, v11": lambda a, b, c: (a + b) & 0xFFFF,
    "v_mul_lo_u16 v20, v10, v11": lambda a, b, c: (a * b) & 0xFFFF,
    "v_lshlrev_b16 v20, v10, v11": lambda a, b, c: (b << (a & 15)) & 0xFFFF,
    "v_max_u16 v20, v10, v11": lambda a, b, c: np.maximum(a & 0xFFFF, b & 0xFFFF),
    "v_mad_u32_u16 v20, v10, v11, v12": lambda a, b, c: (a & 0xFFFF) * (b & 0xFFFF) + c,
    "v_cvt_pk_u16_u32 v20, v10, v11": lambda a, b, c: np.minimum(a, 0xFFFF) | np.minimum(b, 0xFFFF) << 16,
}


def low_words(values) -> np.ndarray:
    return np.array([int(v) % 2**32 for v in np.asarray(values).tolist()], np.uint32)


def test_integer_arithmetic():
    a, b, c = integers()
    results = each(INTEGER, [a, b, c, np.full(LANES, 0x07060302, np.uint32)])
    for (line, expected), row in zip(INTEGER.items(), results, strict=True):
        np.testing.assert_array_equal(row, low_words(expected(a, b, c)), line)


INTEGER64 = {
    "v_lshlrev_b64 v[20:21], v10, v[12:13]": lambda a, b, c, d: d << (a & np.uint64(63)),
    "v_lshrrev_b64 v[20:21], v10, v[12:13]": lambda a, b, c, d: d >> (a & np.uint64(63)),
    "v_ashrrev_i64 v[20:21], v10, v[12:13]": lambda a, b, c, d: d.view(np.int64) >> (a & np.uint64(63)).view(np.int64),
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
    expected = (b.astype(np.longdouble) * c.astype(np.longdouble) + a.astype(np.longdouble)).astype(np.float16)
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
        rtz = np.where(np.abs(a.astype(np.float16).astype(np.float32)) > np.abs(a), np.nextafter(a.astype(np.float16), np.float16(0)), a.astype(np.float16))
    expected = {
        "v_cvt_f32_u32 v20, v11": integer.astype(np.float32).view(np.uint32),
        "v_cvt_f32_i32 v20, v11": integer.view(np.int32).astype(np.float32).view(np.uint32),
        "v_cvt_u32_f32 v20, v10": np.clip(truncate, 0, 2**32 - 1).astype(np.uint32),
        "v_cvt_i32_f32 v20, v10": np.clip(truncate, -(2**31), 2**31 - 1).astype(np.int32).view(np.uint32),
        "v_cvt_f32_ubyte2 v20, v11": (integer >> 16 & 0xFF).astype(np.float32).view(np.uint32),
        "v_cvt_f32_f64 v20, v[14:15]": wide.astype(np.float32).view(np.uint32),
        "v_cvt_i32_f64 v20, v[14:15]": np.clip(np.nan_to_num(np.trunc(wide), nan=0), -(2**31), 2**31 - 1).astype(np.int32).view(np.uint32),
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
    assert_same_floats((packed & 0xFFFF).astype(np.uint16).view(np.float16)[finite], rtz.astype(np.float16)[finite], "rtz")


def halves(row):
    return (row & 0xFFFF).astype(np.uint16), (row >> 16).astype(np.uint16)


@pytest.mark.filterwarnings("ignore:.*encountered")
def test_packed():
    a, b, c = integers()
    (al, ah), (bl, bh), (cl, ch) = (halves(x) for x in (a, b, c))
    pair = lambda low, high: low.astype(np.uint16).astype(np.uint32) | high.astype(np.uint16).astype(np.uint32) << 16  # noqa: E731
    expected = {
        "v_pk_add_u16 v20, v10, v11": pair(al + bl, ah + bh),
        "v_pk_add_u16 v20, v10, v11 op_sel:[1,0] op_sel_hi:[0,1]": pair(ah + bl, al + bh),
        "v_pk_mul_lo_u16 v20, v10, v11": pair(al * bl, ah * bh),
        "v_pk_mad_u16 v20, v10, v11, v12": pair(al * bl + cl, ah * bh + ch),
        "v_pk_max_i16 v20, v10, v11": pair(*(np.maximum(x.view(np.int16), y.view(np.int16)) for x, y in ((al, bl), (ah, bh)))),
        "v_pk_lshrrev_b16 v20, v10, v11": pair(bl >> (al & 15), bh >> (ah & 15)),
        "v_pk_add_u16 v20, v10, v11 clamp": pair(*(np.minimum(x.astype(int) + y, 0xFFFF) for x, y in ((al, bl), (ah, bh)))),
    }
    for (line, value), row in zip(expected.items(), each(expected, [a, b, c]), strict=True):
        np.testing.assert_array_equal(row, value, line)
    x, y, z = floats(np.float16)
    packed = [p.view(np.uint16).astype(np.uint32) | q.view(np.uint16).astype(np.uint32) << 16 for p, q in ((x, y), (y, z))]
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
        "v_pk_fma_f32 v[20:21], v[10:11], v[12:13], v[10:11] neg_lo:[0,0,1]": (fma32(a, c, -a), fma32(b, d, b)),
        "v_pk_mov_b32 v[20:21], v[10:11], v[12:13] op_sel:[1,0]": (b, c),
    }
    results = run("\n".join(f"{line}\n {store('v20', 'v21')}" for line in lines), [a, b, c, d], 2 * len(lines))
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


COMPARE = {
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
COMPARE_FLOAT = {
    **COMPARE,
    "lg": lambda a, b: (a < b) | (a > b),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nlt": lambda a, b: ~(a < b),
    "nge": lambda a, b: ~(a >= b),
    "neq": lambda a, b: a != b,
    "nlg": lambda a, b: ~((a < b) | (a > b)),
}


def mask_bits(row_low, row_high):
    mask = int(row_low[0]) | int(row_high[0]) << 32
    return np.array([mask >> lane & 1 for lane in range(LANES)], bool)


@pytest.mark.parametrize("kind", ["f32", "i32", "u32", "i16"])
def test_comparisons(kind):
    a, b, _ = floats() if kind == "f32" else integers()
    typed = {
        "f32": lambda x: x,
        "i32": lambda x: x.view(np.int32),
        "u32": lambda x: x,
        "i16": lambda x: (x & 0xFFFF).astype(np.uint16).view(np.int16),
    }[kind]
    table = COMPARE_FLOAT if kind == "f32" else {**COMPARE, "ne": lambda a, b: a != b}
    body = []
    for i, name in enumerate(table):
        target = "vcc" if i % 2 else "s[20:21]"
        low, high = ("vcc_lo", "vcc_hi") if i % 2 else ("s20", "s21")
        body.append(f"v_cmp_{name}_{kind} {target}, v10, v11\n v_mov_b32 v20, {low}\n v_mov_b32 v21, {high}")
        body.append(store("v20", "v21"))
    results = run("\n".join(body), [a, b], 2 * len(table))
    for i, (name, expected) in enumerate(table.items()):
        np.testing.assert_array_equal(mask_bits(*results[2 * i : 2 * i + 2]), expected(typed(a), typed(b)), name)


def test_class_comparison():
    value = np.zeros(LANES, np.uint32)
    value[:10] = [0x7F800001, 0x7FC00000, 0xFF800000, 0xC0000000, 0x80000001, 0x80000000, 0, 1, 0x40000000, 0x7F800000]
    classes = np.zeros(LANES, np.uint32)
    classes[:10] = 1 << np.arange(10)
    hit = run(f"v_cmp_class_f32 s[20:21], v10, v11\n v_mov_b32 v20, s20\n v_mov_b32 v21, s21\n {store('v20', 'v21')}", [value, classes], 2)
    miss = run(f"v_cmp_class_f32 s[20:21], v10, v11\n v_mov_b32 v20, s20\n v_mov_b32 v21, s21\n {store('v20', 'v21')}", [value, classes ^ 0x3FF], 2)
    assert mask_bits(*hit)[:10].all() and not mask_bits(*miss)[:10].any()


def test_compare_and_write_exec():
    a, b, _ = integers()
    body = f"v_cmpx_lt_u32 vcc, v10, v11\n v_mov_b32 v12, 1\n s_mov_b64 exec, -1\n {store('v12')}"
    np.testing.assert_array_equal(run(body, [a, b, np.zeros(LANES, np.uint32)])[0], a < b)


def test_select_and_carry():
    a, b, c = integers()
    body = f"""
 v_cmp_lt_u32 vcc, v10, v11
 v_cndmask_b32 v20, v10, v11, vcc
 v_cndmask_b32 v21, -v10, |v11|, vcc
 {store("v20", "v21")}
 v_add_co_u32 v22, vcc, v10, v11
 v_addc_co_u32 v23, vcc, v11, v12, vcc
 v_sub_co_u32 v24, s[20:21], v10, v11
 v_subb_co_u32 v25, vcc, v11, v12, s[20:21]
 {store("v22", "v23", "v24", "v25")}"""
    select, modified, *sums = run(body, [a, b, c], 6)
    np.testing.assert_array_equal(select, np.where(a < b, b, a))
    np.testing.assert_array_equal(modified, np.where(a < b, b & 0x7FFFFFFF, a ^ 0x80000000))
    carry = (u64(a) + u64(b)) >> np.uint64(32)
    np.testing.assert_array_equal(sums[0], a + b)
    np.testing.assert_array_equal(sums[1], low_words(u64(b) + u64(c) + carry))
    np.testing.assert_array_equal(sums[2], a - b)
    np.testing.assert_array_equal(sums[3], b - c - (a < b))


def test_only_active_lanes_are_written():
    a, b, _ = integers()
    mask = 0x0F0F_1234_8001_FFFE
    body = f"""
 v_mov_b32 v20, 7
 s_mov_b32 exec_lo, {mask & 0xFFFFFFFF:#x}
 s_mov_b32 exec_hi, {mask >> 32:#x}
 v_add_u32 v20, v10, v11
 v_cmp_ge_u32 s[20:21], v10, v10
 s_mov_b64 exec, 0
 v_add_u32 v20, v10, v10
 s_mov_b64 exec, -1
 v_mov_b32 v21, s20
 v_mov_b32 v22, s21
 {store("v20", "v21", "v22")}"""
    result, low, high = run(body, [a, b], 3)
    active = np.array([mask >> lane & 1 for lane in range(LANES)], bool)
    np.testing.assert_array_equal(result, np.where(active, a + b, 7))
    np.testing.assert_array_equal(mask_bits(low, high), active)


def test_sdwa():
    a, b, _ = integers()
    byte1, word1 = a >> 8 & 0xFF, b >> 16
    lines = {
        "v_add_u32_sdwa v20, v10, v11 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_1 src1_sel:WORD_1": byte1 + word1,
        "v_add_u32_sdwa v20, sext(v10), v11 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_3 src1_sel:DWORD": (
            (a.view(np.int32) >> 24).view(np.uint32) + b
        ),
        "v_add_u32_sdwa v20, v10, v11 dst_sel:BYTE_2 dst_unused:UNUSED_PRESERVE src0_sel:DWORD src1_sel:DWORD": (
            (POISON & 0xFF00FFFF) | ((a + b) & 0xFF) << 16
        ),
        "v_mov_b32_sdwa v20, v10 dst_sel:WORD_0 dst_unused:UNUSED_SEXT src0_sel:WORD_1": (
            (a >> 16).astype(np.uint16).view(np.int16).astype(np.int32).view(np.uint32)
        ),
    }
    for (line, expected), row in zip(lines.items(), each(lines, [a, b]), strict=True):
        np.testing.assert_array_equal(row, expected, line)


def test_dpp():
    a = integers()[0]
    lane = np.arange(LANES)
    in_row = lane & 15
    poison = np.full(LANES, POISON, np.uint32)
    row_start = lane & ~15
    expected = {
        "v_mov_b32_dpp v20, v10 quad_perm:[3,0,1,2] row_mask:0xf bank_mask:0xf": a[(lane & ~3) | np.array([3, 0, 1, 2])[lane & 3]],
        "v_mov_b32_dpp v20, v10 row_shl:3 row_mask:0xf bank_mask:0xf": np.where(in_row < 13, np.roll(a, -3), poison),
        "v_mov_b32_dpp v20, v10 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:0": np.where(in_row > 0, np.roll(a, 1), 0),
        "v_mov_b32_dpp v20, v10 row_ror:5 row_mask:0xf bank_mask:0xf": a[row_start + (in_row - 5) % 16],
        "v_mov_b32_dpp v20, v10 row_mirror row_mask:0xf bank_mask:0xf": a[row_start + 15 - in_row],
        "v_mov_b32_dpp v20, v10 row_half_mirror row_mask:0xf bank_mask:0xf": a[(lane & ~7) + 7 - (lane & 7)],
        "v_mov_b32_dpp v20, v10 row_bcast:15 row_mask:0xa bank_mask:0xf": np.where((lane >> 4) % 2 == 1, a[row_start - 1], poison),
        "v_mov_b32_dpp v20, v10 row_bcast:31 row_mask:0xc bank_mask:0xf": np.where(lane >= 32, a[31], poison),
        "v_mov_b32_dpp v20, v10 row_newbcast:6 row_mask:0xf bank_mask:0x5": np.where((lane >> 2) % 2 == 0, a[row_start + 6], poison),
        "v_mov_b32_dpp v20, v10 wave_shr:1 row_mask:0xf bank_mask:0xf": np.where(lane > 0, np.roll(a, 1), poison),
        "v_add_u32_dpp v20, v10, v10 row_ror:1 row_mask:0xf bank_mask:0xf": a[row_start + (in_row - 1) % 16] + a,
    }
    for (line, value), row in zip(expected.items(), each(expected, [a]), strict=True):
        np.testing.assert_array_equal(row, value, line)


def test_dpp_reads_nothing_from_inactive_lanes():
    a = integers()[0]
    body = f"""
 v_mov_b32 v20, 5
 v_mov_b32 v21, 5
 s_mov_b64 exec, 0xfffffffe
 s_nop 4
 v_mov_b32_dpp v20, v10 quad_perm:[0,0,0,0] row_mask:0xf bank_mask:0xf
 v_mov_b32_dpp v21, v10 quad_perm:[0,0,0,0] row_mask:0xf bank_mask:0xf bound_ctrl:0
 s_mov_b64 exec, -1
 {store("v20", "v21")}"""
    kept, zeroed = run(body, [a], 2)
    assert list(kept[:5]) == [5, 5, 5, 5, a[4]] and list(zeroed[:5]) == [5, 0, 0, 0, a[4]]
    assert (kept[32:] == 5).all()


def test_lanes():
    a = integers()[0]
    body = f"""
 s_mov_b32 s20, 37
 v_readlane_b32 s21, v10, s20
 v_readlane_b32 s22, v10, 5
 v_mov_b32 v20, 0
 v_writelane_b32 v20, s21, 3
 s_mov_b32 m0, s20
 v_writelane_b32 v20, s22, m0
 s_mov_b64 exec, 0xff00
 v_readfirstlane_b32 s23, v10
 s_mov_b64 exec, -1
 v_mov_b32 v21, s23
 v_mbcnt_lo_u32_b32 v22, -1, 0
 v_mbcnt_hi_u32_b32 v22, -1, v22
 v_mov_b32 v23, v10
 v_mov_b32 v24, v0
 v_swap_b32 v23, v24
 {store("v20", "v21", "v22", "v23", "v24")}"""
    written, first, count, swapped, other = run(body, [a], 5)
    expected = np.zeros(LANES, np.uint32)
    expected[3], expected[37] = a[37], a[5]
    np.testing.assert_array_equal(written, expected)
    assert (first == a[8]).all()
    np.testing.assert_array_equal(count, np.arange(LANES))
    np.testing.assert_array_equal(swapped, np.arange(LANES))
    np.testing.assert_array_equal(other, a)


def test_relative_registers():
    rows = [RANDOM.integers(0, 2**32, LANES, dtype=np.uint32) for _ in range(4)]
    body = f"""
 s_mov_b32 s20, 2
 s_set_gpr_idx_on s20, gpr_idx(SRC0)
 v_mov_b32 v20, v10
 s_set_gpr_idx_off
 s_set_gpr_idx_on s20, gpr_idx(DST)
 v_mov_b32 v10, 9
 s_set_gpr_idx_off
 {store("v20", "v12", "v10")}"""
    read, written, untouched = run(body, rows, 3)
    np.testing.assert_array_equal(read, rows[2])
    assert (written == 9).all()
    np.testing.assert_array_equal(untouched, rows[0])


def test_accumulator_registers():
    a, b, _ = integers()
    body = f"""
 v_accvgpr_write_b32 a7, v10
 v_accvgpr_mov_b32 a8, a7
 v_accvgpr_read_b32 v20, a8
 s_nop 1
 {store("v20", "a7")}"""
    result = run(body, [a, b], 2)
    np.testing.assert_array_equal(result, [a, a])
