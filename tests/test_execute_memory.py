# ruff: noqa: E501 (one case of a table a line)
"""LDS, buffer, global, flat and scratch instructions, atomics and moves between lanes."""

import re

import numpy as np
import pytest

import oracles
from execute_kernels import LANES, POISON, run, store
from liteattention_rocm import simulator

RANDOM = np.random.default_rng(11)
LANE = np.arange(LANES, dtype=np.uint32)
WAIT = "s_waitcnt vmcnt(0) lgkmcnt(0)"


def rows(count):
    return [RANDOM.integers(0, 2**32, LANES, dtype=np.uint32) for _ in range(count)]


def resource(records, stride=0):
    """A buffer over the input in s[40:43]."""
    return f"""
 s_mov_b32 s40, s4
 s_and_b32 s41, s5, 0xffff
 s_or_b32 s41, s41, {stride << 16:#x}
 s_mov_b32 s42, {records}
 s_mov_b32 s43, 0x20000
 s_mov_b32 s44, 0
"""


def test_lds_widths():
    a, b, c, d = rows(4)
    body = f"""
 v_lshlrev_b32 v2, 4, v0
 ds_write_b128 v2, v[10:13] offset:1024
 ds_read_b128 v[20:23], v2 offset:1024
 ds_read_b64 v[24:25], v2 offset:1028
 ds_read_b96 v[26:28], v2 offset:1028
 ds_read_u8 v29, v2 offset:1025
 ds_read_i16 v30, v2 offset:1026
 {WAIT}
 {store(*(f"v{r}" for r in range(20, 31)))}"""
    result = run(body, [a, b, c, d], 11, lds=2048)
    np.testing.assert_array_equal(result[:4], [a, b, c, d])
    np.testing.assert_array_equal(result[4:6], [b, c])
    np.testing.assert_array_equal(result[6:9], [b, c, d])
    np.testing.assert_array_equal(result[9], a >> 8 & 0xFF)
    np.testing.assert_array_equal(result[10], (a.view(np.int32) >> 16).view(np.uint32))


def test_lds_pairs_and_halves():
    a, b, c, d = rows(4)
    body = f"""
 v_lshlrev_b32 v2, 3, v0
 ds_write2_b32 v2, v10, v11 offset0:0 offset1:1
 ds_write2st64_b64 v2, v[10:11], v[12:13] offset0:1 offset1:2
 v_mov_b32 v20, v13
 v_mov_b32 v21, v13
 {WAIT}
 ds_read_b64 v[22:23], v2
 ds_read2st64_b64 v[24:27], v2 offset0:1 offset1:2
 ds_read_u16_d16 v20, v2
 ds_read_u16_d16_hi v21, v2
 ds_read2_b32 v[28:29], v2 offset0:1 offset1:0
 {WAIT}
 ds_write_b16_d16_hi v2, v12
 ds_write_b8 v2, v13 offset:3
 ds_read_b32 v30, v2
 {WAIT}
 {store(*(f"v{r}" for r in range(20, 31)))}"""
    result = run(body, [a, b, c, d], 11, lds=2048)
    np.testing.assert_array_equal(result[0], (d & 0xFFFF0000) | (a & 0xFFFF))
    np.testing.assert_array_equal(result[1], (d & 0xFFFF) | a << 16)
    np.testing.assert_array_equal(result[2:4], [a, b])
    np.testing.assert_array_equal(result[4:8], [a, b, c, d])
    np.testing.assert_array_equal(result[8:10], [b, a])
    np.testing.assert_array_equal(result[10], (d & 0xFF) << 24 | (a & 0x00FF0000) | c >> 16)


def test_lds_partial_exec():
    a, b = rows(2)
    body = f"""
 ds_write_b32 v1, v10
 s_mov_b64 exec, 0xffff
 ds_write_b32 v1, v11
 s_mov_b64 exec, 0
 ds_write_b32 v1, v11
 v_mov_b32 v20, 1
 s_mov_b64 exec, -1
 v_mov_b32 v20, 3
 s_mov_b64 exec, 0xff
 ds_read_b32 v20, v1
 {WAIT}
 s_mov_b64 exec, -1
 ds_read_b32 v21, v1
 {WAIT}
 {store("v20", "v21")}"""
    part, whole = run(body, [a, b], 2, lds=256)
    np.testing.assert_array_equal(whole, np.where(LANE < 16, b, a))
    np.testing.assert_array_equal(part, np.where(LANE < 8, b, 3))


