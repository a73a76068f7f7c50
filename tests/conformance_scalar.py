"""Scalar instructions on 64 sets of operands each, against AMD's pseudo-code.

Set k comes from lane k of the input rows and its results go to lane k of the output rows, so that scalar and
vector instructions share the shape of a test.
"""

import re
from dataclasses import dataclass

import numpy as np

import support_decode
from conformance_tables import pseudo_code_of
from execute_kernels import LANES, run, store
from pseudo_code import Place
from pseudo_code_values import Value

RANDOM = np.random.default_rng(17)
EDGES = [
    0,
    1,
    2,
    31,
    32,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    0xFFFF,
    0x10000,
    0x001F0003,
    0x00200000,
    0x00070010,
]
SOURCE0, SOURCE1, TARGET, SCC_BIT, M0, EXEC = (
    0,
    2,
    4,
    6,
    7,
    8,
)  # input rows; of two dwords where they are 64 bits wide
ROWS = 10
OUTPUTS = 9  # s26 to s29, SCC, EXEC, M0, and 1 where the next instruction was reached
PC = 0x1000

# Their texts speak of what these tests don't look at: the program counter, traps, queues.
ELSEWHERE = re.compile(r"s_(setpc|swappc|getpc|rfe|cbranch|call|getreg|setreg|set_gpr_idx_on)")


def operand_rows() -> list[np.ndarray]:
    rows = []
    for row in range(ROWS):
        values = RANDOM.integers(0, 1 << 32, LANES, dtype=np.uint64)
        values[: 2 * len(EDGES)] = np.array((EDGES * 30)[row :: row + 1][: 2 * len(EDGES)], np.uint64)
        rows.append(np.roll(values, 3 * row))
    rows[M0] %= 3
    # Equal operands, and neighbours, decide comparisons.
    for row in range(2):
        rows[SOURCE1 + row][-8:] = rows[SOURCE0 + row][-8:]
    rows[EXEC][5] = rows[EXEC + 1][5] = 0
    rows[EXEC][6] = rows[EXEC + 1][6] = 0xFFFFFFFF
    return rows


INPUTS = operand_rows()


@dataclass
class Case:
    row: support_decode.Row
    line: str
    immediate: int = 0

    @property
    def form(self) -> str:
        return next(iter(self.row.forms))

    @property
    def writes(self) -> bool:
        return self.row.operands[:1] not in ((), ("-",)) and "cmpk" not in self.row.mnemonic


def register(number: int, kind: str) -> str:
    return f"s{number}" if support_decode.width(kind) == 1 else f"s[{number}:{number + 1}]"


def all_cases(implemented: set[str]) -> list[Case]:
    found = []
    for row in support_decode.rows():
        form = next(iter(row.forms))
        if row.mnemonic not in implemented or ELSEWHERE.match(row.mnemonic):
            continue
        if form in ("SOP1", "SOP2", "SOPC"):
            operands = [] if row.operands[0] == "-" else [register(26, row.operands[0])]
            operands += [register(20 + 2 * i, kind) for i, kind in enumerate(row.operands[1:])]
            found.append(Case(row, f"{row.mnemonic} {', '.join(operands)}"))
        elif form == "SOPK":
            for immediate in (0, 0x7FFF, 0x8000, 0xFFFF, 0x1234):
                found.append(Case(row, f"{row.mnemonic} s26, {immediate:#x}", immediate))
    return found


