# ruff: noqa: E501 (one case of a table a line)
"""Scalar instructions against Python integers."""

import random

import numpy as np
import pytest

from execute_kernels import run, store
from liteattention_rocm import simulator

RANDOM = random.Random(3)
EDGE = [0, 1, 2, 31, 32, 63, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xDEADBEEF]
LOW = 2**32 - 1
WIDE = 2**64 - 1


def signed(value, bits=32):
    return value - 2**bits if value >> (bits - 1) else value


def overflows(value):
    return not -(2**31) <= value < 2**31


def extract(value, control, bits):
    offset, width = control & (bits - 1), min(control >> 16 & 0x7F, bits)
    return value >> offset & ((1 << width) - 1) if width else 0


def extract_signed(value, control, bits):
    offset, width = control & (bits - 1), min(control >> 16 & 0x7F, bits)
    if not width:
        return 0
    width = min(width, bits - offset)
    return signed(extract(value, control, bits), width) & (2**bits - 1)


# mnemonic: (result, SCC or None where it is left alone) of two operands
TWO_32 = {
    "s_add_u32": lambda a, b: (a + b, a + b > LOW),
    "s_sub_u32": lambda a, b: (a - b, a < b),
    "s_add_i32": lambda a, b: (a + b, overflows(signed(a) + signed(b))),
    "s_sub_i32": lambda a, b: (a - b, overflows(signed(a) - signed(b))),
    "s_min_i32": lambda a, b: (min(signed(a), signed(b)), signed(a) < signed(b)),
    "s_max_i32": lambda a, b: (max(signed(a), signed(b)), signed(a) >= signed(b)),
    "s_min_u32": lambda a, b: (min(a, b), a < b),
    "s_max_u32": lambda a, b: (max(a, b), a >= b),
    "s_and_b32": lambda a, b: (a & b, a & b != 0),
    "s_or_b32": lambda a, b: (a | b, a | b != 0),
    "s_xor_b32": lambda a, b: (a ^ b, a ^ b != 0),
    "s_andn2_b32": lambda a, b: (a & ~b, a & ~b & LOW != 0),
    "s_orn2_b32": lambda a, b: (a | ~b, (a | ~b) & LOW != 0),
    "s_nand_b32": lambda a, b: (~(a & b), ~(a & b) & LOW != 0),
    "s_lshl_b32": lambda a, b: (a << (b & 31), (a << (b & 31)) & LOW != 0),
    "s_lshr_b32": lambda a, b: (a >> (b & 31), a >> (b & 31) != 0),
    "s_ashr_i32": lambda a, b: (signed(a) >> (b & 31), signed(a) >> (b & 31) != 0),
    "s_bfe_u32": lambda a, b: (extract(a, b, 32), extract(a, b, 32) != 0),
    "s_bfe_i32": lambda a, b: (extract_signed(a, b, 32), extract_signed(a, b, 32) != 0),
    "s_bfm_b32": lambda a, b: (((1 << (a & 31)) - 1) << (b & 31), None),
    "s_mul_i32": lambda a, b: (a * b, None),
    "s_mul_hi_u32": lambda a, b: (a * b >> 32, None),
    "s_mul_hi_i32": lambda a, b: (signed(a) * signed(b) >> 32, None),
    "s_absdiff_i32": lambda a, b: (abs(signed((a - b) & LOW)), a != b),
    "s_lshl2_add_u32": lambda a, b: ((a << 2) + b, (a << 2) + b > LOW),
    "s_pack_ll_b32_b16": lambda a, b: (a & 0xFFFF | b << 16, None),
    "s_pack_lh_b32_b16": lambda a, b: (a & 0xFFFF | b & 0xFFFF0000, None),
    "s_pack_hh_b32_b16": lambda a, b: (a >> 16 | b & 0xFFFF0000, None),
}
TWO_64 = {
    "s_and_b64": lambda a, b: (a & b, a & b != 0),
    "s_andn2_b64": lambda a, b: (a & ~b, a & ~b & WIDE != 0),
    "s_xnor_b64": lambda a, b: (~(a ^ b), ~(a ^ b) & WIDE != 0),
}
SHIFT_64 = {
    "s_lshl_b64": lambda a, b: (a << (b & 63), (a << (b & 63)) & WIDE != 0),
    "s_lshr_b64": lambda a, b: (a >> (b & 63), a >> (b & 63) != 0),
    "s_ashr_i64": lambda a, b: (signed(a, 64) >> (b & 63), signed(a, 64) >> (b & 63) != 0),
    "s_bfe_u64": lambda a, b: (extract(a, b, 64), extract(a, b, 64) != 0),
    "s_bfe_i64": lambda a, b: (extract_signed(a, b, 64), extract_signed(a, b, 64) != 0),
}
ONE_32 = {
    "s_mov_b32": lambda a: (a, None),
    "s_not_b32": lambda a: (~a, ~a & LOW != 0),
    "s_brev_b32": lambda a: (int(f"{a:032b}"[::-1], 2), None),
    "s_bcnt1_i32_b32": lambda a: (a.bit_count(), a != 0),
    "s_bcnt0_i32_b32": lambda a: (32 - a.bit_count(), a != LOW),
    "s_ff1_i32_b32": lambda a: ((a & -a).bit_length() - 1, None),
    "s_ff0_i32_b32": lambda a: ((~a & LOW & -(~a & LOW)).bit_length() - 1, None),
    "s_flbit_i32_b32": lambda a: (32 - a.bit_length() if a else -1, None),
    "s_flbit_i32": lambda a: (-1 if a in (0, LOW) else 32 - min(a, ~a & LOW).bit_length(), None),
    "s_sext_i32_i8": lambda a: (signed(a & 0xFF, 8), None),
    "s_sext_i32_i16": lambda a: (signed(a & 0xFFFF, 16), None),
    "s_abs_i32": lambda a: (abs(signed(a)), a != 0),
    "s_wqm_b32": lambda a: (sum(0xF << 4 * q for q in range(8) if a >> 4 * q & 0xF), a != 0),
}
ONE_64 = {
    "s_mov_b64": lambda a: (a, None),
    "s_not_b64": lambda a: (~a, ~a & WIDE != 0),
    "s_brev_b64": lambda a: (int(f"{a:064b}"[::-1], 2), None),
}
COUNT_64 = {
    "s_bcnt1_i32_b64": lambda a: (a.bit_count(), a != 0),
    "s_ff1_i32_b64": lambda a: ((a & -a).bit_length() - 1, None),
    "s_flbit_i32_b64": lambda a: (64 - a.bit_length() if a else -1, None),
}


