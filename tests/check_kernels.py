"""Assembled kernels that each break one rule of the hardware, beside a twin in which it is kept."""

import dataclasses
import functools

import device_compiler

# s[4:5]: out, s[6:7]: in, both of 64 dwords a wave and workgroup; v0: work-item; v1: its byte offset.
_PROLOGUE = """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_lshlrev_b32_e32 v1, 2, v0
  s_waitcnt lgkmcnt(0)
"""
_STORE = "global_store_dword v1, {}, s[4:5]"
_EXEC_BY_VALU = "v_cmpx_le_u32_e64 s[8:9], 0, v0"
_MFMA = "v_mfma_f32_16x16x16_bf16 v[8:11], v[4:5], v[4:5], 0"
_DPP = "v_mov_b32_dpp v3, {} quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf"
_AFTER = ["s_nop 15", "s_nop 15"]


@dataclasses.dataclass(frozen=True)
class Case:
    """`broken` and `kept` are instructions behind the prologue; `words` is a pattern of the report."""

    check: str
    broken: tuple[str, ...]
    kept: tuple[str, ...]
    words: str
    block: int = 64
    grid: int = 1
    contested: bool = False  # a rule of wait states that launches report under observation only


def _case(check, body, broken, kept, words, **launch):
    """`body` with `broken`, or `kept`, in place of its "?"."""

    def filled(lines):
        at = body.index("?")
        return (*body[:at], *lines, *body[at + 1 :])

    return Case(check, filled(broken), filled(kept), words, **launch)


def _states(body, needed, words, **options):
    """`needed` wait states in place of "?", and one fewer."""

    def idle(states):
        return [f"s_nop {states - 1}"] if states else []

    return _case("wait_states", body, idle(needed - 1), idle(needed), words, **options)


_WAITS = {
    "load": _case(
        "waits",
        ["global_load_dword v2, v1, s[6:7]", "?", _STORE.format("v2")],
        [],
        ["s_waitcnt vmcnt(0)"],
        r"wave 0.*global_store_dword.* at 0x\w+: lane 0 touches v2 before an s_waitcnt vmcnt",
    ),
    "scalar_order": _case(
        "waits",
        [
            "s_load_dword s8, s[6:7], 0x0",
            "s_load_dword s9, s[6:7], 0x4",
            "?",
            "v_mov_b32_e32 v2, s8",
            _STORE.format("v2"),
        ],
        ["s_waitcnt lgkmcnt(1)"],
        ["s_waitcnt lgkmcnt(0)"],
        r"touches s8 before an s_waitcnt lgkmcnt",
    ),
    "lds_transfer": _case(
        "waits",
        [
            "s_mov_b32 m0, 0",
            "s_nop 0",
            "global_load_lds_dword v1, s[6:7]",
            "?",
            "ds_read_b32 v2, v1",
            "s_waitcnt lgkmcnt(0)",
            _STORE.format("v2"),
        ],
        ["s_waitcnt lgkmcnt(0)"],
        ["s_waitcnt vmcnt(0)"],
        r"touches LDS byte 0 before an s_waitcnt vmcnt",
    ),
}

_BARRIER = ["s_waitcnt vmcnt(0) lgkmcnt(0)", "s_barrier"]
_NEIGHBOUR = "v_xor_b32_e32 v3, 0x100, v1"  # the same lane of the other wave
# A transfer of each wave's 64 dwords into its own part of LDS, which begins at byte {0}.
_TRANSFER = ["s_add_u32 m0, s8, {0}", "s_nop 0", "global_load_lds_dword v1, s[6:7]"]


def _transfer(first):
    return [line.format(first) for line in _TRANSFER]