def test_lds_atomics():
    a, b, c, _ = rows(4)
    operations = {
        "add_rtn_u32": a + b,
        "sub_rtn_u32": a - b,
        "rsub_rtn_u32": b - a,
        "min_rtn_i32": np.minimum(a.view(np.int32), b.view(np.int32)).view(np.uint32),
        "max_rtn_u32": np.maximum(a, b),
        "and_rtn_b32": a & b,
        "xor_rtn_b32": a ^ b,
        "wrxchg_rtn_b32": b,
        "inc_rtn_u32": np.where(a >= b, 0, a + 1),
        "dec_rtn_u32": np.where((a == 0) | (a > b), b, a - 1),
    }
    body = "".join(
        f"""
 ds_write_b32 v1, v10
 ds_{name} v20, v1, v11
 ds_read_b32 v21, v1
 {WAIT}
 {store("v20", "v21")}"""
        for name in operations
    )
    # All lanes on one address, and a comparison with the lane's own value.
    body += f"""
 v_mov_b32 v2, 0
 ds_write_b32 v2, v2
 ds_add_rtn_u32 v20, v2, v0
 ds_read_b32 v21, v2
 ds_write_b32 v1, v10
 ds_cmpst_rtn_b32 v22, v1, v12, v11
 ds_read_b32 v23, v1
 {WAIT}
 {store("v20", "v21", "v22", "v23")}"""
    chosen = np.where(LANE % 2 == 0, a, c)
    result = run(body, [a, b, chosen], 2 * len(operations) + 4, lds=256)
    for i, (name, expected) in enumerate(operations.items()):
        np.testing.assert_array_equal(result[2 * i], a, name)
        np.testing.assert_array_equal(result[2 * i + 1], expected, name)
    before, total, old, swapped = result[-4:]
    np.testing.assert_array_equal(before, np.cumsum(LANE) - LANE)
    assert (total == LANE.sum()).all()
    np.testing.assert_array_equal(old, a)
    np.testing.assert_array_equal(swapped, np.where(LANE % 2 == 0, b, a))


def test_lds_float_atomics():
    x = RANDOM.standard_normal(LANES).astype(np.float32)
    y = RANDOM.standard_normal(LANES).astype(np.float32)
    body = f"""
 ds_write_b32 v1, v10
 ds_add_rtn_f32 v20, v1, v11
 ds_max_f32 v1, v12
 ds_read_b32 v21, v1
 {WAIT}
 {store("v20", "v21")}"""
    old, new = run(body, [x, y, np.zeros(LANES, np.float32)], 2, lds=256).view(np.float32)
    np.testing.assert_array_equal(old, x)
    np.testing.assert_array_equal(new, np.maximum(x + y, 0))


@oracles.checked_by("numpy", "ds_swizzle_b32")
def test_moves_between_lanes():
    a, b = rows(2)
    index = b % 64
    body = f"""
 v_and_b32 v3, 63, v11
 v_lshlrev_b32 v3, 2, v3
 ds_bpermute_b32 v20, v3, v10
 v_sub_u32 v2, 63, v0
 v_lshlrev_b32 v2, 2, v2
 ds_permute_b32 v21, v2, v10
 ds_swizzle_b32 v22, v10 offset:swizzle(BITMASK_PERM, "0p1i0")
 ds_swizzle_b32 v23, v10 offset:swizzle(QUAD_PERM, 2, 3, 0, 0)
 ds_swizzle_b32 v24, v10 offset:swizzle(SWAP, 16)
 ds_swizzle_b32 v25, v10 offset:swizzle(BROADCAST, 8, 5)
 s_mov_b32 exec_lo, 0xfffffff0
 s_mov_b32 exec_hi, 0xf
 v_mov_b32 v2, 0
 ds_bpermute_b32 v26, v2, v10
 s_mov_b64 exec, -1
 {WAIT}
 {store(*(f"v{r}" for r in range(20, 27)))}"""
    result = run(f"v_mov_b32 v26, 9\n {body}", [a, b], 7)
    np.testing.assert_array_equal(result[0], a[index])
    np.testing.assert_array_equal(result[1], a[::-1])
    # Bits of the lane from the left: 0, kept, 1, inverted, 0.
    masked = (LANE & 0b101000) | 0b00100 | (~LANE & 0b00010)
    np.testing.assert_array_equal(result[2], a[masked])
    np.testing.assert_array_equal(result[3], a[(LANE & ~np.uint32(3)) | np.array([2, 3, 0, 0])[LANE & 3]])
    np.testing.assert_array_equal(result[4], a[LANE ^ 16])
    np.testing.assert_array_equal(result[5], a[(LANE & ~np.uint32(7)) | 5])
    # Lane 0 was inactive: the others read 0 from it.
    np.testing.assert_array_equal(result[6], np.where((LANE >= 4) & (LANE < 36), 0, 9))


