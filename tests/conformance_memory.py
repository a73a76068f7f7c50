"""Loads, stores and atomics of LDS, global, flat, buffer and scratch memory against AMD's pseudo-code.

Every lane works in a slot of its own; what the texts call MEM is that slot's surroundings, byte by byte. How
an address is put together is this file's own knowledge: the texts leave it to functions such as CalcDsAddr.
"""

import re
from dataclasses import dataclass

import numpy as np

import floating_point as fp
import support_decode
from conformance_tables import pseudo_code_of, text_of
from conformance_vector import FULL, PARTIAL
from execute_kernels import LANES, run, store
from pseudo_code import Place
from pseudo_code_values import Value

RANDOM = np.random.default_rng(23)
SLOT = 32  # bytes a lane
REGION = LANES * SLOT  # bytes a case
LDS_BYTES = 2 * REGION
CLASSES = ["int", "f32", "f64", "f16", "bf16"]
MEMORY, DATA, DATA2 = 0, 8, 12  # of a class's 16 rows
FIRST = 20  # VGPR of the first row
RESULT, READ_BACK = 200, 210

# No text, or one of prose, or data that doesn't come from a slot.
ELSEWHERE = re.compile(
    r"ds_(nop|swizzle|b?permute|gws|append|consume)|.*_lds_|buffer_(wbl2|inv)|.*_format_|.*addtid"
)


def float_rows(kind, pattern, edges):
    values = (RANDOM.standard_normal(LANES) * 2.0 ** RANDOM.integers(-5, 6, LANES)).astype(kind).view(pattern)
    values[: len(edges)] = np.roll(np.array(edges, pattern), RANDOM.integers(len(edges)))
    return RANDOM.permutation(values).astype(np.uint64)


def class_rows(name: str) -> list[np.ndarray]:
    edges32 = [0, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 1, 0x80000001, 0x7F7FFFFF, 0x3F800000]
    edges16 = [0, 0x8000, 0x7C00, 0xFC00, 0x7E00, 1, 0x8001, 0x7BFF, 0x3C00]
    rows = []
    for _ in range(8):
        if name == "int":
            pair = [RANDOM.integers(0, 1 << 32, LANES, dtype=np.uint64) for _ in range(2)]
            pair[0][:6] = RANDOM.permutation([0, 1, 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 0x80])
        elif name == "f64":
            edges = [
                0,
                1 << 63,
                0x7FF0 << 48,
                0xFFF0 << 48,
                0x7FF8 << 48,
                1,
                0x7FEF_FFFF_FFFF_FFFF,
                0x3FF0 << 48,
            ]
            wide = float_rows(np.float64, np.uint64, edges)
            pair = [wide & np.uint64(0xFFFFFFFF), wide >> np.uint64(32)]
        elif name == "f32":
            pair = [float_rows(np.float32, np.uint32, edges32) for _ in range(2)]
        elif name == "f16":
            pair = [
                float_rows(np.float16, np.uint16, edges16)
                | float_rows(np.float16, np.uint16, edges16) << np.uint64(16)
                for _ in range(2)
            ]
        else:  # bf16: upper halves of float32
            pair = [
                float_rows(np.float32, np.uint32, edges32) >> np.uint64(16)
                | float_rows(np.float32, np.uint32, edges32) & np.uint64(0xFFFF0000)
                for _ in range(2)
            ]
        rows += pair
    for i in range(2):  # what compare-and-swap waits for
        rows[MEMORY + i][1::2] = rows[DATA + i][1::2]
    return rows


ROWS = {name: class_rows(name) for name in CLASSES}


def row_register(name: str, row: int) -> int:
    return FIRST + 16 * CLASSES.index(name) + row


@dataclass
class Case:
    row: support_decode.Row
    form: str
    line: str
    number: int
    exec: int
    stride: int = SLOT
    offset: int = 0
    offset1: int = 0
    returns: bool = True  # the destination, if any, is written
    file: str = "v"  # of result and data: "v" or "a"

    @property
    def kind(self) -> str:
        match = re.search(r"_(bf16|f16|f32|f64)", self.row.mnemonic)
        return match[1] if match else "int"

    @property
    def result_dwords(self) -> int:
        kinds = self.row.operands
        if self.form == "DS" or self.form in ("FLAT", "GLOBAL", "SCRATCH"):
            return 0 if kinds[0] == "-" or not self.returns else support_decode.width(kinds[0])
        return support_decode.width(kinds[0]) if self.loads or (self.returns and self.atomic) else 0

    @property
    def atomic(self) -> bool:
        return "atomic" in self.row.mnemonic

    @property
    def loads(self) -> bool:
        return "load" in self.row.mnemonic or "_read" in self.row.mnemonic


