"""The clock of one compute unit, on kernels whose time can be counted by hand."""

import struct

import numpy as np
import pytest

import device_compiler
from liteattention_rocm import simulator
from liteattention_rocm.timing import parameter_sets
from liteattention_rocm.timing.recording import Recording

SLOT = 4  # clocks
LDS_SERVICE = 2  # clocks of a ds_read_b32 by a whole wave
KERNEL = """
.text
.globl micro
.p2align 8
.type micro,@function
micro:
{body}
  s_endpgm
.size micro, .-micro
.rodata
.p2align 6
.amdhsa_kernel micro
  .amdhsa_group_segment_fixed_size 65536
  .amdhsa_kernarg_size 8
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_next_free_vgpr 128
  .amdhsa_next_free_sgpr 32
  .amdhsa_accum_offset 128
.end_amdhsa_kernel
.amdgpu_metadata
amdhsa.version: [1, 2]
amdhsa.kernels:
  - .name: micro
    .symbol: micro.kd
    .kernarg_segment_size: 8
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 65536
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 32
    .vgpr_count: 128
    .max_flat_workgroup_size: 1024
    .args:
      - {{.offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}}
.end_amdgpu_metadata
"""
# Where an instruction lies costs nothing, unless a test asks for it.
DOCUMENTED = {**parameter_sets()["D0"].clock, "l2_miss_interval": 0, "fetch_straddle_slots": 0}


def record(body: str, waves: int = 1, grid: int = 1, workgroups=(0,), memory=None) -> Recording:
    module = simulator.Module(device_compiler.assemble(KERNEL.format(body=body)))
    recording = Recording(workgroups)
    memory = np.zeros(4096, np.uint32) if memory is None else memory
    with recording.active(), simulator.register(memory, "memory"):
        module.launch("micro", (grid, 1, 1), (64 * waves, 1, 1), struct.pack("<Q", memory.ctypes.data))
    return recording


def clock(body: str, waves: int = 1, **overrides) -> dict:
    return record(body, waves).clock({**DOCUMENTED, **overrides})


def growth(unit: str, count: int = 20, waves: int = 1, prologue: str = "", **overrides) -> float:
    """Clocks that one more repetition of `unit` takes."""
    twice, once = (
        clock(prologue + (unit + "\n") * n, waves, **overrides)["clocks"] for n in (2 * count, count)
    )
    return (twice - once) / count


VALU = "v_mov_b32_e32 v1, 0"
MFMA_16 = "v_mfma_f32_16x16x16_bf16 v[{0}:{1}], v[0:1], v[2:3], v[{0}:{1}]"
MFMA_32 = "v_mfma_f32_32x32x8_bf16 v[{0}:{1}], v[0:1], v[2:3], v[{0}:{1}]"


def test_independent_vector_instructions_take_a_slot_each():
    assert growth(VALU) == SLOT


def test_two_waves_of_one_simd_share_its_vector_port():
    # Waves 0 and 4 of five are on SIMD 0.
    assert growth(VALU, waves=5) == 2 * SLOT
    assert growth(VALU, waves=4) == SLOT


def test_transcendental_holds_the_vector_port():
    assert growth("v_exp_f32_e32 v1, 0") == 4 * SLOT


@pytest.mark.parametrize(
    ("instruction", "registers", "slots"), [(MFMA_16, 4, 4), (MFMA_32, 16, 8)], ids=["16x16x16", "32x32x8"]
)
def test_matrix_pipe_is_busy_for_the_passes(instruction, registers, slots):
    first, second = (instruction.format(8 + i * registers, 7 + (i + 1) * registers) for i in range(2))
    fill = "\n".join(f"v_mov_b32_e32 v{r}, 0" for r in range(64)) + "\ns_nop 7\n"
    assert growth(first + "\n" + second, prologue=fill) == 2 * slots * SLOT  # independent
    assert growth(first, prologue=fill) == slots * SLOT  # dependent
    late = {"accumulator_slots": 3, "prologue": fill}
    assert growth(first, **late) == (slots + 3) * SLOT
    assert growth(first + "\n" + second, **late) == 2 * slots * SLOT