def test_raw_buffer_bounds():
    a, b = rows(2)
    body = f"""
 {resource(256 + 8)}
 v_lshlrev_b32 v2, 3, v0
 buffer_load_dword v20, v1, s[40:43], 0 offen offset:16
 buffer_load_dwordx2 v[22:23], v2, s[40:43], 0 offen
 buffer_load_ubyte v24, v1, s[40:43], 0 offen offset:9
 s_movk_i32 s45, 8
 buffer_load_dword v25, v1, s[40:43], s45 offen
 buffer_load_dword v26, off, s[40:43], 0 offset:12
 {WAIT}
 {store("v20", "v22", "v23", "v24", "v25", "v26")}"""
    memory = np.concatenate([a, b])
    limit = (256 + 8) // 4
    bounded = np.concatenate([memory[:limit], np.zeros(256, np.uint32)])
    result = run(body, [a, b], 6)
    np.testing.assert_array_equal(result[0], bounded[LANE + 4])
    np.testing.assert_array_equal(result[1], bounded[2 * LANE])
    np.testing.assert_array_equal(result[2], bounded[2 * LANE + 1])
    np.testing.assert_array_equal(result[3], bounded[LANE + 2] >> 8 & 0xFF)
    np.testing.assert_array_equal(result[4], bounded[LANE + 2])
    assert (result[5] == a[3]).all()


def test_a_wide_buffer_access_across_the_end_keeps_what_is_inside():
    a, b = rows(2)
    body = f"""
 {resource(256)}
 v_mov_b32 v2, 248
 buffer_load_dwordx4 v[20:23], v2, s[40:43], 0 offen
 {WAIT}
 {store("v20", "v21", "v22", "v23")}"""
    result = run(body, [a, b], 4)
    assert [int(r[0]) for r in result] == [a[62], a[63], 0, 0]


def test_structured_buffer():
    a, b = rows(2)
    body = f"""
 {resource(20, stride=12)}
 v_mov_b32 v2, v0
 v_mov_b32 v3, 4
 buffer_load_dword v20, v2, s[40:43], 0 idxen offset:8
 buffer_load_dword v21, v[2:3], s[40:43], 0 idxen offen
 {WAIT}
 {store("v20", "v21")}"""
    memory = np.concatenate([a, b])
    result = run(body, [a, b], 2)
    inside = LANE < 20
    np.testing.assert_array_equal(result[0], np.where(inside, memory[np.minimum(3 * LANE + 2, 127)], 0))
    np.testing.assert_array_equal(result[1], np.where(inside, memory[np.minimum(3 * LANE + 1, 127)], 0))


def test_buffer_stores_are_dropped_outside():
    a, b = rows(2)
    body = f"""
 s_mov_b32 s40, s6
 s_and_b32 s41, s7, 0xffff
 s_mov_b32 s42, 128
 s_mov_b32 s43, 0x20000
 buffer_store_dword v10, v1, s[40:43], 0 offen
 v_lshlrev_b32 v2, 4, v0
 s_mov_b32 s42, 504
 buffer_store_dwordx4 v[10:13], v2, s[40:43], 0 offen offset:256
 s_mov_b32 s42, 1024
 buffer_store_byte v10, v1, s[40:43], 0 offen offset:768
 {WAIT}"""
    result = run(body, [a, b, a, b], 4)
    np.testing.assert_array_equal(result[0], np.where(LANE < 32, a, POISON))
    expected = np.full(64, POISON, np.uint32)
    expected[:62] = np.stack([a, b, a, b], axis=1).reshape(-1)[:62]
    np.testing.assert_array_equal(result[1], expected)
    assert (result[2] == POISON).all()
    np.testing.assert_array_equal(result[3], (POISON & 0xFFFFFF00) | (a & 0xFF))