_RACES = {
    "lds": _case(
        "races",
        [
            _NEIGHBOUR,
            "ds_write_b32 v1, v1",
            *_BARRIER,
            "ds_write_b32 v1, v0",
            "?",
            "ds_read_b32 v2, v3",
            "s_waitcnt lgkmcnt(0)",
            _STORE.format("v2"),
        ],
        [],
        _BARRIER,
        r"wave \d.*race on LDS byte \d+: .* by lane \d+, .* by wave \d, lane \d+ at .*no barrier",
        block=128,
    ),
    "lds_in_flight": _case(
        "races",
        [
            _NEIGHBOUR,
            "ds_write_b32 v1, v0",
            "?",
            "s_barrier",
            "ds_read_b32 v2, v3",
            "s_waitcnt lgkmcnt(0)",
            _STORE.format("v2"),
        ],
        [],
        ["s_waitcnt lgkmcnt(0)"],
        r"race on LDS byte",
        block=128,
    ),
    "lds_write_after_read": _case(
        "races",
        [
            _NEIGHBOUR,
            "ds_write_b32 v1, v0",
            *_BARRIER,
            "ds_read_b32 v2, v3",
            "s_waitcnt lgkmcnt(0)",
            "?",
            "ds_write_b32 v1, v2",
            _STORE.format("v2"),
        ],
        [],
        ["s_barrier"],
        r"race on LDS byte",
        block=128,
    ),
    "lds_transfer_in_flight": _case(
        "races",
        [
            _NEIGHBOUR,
            "v_readfirstlane_b32 s8, v1",
            "s_mov_b32 m0, s8",
            "s_nop 0",
            "global_load_lds_dword v1, s[6:7]",
            "?",
            "s_barrier",
            "ds_read_b32 v2, v3",
            "s_waitcnt lgkmcnt(0)",
            _STORE.format("v2"),
        ],
        [],
        ["s_waitcnt vmcnt(0)"],
        r"race on LDS byte",
        block=128,
    ),
    # The wait counts the wave's own transfers only, and the second one is still under way.
    "lds_transfer_counted": _case(
        "races",
        [
            _NEIGHBOUR,
            "v_readfirstlane_b32 s8, v1",
            *_transfer(0),
            *_transfer(0x200),
            "?",
            "s_barrier",
            "ds_read_b32 v2, v3 offset:512",
            "s_waitcnt lgkmcnt(0)",
            _STORE.format("v2"),
        ],
        ["s_waitcnt vmcnt(1)"],
        ["s_waitcnt vmcnt(0)"],
        r"global_load_lds_dword.*race on LDS byte|race on LDS byte.*global_load_lds_dword",
        block=128,
    ),
    # One wave waits for its transfer, the other does not.
    "lds_transfer_of_the_other_wave": _case(
        "races",
        [
            _NEIGHBOUR,
            "v_readfirstlane_b32 s8, v1",
            *_transfer(0),
            "s_cmp_eq_u32 s8, 0",
            "s_cbranch_scc1 1f",
            "?",
            "s_branch 2f",
            "1:",
            "s_waitcnt vmcnt(0)",
            "2:",
            "s_barrier",
            "ds_read_b32 v2, v3",
            "s_waitcnt vmcnt(0) lgkmcnt(0)",
            _STORE.format("v2"),
        ],
        [],
        ["s_waitcnt vmcnt(0)"],
        r"wave [01], .*race on LDS byte \d+: .* by lane \d+, .* by wave [01], lane \d+ at ",
        block=128,
    ),
    "lds_transfer_over_reads_in_flight": _case(
        "races",
        [
            _NEIGHBOUR,
            "v_readfirstlane_b32 s8, v1",
            *_transfer(0),
            "s_waitcnt vmcnt(0)",
            "s_barrier",
            "ds_read_b32 v2, v3",
            "?",
            "s_barrier",
            *_transfer(0),
            "s_waitcnt vmcnt(0) lgkmcnt(0)",
            _STORE.format("v2"),
        ],
        [],
        ["s_waitcnt lgkmcnt(0)"],
        r"race on LDS byte",
        block=128,
    ),
    "memory": _case(
        "races",
        [
            _NEIGHBOUR,
            _STORE.format("v0"),
            "s_waitcnt vmcnt(0)",
            "?",
            "global_load_dword v2, v3, s[4:5]",
            "s_waitcnt vmcnt(0)",
        ],
        [],
        ["s_barrier"],
        r"race on byte 0x\w+: (read|written) by lane",
        block=128,
    ),
    "workgroups": _case(
        "races",
        ["s_lshl_b32 s8, s2, 8", "?", "v_add_u32_e32 v1, s8, v1", _STORE.format("v0")],
        ["s_mov_b32 s8, 0"],
        [],
        r"race on byte .* written by workgroup \([01], 0, 0\).*nothing orders workgroups",
        grid=2,
    ),
    "workgroups_scope": _case(
        "races",
        ["v_mov_b32_e32 v1, 0", "?"],
        [_STORE.format("v0")],
        ["global_atomic_add v1, v0, s[4:5]", _STORE.format("v0") + " sc1"],
        r"race on byte .*nothing orders workgroups",
        grid=2,
    ),
}