def operands(wide):
    values = [RANDOM.choice(EDGE) if RANDOM.random() < 0.6 else RANDOM.getrandbits(32)]
    return values[0] | (RANDOM.choice([0, LOW, RANDOM.getrandbits(32)]) << 32 if wide else 0)


def load(register, value, wide):
    text = f"s_mov_b32 s{register}, {value & LOW:#x}\n"
    return text + (f"s_mov_b32 s{register + 1}, {value >> 32:#x}\n" if wide else "")


def group(register, wide):
    return f"s[{register}:{register + 1}]" if wide else f"s{register}"


@pytest.mark.parametrize(
    "table, result_wide, sources",
    [
        (TWO_32, False, (False, False)),
        (TWO_64, True, (True, True)),
        (SHIFT_64, True, (True, False)),
        (ONE_32, False, (False,)),
        (ONE_64, True, (True,)),
        (COUNT_64, False, (True,)),
    ],
    ids=["two_32", "two_64", "shift_64", "one_32", "one_64", "count_64"],
)
def test_arithmetic(table, result_wide, sources):
    cases, body = [], []
    for mnemonic in table:
        for _ in range(8):
            values = [operands(wide) for wide in sources]
            scc = RANDOM.getrandbits(1)
            cases.append((mnemonic, values, scc))
            names = ", ".join(group(20 + 4 * i, wide) for i, wide in enumerate(sources))
            body += [load(20 + 4 * i, v, w) for i, (v, w) in enumerate(zip(values, sources, strict=True))]
            body.append(f"s_cmp_eq_u32 {scc}, 1\n {mnemonic} {group(30, result_wide)}, {names}")
            body.append("s_cselect_b32 s34, 1, 0")
            # One row takes three results: lanes 0, 1 and 2.
            high = "s31" if result_wide else "s30"
            body.append(f"v_mov_b32 v20, s30\n s_mov_b32 s35, {high}\n v_writelane_b32 v20, s35, 1")
            body.append(f"v_writelane_b32 v20, s34, 2\n {store('v20')}")
    rows = run("\n".join(body), [], len(cases))
    for (mnemonic, values, scc), row in zip(cases, rows, strict=True):
        result, flag = table[mnemonic](*values)
        got = int(row[0]) | (int(row[1]) << 32 if result_wide else 0)
        assert got == result & (WIDE if result_wide else LOW), (mnemonic, [hex(v) for v in values])
        assert row[2] == (scc if flag is None else int(flag)), (mnemonic, "SCC", [hex(v) for v in values])