def test_transfers_into_lds():
    a, b = rows(2)
    body = f"""
 {resource(256)}
 s_mov_b32 m0, 64
 ds_write_b32 v1, v11
 ds_write_b32 v1, v11 offset:256
 {WAIT}
 buffer_load_dword v1, s[40:43], 0 offen lds
 s_mov_b32 m0, 256
 s_nop 0
 global_load_lds_dword v1, s[4:5] offset:256
 {WAIT}
 ds_read_b32 v20, v1 offset:64
 v_mov_b32 v2, 0
 ds_read_b32 v21, v2
 ds_read_b32 v22, v1 offset:512
 {WAIT}
 {store("v20", "v21", "v22")}"""
    moved, before, second = run(body, [a, b], 3, lds=1024)
    np.testing.assert_array_equal(moved, a)
    assert (before == b[0]).all()
    np.testing.assert_array_equal(second, b)


LDS_LOADS = {
    "ubyte": lambda x: x & 0xFF,
    "sbyte": lambda x: (x.astype(np.uint8).view(np.int8).astype(np.int32)).view(np.uint32),
    "ushort": lambda x: x & 0xFFFF,
    "sshort": lambda x: (x.astype(np.uint16).view(np.int16).astype(np.int32)).view(np.uint32),
    "dword": lambda x: x,
}
oracles.declare(
    "numpy", [f"{space}_load_lds_{kind}" for space in ("global", "scratch") for kind in LDS_LOADS]
)


@pytest.mark.parametrize("kind", LDS_LOADS)
@pytest.mark.parametrize("space", ["global", "scratch", "buffer"])
def test_loads_into_lds(space, kind):
    """A dword a lane, from M0 on, extended as a register would be."""
    a, b = rows(2)
    line = {
        "global": f"global_load_lds_{kind} v1, s[4:5]",
        "scratch": f"scratch_load_lds_{kind} v2, off",
        "buffer": f"buffer_load_{kind} v1, s[40:43], 0 offen lds",
    }[space]
    body = f"""
 {resource(256)}
 ds_write_b32 v1, v11
 ds_write_b32 v1, v11 offset:256
 v_mov_b32 v2, 0
 scratch_store_dword v2, v10, off
 s_mov_b32 m0, 128
 {WAIT}
 s_mov_b32 exec_lo, 0xffff00ff
 {line}
 {WAIT}
 s_mov_b64 exec, -1
 ds_read_b32 v20, v1 offset:128
 {WAIT}
 {store("v20")}"""
    moved = run(body, [a, b], 1, lds=512, scratch=16)[0]
    before = np.concatenate([b, b])[32:96]
    active = ~((LANE >= 8) & (LANE < 16))
    np.testing.assert_array_equal(moved, np.where(active, LDS_LOADS[kind](a), before))


def test_swizzled_buffers_are_refused():
    body = resource(256) + " s_or_b32 s41, s41, 0x80000000\n buffer_load_dword v20, v1, s[40:43], 0 offen"
    with pytest.raises(simulator.SimulatorError, match="swizzled buffers are not modelled"):
        run(body, rows(1))