def kernel_body(cases: list[Case]) -> str:
    lines = []
    for i in range(ROWS):
        lines.append(
            f"global_load_dword v{32 + i}, v1, s[4:5]\n s_add_u32 s4, s4, 256\n s_addc_u32 s5, s5, 0"
        )
    lines.append("s_waitcnt vmcnt(0)")
    for number, case in enumerate(cases):
        reads = [20, 21, 22, 23, 26, 27, 31, 33, 34, 35]
        lines.append(f"s_mov_b32 s60, 0\n.Lcase{number}:\n s_nop 4")
        lines += [f"v_readlane_b32 s{s}, v{32 + i}, s60" for i, s in enumerate(reads)]
        lines.append(
            "s_nop 4\n s_mov_b32 s28, s22\n s_mov_b32 s29, s23\n s_mov_b32 m0, s33\n"
            "s_mov_b64 exec, s[34:35]\n s_mov_b32 s45, 0\n s_bitcmp1_b32 s31, 0\n s_nop 0\n"
            f"{case.line}\n s_nop 0\n s_cselect_b32 s40, 1, 0\n"
            "s_mov_b32 s45, 1\n s_mov_b64 s[42:43], exec\n s_mov_b32 s44, m0\n s_mov_b32 m0, s60\n"
            "s_mov_b64 exec, -1\n s_nop 4"
        )
        for i, s in enumerate((26, 27, 28, 29, 40, 42, 43, 44, 45)):
            lines.append(f"v_writelane_b32 v{200 + i}, s{s}, m0")
        lines.append(
            f"s_add_u32 s60, s60, 1\n s_cmp_lt_u32 s60, 64\n s_cbranch_scc1 .Lcase{number}\n s_nop 4"
        )
        lines.append(store(*(f"v{200 + i}" for i in range(OUTPUTS))))
    return "\n".join(lines)


def execute(cases: list[Case]) -> list[np.ndarray]:
    out = run(
        kernel_body(cases), [row.astype(np.uint32) for row in INPUTS], OUTPUTS * len(cases), preload=False
    )
    return [out[OUTPUTS * i : OUTPUTS * (i + 1)] for i in range(len(cases))]


class Registers:
    """SGPR[index], as far as the instructions here reach."""

    def __init__(self, values: dict[int, int]):
        self.values = values

    def place(self, path):
        index, rest = path[0][1], path[1:]
        wide = bool(rest) and rest[0][2] == 64

        def read():
            high = self.values.get(index + 1, 0) << 32 if wide else 0
            return Value("u", 64 if wide else 32, self.values[index] | high)

        def write(value):
            self.values[index] = value.raw & 0xFFFFFFFF
            if wide:
                self.values[index + 1] = value.raw >> 32 & 0xFFFFFFFF

        return Place(read, write, "u", 64 if wide else 32, True), rest


def expected(case: Case, lane: int) -> list[int]:
    program, constants = pseudo_code_of(case.row.mnemonic)

    def at(row):
        return int(INPUTS[row][lane])

    def wide(row):
        return at(row) | at(row + 1) << 32

    values = {20: at(0), 21: at(1), 22: at(2), 23: at(3), 26: at(4), 27: at(5), 28: at(2), 29: at(3)}
    name, kinds = case.row.mnemonic, case.row.operands
    size = 32 * (support_decode.width(kinds[0]) if case.writes else 1)
    immediate = Value("u", 16, case.immediate)
    env = dict(
        constants,
        S0=Value("u", 64, wide(SOURCE0)),
        S1=Value("u", 64, wide(SOURCE1)),
        D0=Value("u", size, wide(TARGET) & ((1 << size) - 1)),
        SCC=Value("u", 1, at(SCC_BIT)),
        M0=Value("u", 32, at(M0)),
        EXEC=Value("u", 64, wide(EXEC)),
        SRC0=Value("u", 32, 20),
        DST=Value("u", 32, 26),
        SGPR=Registers(values),
        declared={"D0", "SCC", "M0", "EXEC"},
    )
    if case.form == "SOPK":
        env.update({"S1": immediate, "S0": env["D0"]} if "cmpk" in name else {"S0": immediate})
    program(env)
    if case.writes and "movreld" not in name:
        values[26] = env["D0"].raw & 0xFFFFFFFF
        if size == 64:
            values[27] = env["D0"].raw >> 32
    exec_mask = env["EXEC"].raw
    return [*(values[i] for i in (26, 27, 28, 29)), env["SCC"].raw, exec_mask & 0xFFFFFFFF, exec_mask >> 32,
            env["M0"].raw, 1]  # fmt: skip


FIELDS = ["s26", "s27", "s28", "s29", "SCC", "EXEC low", "EXEC high", "M0", "reached"]


def disagreements(case: Case, rows: np.ndarray) -> list[str]:
    found = []
    for lane in range(LANES):
        for field, got, want in zip(
            FIELDS, (int(row[lane]) for row in rows), expected(case, lane), strict=True
        ):
            if got != want:
                operands = ", ".join(f"{int(row[lane]):#x}" for row in INPUTS[:7])
                found.append(f"{case.line}: set {lane} ({operands}): {field} {got:#x}, expected {want:#x}")
    return found