def _message(broken, kept, words=r"race on byte .*nothing orders workgroups", *, at, without=""):
    """Workgroup 0 stores data, then a flag; workgroup 1 waits for the flag and loads the data."""
    lines = {
        "write back": ["buffer_wbl2 sc1"],
        "wait": ["s_waitcnt vmcnt(0)"],
        "flag": ["global_store_dword v3, v4, s[4:5] sc1"],
        "poll": ["global_load_dword v5, v3, s[4:5] sc1"],
        "polled": ["s_waitcnt vmcnt(0)"],
        "invalidate": ["buffer_inv sc1"],
    }

    def body(replaced):
        part = {**lines, without: [], at: list(replaced)}
        return (
            "v_mov_b32_e32 v3, 0x100",
            "v_mov_b32_e32 v4, 7",
            "v_mov_b32_e32 v5, 0",
            "v_mov_b32_e32 v7, 0",
            "s_cmp_eq_u32 s2, 1",
            "s_cbranch_scc1 1f",
            _STORE.format("v0"),
            *part["write back"],
            *part["wait"],
            "s_mov_b64 exec, 1",
            *part["flag"],
            "s_endpgm",
            "1:",
            *part["poll"],
            *part["polled"],
            "s_nop 0",
            "v_readfirstlane_b32 s8, v5",
            "s_cmp_eq_u32 s8, 7",
            "s_cbranch_scc0 1b",
            *part["invalidate"],
            "global_load_dword v6, v1, s[4:5]",
            "s_waitcnt vmcnt(0)",
        )

    return Case("races", body(broken), body(kept), words, grid=2)


_RACES |= {
    "message_in_the_cache": _message([], ["buffer_wbl2 sc1"], at="write back"),
    "message_ahead_of_the_data": _message([], ["s_waitcnt vmcnt(0)"], at="wait"),
    "message_of_workgroup_scope": _message(
        ["global_store_dword v3, v4, s[4:5] sc0"], ["global_store_dword v3, v4, s[4:5] sc1"], at="flag"
    ),
    "message_polled_through_the_cache": _message(
        ["global_load_dword v5, v3, s[4:5]"], ["global_atomic_add v5, v3, v7, s[4:5] sc0"], at="poll"
    ),
    "message_invalidated_before_it_came": _message(
        ["buffer_inv sc1", "s_waitcnt vmcnt(0)"],
        ["s_waitcnt vmcnt(0)", "buffer_inv sc1"],
        at="polled",
        without="invalidate",
    ),
    "message_seen_through_the_cache": _message([], ["buffer_inv sc1"], at="invalidate"),
}