def registers(file: str, first: int, dwords: int) -> str:
    return f"{file}{first}" if dwords == 1 else f"{file}[{first}:{first + dwords - 1}]"


def all_cases(implemented: set[str]) -> list[Case]:
    found = []
    for row in support_decode.rows():
        name = row.mnemonic
        if name not in implemented or ELSEWHERE.match(name):
            continue
        for form in row.forms:
            if form in ("DS", "FLAT", "GLOBAL", "SCRATCH", "MUBUF"):
                both = form != "DS" and "atomic" in name
                for variant in range(3):  # the last in accumulation registers
                    case = Case(
                        row,
                        form,
                        "",
                        len(found),
                        PARTIAL if variant else FULL,
                        returns=variant > 0 or not both,
                        file="a" if variant == 2 else "v",
                    )
                    case.line = line_of(case, min(variant, 1))
                    found.append(case)
    return found


def line_of(case: Case, variant: int) -> str:
    name, kinds = case.row.mnemonic, case.row.operands
    register = lambda row: row_register(case.kind, row)  # noqa: E731
    width = support_decode.width
    if case.form == "DS":
        operands = [] if kinds[0] == "-" else [registers(case.file, RESULT, width(kinds[0]))]
        pair = bool(re.search(r"(read|write|wrxchg)2", name))
        if "st64" in name:
            case.stride = 4 if "b32" in name else 8
        operands.append({32: "v2", 4: "v3", 8: "v6"}[case.stride])
        operands += [
            registers(case.file, register((DATA, DATA2)[i]), width(kind)) for i, kind in enumerate(kinds[2:])
        ]
        if pair:
            case.offset, case.offset1 = ((0, 1), (1, 2 if "st64" in name else 3))[variant]
            text = (f" offset0:{case.offset}" if case.offset else "") + f" offset1:{case.offset1}"
        else:
            case.offset = 0 if variant == 0 else 8
            text = f" offset:{case.offset}" if case.offset else ""
        return f"{name} {', '.join(operands)}{text}"
    case.offset = 8 if variant else 0
    text = f" offset:{case.offset}" if case.offset else ""
    sc0 = " sc0" if case.atomic and case.returns else ""
    if case.form == "MUBUF":
        register_of_data = RESULT if case.loads else register(DATA)
        if case.atomic and case.returns:
            register_of_data = RESULT  # data comes from where the old value goes
        operand = registers(case.file, register_of_data, width(kinds[-1]))
        return f"{name} {operand}, v7, s[8:11], 0 offen{text}{sc0}"
    operands = [registers(case.file, RESULT, width(kinds[0]))] if kinds[0] != "-" and case.returns else []
    scalar = {"GLOBAL": ("s[12:13]", "off")[variant], "SCRATCH": "off"}.get(case.form)
    address = "v9" if case.form == "SCRATCH" else "v7" if scalar == "s[12:13]" else "v[4:5]"
    operands.append(address)
    if len(kinds) > 1:
        operands.append(registers(case.file, register(DATA), width(kinds[1])))
    if scalar:
        operands.append(scalar)
    return f"{name} {', '.join(operands)}{text}{sc0}"