def test_carries():
    body = f"""
 s_mov_b32 s20, -1
 s_add_u32 s21, s20, 1
 s_addc_u32 s22, 5, 0
 s_sub_u32 s23, 0, 1
 s_subb_u32 s24, 5, 0
 v_mov_b32 v20, s21
 v_mov_b32 v21, s22
 v_mov_b32 v22, s23
 v_mov_b32 v23, s24
 {store("v20", "v21", "v22", "v23")}"""
    assert [int(row[0]) for row in run(body, [], 4)] == [0, 6, LOW, 4]


def test_comparisons_and_immediates():
    body, expected = [], []
    cases = [(5, 7), (7, 5), (LOW, 1), (3, 3), (0x80000000, 0x7FFFFFFF)]
    compare = {
        "eq": lambda a, b: a == b,
        "lg": lambda a, b: a != b,
        "gt": lambda a, b: a > b,
        "ge": lambda a, b: a >= b,
        "lt": lambda a, b: a < b,
        "le": lambda a, b: a <= b,
    }
    for kind, view in (("i32", signed), ("u32", int)):
        for name, function in compare.items():
            for a, b in cases:
                body.append(f"s_mov_b32 s20, {a:#x}\n s_mov_b32 s21, {b:#x}\n s_cmp_{name}_{kind} s20, s21")
                body.append(f"s_cselect_b32 s22, 1, 0\n v_mov_b32 v20, s22\n {store('v20')}")
                expected.append(function(view(a), view(b)))
    for line, value in (
        ("s_cmpk_lt_i32 s20, -3", True),
        ("s_cmpk_gt_u32 s20, 0xfffe", True),
        ("s_bitcmp1_b32 s20, 4", True),
    ):
        body.append(
            f"s_mov_b32 s20, -8\n s_bitset1_b32 s20, 4\n {line}\n s_cselect_b32 s22, 1, 0\n v_mov_b32 v20, s22\n {store('v20')}"
        )
        expected.append(value)
    rows = run("\n".join(body), [], len(expected))
    assert [int(row[0]) for row in rows] == [int(value) for value in expected]
    body = f"""
 s_movk_i32 s20, -5
 s_addk_i32 s20, 0x7
 s_mulk_i32 s20, -3
 s_cmp_eq_u32 0, 0
 s_cmovk_i32 s21, 77
 v_mov_b32 v20, s20
 v_mov_b32 v21, s21
 {store("v20", "v21")}"""
    rows = run(body, [], 2)
    assert signed(int(rows[0][0])) == -6 and rows[1][0] == 77


def test_saveexec():
    body = f"""
 s_mov_b64 exec, 0xff
 s_mov_b32 s20, 0xf0f0
 s_mov_b32 s21, 0
 s_and_saveexec_b64 s[22:23], s[20:21]
 v_mov_b32 v20, 1
 s_mov_b64 exec, s[22:23]
 s_andn2_b64 exec, exec, s[20:21]
 v_mov_b32 v20, 2
 s_mov_b64 exec, -1
 {store("v20")}"""
    row = run(f"v_mov_b32 v20, 0\n {body}", [], 1)[0]
    assert list(row[:9]) == [2, 2, 2, 2, 1, 1, 1, 1, 0]