_STATES = {
    "scalar_to_memory": _states(
        [
            "v_mov_b32_e32 v4, s6",
            "v_mov_b32_e32 v5, s7",
            "v_readfirstlane_b32 s8, v4",
            "v_readfirstlane_b32 s9, v5",
            "?",
            "global_load_dword v2, v1, s[8:9]",
        ],
        5,
        r"vector memory reads an SGPR that a VALU instruction wrote 4 wait states before; it takes 5",
    ),
    "dpp": _states(["v_mov_b32_e32 v2, v1", "?", _DPP.format("v2")], 2, "a DPP source"),
    "dpp_exec": _states([_EXEC_BY_VALU, "?", _DPP.format("v1")], 5, "DPP follows a VALU write of EXEC"),
    "lane_number": _states(
        ["v_readfirstlane_b32 s8, v0", "?", "v_readlane_b32 s9, v1, s8"], 4, "the lane number"
    ),
    "lane_read": _states(["v_mov_b32_e32 v2, v1", "?", "v_readlane_b32 s9, v2, 0"], 1, "the lane read"),
    "lane_exec": _states([_EXEC_BY_VALU, "?", "v_readlane_b32 s10, v1, 0"], 4, "a lane is read after"),
    "transcendental": _states(
        ["v_rcp_f32_e32 v2, v1", "?", "v_add_f32_e32 v3, v2, v2"], 1, "result of a transcendental"
    ),
    "condition": _states(
        ["v_cmp_eq_u32_e32 vcc, 0, v0", "?", "v_cndmask_b32_e32 v2, v1, v0, vcc"],
        2,
        "reads a lane mask in an SGPR or VCC",
        contested=True,
    ),
    "scalar_operand": _states(
        ["v_readfirstlane_b32 s8, v0", "?", "v_add_u32_e32 v2, s8, v1"],
        2,
        "reads an SGPR or VCC that another",
    ),
    "carry": _states(
        ["v_add_co_u32_e32 v2, vcc, v0, v1", "?", "v_addc_co_u32_e32 v3, vcc, 0, v1, vcc"],
        2,
        "reads a lane mask",
        contested=True,
    ),
    "div_fmas": _states(
        ["v_cmp_eq_u32_e32 vcc, 0, v0", "?", "v_div_fmas_f32 v2, v1, v1, v1"], 4, "v_div_fmas reads"
    ),
    "setreg": _states(
        ["s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 0", "?", "s_getreg_b32 s8, hwreg(HW_REG_MODE)"],
        2,
        "s_getreg follows s_setreg",
    ),
    "setreg_again": _states(
        [
            "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 0",
            "?",
            "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 4), 15",
        ],
        2,
        "s_setreg follows s_setreg",
    ),
    "m0": _states(
        ["s_mov_b32 m0, 0", "?", "global_load_lds_dword v1, s[6:7]"],
        1,
        "M0 was written by the instruction before a transfer",
        contested=True,
    ),
    "m0_buffer": _states(
        [
            "s_mov_b32 s8, s6",
            "s_mov_b32 s9, s7",
            "s_movk_i32 s10, 0x100",
            "s_mov_b32 s11, 0x20000",
            "s_add_u32 m0, s10, 0",
            "?",
            "buffer_load_dword v1, s[8:11], 0 offen lds",
        ],
        1,
        "M0 was written by the instruction before a transfer",
        contested=True,
    ),
    "m0_trace": _states(
        ["s_mov_b32 m0, 0", "?", "s_ttracedata"], 1, "M0 was written by the instruction before"
    ),
    "m0_message": _states(
        ["s_mov_b32 m0, 0", "?", "s_sendmsg 3"], 1, "M0 was written by the instruction before"
    ),
    "m0_relative": _states(
        ["s_mov_b32 m0, 1", "?", "s_movrels_b32 s8, s4"], 1, "M0 was written by the instruction before"
    ),
    "exec_to_memory": _states(
        [_EXEC_BY_VALU, "?", _STORE.format("v0")], 5, "vector memory follows a VALU write of EXEC"
    ),
    "exec_to_write_lane": _states(
        [_EXEC_BY_VALU, "?", "v_writelane_b32 v2, s4, 3"], 4, "a lane is written after a VALU write of EXEC"
    ),
    "wide_store": _states(
        [
            "v_lshlrev_b32_e32 v8, 4, v0",
            "v_and_b32_e32 v8, 0xf0, v8",
            *(f"v_mov_b32_e32 v{r}, v1" for r in (4, 5, 6, 7)),
            "global_store_dwordx4 v8, v[4:7], s[4:5]",
            "?",
            "v_mov_b32_e32 v4, 0",
        ],
        2,
        "overwrites the data of a wide store",
    ),
    "matrix_operand": _states(
        ["v_mov_b32_e32 v5, v1", "v_mov_b32_e32 v4, v1", "?", _MFMA, *_AFTER],
        2,
        "a matrix instruction reads what a VALU",
    ),
    "matrix_exec": _states(
        ["v_mov_b32_e32 v4, v1", "v_mov_b32_e32 v5, v1", _EXEC_BY_VALU, "?", _MFMA, *_AFTER],
        4,
        "follows a VALU write of EXEC",
    ),
    "matrix_result": _states(
        ["v_mov_b32_e32 v4, v1", "v_mov_b32_e32 v5, v1", "s_nop 1", _MFMA, "?", "v_add_f32_e32 v2, v8, v8"],
        7,
        "the result of a matrix instruction after 6 wait states; it takes 7",
    ),
    "part_of_register": _states(
        [
            "v_mov_b32_sdwa v2, v1 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD",
            "?",
            "v_add_u32_e32 v3, v2, v2",
        ],
        1,
        "placed in part of a register",
    ),
    "part_of_register_again": _states(
        [
            "v_mov_b32_sdwa v2, v1 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD",
            "?",
            "v_mov_b32_e32 v2, v1",
        ],
        1,
        "placed in part of a register",
    ),
    "high_half": _states(
        ["v_mad_u16 v2, v1, v1, v1 op_sel:[0,0,0,1]", "?", "v_add_u32_e32 v3, v2, v2"],
        1,
        "placed in part of a register",
    ),
    "byte_of_register": _states(
        ["v_cvt_sr_fp8_f32 v2, v1, v1 op_sel:[0,0,1,0]", "?", "v_add_u32_e32 v3, v2, v2"],
        1,
        "placed in part of a register",
    ),
    "dot_again": _states(
        ["v_dot2_f32_f16 v2, v1, v1, v1", "?", "v_dot2_f32_f16 v3, v2, v1, v2"], 3, "result of a dot product"
    ),
    "dot_to_memory": _states(
        ["v_dot2_f32_f16 v2, v1, v1, v1", "?", _STORE.format("v2")],
        3,
        "vector memory touches the result of a dot",
    ),
    "dot_to_lds": _states(
        ["v_dot2_f32_f16 v2, v1, v1, v1", "?", "ds_write_b32 v1, v2"],
        3,
        "LDS access touches the result of a dot",
    ),
    "matrix_to_fma": _states(
        [
            *(f"v_mov_b32_e32 v{r}, 0" for r in (4, 5)),
            "s_nop 1",
            "v_mfma_f64_16x16x4_f64 v[8:15], v[4:5], v[4:5], 0",
            "?",
            "v_fma_f64 v[16:17], v[4:5], v[4:5], v[4:5]",
            *_AFTER,
        ],
        2,
        "a float64 FMA follows a float64 matrix instruction",
    ),
    "dot": _states(
        ["v_dot2_f32_f16 v2, v1, v1, v1", "?", "v_add_f32_e32 v3, v2, v2"], 3, "result of a dot product"
    ),
}

