# ruff: noqa: E501 (one case of a table a line)
"""Instructions that concern the wave rather than a lane (moves between lanes, the program counter, scalar loads, hardware
registers) against AMD's pseudo-code; and those that may change nothing."""

import itertools

import numpy as np
import pytest

import oracles
from conformance_memory import Memory
from conformance_tables import pseudo_code_of
from execute_kernels import LANES, POISON, run, store
from pseudo_code import Place
from pseudo_code_values import Value

RANDOM = np.random.default_rng(31)
PARTIAL = 0xFFFF_7FFE_F0FF_DFF0
SET_EXEC = f"s_mov_b32 exec_lo, {PARTIAL & 0xFFFFFFFF:#x}\n s_mov_b32 exec_hi, {PARTIAL >> 32:#x}\n s_nop 4"
ALL = "s_mov_b64 exec, -1\n s_nop 4"


class VectorRegisters:
    """VGPR[lane][register] of a text."""

    def __init__(self, values: dict[tuple[int, int], int]):
        self.values = values

    def place(self, path):
        key = path[0][1], path[1][1]
        write = lambda value: self.values.__setitem__(key, value.raw & 0xFFFFFFFF)  # noqa: E731
        return Place(lambda: Value("b", 32, self.values[key]), write, "b", 32, True), path[2:]


def environment(rows, **fields) -> dict:
    """Registers 0, 1, ... hold the rows; EXEC is the partial mask."""
    _, constants = pseudo_code_of("v_mov_b32")
    registers = {(lane, number): int(row[lane]) for number, row in enumerate(rows) for lane in range(LANES)}
    return dict(
        constants,
        VGPR=VectorRegisters(registers),
        EXEC=Value("u", 64, PARTIAL),
        declared={"EXEC", "D0", "SCC", "PC"},
        **{name: Value("u", 32, value) for name, value in fields.items()},
    )


def random_rows(count):
    return [RANDOM.integers(0, 1 << 32, LANES, dtype=np.uint32) for _ in range(count)]


@pytest.mark.parametrize("offset", [0, 4, 132])
@pytest.mark.parametrize("mnemonic", ["ds_permute_b32", "ds_bpermute_b32"])
def test_permutes(mnemonic, offset):
    address, contents, old = random_rows(3)
    text = f" offset:{offset}" if offset else ""
    body = f"v_mov_b32 v20, v12\n {SET_EXEC}\n {mnemonic} v20, v10, v11{text}\n s_waitcnt lgkmcnt(0)\n {ALL}\n {store('v20')}"
    result = run(body, [address, contents, old])[0]
    env = environment([address, contents, old], ADDR=0, OFFSET=offset, DATA0=1, VDST=2)
    program, _ = pseudo_code_of(mnemonic)
    program(dict(env, given=("OFFSET", "DATA0", "VDST")))
    np.testing.assert_array_equal(result, [env["VGPR"].values[lane, 2] for lane in range(LANES)])


oracles.declare("pseudo-code", ["ds_permute_b32", "ds_bpermute_b32"])


@oracles.checked_by("pseudo-code", "v_readlane_b32 v_writelane_b32 v_readfirstlane_b32")
def test_moves_between_lanes_and_scalars():
    """With lanes named by a constant, a register and beyond 63, and with no lane active."""
    (row,) = random_rows(1)
    lanes = [0, 37, 63, 64 + 5, 0xFFFFFFC9]
    lines, expected = [], []
    for lane in lanes:
        lines.append(
            f"s_mov_b32 s20, {lane:#x}\n s_nop 4\n v_readlane_b32 s21, v10, s20\n v_mov_b32 v20, s21\n {store('v20')}"
        )
        env = environment([row], SRC0=0, D0=0, S1=lane)
        pseudo_code_of("v_readlane_b32")[0](env)
        expected.append(np.full(LANES, env["D0"].raw))
        lines.append(
            f"v_mov_b32 v20, v10\n s_mov_b32 m0, s20\n s_nop 4\n v_writelane_b32 v20, s21, m0\n {store('v20')}"
        )
        env = environment([row], VDST=0, S0=env["D0"].raw, S1=lane)
        pseudo_code_of("v_writelane_b32")[0](env)
        expected.append(np.array([env["VGPR"].values[lane, 0] for lane in range(LANES)]))
    for mask in (PARTIAL, 0):
        lines.append(
            (SET_EXEC if mask else "s_mov_b64 exec, 0")
            + f"\n s_nop 4\n v_readfirstlane_b32 s21, v10\n {ALL}\n"
            f"v_mov_b32 v20, s21\n {store('v20')}"
        )
        env = environment([row], SRC0=0, D0=0)
        env["EXEC"] = Value("u", 64, mask)
        pseudo_code_of("v_readfirstlane_b32")[0](env)
        expected.append(np.full(LANES, env["D0"].raw))
    np.testing.assert_array_equal(run("\n".join(lines), [row], len(expected)), expected)