def kernel_body(cases: list[Case]) -> str:
    lines = []
    for i in range(16 * len(CLASSES)):
        lines.append(
            f"global_load_dword v{FIRST + i}, v1, s[4:5]\n s_add_u32 s4, s4, 256\n s_addc_u32 s5, s5, 0"
        )
    lines.append("s_waitcnt vmcnt(0)")
    lines += [f"v_accvgpr_write_b32 a{FIRST + i}, v{FIRST + i}" for i in range(16 * len(CLASSES))]
    lines.append(
        "s_load_dwordx2 s[12:13], s[0:1], 0x10\n s_waitcnt vmcnt(0) lgkmcnt(0)\n"
        "v_lshlrev_b32 v2, 5, v0\n v_lshlrev_b32 v3, 2, v0\n v_lshlrev_b32 v6, 3, v0\n v_mov_b32 v9, 0\n"
        "s_mov_b32 s8, s12\n s_mov_b32 s9, s13\n s_mov_b32 s10, 0x7fffffff\n s_mov_b32 s11, 0"
    )
    for case in cases:
        memory = row_register(case.kind, MEMORY)
        halves = [f"v[{memory}:{memory + 3}]", f"v[{memory + 4}:{memory + 7}]"]
        if case.form == "DS":
            for i in range(4):
                lines.append(f"ds_write_b128 v2, {halves[i % 2]} offset:{16 * (i % 2) + REGION * (i // 2)}")
        elif case.form == "SCRATCH":
            lines += [f"scratch_store_dwordx4 v9, {halves[i]}, off offset:{16 * i}" for i in range(2)]
        else:
            lines.append(
                f"v_add_u32 v7, {REGION * case.number:#x}, v2\n v_mov_b32 v8, s13\n"
                "v_add_co_u32 v4, vcc, s12, v7\n v_addc_co_u32 v5, vcc, 0, v8, vcc"
            )
        old = (
            row_register(case.kind, DATA)
            if case.form == "MUBUF" and case.atomic
            else row_register("int", DATA2)
        )
        move = "v_mov_b32" if case.file == "v" else "v_accvgpr_write_b32"
        lines += [f"{move} {case.file}{RESULT + i}, v{old + i}" for i in range(4)]
        lines.append("s_waitcnt vmcnt(0) lgkmcnt(0)")
        if case.exec != FULL:
            lines += [
                f"s_mov_b32 exec_{n}, {case.exec >> s & 0xFFFFFFFF:#x}" for n, s in (("lo", 0), ("hi", 32))
            ]
        lines.append(f"s_nop 4\n {case.line}\n s_waitcnt vmcnt(0) lgkmcnt(0)\n s_mov_b64 exec, -1\n s_nop 4")
        captured = [f"{case.file}{RESULT + i}" for i in range(4)]
        if case.form in ("DS", "SCRATCH"):
            for i in range(4 if case.form == "DS" else 2):
                target = f"v[{READ_BACK + 4 * i}:{READ_BACK + 4 * i + 3}]"
                offset = 16 * (i % 2) + REGION * (i // 2)
                lines.append(
                    f"ds_read_b128 {target}, v2 offset:{offset}"
                    if case.form == "DS"
                    else f"scratch_load_dwordx4 {target}, v9, off offset:{offset}"
                )
                captured += [f"v{READ_BACK + 4 * i + k}" for k in range(4)]
            lines.append("s_waitcnt vmcnt(0) lgkmcnt(0)")
        lines.append(store(*captured))
    return "\n".join(lines)


def outputs(case: Case) -> int:
    return {"DS": 20, "SCRATCH": 12}.get(case.form, 4)


def initial_memory(case: Case) -> np.ndarray:
    """uint8 [REGION]: every lane's slot, from the memory rows of the case's class."""
    rows = np.stack([row.astype(np.uint32) for row in ROWS[case.kind][MEMORY : MEMORY + 8]], axis=1)
    if "cmpswap" in case.row.mnemonic and case.form != "DS":
        dwords = 2 if case.row.mnemonic.endswith("x2") else 1
        for i in range(dwords):
            at = case.offset // 4 + i
            rows[1::2, at] = ROWS[case.kind][DATA + dwords + i].astype(np.uint32)[1::2]
    return np.ascontiguousarray(rows).view(np.uint8).reshape(-1)


def execute(cases: list[Case]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Per case the destination's rows, uint32 [4, 64], and the memory afterwards, uint8."""
    extra = np.concatenate([initial_memory(case) for case in cases])
    for number, case in enumerate(cases):
        case.number = number
    rows = [row.astype(np.uint32) for name in CLASSES for row in ROWS[name]]
    out = run(
        kernel_body(cases),
        rows,
        sum(map(outputs, cases)),
        preload=False,
        extra=extra,
        lds=LDS_BYTES,
        scratch=SLOT,
    )
    found, at = [], 0
    for case in cases:
        block = out[at : at + outputs(case)]
        at += outputs(case)
        memory = extra[REGION * case.number : REGION * (case.number + 1)]
        if case.form in ("DS", "SCRATCH"):
            slots = np.ascontiguousarray(block[4:].reshape(-1, 8, LANES).transpose(0, 2, 1))
            memory = slots.view(np.uint8).reshape(-1)
        found.append((block[:4], memory))
    return found


class Memory:
    """MEM[address] of a text."""

    def __init__(self, contents: bytearray):
        self.contents = contents

    def place(self, path):
        address, rest = path[0][1], path[1:]
        kind, bits = rest[0][1:] if rest else ("b", 32)
        size = bits // 8

        def read():
            return Value(kind, bits, int.from_bytes(self.contents[address : address + size], "little"))

        def write(value):
            self.contents[address : address + size] = (value.raw & ((1 << bits) - 1)).to_bytes(size, "little")

        return Place(read, write, kind, bits, True), rest[:1]


def dwords_at(name: str, row: int, lane: int, count: int) -> int:
    return sum(int(ROWS[name][row + i][lane]) << 32 * i for i in range(count))


def address_function(env, base, *offsets):
    """CalcDsAddr and its like: the immediate offsets are part of `base` already."""
    return base


def expected(case: Case) -> tuple[list[int], bytearray]:
    """(the destination by lane, memory)"""
    program, constants = pseudo_code_of(case.row.mnemonic)
    text = text_of(case.row.mnemonic)
    memory = bytearray(initial_memory(case).tobytes())
    if case.form == "DS":
        memory *= 2
    results = []
    for lane in range(LANES):
        old = dwords_at("int", DATA2, lane, 4)
        data = dwords_at(case.kind, DATA, lane, 4)
        if case.form == "MUBUF" and case.atomic:
            old = data
        if not case.exec >> lane & 1:
            results.append(old)
            continue
        base = lane * case.stride
        # Texts without a function for the address, or with one that takes no offset, add it or don't.
        adds_itself = re.search(r"addr \+ OFFSET|ADDR_BASE", text)
        at = Value("u", 32, base if adds_itself else base + case.offset)
        env = dict(
            constants,
            MEM=Memory(memory),
            ADDR=at,
            ADDR_BASE=at,
            OFFSET=Value("u", 32, case.offset),
            OFFSET0=Value("u", 32, case.offset),
            OFFSET1=Value("u", 32, case.offset1),
            VADDR=at,
            SADDR=Value("u", 32, 0),
            SRSRC=Value("u", 32, 0),
            SOFFSET=Value("u", 32, 0),
            DATA=Value("b", 128, data),
            DATA2=Value("b", 128, dwords_at(case.kind, DATA2, lane, 4)),
            VDATA=Value("b", 128, old if case.loads else data),
            RETURN_DATA=Value("b", 128, old),
            declared={"VDATA", "RETURN_DATA"},
        )
        for name in ("Ds", "Flat", "Global", "Scratch", "Buffer"):
            env[f"Calc{name}Addr"] = lambda env, arguments: arguments[0]
        program(env)
        size = 32 * case.result_dwords
        new = env["VDATA" if "VDATA" in text else "RETURN_DATA"].raw
        mask = (1 << size) - 1
        results.append((new & mask) | (old & ~mask))
    return results, memory


def same_float(got: int, want: int, kind: str) -> bool:
    """Equal, or NaN where NaN is expected, element by element."""
    form = fp.FORMATS["bf" if kind == "bf16" else "f", int(kind[-2:])]
    while got or want:
        a, b = (x & ((1 << form.bits) - 1) for x in (got, want))
        if a != b and not (fp.is_nan(a, form) and fp.is_nan(b, form)):
            return False
        got, want = got >> form.bits, want >> form.bits
    return True


def disagreements(case: Case, result: np.ndarray, memory: np.ndarray) -> list[str]:
    found = []
    results, contents = expected(case)
    for lane in range(LANES):
        got = sum(int(result[i][lane]) << 32 * i for i in range(4))
        if got != results[lane]:
            found.append(f"{case.line}: lane {lane}: {got:#x}, expected {results[lane]:#x}")
    for at in range(0, len(contents), 8):
        got, want = (int.from_bytes(bytes(x[at : at + 8]), "little") for x in (memory, contents))
        if got != want and (case.kind == "int" or not same_float(got, want, case.kind)):
            found.append(f"{case.line}: memory at {at:#x}: {got:#x}, expected {want:#x}")
    return found