_UNWRITTEN = {
    "store": _case(
        "uninitialised", ["?", _STORE.format("v9")], [], ["v_mov_b32_e32 v9, 0"], "v9 of lane 0 .*a store"
    ),
    "address": _case(
        "uninitialised",
        ["?", "global_load_dword v2, v9, s[6:7]"],
        [],
        ["v_mov_b32_e32 v9, 0"],
        "v9 of lane 0 was never written and reaches an address",
    ),
    "arithmetic": _case(
        "uninitialised",
        ["?", "v_add_u32_e32 v2, v9, v1", "v_lshlrev_b32_e32 v3, 1, v2", _STORE.format("v3")],
        [],
        ["v_mov_b32_e32 v9, 0"],
        "v3 of lane 0 .*a store",
    ),
    "lanes": _case(
        "uninitialised",
        ["s_mov_b64 exec, 0xff", "v_mov_b32_e32 v9, 0", "s_mov_b64 exec, -1", "?", _STORE.format("v9")],
        [],
        ["v_mov_b32_e32 v9, 0"],
        "v9 of lane 8 .*a store",
    ),
    "branch": _case(
        "uninitialised",
        ["?", "s_cbranch_scc1 0", _STORE.format("v0")],
        [],
        ["s_cmp_eq_u32 s2, 0"],
        "SCC was never written and reaches a branch",
    ),
    "exec": _case(
        "uninitialised",
        ["?", "s_mov_b64 exec, s[10:11]", _STORE.format("v0")],
        [],
        ["s_mov_b64 s[10:11], -1"],
        "s10 .*EXEC",
    ),
    "scalar": _case(
        "uninitialised",
        ["?", "v_mov_b32_e32 v2, s12", _STORE.format("v2")],
        [],
        ["s_mov_b32 s12, 1"],
        "v2 of lane 0 .*a store",
    ),
    "spilled_scalar": _case(
        "uninitialised",
        [
            "?",
            "v_writelane_b32 v9, s12, 5",
            "s_nop 0",
            "v_readlane_b32 s13, v9, 5",
            "s_nop 1",
            "v_mov_b32_e32 v2, s13",
            _STORE.format("v2"),
        ],
        [],
        ["s_mov_b32 s12, 1"],
        "v2 of lane 0 .*a store",
    ),
    "condition": _case(
        "uninitialised",
        ["?", "s_nop 1", "v_cndmask_b32_e64 v2, v9, v1, s[8:9]", _STORE.format("v2")],
        ["v_cmp_gt_u32_e64 s[8:9], 7, v0"],
        ["v_cmp_gt_u32_e64 s[8:9], 64, v0"],
        "v2 of lane 7 .*a store",
    ),
    "lds": _case(
        "uninitialised",
        ["?", "ds_read_b32 v2, v1", "s_waitcnt lgkmcnt(0)", _STORE.format("v2")],
        [],
        ["ds_write_b32 v1, v0"],
        "v2 of lane 0 .*a store",
    ),
    "lds_byte": _case(
        "uninitialised",
        ["?", "ds_read_b32 v2, v1", "s_waitcnt lgkmcnt(0)", _STORE.format("v2")],
        ["ds_write_b16 v1, v0"],
        ["ds_write_b16 v1, v0", "ds_write_b16 v1, v0 offset:2"],
        "v2 of lane 0 .*a store",
    ),
    "accumulator": _case(
        "uninitialised",
        ["?", "v_accvgpr_read_b32 v2, a0", _STORE.format("v2")],
        [],
        ["v_accvgpr_write_b32 a0, v1"],
        "v2 of lane 0 .*a store",
    ),
    "dpp": _case(
        "uninitialised",
        ["?", "s_nop 1", _DPP.format("v9"), _STORE.format("v3")],
        ["s_mov_b64 exec, 0xfd", "v_mov_b32_e32 v9, 0", "s_mov_b64 exec, -1", "v_mov_b32_e32 v3, 0"],
        ["v_mov_b32_e32 v9, 0"],
        "v3 of lane 0 .*a store",
    ),
}