@oracles.checked_by("pseudo-code", "v_swap_b32")
def test_swap():
    a, b = random_rows(2)
    body = f"{SET_EXEC}\n v_swap_b32 v10, v11\n {ALL}\n {store('v10', 'v11')}"
    result = run(body, [a, b], 2)
    program, _ = pseudo_code_of("v_swap_b32")
    for lane in range(LANES):
        env = {
            "D0": Value("b", 32, int(a[lane])),
            "S0": Value("b", 32, int(b[lane])),
            "declared": {"D0", "S0"},
        }
        if PARTIAL >> lane & 1:
            program(env)
        assert [int(row[lane]) for row in result] == [env["D0"].raw, env["S0"].raw]


# Scalar loads


SCALAR_LOADS = [
    (f"s_{buffer}load_dword{suffix}", dwords, bool(buffer))
    for buffer in ("", "buffer_")
    for suffix, dwords in (("", 1), ("x2", 2), ("x4", 4), ("x8", 8), ("x16", 16))
]
oracles.declare("pseudo-code", [mnemonic for mnemonic, _, _ in SCALAR_LOADS])


@pytest.mark.parametrize(("mnemonic", "dwords", "buffer"), SCALAR_LOADS)
def test_scalar_load(mnemonic, dwords, buffer):
    """The address is base + immediate + register, its two lowest bits ignored."""
    contents = RANDOM.integers(0, 256, 2048, dtype=np.uint8)
    kept = contents.copy()
    body, expected = (
        ["s_load_dwordx2 s[40:41], s[0:1], 0x10\n s_mov_b32 s42, 2048\n s_mov_b32 s43, 0x20000"],
        [],
    )
    base = "s[40:43]" if buffer else "s[40:41]"
    target = "s64" if dwords == 1 else f"s[64:{63 + dwords}]"
    for immediate, register in itertools.product((0, 4, 0x35A), (None, 0, 64, 0x103)):
        text = f"s50 offset:{immediate:#x}" if register is not None else f"{immediate:#x}"
        body.append(
            f"s_mov_b32 s50, {register or 0}\n s_waitcnt lgkmcnt(0)\n {mnemonic} {target}, {base}, {text}"
        )
        body.append("s_waitcnt lgkmcnt(0)")
        for i in range(dwords):
            body.append(f"v_mov_b32 v20, s{64 + i}\n {store('v20')}")
        env = environment([], SBASE=0, OFFSET=immediate, SOFFSET=register or 0)
        env.update(MEM=Memory(bytearray(kept.tobytes())), SDATA=Value("b", 32 * dwords, 0))
        env["declared"].add("SDATA")
        for name in ("Global", "Buffer"):
            env[f"CalcScalar{name}Addr"] = lambda env, arguments: Value(
                "u", 32, sum(argument.raw for argument in arguments) & ~3
            )
        pseudo_code_of(mnemonic)[0](env)
        expected += [env["SDATA"].raw >> 32 * i & 0xFFFFFFFF for i in range(dwords)]
    result = run("\n".join(body), [], len(expected), extra=contents)
    assert [int(row[0]) for row in result] == expected


# The program counter