def test_global_widths_and_offsets():
    a, b, c, d = rows(4)
    body = f"""
 v_mov_b32 v2, s4
 v_mov_b32 v3, s5
 v_lshl_add_u64 v[2:3], v[0:1], 0, v[2:3]
 v_mov_b32 v2, s4
 v_mov_b32 v3, s5
 v_add_co_u32 v2, vcc, v2, v1
 v_addc_co_u32 v3, vcc, 0, v3, vcc
 v_add_co_u32 v4, vcc, 0x100, v2
 v_addc_co_u32 v5, vcc, 0, v3, vcc
 global_load_dword v20, v[4:5], off offset:-256
 v_lshlrev_b32 v6, 4, v0
 global_load_dwordx4 v[22:25], v6, s[4:5]
 global_load_ushort v26, v1, s[4:5] offset:2
 global_load_sbyte v27, v1, s[4:5] offset:3
 v_mov_b32 v28, v11
 global_load_short_d16_hi v28, v1, s[4:5]
 {WAIT}
 {store("v20", "v22", "v25", "v26", "v27", "v28")}"""
    result = run(body, [a, b, c, d], 6)
    memory = np.concatenate([a, b, c, d])
    np.testing.assert_array_equal(result[0], a)
    np.testing.assert_array_equal(result[1], memory[4 * LANE])
    np.testing.assert_array_equal(result[2], memory[4 * LANE + 3])
    np.testing.assert_array_equal(result[3], a >> 16)
    np.testing.assert_array_equal(result[4], (a.view(np.int32) >> 24).view(np.uint32))
    np.testing.assert_array_equal(result[5], (b & 0xFFFF) | a << 16)


def test_global_atomics():
    a, b = rows(2)
    body = f"""
 v_mov_b32 v2, 0
 global_store_dword v1, v10, s[6:7]
 {WAIT}
 global_atomic_add v20, v1, v11, s[6:7] sc0
 {WAIT}
 global_store_dword v1, v20, s[6:7] offset:256
 global_store_dword v2, v2, s[6:7] offset:512
 {WAIT}
 global_atomic_umax v2, v11, s[6:7] offset:512
 global_atomic_add_x2 v2, v[30:31], s[6:7] offset:520
 v_mov_b32 v4, v11
 v_mov_b32 v5, v10
 global_atomic_cmpswap v1, v[4:5], s[6:7] offset:256
 {WAIT}"""
    result = run(f"v_mov_b32 v30, -1\n v_mov_b32 v31, 0\n s_mov_b32 s6, s6\n {body}", [a, b], 3)
    np.testing.assert_array_equal(result[0], a + b)
    np.testing.assert_array_equal(result[1], b)  # it held a, which was compared with
    assert result[2][0] == b.max()
    wide = int(result[2][2]) | int(result[2][3]) << 32
    assert wide == (POISON | POISON << 32) + 64 * 0xFFFFFFFF


def test_float_atomics():
    x = RANDOM.standard_normal(LANES).astype(np.float32)
    y = RANDOM.standard_normal(LANES).astype(np.float32)
    body = f"""
 global_store_dword v1, v10, s[6:7]
 {WAIT}
 global_atomic_add_f32 v1, v11, s[6:7]
 {WAIT}"""
    np.testing.assert_array_equal(run(body, [x, y])[0].view(np.float32), x + y)


def test_scratch_and_flat():
    a, b, c = rows(3)
    body = f"""
 s_movk_i32 s20, 16
 scratch_store_dword off, v10, s20 offset:4
 scratch_store_dwordx2 off, v[10:11], off offset:32
 v_mov_b32 v2, 8
 scratch_store_short v2, v12, off
 {WAIT}
 scratch_load_dword v20, v2, off offset:12
 scratch_load_dwordx2 v[22:23], v2, s20 offset:8
 scratch_load_ushort v24, off, off offset:8
 s_mov_b64 s[22:23], src_private_base
 v_mov_b32 v4, 20
 v_mov_b32 v5, s23
 s_mov_b64 s[22:23], src_shared_base
 v_mov_b32 v6, v1
 v_mov_b32 v7, s23
 v_add_u32 v8, s4, v1
 v_mov_b32 v9, s5
 flat_store_dword v[6:7], v11
 flat_load_dword v25, v[4:5]
 {WAIT}
 ds_read_b32 v26, v1
 {WAIT}
 {store("v20", "v22", "v23", "v24", "v25", "v26")}"""
    result = run(body, [a, b, c], 6, lds=256, scratch=64)
    np.testing.assert_array_equal(result[0], a)
    np.testing.assert_array_equal(result[1:3], [a, b])
    np.testing.assert_array_equal(result[3], c & 0xFFFF)
    np.testing.assert_array_equal(result[4], a)
    np.testing.assert_array_equal(result[5], b)