def test_branches_and_calls():
    body = f"""
 s_mov_b32 s20, 0
 s_mov_b32 s21, 5
loop:
 s_add_i32 s20, s20, s21
 s_sub_i32 s21, s21, 1
 s_cmp_lg_u32 s21, 0
 s_cbranch_scc1 loop
 s_getpc_b64 s[22:23]
 s_add_u32 s22, s22, function-.
 s_addc_u32 s23, s23, 0
 s_sub_u32 s22, s22, 0
 s_branch over
function:
 s_mul_i32 s20, s20, 3
 s_setpc_b64 s[24:25]
over:
 s_getpc_b64 s[22:23]
here:
 s_sub_u32 s22, s22, here-function
 s_subb_u32 s23, s23, 0
 s_swappc_b64 s[24:25], s[22:23]
 s_call_b64 s[24:25], function
 s_mov_b64 vcc, 0
 s_cbranch_vccnz wrong
 s_mov_b64 s[26:27], exec
 s_mov_b64 exec, 0
 s_cbranch_execz done
wrong:
 s_mov_b32 s20, 0
done:
 s_mov_b64 exec, -1
 v_mov_b32 v20, s20
 {store("v20")}"""
    assert (run(body)[0] == 15 * 9).all()


def test_scalar_loads():
    rows = [np.arange(64, dtype=np.uint32) + 1000 * i for i in range(3)]
    body = f"""
 s_load_dwordx8 s[24:31], s[4:5], 0x10
 s_mov_b32 s20, 256
 s_load_dword s21, s[4:5], s20
 s_load_dword s22, s[4:5], s20 offset:0x104
 s_mov_b32 s40, s4
 s_and_b32 s41, s5, 0xffff
 s_mov_b32 s42, 264
 s_mov_b32 s43, 0x20000
 s_buffer_load_dwordx4 s[44:47], s[40:43], 0x100
 s_waitcnt lgkmcnt(0)
 v_mov_b32 v20, s24
 v_mov_b32 v21, s31
 v_mov_b32 v22, s21
 v_mov_b32 v23, s22
 v_mov_b32 v24, s45
 v_mov_b32 v25, s46
 {store("v20", "v21", "v22", "v23", "v24", "v25")}"""
    # The buffer ends after two of the four dwords: the others read 0.
    assert [int(row[0]) for row in run(body, rows, 6)] == [4, 11, 1000, 2001, 1001, 0]


def test_special_sources():
    body = f"""
 s_cmp_eq_u32 0, 0
 s_mov_b32 s20, src_scc
 s_mov_b64 vcc, 0
 v_mov_b32 v20, src_vccz
 s_mov_b64 s[22:23], src_shared_base
 s_mov_b64 s[24:25], src_private_base
 v_mov_b32 v21, s20
 s_cmp_lg_u32 s23, s25
 s_cselect_b32 s26, 1, 0
 v_mov_b32 v22, s26
 s_getreg_b32 s27, hwreg(HW_REG_MODE, 4, 4)
 v_mov_b32 v23, s27
 {store("v20", "v21", "v22", "v23")}"""
    # The descriptor's default keeps float16 and float64 subnormals, and these kernels keep float32's.
    assert [int(row[0]) for row in run(body, [], 4)] == [1, 1, 1, 15]


@pytest.mark.parametrize(
    "line, reason",
    [
        ("s_trap 2", "trap 2"),
        ("s_sendmsg sendmsg(MSG_INTERRUPT)", "not modelled"),
        ("s_setreg_imm32_b32 hwreg(HW_REG_STATUS), 0", "hardware register 2"),
        ("s_cbranch_g_fork s[20:21], s[22:23]", "not implemented"),
    ],
)
def test_what_is_not_modelled_is_an_error(line, reason):
    with pytest.raises(simulator.SimulatorError, match=reason):
        run(line)