def reached(program, **state) -> int:
    """The program counter after a branch by 16 bytes at 0x1000."""
    env = environment([])
    env.update(PC=Value("i", 64, 0x1000), SIMM16=Value("i", 16, 4), D0=Value("b", 64, 0))
    for name, value in state.items():
        env[name] = Value("u", 1, value)
    program(env)
    return env["PC"].raw


BRANCHES = [
    ("s_branch", {}),
    *((f"s_cbranch_scc{k}", {"SCC": value}) for k in (0, 1) for value in (0, 1)),
    *((f"s_cbranch_vcc{k}", {"VCCZ": value}) for k in ("z", "nz") for value in (0, 1)),
    *((f"s_cbranch_exec{k}", {"EXECZ": value}) for k in ("z", "nz") for value in (0, 1)),
    *(
        (f"s_cbranch_cdbg{k}", {"WAVE_STATUS.COND_DBG_SYS": 0, "WAVE_STATUS.COND_DBG_USER": 0})
        for k in ("sys", "user", "sys_or_user", "sys_and_user")
    ),
]
oracles.declare("pseudo-code", dict(BRANCHES))


@pytest.mark.parametrize(("mnemonic", "state"), BRANCHES)
def test_branch(mnemonic, state):
    body = f"""
 s_mov_b64 vcc, {0 if state.get("VCCZ") else 8}
 s_mov_b64 exec, {0 if state.get("EXECZ") else 8}
 s_mov_b32 s20, 1
 s_cmp_eq_u32 {state.get("SCC", 0)}, 1
 {mnemonic} 4
 s_mov_b32 s20, 0x11111111
 s_mov_b32 s20, 0x22222222
 s_nop 0
 s_mov_b64 exec, -1
 v_mov_b32 v20, s20
 {store("v20")}"""
    taken = run(body)[0][0] == 1
    assert reached(pseudo_code_of(mnemonic)[0], **state) == (0x1014 if taken else 0x1004)


@oracles.checked_by("pseudo-code", "s_getpc_b64 s_setpc_b64 s_swappc_b64 s_call_b64")
def test_program_counter():
    """Every jump skips a move of 8 bytes; what the instructions save is compared relative to their address."""
    body = f"""
 s_mov_b32 s30, 1
 s_getpc_b64 s[20:21]
origin:
 s_add_u32 s22, s20, first-origin
 s_addc_u32 s23, s21, 0
 s_setpc_b64 s[22:23]
 s_mov_b32 s30, 0x11111111
first:
 s_add_u32 s22, s20, second-origin
 s_addc_u32 s23, s21, 0
 s_swappc_b64 s[24:25], s[22:23]
after_swap:
 s_mov_b32 s30, 0x22222222
second:
 s_call_b64 s[26:27], 2
after_call:
 s_mov_b32 s30, 0x33333333
 s_sub_u32 s24, s24, s20
 s_sub_u32 s26, s26, s20
 v_mov_b32 v20, s30
 v_mov_b32 v21, s24
 v_mov_b32 v22, s26
 v_mov_b32 v23, after_swap-origin
 v_mov_b32 v24, after_call-origin
 {store("v20", "v21", "v22", "v23", "v24")}"""
    moves, swapped, called, after_swap, after_call = (int(row[0]) for row in run(body, [], 5))

    def state(mnemonic, **fields):
        env = environment([])
        env.update(PC=Value("i", 64, 0x1000), D0=Value("b", 64, 0), **fields)
        pseudo_code_of(mnemonic)[0](env)
        return env["PC"].raw, env["D0"].raw

    target = Value("i", 64, 0x4440)
    assert state("s_getpc_b64")[1] == 0x1004  # where `origin` is
    assert state("s_setpc_b64", S0=target)[0] == 0x4440 and moves == 1
    assert state("s_swappc_b64", S0=target) == (0x4440, 0x1004) and swapped == after_swap
    assert state("s_call_b64", SIMM16=Value("i", 16, 2)) == (0x100C, 0x1004) and called == after_call


# Hardware registers and relative addressing


