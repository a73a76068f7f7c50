"""The list of instructions that `liteattention-rocm coverage` prints is what the tests do."""

import pytest

import oracles
from execute_kernels import run
from liteattention_rocm import simulator
from liteattention_rocm.commands import coverage

RESOURCE = "s_mov_b32 s40, s4\n s_mov_b32 s42, 256\n s_mov_b32 s43, {:#x}\n s_or_b32 s41, s5, {:#x}"
BUFFER_LINE = "buffer_load_dword v20, v1, s[40:43], 0 offen"
# mnemonic, what it refuses as the kernel runs, a kernel, what the error says
REFUSALS = [
    ("s_trap", "always: it ends the kernel", "s_trap 2", "trap 2"),
    ("s_sethalt", "halting", "s_sethalt 1", "halts itself"),
    ("s_sendmsg", "messages but 3", "s_sendmsg sendmsg(MSG_INTERRUPT)", "interrupts to the host"),
    ("s_getreg_b32", "registers above 7 but 20", "s_getreg_b32 s20, hwreg(30)", "hardware register 30"),
    (
        "s_setreg_b32",
        "registers but 1 and 3",
        "s_setreg_b32 hwreg(HW_REG_STATUS), s20",
        "hardware register 2",
    ),
    (
        "s_setreg_imm32_b32",
        "registers but 1 and 3",
        "s_setreg_imm32_b32 hwreg(HW_REG_STATUS), 0",
        "register 2",
    ),
    ("ds_swizzle_b32", "FFT patterns", "ds_swizzle_b32 v20, v1 offset:57344", "FFT swizzles"),
    (
        "buffer_load_dword",
        "swizzled buffers",
        f"{RESOURCE.format(0x20000, 1 << 31)}\n {BUFFER_LINE}",
        "swizzled",
    ),
    (
        "buffer_load_dword",
        "added thread ids",
        f"{RESOURCE.format(0x820000, 0)}\n {BUFFER_LINE}",
        "add the thread id",
    ),
]
oracles.declare("stops the kernel", ["s_trap"])
for _name, _circumstance, _, _ in REFUSALS:
    oracles.declare_refusal(_name, _circumstance)


@pytest.mark.parametrize(("mnemonic", "circumstance", "body", "reason"), REFUSALS)
def test_refused_as_the_kernel_runs(mnemonic, circumstance, body, reason):
    with pytest.raises(simulator.SimulatorError, match=reason) as error:
        run(body)
    assert mnemonic in str(error.value)


@pytest.fixture(scope="module")
def table() -> str:
    return oracles.table()


def test_the_committed_table_is_what_the_tests_do(table):
    committed = oracles.TABLE.read_text().splitlines()
    differences = sorted(set(table.splitlines()) ^ set(committed))
    assert not differences, f"run tests/oracles.py; these lines differ: {differences[:10]}"
    assert table.splitlines() == committed


def test_every_executed_instruction_has_an_oracle():
    oracles.load()
    implemented = {row["name"] for row in simulator.coverage() if row["implemented"]}
    assert implemented == {mnemonic for mnemonic, names in oracles.REGISTRY.items() if names}


def test_a_declared_instruction_must_be_in_the_tests_kernels():
    @oracles.checked_by("numpy", "v_mov_b32 v_add_u32")
    def lacking():
        run("v_mov_b32 v20, 1")

    with pytest.raises(AssertionError, match="v_add_u32"):
        lacking()


def test_the_command_knows_every_line_of_the_table():
    rows = coverage.instructions()
    assert [row["name"] for row in rows] == sorted(row["name"] for row in simulator.coverage())
    assert all(row["oracle"] for row in rows)
    assert {row["oracle"] for row in rows if not row["implemented"]} == {"assembler only"}
