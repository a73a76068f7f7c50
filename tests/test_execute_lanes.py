# ruff: noqa: E501 (one case of a table a line)
"""Lane masks, EXEC, SDWA, DPP and moves between lanes against numpy."""

import numpy as np
import pytest

import oracles
from execute_kernels import LANES, POISON, each, run, store
from execute_operands import RANDOM, floats, integers, low_words, u64

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
        np.testing.assert_array_equal(
            mask_bits(*results[2 * i : 2 * i + 2]), expected(typed(a), typed(b)), name
        )


def test_class_comparison():
    value = np.zeros(LANES, np.uint32)
    value[:10] = [
        0x7F800001,
        0x7FC00000,
        0xFF800000,
        0xC0000000,
        0x80000001,
        0x80000000,
        0,
        1,
        0x40000000,
        0x7F800000,
    ]
    classes = np.zeros(LANES, np.uint32)
    classes[:10] = 1 << np.arange(10)
    hit = run(
        f"v_cmp_class_f32 s[20:21], v10, v11\n v_mov_b32 v20, s20\n v_mov_b32 v21, s21\n {store('v20', 'v21')}",
        [value, classes],
        2,
    )
    miss = run(
        f"v_cmp_class_f32 s[20:21], v10, v11\n v_mov_b32 v20, s20\n v_mov_b32 v21, s21\n {store('v20', 'v21')}",
        [value, classes ^ 0x3FF],
        2,
    )
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
        "v_add_u32_sdwa v20, v10, v11 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_1 src1_sel:WORD_1": byte1
        + word1,
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
        "v_mov_b32_dpp v20, v10 quad_perm:[3,0,1,2] row_mask:0xf bank_mask:0xf": a[
            (lane & ~3) | np.array([3, 0, 1, 2])[lane & 3]
        ],
        "v_mov_b32_dpp v20, v10 row_shl:3 row_mask:0xf bank_mask:0xf": np.where(
            in_row < 13, np.roll(a, -3), poison
        ),
        "v_mov_b32_dpp v20, v10 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:0": np.where(
            in_row > 0, np.roll(a, 1), 0
        ),
        "v_mov_b32_dpp v20, v10 row_ror:5 row_mask:0xf bank_mask:0xf": a[row_start + (in_row - 5) % 16],
        "v_mov_b32_dpp v20, v10 row_mirror row_mask:0xf bank_mask:0xf": a[row_start + 15 - in_row],
        "v_mov_b32_dpp v20, v10 row_half_mirror row_mask:0xf bank_mask:0xf": a[(lane & ~7) + 7 - (lane & 7)],
        "v_mov_b32_dpp v20, v10 row_bcast:15 row_mask:0xa bank_mask:0xf": np.where(
            (lane >> 4) % 2 == 1, a[row_start - 1], poison
        ),
        "v_mov_b32_dpp v20, v10 row_bcast:31 row_mask:0xc bank_mask:0xf": np.where(lane >= 32, a[31], poison),
        "v_mov_b32_dpp v20, v10 row_newbcast:6 row_mask:0xf bank_mask:0x5": np.where(
            (lane >> 2) % 2 == 0, a[row_start + 6], poison
        ),
        "v_mov_b32_dpp v20, v10 wave_shr:1 row_mask:0xf bank_mask:0xf": np.where(
            lane > 0, np.roll(a, 1), poison
        ),
        "v_add_u32_dpp v20, v10, v10 row_ror:1 row_mask:0xf bank_mask:0xf": a[row_start + (in_row - 1) % 16]
        + a,
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


@oracles.checked_by("numpy", "v_accvgpr_write_b32 v_accvgpr_mov_b32 v_accvgpr_read_b32")
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
