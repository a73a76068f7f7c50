# ruff: noqa: E501 (one case of a table a line)
"""The two hazard checks: each refuses a kernel that lacks what it asks for, and passes the repaired one."""

import re

import numpy as np
import pytest

import execute_kernels
from execute_kernels import LANES, run, store
from liteattention_rocm import simulator


@pytest.fixture(autouse=True)
def checks(monkeypatch):
    monkeypatch.setattr(execute_kernels, "checks", None)


ROW = [np.arange(LANES, dtype=np.uint32)]
WAIT = "s_waitcnt vmcnt(0) lgkmcnt(0)"
BUFFER = """
 s_mov_b32 s40, s4
 s_and_b32 s41, s5, 0xffff
 s_mov_b32 s42, 256
 s_mov_b32 s43, 0x20000
 s_mov_b32 m0, 0
"""


def refused(body, **options):
    with pytest.raises(simulator.SimulatorError) as raised:
        run(body, ROW, **{"lds": 512, **options})
    return str(raised.value)


def check(broken, repaired, reason, **options):
    """`broken` is refused for `reason`; `repaired` runs."""
    message = refused(f"{broken}\n {WAIT}", **options)
    assert re.search(reason, message), message
    assert re.search(
        r'kernel kernel, workgroup \(0, 0, 0\), wave 0, ".*" at 0x[0-9a-f]+: .*".*" at 0x[0-9a-f]+$', message
    )
    run(f"{repaired}\n {WAIT}", ROW, **{"lds": 512, **options})


LOAD = "global_load_dword v20, v1, s[4:5]"
MISSING_WAITS = {
    # name: (load, the wait that covers it, use, reason)
    "read": (
        LOAD,
        "s_waitcnt vmcnt(0)",
        "v_add_u32 v21, 1, v20",
        "touches v20 before an s_waitcnt vmcnt .*global_load_dword v20",
    ),
    "overwrite": (LOAD, "s_waitcnt vmcnt(0)", "v_mov_b32 v20, 0", "touches v20 before an s_waitcnt vmcnt"),
    "store": (LOAD, "s_waitcnt vmcnt(0)", "global_store_dword v1, v20, s[6:7]", "touches v20"),
    "address": (LOAD, "s_waitcnt vmcnt(0)", "ds_read_b32 v21, v20", "touches v20"),
    "accumulator": (
        "global_load_dword a3, v1, s[4:5]",
        "s_waitcnt vmcnt(0)",
        "v_accvgpr_read_b32 v21, a3",
        "touches a3",
    ),
    "wide": (
        "buffer_load_dwordx4 v[20:23], v1, s[40:43], 0 offen",
        "s_waitcnt vmcnt(0)",
        "v_mov_b32 v5, v23",
        "touches v23",
    ),
    "lds": (
        "ds_read_b64 v[20:21], v1",
        "s_waitcnt lgkmcnt(0)",
        "v_mov_b32 v5, v21",
        "touches v21 before an s_waitcnt lgkmcnt",
    ),
    "permute": (
        "ds_bpermute_b32 v20, v1, v10",
        "s_waitcnt lgkmcnt(0)",
        "v_mov_b32 v5, v20",
        "touches v20 .*lgkmcnt",
    ),
    "scalar": (
        "s_load_dwordx2 s[20:21], s[4:5], 0x0",
        "s_waitcnt lgkmcnt(0)",
        "s_add_u32 s22, s21, 1",
        "touches s21 .*lgkmcnt",
    ),
    "scalar_in_vector": (
        "s_load_dword s20, s[4:5], 0x0",
        "s_waitcnt lgkmcnt(0)",
        "v_mov_b32 v5, s20",
        "touches s20",
    ),
    "matrix": (
        LOAD,
        "s_waitcnt vmcnt(0)",
        "v_mfma_f32_16x16x16_bf16 v[24:27], v[20:21], v[10:11], 0",
        "touches v20",
    ),
    "atomic": (
        "global_atomic_add v20, v1, v10, s[6:7] sc0",
        "s_waitcnt vmcnt(0)",
        "v_mov_b32 v5, v20",
        "touches v20",
    ),
}


@pytest.mark.parametrize("name", MISSING_WAITS)
def test_a_pending_register_is_out_of_bounds(name):
    load, wait, use, reason = MISSING_WAITS[name]
    check(f"{BUFFER} {load}\n {use}", f"{BUFFER} {load}\n {wait}\n {use}", reason)