def test_vector_instructions_run_in_the_shadow_of_the_matrix_pipe():
    fill = "\n".join(f"v_mov_b32_e32 v{r}, 0" for r in range(64)) + "\ns_nop 7\n"
    matrix = MFMA_32.format(16, 31) + "\n"
    spare = "v_mov_b32_e32 v60, 0\n"
    assert growth(matrix + spare * 7, prologue=fill) == 8 * SLOT
    assert growth(matrix + spare * 8, prologue=fill) == 9 * SLOT
    assert growth(matrix + spare * 7, prologue=fill, matrix_bubble_slots=1) == 9 * SLOT


def test_packed_float32_waits_for_the_matrix_pipe():
    fill = "\n".join(f"v_mov_b32_e32 v{r}, 0" for r in range(64)) + "\ns_nop 7\n"
    pair = MFMA_16.format(16, 19) + "\nv_pk_mul_f32 v[60:61], v[0:1], v[2:3]"
    # The packed one issues 4 passes + 2 slots behind the MFMA, the next MFMA a slot later.
    assert growth(pair, prologue=fill) == 7 * SLOT


@pytest.mark.parametrize("count", [0, 3, 15])
def test_no_operation_takes_its_count_and_one(count):
    assert growth(f"s_nop {count}") == (count + 1) * SLOT


def test_branches():
    body = "s_movk_i32 s4, {}\nloop:\ns_sub_u32 s4, s4, 1\ns_cmp_lg_u32 s4, 0\ns_cbranch_scc1 loop\n"
    long, short = (clock(body.format(n))["clocks"] for n in (40, 20))
    assert (long - short) / 20 == (1 + 1 + 8) * SLOT


def test_branch_not_taken():
    long, short = (
        clock("s_cmp_eq_u32 0, 1\n" + "s_cbranch_scc1 end\n" * n + "end:\n")["clocks"] for n in (40, 20)
    )
    assert (long - short) / 20 == 3 * SLOT


def test_barrier_costs_its_slots():
    assert growth("s_barrier") == 4 * SLOT
    assert growth("s_barrier", waves=4) == 4 * SLOT


@pytest.mark.parametrize("late", ["lt", "ge"])
def test_barrier_waits_for_the_last_wave(late):
    body = f"""
      v_readfirstlane_b32 s4, v0
      s_cmp_{late}_u32 s4, 64
      s_cbranch_scc0 early
      s_sleep {{}}
    early:
      s_barrier
    """
    long, short = (clock(body.format(n), waves=2) for n in (30, 10))
    assert long["clocks"] - short["clocks"] == 20 * 64
    waits = {
        one["text"]: one["stalls"].get("barrier", 0)
        for one in long["instructions"]
        if one["text"] == "s_barrier"
    }
    assert waits["s_barrier"] * SLOT > 29 * 64


def test_priority_decides_who_issues():
    body = (
        """
      v_readfirstlane_b32 s4, v0
      s_cmp_lt_u32 s4, 256
      s_cbranch_scc1 start
      s_setprio 3
    start:
      s_barrier
    """
        + (VALU + "\n") * 100
    )
    answer = clock(body, waves=5, timeline_begin=0, timeline_end=1e9)
    ends = {wave: max(end for who, _, _, end, _ in answer["timeline"] if who == wave) for wave in (0, 4)}
    assert ends[0] - ends[4] >= 99 * SLOT
    equal = clock(body.replace("s_setprio 3", "s_setprio 0"), waves=5, timeline_begin=0, timeline_end=1e9)
    ends = {wave: max(end for who, _, _, end, _ in equal["timeline"] if who == wave) for wave in (0, 4)}
    assert abs(ends[0] - ends[4]) <= 2 * SLOT