_BUFFER = ["s_mov_b32 s8, s6", "s_mov_b32 s9, s7", "?", "s_mov_b32 s11, 0x20000"]
_OTHERS = {
    "extent": _case(
        "bounds",
        [*_BUFFER, "buffer_load_dword v3, v1, s[8:11], 0 offen"],
        ["s_movk_i32 s10, 0x104"],
        ["s_movk_i32 s10, 0x100"],
        'the buffer .* reaches outside registered memory: byte 256 of its 260 is the first beyond "in"',
    ),
    # Lanes that the bound refuses are no fault.
    "refused_lanes": _case(
        "bounds",
        [*_BUFFER, "v_add_u32_e32 v2, 0x90, v1", "buffer_load_dword v3, v2, s[8:11], 0 offen offset:4"],
        ["s_movk_i32 s10, 0x101"],
        ["s_movk_i32 s10, 0x100"],
        'the buffer .* reaches outside registered memory: byte 256 of its 257 is the first beyond "in"',
    ),
    "vgpr": _case(
        "resources",
        ["?"],
        ["v_mov_b32_e32 v32, 0"],
        ["v_mov_b32_e32 v31, 0"],
        "uses v32 of lane 0, .* 32 VGPRs",
    ),
    "agpr": _case(
        "resources",
        ["?"],
        ["v_accvgpr_write_b32 a8, 0"],
        ["v_accvgpr_write_b32 a7, 0"],
        "uses a8 of lane 0, .* 8 AGPRs",
    ),
    "sgpr": _case("resources", ["?"], ["s_mov_b32 s40, 0"], ["s_mov_b32 s20, 0"], r"uses s40, .* \d+ SGPRs"),
}

CASES = {
    f"{case.check}_{name}": case
    for group in (_WAITS, _RACES, _STATES, _UNWRITTEN, _OTHERS)
    for name, case in group.items()
}

_DESCRIPTOR = """
.rodata
.p2align 6
.amdhsa_kernel {name}
  .amdhsa_group_segment_fixed_size 4096
  .amdhsa_kernarg_size 16
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_next_free_vgpr 40
  .amdhsa_next_free_sgpr 24
  .amdhsa_accum_offset 32
.end_amdhsa_kernel
"""
_METADATA = """
  - .name: {name}
    .symbol: {name}.kd
    .kernarg_segment_size: 16
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 4096
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 30
    .vgpr_count: 40
    .agpr_count: 8
    .max_flat_workgroup_size: 128
    .args:
      - {{.offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}}
      - {{.offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global}}"""


def assembled(bodies: dict[str, tuple[str, ...]]) -> bytes:
    """A code object with one kernel per body: arguments out and in, 4096 bytes of LDS, 32 VGPRs, 8 AGPRs."""
    text = ['.amdgcn_target "amdgcn-amd-amdhsa--gfx942"']
    for name, body in bodies.items():
        text.append(f".text\n.globl {name}\n.p2align 8\n.type {name},@function\n{name}:{_PROLOGUE}")
        text += [f"  {line}" for line in (*body, "s_endpgm")]
        text.append(f".size {name}, .-{name}" + _DESCRIPTOR.format(name=name))
    text.append(".amdgpu_metadata\namdhsa.version: [1, 2]\namdhsa.kernels:")
    text += [_METADATA.format(name=name) for name in bodies]
    text.append(".end_amdgpu_metadata\n")
    return device_compiler.assemble("\n".join(text))


@functools.cache
def code_object() -> bytes:
    """Kernels NAME_broken and NAME_kept for every case."""
    bodies = {}
    for name, case in CASES.items():
        bodies[f"{name}_broken"], bodies[f"{name}_kept"] = case.broken, case.kept
    return assembled(bodies)