def test_vector_memory_returns_in_order():
    loads = "global_load_dword v20, v1, s[4:5]\n global_load_dword v21, v1, s[4:5]\n global_store_dword v1, v10, s[6:7]\n"
    check(
        loads + "s_waitcnt vmcnt(3)\n v_mov_b32 v5, v20",
        loads + "s_waitcnt vmcnt(2)\n v_mov_b32 v5, v20",
        "touches v20",
    )
    check(
        loads + "s_waitcnt vmcnt(2)\n v_mov_b32 v5, v21",
        loads + "s_waitcnt vmcnt(1)\n v_mov_b32 v5, v21",
        "touches v21",
    )


def test_lds_returns_in_order_and_scalar_loads_do_not():
    lds = "ds_read_b32 v20, v1\n ds_read_b32 v21, v1\n"
    check(
        lds + "s_waitcnt lgkmcnt(2)\n v_mov_b32 v5, v20",
        lds + "s_waitcnt lgkmcnt(1)\n v_mov_b32 v5, v20",
        "touches v20",
    )
    scalar = "s_load_dword s20, s[4:5], 0x0\n s_load_dword s21, s[4:5], 0x0\n"
    check(
        scalar + "s_waitcnt lgkmcnt(1)\n s_mov_b32 s22, s20",
        scalar + "s_waitcnt lgkmcnt(0)\n s_mov_b32 s22, s20",
        "touches s20",
    )
    mixed = "ds_read_b32 v20, v1\n s_load_dword s20, s[4:5], 0x0\n ds_read_b32 v21, v1\n"
    check(
        mixed + "s_waitcnt lgkmcnt(2)\n v_mov_b32 v5, v20",
        mixed + "s_waitcnt lgkmcnt(1)\n v_mov_b32 v5, v20",
        "touches v20",
    )


def test_flat_counts_in_both():
    load = """
 v_mov_b32 v2, s4
 v_mov_b32 v3, s5
 flat_load_dword v20, v[2:3]
"""
    use = "v_mov_b32 v5, v20"
    repaired = f"{load} s_waitcnt vmcnt(0) lgkmcnt(0)\n {use}"
    check(f"{load} s_waitcnt vmcnt(0)\n {use}", repaired, "touches v20 .*lgkmcnt")
    check(f"{load} s_waitcnt lgkmcnt(0)\n {use}", repaired, "touches v20 .*vmcnt")
    later = "global_load_dword v21, v1, s[4:5]\n"
    check(
        f"{load} {later} s_waitcnt vmcnt(1) lgkmcnt(0)\n {use}",
        f"{load} {later} s_waitcnt vmcnt(0) lgkmcnt(0)\n {use}",
        "vmcnt",
    )


@pytest.mark.parametrize(
    "transfer", ["buffer_load_dword v1, s[40:43], 0 offen lds", "global_load_lds_dword v1, s[4:5]"]
)
def test_transfers_into_lds_are_waited_for(transfer):
    use = "ds_read_b32 v20, v1 offset:252"  # meets the transfer in lane 0 only
    check(
        f"{BUFFER} {transfer}\n {use}",
        f"{BUFFER} {transfer}\n s_waitcnt vmcnt(0)\n {use}",
        "touches LDS byte 252 before",
    )
    # Other bytes of LDS are free to use meanwhile.
    run(f"{BUFFER} {transfer}\n ds_read_b32 v20, v1 offset:256\n {WAIT}", ROW, lds=512)


def test_a_wait_is_the_waves_own():
    """The second wave's wait does not cover the first one's load."""
    body = """
 v_lshrrev_b32 v2, 6, v0
 s_nop 0
 v_readfirstlane_b32 s20, v2
 v_mov_b32 v20, 0
 s_cmp_eq_u32 s20, 1
 s_cbranch_scc1 second
 global_load_dword v20, v1, s[6:7]
 s_barrier
 v_mov_b32 v21, v20
second:
 s_waitcnt vmcnt(0)
 s_barrier"""
    with pytest.raises(simulator.SimulatorError, match=r"wave 0, .*touches v20"):
        run(body, threads=128)