class HardwareRegisters:
    def __init__(self, values):
        self.values = values

    def place(self, path):
        key = path[0][1]
        write = lambda value: self.values.__setitem__(key, value.raw)  # noqa: E731
        return Place(lambda: Value("u", 32, self.values[key]), write, "u", 32, True), path[1:]


@oracles.checked_by("pseudo-code", "s_getreg_b32 s_setreg_b32 s_setreg_imm32_b32")
@pytest.mark.parametrize(("offset", "size"), [(0, 32), (4, 4), (0, 2), (6, 2), (23, 1)])
def test_hardware_register_fields(offset, size):
    """Fields of MODE, register 1, of which a program may write the lower byte and bit 23."""
    writable = 0x8000FF
    values = [0x5A5A5A5A & writable >> offset, 0xA5A5A5A5 & writable >> offset]
    whole = "s_getreg_b32 s{}, hwreg(HW_REG_MODE)"
    part = f"hwreg(HW_REG_MODE, {offset}, {size})"
    body = f"""
 {whole.format(20)}
 s_setreg_imm32_b32 {part}, {values[0]:#x}
 s_nop 2
 {whole.format(21)}
 s_mov_b32 s30, {values[1]:#x}
 s_setreg_b32 {part}, s30
 s_nop 2
 {whole.format(22)}
 s_getreg_b32 s23, {part}
 {" ".join(f"v_mov_b32 v{r}, s{r}" + chr(10) for r in range(20, 24))}
 {store("v20", "v21", "v22", "v23")}"""
    before, first, second, field = (int(row[0]) for row in run(body, [], 4))
    env = environment([])
    env.update(
        SIMM16=Value("u", 16, 1 | offset << 6 | (size - 1) << 11),
        HW_REGISTERS=HardwareRegisters({1: before}),
        D0=Value("u", 32, 0),
        HwRegWriteMask=lambda env, arguments: Value("i", 32, 0xFFFFFFFF if size < 32 else writable),
    )
    env["WAVE_STATUS.PRIV"] = Value("u", 1, 0)
    if size == 32:  # the bits around the writable ones are rewritten with zeros; leave them out
        first, second, before = (x & writable for x in (first, second, before))
        env["HW_REGISTERS"].values[1] = before
    pseudo_code_of("s_setreg_imm32_b32")[0](dict(env, SIMM32=Value("u", 32, values[0])))
    assert env["HW_REGISTERS"].values[1] == first
    pseudo_code_of("s_setreg_b32")[0](dict(env, S0=Value("u", 32, values[1])))
    assert env["HW_REGISTERS"].values[1] == second
    pseudo_code_of("s_getreg_b32")[0](env)
    assert env["D0"].raw == (field & writable if size == 32 else field)


@oracles.checked_by("pseudo-code", "s_set_gpr_idx_on s_set_gpr_idx_mode s_set_gpr_idx_off")
def test_relative_addressing_mode():
    """M0 after each instruction."""
    start, index = 0x12345678, 0x89AB
    body = f"""
 s_mov_b32 m0, {start:#x}
 s_mov_b32 s20, {index:#x}
 s_set_gpr_idx_on s20, gpr_idx(SRC0,DST)
 s_mov_b32 s21, m0
 s_set_gpr_idx_mode gpr_idx(SRC1,SRC2)
 s_mov_b32 s22, m0
 s_set_gpr_idx_off
 s_mov_b32 s23, m0
 {" ".join(f"v_mov_b32 v{r}, s{r}" + chr(10) for r in (21, 22, 23))}
 {store("v21", "v22", "v23")}"""
    env = environment([], M0=start, S0=index, SRC1=0b1001)
    env["declared"].add("M0")
    expected = []
    for mnemonic, mode in (("s_set_gpr_idx_on", 0), ("s_set_gpr_idx_mode", 0b0110), ("s_set_gpr_idx_off", 0)):
        env["SIMM16"] = Value("u", 16, mode)
        pseudo_code_of(mnemonic)[0](env)
        expected.append(env["M0"].raw)
    assert [int(row[0]) for row in run(body, [], 3)] == expected


# What changes no register and no memory