def slots_until(clocks: float) -> int:
    return -(-int(clocks) // SLOT)


def test_wait_for_lds():
    chain = "ds_read_b32 v1, v2\ns_waitcnt lgkmcnt(0)"
    setup = "v_lshlrev_b32_e32 v2, 2, v0\nds_write_b32 v2, v2\ns_waitcnt lgkmcnt(0)\n"
    wait = slots_until(LDS_SERVICE + DOCUMENTED["lds_latency"])
    # The wait issues when the data is there, the next read a slot later.
    assert growth(chain, prologue=setup) == (wait + 1) * SLOT
    assert growth(chain, prologue=setup, lds_latency=100) == (slots_until(LDS_SERVICE + 100) + 1) * SLOT


def test_counted_wait_leaves_younger_reads_in_flight():
    setup = "v_lshlrev_b32_e32 v2, 2, v0\nds_write_b32 v2, v2\ns_waitcnt lgkmcnt(0)\nds_read_b32 v3, v2\n"
    pair = "ds_read_b32 v4, v2\ns_waitcnt lgkmcnt(1)\nds_read_b32 v3, v2\ns_waitcnt lgkmcnt(1)"
    one_at_a_time = growth(pair.replace("lgkmcnt(1)", "lgkmcnt(0)"), prologue=setup)
    overlapped = growth(pair, prologue=setup)
    assert overlapped < 0.6 * one_at_a_time


def test_wait_for_a_line_of_the_l1():
    setup = """
      s_load_dwordx2 s[8:9], s[0:1], 0x0
      v_lshlrev_b32_e32 v2, 2, v0
      s_waitcnt lgkmcnt(0)
      global_load_dword v1, v2, s[8:9]
      s_waitcnt vmcnt(0)
    """
    chain = "global_load_dword v1, v2, s[8:9]\ns_waitcnt vmcnt(0)"
    service = 64 * 4 / DOCUMENTED["l1_bytes_per_clock"]
    hit = (slots_until(service + DOCUMENTED["l1_latency"]) + 1) * SLOT
    assert growth(chain, prologue=setup) == hit
    answer = clock(setup + (chain + "\n") * 10)
    assert (answer["l1_misses"], answer["l1_hits"]) == (2, 20)  # 256 bytes are two lines
    cold = record(setup)
    difference = cold.clock({**DOCUMENTED, "l2_latency": 900})["clocks"] - cold.clock(DOCUMENTED)["clocks"]
    assert difference == 900 - DOCUMENTED["l2_latency"]


def test_l1_forgets_what_does_not_fit():
    # 64 lines a load; 32 KiB hold 256.
    body = """
      s_load_dwordx2 s[8:9], s[0:1], 0x0
      v_lshlrev_b32_e32 v2, 7, v0
      s_waitcnt lgkmcnt(0)
    """
    for _ in range(2):
        for block in range(6):
            body += f"\ns_mov_b32 s12, {8192 * block}\nv_add_u32_e32 v3, s12, v2"
            body += "\nglobal_load_dword v1, v3, s[8:9]\ns_waitcnt vmcnt(0)"
    memory = np.zeros(6 * 8192 // 4, np.uint32)
    recording = record(body, memory=memory)
    small, large = (recording.clock({**DOCUMENTED, "l1_bytes": size}) for size in (32768, 65536))
    assert small["l1_misses"] == 2 * 6 * 64
    assert large["l1_misses"] == 6 * 64


@pytest.mark.parametrize(
    ("instruction", "shift", "extra"),
    [
        ("ds_read_b32 v4, v2", 2, 0),
        ("ds_read_b32 v4, v2", 3, 2),  # two halves of 32 lanes, two dwords in a bank
        ("ds_read_b32 v4, v2", 7, 62),
        ("ds_read_b64 v[4:5], v2", 3, 0),
        ("ds_read_b64 v[4:5], v2", 4, 4),
        ("ds_read_b64 v[4:5], v2", 7, 60),
        ("ds_read_b128 v[4:7], v2", 4, 0),
        ("ds_read_b128 v[4:7], v2", 7, 56),  # eight phases of eight lanes
        ("ds_write_b128 v2, v[4:7]", 4, 0),
        ("ds_read2_b32 v[4:5], v2 offset1:1", 2, 0),
        ("ds_read2_b32 v[4:5], v2 offset1:1", 3, 4),
    ],
)
def test_bank_conflicts(instruction, shift, extra):
    fill = "\n".join(f"v_mov_b32_e32 v{r}, 0" for r in range(4, 8))
    body = f"{fill}\nv_lshlrev_b32_e32 v2, {shift}, v0\n{instruction}\ns_waitcnt lgkmcnt(0)"
    assert clock(body)["lds_conflict_clocks"] == extra


def test_lanes_that_read_one_dword_do_not_conflict():
    assert clock("v_mov_b32_e32 v2, 0\nds_read_b32 v4, v2")["lds_conflict_clocks"] == 0


def test_conflicts_take_time():
    setup = "v_lshlrev_b32_e32 v2, 7, v0\n"
    chain = "ds_read_b32 v1, v2\ns_waitcnt lgkmcnt(0)"
    wait = slots_until(LDS_SERVICE + 62 + DOCUMENTED["lds_latency"])
    assert growth(chain, prologue=setup) == (wait + 1) * SLOT


def test_instructions_that_cross_a_fetch_window():
    body = "v_mov_b32_e32 v1, 0\n" + "v_add3_u32 v1, v1, v1, v1\n" * 40
    image = device_compiler.assemble(KERNEL.format(body=body))
    crossing = sum(
        one["address"] % 32 + one["size"] > 32 for one in simulator.disassemble(image)["instructions"][:42]
    )
    assert crossing >= 10
    assert clock(body, fetch_straddle_slots=1)["clocks"] - clock(body)["clocks"] == crossing * SLOT


def test_two_workgroups_share_a_compute_unit():
    body = (VALU + "\n") * 50
    recording = record(body, waves=4, grid=2, workgroups=(0, 1))
    both = recording.clock({**DOCUMENTED, "dispatch_interval": 0})["clocks"]
    one = recording.clock({**DOCUMENTED, "residents": 1})["clocks"]
    assert (both, one) == (101 * SLOT, 51 * SLOT)  # s_endpgm issues behind the last instruction


def test_only_the_chosen_workgroups_run():
    body = """
      s_load_dwordx2 s[8:9], s[0:1], 0x0
      s_lshl_b32 s4, s2, 2
      v_mov_b32_e32 v1, s4
      v_mov_b32_e32 v2, 7
      s_waitcnt lgkmcnt(0)
      global_store_dword v1, v2, s[8:9]
    """
    memory = np.zeros(4, np.uint32)
    record(body, grid=4, workgroups=(1, 3), memory=memory)
    assert memory.tolist() == [0, 7, 0, 7]
    module = simulator.Module(device_compiler.assemble(KERNEL.format(body=body)))
    with simulator.register(memory, "memory"):
        module.launch("micro", (4, 1, 1), (64, 1, 1), struct.pack("<Q", memory.ctypes.data))
    assert memory.tolist() == [7, 7, 7, 7]


def test_answers_repeat():
    setup = "s_load_dwordx2 s[8:9], s[0:1], 0x0\nv_lshlrev_b32_e32 v2, 7, v0\ns_waitcnt lgkmcnt(0)\n"
    body = setup + "global_load_dword v1, v2, s[8:9]\ns_waitcnt vmcnt(0)\n" * 3
    memories = [np.zeros(1 << 20, np.uint32)[shift:] for shift in (0, 16)]
    answers = [record(body, waves=8, memory=memory).clock(DOCUMENTED) for memory in memories]
    assert answers[0] == answers[1]


def test_bad_parameters_are_named():
    recording = record(VALU)
    with pytest.raises(simulator.SimulatorError, match="lds_latency is missing"):
        recording.clock({name: value for name, value in DOCUMENTED.items() if name != "lds_latency"})
    with pytest.raises(simulator.SimulatorError, match="no clock parameter 'lds_latenzy'"):
        recording.clock({**DOCUMENTED, "lds_latenzy": 1})
    with pytest.raises(simulator.SimulatorError, match="lds_latency is '-1'"):
        recording.clock({**DOCUMENTED, "lds_latency": -1})


def test_a_workgroup_outside_the_grid():
    with pytest.raises(simulator.SimulatorError, match="workgroup 2 is to be traced, the grid has 2"):
        record(VALU, grid=2, workgroups=(0, 2))
    assert record(VALU).description()["workgroups"][0]["instructions"] == [2]


def test_a_recording_without_a_launch():
    recording = Recording([0])
    with (
        recording.active(),
        pytest.raises(simulator.SimulatorError, match="is recording already"),
        Recording([0]).active(),
    ):
        pass
    with pytest.raises(simulator.SimulatorError, match="holds no launch"):
        recording.clock(DOCUMENTED)