SETUP = "v_mov_b32 v20, 0\n v_mov_b32 v21, 0\n v_mov_b32 v22, 0\n v_mov_b32 v23, 0\n s_nop 4\n"
SMALL = "v_mfma_f32_16x16x16_bf16 v[24:27], v[20:21], v[22:23], 0"  # 4 passes
LARGE = "v_mfma_f32_32x32x8_bf16 v[32:47], v[20:21], v[22:23], 0"  # 8 passes
FLOAT = "v_mfma_f32_32x32x2_f32 v[32:47], v20, v21, 0"  # 16 passes, float32
SMALL_DOUBLES = "v_mfma_f64_4x4x4_4b_f64 v[24:25], v[20:21], v[22:23], 0"  # 4 passes
DOUBLES = "v_mfma_f64_16x16x4_f64 v[24:31], v[20:21], v[22:23], 0"  # 8 passes
WAIT_STATES = {
    # name: (MFMA, use of its result, wait states that it takes)
    "read": (SMALL, "v_mov_b32 v5, v27", 7),
    "overwrite": (SMALL, "v_mov_b32 v24, 0", 7),
    "store": (SMALL, "global_store_dword v1, v25, s[6:7]", 7),
    "lds_write": (SMALL, "ds_write_b32 v1, v25", 7),
    "load_into": (SMALL, "global_load_dword v25, v1, s[4:5]", 7),
    "operand_a": (SMALL, "v_mfma_f32_16x16x16_bf16 v[28:31], v[24:25], v[22:23], 0", 7),
    "operand_b": (SMALL, "v_mfma_f32_16x16x16_bf16 v[28:31], v[22:23], v[26:27], 0", 7),
    "overlapping_c": (SMALL, "v_mfma_f32_16x16x16_bf16 v[28:31], v[22:23], v[20:21], v[26:29]", 5),
    "large": (LARGE, "v_add_f32 v5, v5, v40", 11),
    "large_operand": (LARGE, "v_mfma_f32_32x32x8_bf16 v[48:63], v[46:47], v[22:23], 0", 11),
    "float32": (FLOAT, "v_mov_b32 v5, v32", 18),
    "small_doubles": (SMALL_DOUBLES, "v_mov_b32 v5, v25", 6),
    "small_doubles_store": (SMALL_DOUBLES, "ds_write_b32 v1, v25", 9),
    "small_doubles_operand": (SMALL_DOUBLES, "v_mfma_f64_4x4x4_4b_f64 v[28:29], v[24:25], v[22:23], 0", 6),
    "small_doubles_chain": (
        SMALL_DOUBLES,
        "v_mfma_f64_4x4x4_4b_f64 v[24:25], v[20:21], v[22:23], v[24:25]",
        4,
    ),
    "small_doubles_overlapping_c": (
        SMALL_DOUBLES,
        "v_mfma_f64_16x16x4_f64 v[32:39], v[20:21], v[22:23], v[24:31]",
        4,
    ),
    "doubles": (DOUBLES, "v_mov_b32 v5, v31", 11),
    "doubles_store": (DOUBLES, "ds_write_b32 v1, v25", 18),
    "doubles_load_into": (DOUBLES, "global_load_dword v25, v1, s[4:5]", 11),
    "doubles_operand": (DOUBLES, "v_mfma_f64_16x16x4_f64 v[32:39], v[20:21], v[30:31], 0", 11),
    "doubles_overlapping_c": (
        DOUBLES,
        "v_mfma_f64_16x16x4_f64 v[40:47], v[20:21], v[22:23], v[26:33]",
        9,
    ),
}


def nops(states):
    full, rest = divmod(states, 16)
    return "s_nop 15\n" * full + (f"s_nop {rest - 1}\n" if rest else "")


@pytest.mark.parametrize("name", WAIT_STATES)
def test_matrix_results_take_wait_states(name):
    matrix, use, states = WAIT_STATES[name]
    start = f"{SETUP} {matrix}\n"
    reason = f'result of a matrix instruction after {states - 1} wait states; it takes {states}: "{matrix.split()[0]}'
    check(f"{start} {nops(states - 1)} {use}", f"{start} {nops(states)} {use}", reason)
    # Any other instruction is one wait state as well.
    others = "v_mov_b32 v6, 1\n s_mov_b32 s30, 1\n"
    check(f"{start} {others} {nops(states - 3)} {use}", f"{start} {others} {nops(states - 2)} {use}", reason)


def test_the_accumulator_chain_takes_none():
    chain = "v_mfma_f32_16x16x16_bf16 v[24:27], v[20:21], v[22:23], v[24:27]\n"
    run(f"{SETUP} {SMALL}\n {chain} {chain} {nops(7)} v_mov_b32 v5, v24", ROW)
    # The latest instruction of the chain counts.
    message = refused(f"{SETUP} {SMALL}\n {chain} {nops(3)} {chain} {nops(6)} v_mov_b32 v5, v24")
    assert "after 6 wait states" in message


def test_the_accumulator_chain_of_two_passes_takes_two():
    product = "v_mfma_f32_4x4x4_16b_bf16 v[24:27], v[20:21], v[22:23]"
    first, second = f"{product}, 0", f"{product}, v[24:27]"
    check(
        f"{SETUP} {first}\n {nops(1)} {second}",
        f"{SETUP} {first}\n {nops(2)} {second}",
        "reads as operand C",
    )