NO_EFFECT = [
    *(
        "s_nop 3",
        "s_sleep 1",
        "s_setprio 2",
        "s_wakeup",
        "s_icache_inv",
        "s_incperflevel 1",
        "s_decperflevel 1",
    ),
    *(
        "s_ttracedata",
        "s_dcache_inv",
        "s_dcache_wb",
        "s_dcache_inv_vol",
        "s_dcache_wb_vol",
        "buffer_wbl2 sc1",
    ),
    *(
        "buffer_inv sc1",
        "ds_nop",
        "v_nop",
        "v_clrexcp",
        "s_waitcnt vmcnt(0) expcnt(0) lgkmcnt(0)",
        "s_barrier",
    ),
    *("s_sethalt 0", "s_atc_probe 1, s[4:5], 0x10", "s_atc_probe_buffer 1, s[8:11], 0x10"),
    "s_sendmsg 3",  # gives back vector registers that the wave no longer needs
]
oracles.declare("unchanged state", [line.split()[0] for line in NO_EFFECT])


@pytest.mark.parametrize("line", NO_EFFECT)
def test_changes_nothing(line):
    rows = random_rows(3)
    scalars = list(range(20, 100))
    mask = 0xDEAD_BEEF_0123_4567
    body = [f"s_mov_b32 s{s}, {0x1000 + 77 * s:#x}" for s in scalars]
    body.append(f"""
 v_lshlrev_b32 v2, 2, v0
 ds_write_b32 v2, v12
 s_mov_b32 vcc_lo, {mask & 0xFFFFFFFF:#x}
 s_mov_b32 vcc_hi, {mask >> 32:#x}
 s_mov_b32 m0, 0x4321
 s_mov_b32 exec_lo, {mask >> 32:#x}
 s_waitcnt lgkmcnt(0)
 s_cmp_eq_u32 0, 0
 {line}
 s_cselect_b32 s20, 1, 0
 s_mov_b64 s[22:23], exec
 s_mov_b64 exec, -1
 s_nop 4
 ds_read_b32 v13, v2
 s_waitcnt lgkmcnt(0)""")
    names = [*(f"s{s}" for s in scalars), "vcc_lo", "vcc_hi", "m0"]
    for i in range(0, len(names), 8):
        body += [f"v_mov_b32 v{20 + k}, {name}" for k, name in enumerate(names[i : i + 8])]
        body.append(store(*(f"v{20 + k}" for k in range(len(names[i : i + 8])))))
    body.append(store("v10", "v11", "v12", "v13"))
    result = run("\n".join(body), rows, len(names) + 4, lds=256)
    expected = {f"s{s}": 0x1000 + 77 * s for s in scalars}
    expected.update(
        s20=1, s22=mask >> 32, s23=0xFFFFFFFF, vcc_lo=mask & 0xFFFFFFFF, vcc_hi=mask >> 32, m0=0x4321
    )
    assert {name: int(row[0]) for name, row in zip(names, result, strict=False)} == expected
    np.testing.assert_array_equal(result[len(names) :], [*rows, rows[2]])


@pytest.mark.parametrize("mnemonic", ["s_endpgm", "s_endpgm_saved"])
def test_nothing_runs_after_the_end(mnemonic):
    assert (run(f"{mnemonic}\n {store('v1')}")[0] == POISON).all()


oracles.declare("unchanged state", ["s_endpgm", "s_endpgm_saved"])


@pytest.mark.parametrize("mnemonic", ["s_memtime", "s_memrealtime"])
def test_time_goes_on(mnemonic):
    body = [f"{mnemonic} s[{20 + 2 * i}:{21 + 2 * i}]\n s_waitcnt lgkmcnt(0)\n s_sleep 1" for i in range(4)]
    body += [f"v_mov_b32 v{20 + i}, s{20 + i}" for i in range(8)]
    rows = run("\n".join([*body, store(*(f"v{20 + i}" for i in range(8)))]), [], 8)
    times = [int(rows[2 * i][0]) | int(rows[2 * i + 1][0]) << 32 for i in range(4)]
    assert times == sorted(set(times))


oracles.declare("increasing time", ["s_memtime", "s_memrealtime"])