def test_waves_share_lds_across_a_barrier():
    """Two waves; the second ends before the first one's second barrier, where it no longer counts."""
    body = f"""
 v_lshrrev_b32 v2, 6, v0
 v_readfirstlane_b32 s20, v2
 ds_write_b32 v1, v0
 {WAIT}
 s_barrier
 v_xor_b32 v3, 0x100, v1
 ds_read_b32 v20, v3
 {WAIT}
 global_store_dword v1, v20, s[6:7]
 s_cmp_eq_u32 s20, 1
 s_cbranch_scc1 end
 s_barrier
 v_mov_b32 v21, 5
 global_store_dword v1, v21, s[6:7] offset:512
end:
 s_waitcnt vmcnt(0)"""
    result = run(body, [], 3, threads=128, lds=512)
    np.testing.assert_array_equal(result[0], LANE + 64)
    np.testing.assert_array_equal(result[1], LANE)
    assert (result[2] == 5).all()


def test_a_wave_that_waits_for_another_gets_its_answer():
    body = f"""
 v_lshrrev_b32 v2, 6, v0
 v_readfirstlane_b32 s20, v2
 v_mov_b32 v3, 0
 v_mov_b32 v4, 1
 s_cmp_eq_u32 s20, 1
 s_cbranch_scc1 second
 ds_write_b32 v3, v3
 {WAIT}
 s_barrier
again:
 s_sleep 1
 ds_read_b32 v5, v3
 {WAIT}
 v_readfirstlane_b32 s21, v5
 s_cmp_eq_u32 s21, 1
 s_cbranch_scc0 again
 global_store_dword v1, v4, s[6:7]
 s_branch end
second:
 s_barrier
 ds_write_b32 v3, v4
end:
 {WAIT}"""
    assert (run(body, [], threads=128, lds=64)[0] == 1).all()


def test_unfilled_last_wave():
    result = run(f"{store('v0')}", threads=40)[0]
    np.testing.assert_array_equal(result, np.where(LANE < 40, LANE, POISON))


BAD = {
    "v_mov_b32 v2, 0x7000\n global_load_dword v20, v2, s[4:5]": r"load from 0x\w+ \(4 bytes\) by lane 0: no registered memory",
    "s_mov_b64 exec, 0x20\n global_store_dword v1, v1, s[4:5]": r'store to 0x\w+ \(4 bytes\) by lane 5: "input" is read-only',
    "v_mov_b32 v2, 254\n global_load_dword v20, v2, s[4:5]": r'load from 0x\w+ \(4 bytes\) by lane 0: only partly inside "input"',
    "s_load_dword s20, s[4:5], 0x40000": r"load from 0x\w+ \(4 bytes\): no registered memory",
    "ds_read_b32 v20, v1 offset:4": r"LDS address 0x100 \(4 bytes\) by lane 63: the workgroup has 256 bytes",
    "s_mov_b32 m0, 4\n s_nop 0\n global_load_lds_dword v1, s[4:5]": r"transfer to LDS address 0x100 by lane 63",
    "scratch_load_dword v20, off, off offset:64": r"scratch address 0x40 \(4 bytes\) by lane 0: the private segment has 64 bytes",
    "v_mov_b32 v2, 2\n global_atomic_add v2, v2, s[6:7]": r"atomic operation on 0x\w+ by lane 0, which is no multiple of 4",
    "s_mov_b64 s[20:21], 0x10\n s_setpc_b64 s[20:21]": r"jump to 0x10, where no instruction",
}


@pytest.mark.parametrize(
    "body", BAD, ids=[line.split("\n")[-1].split()[0] + str(i) for i, line in enumerate(BAD)]
)
def test_bad_addresses(body):
    with pytest.raises(simulator.SimulatorError, match=BAD[body]) as raised:
        run(f"{body}\n {WAIT}", rows(1), lds=256, scratch=64)
    last = body.split("\n")[-1].split()[0]
    # Kernel, workgroup, wave, instruction and its address in the code object.
    assert re.search(
        rf'kernel kernel, workgroup \(0, 0, 0\), wave 0, "{last} .*" at 0x[0-9a-f]+: ', str(raised.value)
    )


def test_registers_and_lds_begin_as_poison():
    body = f"""
 ds_read_b32 v20, v1
 v_accvgpr_read_b32 v21, a100
 v_mov_b32 v22, s50
 {WAIT}
 {store("v20", "v21", "v22", "v200")}"""
    assert (run(body, [], 4, lds=256) == 0x7FC0DEAD).all()