def test_operand_c_is_read_before_it_may_be_overwritten():
    matrix = "v_mfma_f32_16x16x16_bf16 v[24:27], v[20:21], v[22:23], v[28:31]"
    check(
        f"{SETUP} {matrix}\n {nops(2)} v_mov_b32 v30, 0",
        f"{SETUP} {matrix}\n {nops(3)} v_mov_b32 v30, 0",
        "overwrites operand C",
    )
    check(
        f"{SETUP} {matrix}\n {nops(2)} global_load_dword v30, v1, s[4:5]",
        f"{SETUP} {matrix}\n {nops(3)} global_load_dword v30, v1, s[4:5]",
        "overwrites operand C",
    )
    run(f"{SETUP} {matrix}\n v_mov_b32 v20, 0\n v_mov_b32 v22, 0", ROW)  # A and B are free at once


def test_checks_can_be_switched_off():
    try:
        simulator.set_option("check", "wait_states")
        row = run(f"{LOAD}\n v_mov_b32 v21, v20\n {store('v21')}", ROW)[0]
        np.testing.assert_array_equal(row, ROW[0])
        assert "wait states" in refused(f"{SETUP} {SMALL}\n v_mov_b32 v5, v24")
        simulator.set_option("check", "waits")
        run(f"{SETUP} {SMALL}\n v_mov_b32 v5, v24", ROW)
        assert "touches v20" in refused(f"{LOAD}\n v_mov_b32 v21, v20")
        simulator.set_option("check", "none")
        run(f"{SETUP} {SMALL}\n v_mov_b32 v5, v24\n {LOAD}\n v_mov_b32 v21, v20", ROW)
    finally:
        simulator.set_option("check", "waits,wait_states")


def test_instructions_that_are_not_implemented_are_named():
    """A mnemonic, and a form of one that is implemented otherwise."""
    for line in ("v_trig_preop_f64 v[20:21], v[22:23], v10", "v_add_co_u32_e64 v20, vcc, v10, v11 clamp"):
        message = refused(line)
        assert re.search(f'"{re.escape(line)}" at 0x[0-9a-f]+: this instruction is not implemented', message)
    assert "kernel kernel" in refused(".long 0xffffffff")


def test_a_load_may_follow_a_load_into_the_same_register():
    again = "global_load_dword v20, v1, s[4:5]"
    run(f"{LOAD}\n {again}\n {WAIT}", ROW)
    assert "touches v20" in refused(f"{LOAD}\n {again}\n s_waitcnt vmcnt(1)\n v_mov_b32 v5, v20\n {WAIT}")
    # One that keeps half of the register reads it.
    half = "global_load_short_d16_hi v20, v1, s[4:5]"
    check(f"{LOAD}\n {half}", f"{LOAD}\n s_waitcnt vmcnt(0)\n {half}", "touches v20")
    check(
        f"{LOAD}\n ds_read_b32 v20, v1", f"{LOAD}\n s_waitcnt vmcnt(0)\n ds_read_b32 v20, v1", "touches v20"
    )


def test_transfers_of_inactive_lanes_write_nothing():
    """Neither a hazard nor out of bounds where EXEC has no lane."""
    partial = (
        f"{BUFFER} s_mov_b64 exec, 15\n buffer_load_dword v1, s[40:43], 0 offen lds\n s_mov_b64 exec, -1\n"
    )
    run(f"{partial} ds_read_b32 v20, v1 offset:16\n {WAIT}", ROW, lds=512)
    assert "LDS byte 12" in refused(f"{partial} ds_read_b32 v20, v1 offset:12\n {WAIT}")
    run(f"{BUFFER} s_movk_i32 m0, 0x1f0\n {partial.replace('s_mov_b32 m0, 0', '')} {WAIT}", ROW, lds=512)
    assert "transfer to LDS bytes [496, 752)" in refused(
        f"{BUFFER} s_movk_i32 m0, 0x1f0\n buffer_load_dword v1, s[40:43], 0 offen lds"
    )


def test_flat_accesses_without_a_wait_are_not_limited():
    """Stores are never waited for; loads may pile up beyond what the counters can count."""
    address = "v_mov_b32 v2, s4\n v_mov_b32 v3, s5\n"
    out = "v_mov_b32 v2, s6\n v_mov_b32 v3, s7\n"
    run(out + "flat_store_dword v[2:3], v1\n" * 100 + WAIT, ROW, lds=512)

    flat = "".join(f"flat_load_dword v{100 + i}, v[2:3]\n" for i in range(40))
    plain = "".join(f"global_load_dword v{140 + i}, v1, s[4:5]\n" for i in range(80))
    use = "v_mov_b32 v5, v139"
    check(f"{address} {flat} {plain} {use}", f"{address} {flat} {plain} {WAIT}\n {use}", "touches v139")
