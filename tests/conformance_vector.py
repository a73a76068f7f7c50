"""Vector instructions in all their forms: assembly, the kernel that runs it, and what AMD's pseudo-code makes of it.

The forms' own rules (source and output modifiers, SDWA, DPP, which half of a register a 16-bit result takes) are
applied here around the pseudo-code, which speaks of operands and results alone.
"""

import functools
import itertools
import re
from dataclasses import dataclass, field

import numpy as np

import floating_point as fp
import support_decode
from conformance_tables import pseudo_code_of, tolerance_of, unspecified
from execute_kernels import LANES, run, store
from pseudo_code import Value

RANDOM = np.random.default_rng(42)
FULL, PARTIAL = (1 << LANES) - 1, 0xFFFF_7FFE_F0FF_DFF1
VCC, MASK, OLD_MASK = 0x0123_4567_89AB_CDEF, 0xFEDC_BA98_7654_3210 ^ 0x55, 0x5A5A_A5A5_0FF0_9669
FIRST_ROW, RESULT = 32, 200  # VGPRs
F32_EDGES = [
    *(0, 0x80000000, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x7F800001),
    *(0xFF812345, 1, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00800000, 0x80800000, 0x7F7FFFFF, 0xFF7FFFFF),
    *(0x3F000000, 0xBF000000, 0x3EFFFFFF, 0x4B000001, 0x4F000000, 0x4F800000, 0xCF000000, 0x477FE000),
    *(0x477FF000, 0x33000000, 0x38800000, 0x40490FDB),
]
F64_EDGES = [
    *(0, 1 << 63, 0x3FF0 << 48, 0xBFF0 << 48, 0x7FF0 << 48, 0xFFF0 << 48, 0x7FF8 << 48, 0x7FF0 << 48 | 1),
    *(0xFFF4 << 48 | 5, 1, 1 << 63 | 1, (1 << 52) - 1, 1 << 52, 0x7FEF_FFFF_FFFF_FFFF, 0x3FE0 << 48),
    *(0x41E0 << 48, 0x41DF_FFFF_FFC0_0000, 0xC1E0 << 48, 0x41EF_FFFF_FFE0_0000, 0x47EF_FFFF_E000_0000),
    *(0x36A0 << 48, 0x3810 << 48, 0x4330_0000_0000_0001, 0x3FDF_FFFF_FFFF_FFFF),
]
F16_EDGES = [
    *(0, 0x8000, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFD55, 1, 0x8001, 0x3FF, 0x83FF, 0x400),
    *(0x8400, 0x7BFF, 0xFBFF, 0x3800, 0xB800, 0x37FF, 0x6400, 0x6401, 0x5BF8, 0x7800),
]
INTEGER_EDGES = [
    *(0, 1, 2, 31, 32, 63, 64, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFF, 0x800000),
    *(0xFFFFFF, 0x1000000, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFE, 0xFFFFFFFF, 0x80008000),
    *(0x7FFF7FFF, 0xFFFF0000, 0x7F80FF01, 0x0C0B0A09, 0x08070605),
]


def with_edges(random, edges, slot):
    """Random elements of which the first half are edge values, paired differently in every slot."""
    values = np.array(random)
    chosen = list(itertools.islice(itertools.cycle(edges), slot * 7, slot * 7 + 2 * len(edges), slot + 1))
    values[: min(len(chosen), LANES // 2 + 8)] = np.array(chosen[: LANES // 2 + 8], values.dtype)
    return np.roll(values, 5 * slot)


def uniform_bits(bits):
    return RANDOM.integers(0, 1 << bits, LANES, dtype=np.uint64)


def near_one(kind, slot, edges, pattern):
    """Floats of similar magnitude, edges among them."""
    numbers = RANDOM.standard_normal(LANES) * 2.0 ** RANDOM.integers(-6, 7, LANES)
    return with_edges(numbers.astype(kind).view(pattern).astype(np.uint64), edges, slot)


def operand_rows() -> dict[str, list[np.ndarray]]:
    """Per class of operand eight rows: four operands of two dwords."""
    rows = {name: [] for name in ("int", "f32", "f16", "f64", "small")}
    for slot in range(4):
        for _ in range(2):
            rows["int"].append(with_edges(uniform_bits(32), INTEGER_EDGES, slot))
            rows["f32"].append(near_one(np.float32, slot, F32_EDGES, np.uint32))
            low, high = (near_one(np.float16, slot + k, F16_EDGES, np.uint16) for k in (0, 2))
            rows["f16"].append(low | np.roll(high, 11) << np.uint64(16))
            rows["small"].append(RANDOM.integers(-40, 41, LANES).astype(np.uint32).astype(np.uint64))
        wide = near_one(np.float64, slot, F64_EDGES, np.uint64)
        rows["f64"] += [wide & np.uint64(0xFFFFFFFF), wide >> np.uint64(32)]
    rows["small"][2][:6] = [0x7FFFFFFF, 0x80000000, 300, -300 % 2**32, 0x7FFF, 0x8000]
    return rows


ROWS = operand_rows()
CLASSES = list(ROWS)
INPUTS = [[int(value) for value in row] for name in CLASSES for row in ROWS[name]]  # of v32 and on


def register_of(kind_class: str, slot: int) -> int:
    return FIRST_ROW + 8 * CLASSES.index(kind_class) + 2 * slot


def operand_class(mnemonic: str, kind: str, slot: int) -> str:
    if "ldexp" in mnemonic and slot == 1:
        return "small"
    name = kind.split("x")[0]
    return name if name in ("f32", "f16", "f64") else "int"


@functools.cache
def width(kind: str) -> int:
    """Bits of an operand type such as f16, f32x2 or m64."""
    if kind == "mix":
        return 32
    bits, _, count = re.match(r"[a-z]+(\d+)(x?)(\d*)", kind).groups()
    return int(bits) * int(count or 1)


# Results that the table of instructions calls 32 untyped bits.
RESULTS = {"v_sat_pk_u8_i16": "b16", "v_cvt_pkrtz_f16_f32": "f16x2"}


@dataclass
class Case:
    """One line of assembly and what its text says, by field."""

    row: support_decode.Row
    form: str
    line: str
    classes: list[str]  # of each source
    registers: list[int]
    exec: int
    neg: list[bool] = field(default_factory=lambda: [False] * 3)
    abs: list[bool] = field(default_factory=lambda: [False] * 3)
    neg_hi: list[bool] = field(default_factory=lambda: [False] * 3)
    op_sel: list[int] = field(default_factory=lambda: [0] * 4)
    op_sel_hi: list[int] = field(default_factory=lambda: [1] * 3)
    clamp: bool = False
    omod: int = 0  # without effect in the mode that these kernels run in
    sdwa: dict | None = None
    dpp: dict | None = None
    outputs: int = 0
    modifiers: str = ""
    loose: bool = False  # the last result computed was a NaN

    @functools.cached_property
    def sources(self) -> list[str]:
        kinds = list(self.row.operands[1:])
        if kinds and kinds[0] == "m64" and self.row.operands[0] != "m64":
            kinds = kinds[1:]
        return kinds

    @functools.cached_property
    def carry(self) -> bool:
        return self.row.operands[:2][-1] == "m64" and self.row.operands[0] != "m64" and len(self.row.operands) > 1

    @functools.cached_property
    def destination(self) -> str:
        return RESULTS.get(self.row.mnemonic, self.row.operands[0])

    @property
    def id(self) -> str:
        return " ".join(filter(None, (self.row.mnemonic, self.form, self.modifiers)))


SDWA_SELECTS = ["BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1", "DWORD"]
SDWA_UNUSED = ["UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE"]
DPP_CONTROLS = [
    *("quad_perm:[3,1,0,2]", "row_shl:1", "row_shr:3", "row_ror:5", "wave_shl:1", "wave_rol:1", "wave_shr:1"),
    *("wave_ror:1", "row_mirror", "row_half_mirror", "row_bcast:15", "row_bcast:31", "row_newbcast:9"),
]
UNMODELLED = re.compile(r"v_(mfma|smfmac|nop|clrexcp|screen|swap|readlane|writelane|readfirstlane|accvgpr_)")


class Generator:
    """Lines with known registers for every form of a row."""

    def __init__(self):
        self.count = itertools.count()

    def turn(self, choices):
        return choices[next(self.count) % len(choices)]

    def cases(self, row: support_decode.Row):
        for form in row.forms:
            yield from self.form(row, form)

    def new(self, row, form, **fields) -> Case:
        case = Case(row, form, "", [], [], self.turn([FULL, PARTIAL]), **fields)
        high = case.op_sel_hi
        for slot, kind in enumerate(case.sources):
            if kind == "mix":
                name = "f16" if high[slot] else "f32"
            else:
                name = operand_class(row.mnemonic, kind, slot)
            case.classes.append(name)
            case.registers.append(register_of(name, slot))
        if form == "VOP3B" and "div_scale" in row.mnemonic:
            case.registers[0] = case.registers[self.turn([1, 2])]
        case.line = self.text(case)
        return case

    def text(self, case: Case) -> str:
        row, form = case.row, case.form
        short = next((name for name in support_decode.SHORT if name in row.forms), None)
        long_form = form in ("VOP3", "VOP3B")
        suffix = {"SDWA": "_sdwa", "DPP": "_dpp", "VOP3": "_e64", "VOP3B": "_e64"}.get(form, "_e32")
        if form == "VOP3P" or not (short and (long_form or len(row.forms) > 1 or form in ("SDWA", "DPP"))):
            suffix = "" if row.mnemonic != "v_pk_fmac_f16" else "_e32"
        operands = []
        kind = case.destination
        mask = "s[24:25]" if long_form else "vcc"
        if kind == "m64":
            operands.append(mask)
        else:
            operands.append(f"v{RESULT}" if width(kind) <= 32 else f"v[{RESULT}:{RESULT + width(kind) // 32 - 1}]")
        if case.carry:
            operands.append(mask)
        for slot, kind in enumerate(case.sources):
            register, bits = case.registers[slot], width(kind)
            if kind == "m64":
                operands.append("s[22:23]" if long_form else "vcc")
                continue
            if kind == "k32":
                operands.append("0x3fc00000" if "f32" in row.mnemonic else "0x3e00")
                continue
            text = f"v{register}" if bits <= 32 else f"v[{register}:{register + bits // 32 - 1}]"
            if form != "VOP3P" or kind == "mix":
                text = f"|{text}|" if case.abs[slot] else text
                text = f"-{text}" if case.neg[slot] else text
            if case.sdwa and case.sdwa["sext"][slot]:
                text = f"sext({text})"
            operands.append(text)
        return f"{row.mnemonic}{suffix} {', '.join(operands)}{case.modifiers and ' ' + case.modifiers}"

    def form(self, row, form):
        if form == "SDWA":
            yield from self.sdwa(row)
        elif form == "DPP":
            yield from self.dpp(row)
        elif form == "VOP3P":
            yield from self.packed(row)
        else:
            yield self.new(row, form)
            if form in ("VOP3", "VOP3B"):
                yield from self.modified(row, form)

    def floats(self, row) -> list[bool]:
        kinds = Case(row, "", "", [], [], 0).sources
        found = [support_decode.is_float(kind) and "x" not in kind for kind in kinds]
        return (found + [False] * 3)[:3]

    def modified(self, row, form):
        allowed = row.forms[form].split()
        floats = self.floats(row)
        if "neg" in allowed and any(floats):
            yield self.new(row, form, neg=list(floats))
            if form == "VOP3":
                yield self.new(row, form, abs=list(floats), neg=[floats[0], False, floats[2]])
        if "clamp" in allowed:
            yield self.new(row, form, clamp=True, modifiers="clamp")
        if "omod" in allowed and support_decode.is_float(row.operands[0]):
            if not re.search(r"f16$|fp8|bf8", row.mnemonic):
                value = self.turn([1, 2, 3])
                yield self.new(row, form, omod=value, modifiers=["", "mul:2", "mul:4", "div:2"][value])
        if "op_sel" in allowed and "8_f32" not in row.mnemonic:
            sixteen = [width(kind) == 16 for kind in Case(row, "", "", [], [], 0).sources]
            half_result = width(row.operands[0]) == 16
            for bits in (1, 0):
                selected = [int(is_half and (i + bits) % 2 == 0) for i, is_half in enumerate(sixteen)]
                op_sel = [*selected, bits & half_result]
                if any(op_sel):
                    text = f"op_sel:[{','.join(map(str, op_sel))}]"
                    yield self.new(
                        row, form, op_sel=(selected + [0] * 3)[:3] + op_sel[-1:], modifiers=text
                    )

    def sdwa(self, row):
        floats = self.floats(row)
        short = next(name for name in support_decode.SHORT if name in row.forms)
        small = re.match(r"v_cvt_(pk_)?f32_[fb][pf]8", row.mnemonic)
        sources = [kind for kind in Case(row, "", "", [], [], 0).sources if kind != "m64"]
        extendable = [not is_float and row.mnemonic != "v_cndmask_b32" and not small for is_float in floats]
        clamps = "clamp" in " ".join(row.forms.values()) and short != "VOPC" and not small
        for variant in range(3):
            # Odd steps through the choices, so that neighbours differ in all of them.
            n = next(self.count)
            selects = [n * 3 % 7, n * 5 % 7]
            if small:
                selects[0] = n % 4 if "pk" not in row.mnemonic else 4 + n % 2
            sext = [extendable[i] and (n + i) % 2 == 1 and selects[i] != 6 for i in range(2)]
            neg = [floats[0] and n % 2 == 0, floats[1] and n % 3 == 0, False]
            absolute = [floats[0] and n % 3 == 1, floats[1] and n % 5 == 1, False]
            sdwa = dict(select=selects, sext=[*sext, False], dst=6, unused=0)
            text, clamp = "", False
            if not (short == "VOPC" or small):
                sdwa["dst"], sdwa["unused"] = n * 2 % 7, n % 3
                clamp = clamps and variant == 2
                text = "clamp " if clamp else ""
                text += f"dst_sel:{SDWA_SELECTS[sdwa['dst']]} dst_unused:{SDWA_UNUSED[sdwa['unused']]} "
            text += " ".join(f"src{i}_sel:{SDWA_SELECTS[selects[i]]}" for i in range(len(sources)))
            yield self.new(row, "SDWA", sdwa=sdwa, neg=neg, abs=absolute, clamp=clamp, modifiers=text)

    def dpp(self, row):
        floats = self.floats(row)
        kinds = [*Case(row, "", "", [], [], 0).sources, row.operands[0]]
        wide = any(width(kind) > 32 for kind in kinds if kind != "m64")
        for variant in range(2):
            n = next(self.count)
            control = "row_newbcast:6" if wide else DPP_CONTROLS[n % len(DPP_CONTROLS)]
            bound = n % 3 == 0
            rows, banks = (0xF, 0xF) if variant == 0 else ((0xA, 0xF), (0xF, 0x3), (0x5, 0xC))[n % 3]
            text = f"{control} row_mask:{rows:#x} bank_mask:{banks:#x}{' bound_ctrl:1' if bound else ''}"
            dpp = dict(control=control, rows=rows, banks=banks, bound=bound)
            neg = [floats[0] and variant == 1, floats[1] and variant == 0, False]
            yield self.new(row, "DPP", dpp=dpp, neg=neg, modifiers=text)

    def packed(self, row):
        name, kinds = row.mnemonic, row.operands
        count = len(kinds) - 1
        if "mix" in kinds:
            for n in range(4):
                high = [(n + i) % 3 != 0 for i in range(3)] if n else [False] * 3
                low = [bool(high[i] and (n + i) % 2) for i in range(3)]
                neg, absolute = [n == 1, n == 2, n == 3], [n == 3, False, n == 1]
                words = [
                    f"op_sel:[{','.join(str(int(b)) for b in low)}]" if any(low) else "",
                    f"op_sel_hi:[{','.join(str(int(b)) for b in high)}]" if any(high) else "",
                    "clamp" if n == 2 else "",
                ]
                yield self.new(
                    row, "VOP3P", op_sel=[*map(int, low), 0], op_sel_hi=list(map(int, high)), neg=neg, abs=absolute,
                    clamp=n == 2, modifiers=" ".join(filter(None, words)),
                )  # fmt: skip
            return
        yield self.new(row, "VOP3P")
        packed_sources = ["x2" in kind for kind in kinds[1:]]
        if not name.startswith("v_dot2") and any(packed_sources):
            low = [int((i + 1) % 2) for i in range(count)]
            high = [int(i % 3 == 2) for i in range(count)]
            text = f"op_sel:[{','.join(map(str, low))}] op_sel_hi:[{','.join(map(str, high))}]"
            yield self.new(
                row, "VOP3P", op_sel=(low + [0] * 4)[:4], op_sel_hi=(high + [1] * 3)[:3], modifiers=text
            )
        if ("f16" in name or "f32" in name) and any(packed_sources):
            low, high = [int(i != 1) for i in range(count)], [int(i == 1) for i in range(count)]
            text = f"neg_lo:[{','.join(map(str, low))}] neg_hi:[{','.join(map(str, high))}]"
            flags = lambda bits: ([bool(b) for b in bits] + [False] * 3)[:3]  # noqa: E731
            yield self.new(row, "VOP3P", neg=flags(low), neg_hi=flags(high), modifiers=text)
        if not re.match(r"v_pk_(mov|lsh|ash|mul_lo|min_[iu]|max_[iu])", name):
            yield self.new(row, "VOP3P", clamp=True, modifiers="clamp")


def all_cases(implemented: set[str]) -> list[Case]:
    """Every form of every executed vector instruction that has a result to compare."""
    generator = Generator()
    found = []
    for row in support_decode.rows():
        if row.mnemonic.startswith("v_") and row.mnemonic in implemented and not UNMODELLED.match(row.mnemonic):
            found += [case for case in generator.cases(row) if (row.mnemonic, case.form) != ("v_nop", "VOP3")]
    return found


# Running


def body_of(cases: list[Case]) -> str:
    lines = []
    for i in range(len(INPUTS)):
        lines.append(f"global_load_dword v{FIRST_ROW + i}, v1, s[4:5]\n s_add_u32 s4, s4, 256\n s_addc_u32 s5, s5, 0")
    lines.append("s_waitcnt vmcnt(0)")
    for i, mask in enumerate((VCC, MASK, OLD_MASK)):
        for half in range(2):
            lines.append(f"s_mov_b32 s{20 + 2 * i + half}, {mask >> 32 * half & 0xFFFFFFFF:#x}")
    lines += [f"s_mov_b32 s{40 + h}, {(VCC if h < 2 else OLD_MASK) >> 32 * (h & 1) & 0xFFFFFFFF:#x}" for h in range(4)]
    for case in cases:
        kind = case.destination
        dwords = 0 if kind == "m64" else max(1, width(kind) // 32)
        old = register_of(operand_class("", kind, 3), 3)
        for i in range(dwords):
            source = old + i if i < 2 else register_of("int", 2) + i - 2
            lines.append(f"v_mov_b32 v{RESULT + i}, v{source}")
        lines.append("s_mov_b64 vcc, s[40:41]\n s_mov_b64 s[24:25], s[42:43]")
        if case.exec != FULL:
            for half in range(2):
                lines.append(f"s_mov_b32 exec_{'lo' if half == 0 else 'hi'}, {case.exec >> 32 * half & 0xFFFFFFFF:#x}")
        lines.append(f"s_nop 4\n {case.line}\n s_nop 7")
        captured = [f"v{RESULT + i}" for i in range(dwords)]
        masks = []
        if kind == "m64" or case.carry:
            masks += ["s24", "s25"] if case.form in ("VOP3", "VOP3B") else ["vcc_lo", "vcc_hi"]
        if "cmpx" in case.row.mnemonic:
            masks += ["s46", "s47"]
        lines.append("s_mov_b64 s[46:47], exec\n s_mov_b64 exec, -1\n s_nop 4")
        for i, mask in enumerate(masks):
            lines.append(f"v_mov_b32 v{RESULT + 8 + i}, {mask}")
            captured.append(f"v{RESULT + 8 + i}")
        case.outputs = len(captured)
        lines.append(store(*captured))
    return "\n".join(lines)


def execute(cases: list[Case]) -> list[np.ndarray]:
    """Per case its output rows: the result's dwords, then the lane masks that it writes."""
    body = body_of(cases)
    out = run(body, [np.array(row, np.uint32) for row in INPUTS], sum(case.outputs for case in cases), preload=False)
    found, at = [], 0
    for case in cases:
        found.append(out[at : at + case.outputs])
        at += case.outputs
    return found


# The expected result


def gather(register: int, bits: int, lane: int) -> int:
    value = 0
    for i in range(max(1, bits // 32)):
        value |= INPUTS[register - FIRST_ROW + i][lane] << 32 * i
    return value


def dpp_lane(control: str, lane: int) -> int | None:
    """The lane that is read, by the ISA's description of DPP controls."""
    name, _, argument = control.partition(":")
    row, position = lane // 16 * 16, lane % 16
    if name == "quad_perm":
        return lane // 4 * 4 + int(argument[1:-1].split(",")[lane % 4])
    if name in ("row_mirror", "row_half_mirror"):
        return row + 15 - position if name == "row_mirror" else lane // 8 * 8 + 7 - lane % 8
    amount = int(argument)
    within = {"row_shl": position + amount, "row_shr": position - amount}
    if name in within:
        return row + within[name] if 0 <= within[name] < 16 else None
    return {
        "row_ror": row + (position - amount) % 16,
        "row_newbcast": row + amount,
        "wave_shl": lane + 1 if lane < 63 else None,
        "wave_rol": (lane + 1) % 64,
        "wave_shr": lane - 1 if lane else None,
        "wave_ror": (lane - 1) % 64,
        "row_bcast": (row - 1 if row else None) if amount == 15 else (31 if lane >= 32 else None),
    }[name]


def selected(value: int, select: int, extend: bool) -> int:
    if select == 6:
        return value
    bits = 8 if select < 4 else 16
    part = value >> (8 * select if select < 4 else 16 * (select - 4)) & ((1 << bits) - 1)
    return part | (-1 << bits & 0xFFFFFFFF) if extend and part >> (bits - 1) else part


def with_sign(value: int, bits: int, negate: bool, absolute: bool) -> int:
    top = 1 << (bits - 1)
    value = value & ~top if absolute else value
    return value ^ top if negate else value


def source_value(case: Case, slot: int, lane: int) -> Value:
    kind = case.sources[slot]
    if kind == "k32":
        return Value("b", 32, 0x3FC00000 if "f32" in case.row.mnemonic else 0x3E00)
    bits = width(kind)
    value = gather(case.registers[slot], bits, lane)
    if case.sdwa and slot < 2:
        value = selected(value, case.sdwa["select"][slot], case.sdwa["sext"][slot])
    if case.form == "VOP3P" and "x2" in kind and "pk_mov" not in case.row.mnemonic:
        element = bits // 2
        mask = (1 << element) - 1
        low = value >> element * case.op_sel[slot] & mask
        high = value >> element * case.op_sel_hi[slot] & mask
        low = with_sign(low, element, case.neg[slot], False)
        high = with_sign(high, element, case.neg_hi[slot], False)
        return Value("b", bits, low | high << element)
    if kind == "mix":
        return Value("b", 32, value)
    if bits == 16 and case.op_sel[slot]:
        value >>= 16
    if case.neg[slot] or case.abs[slot]:
        keep = value & ~((1 << bits) - 1)
        value = keep | with_sign(value & ((1 << bits) - 1), bits, case.neg[slot], case.abs[slot])
    return Value("b", max(32, bits), value)


def clamped(value: int, form: fp.Format) -> int:
    if fp.is_nan(value, form) or fp.negative(value, form):
        return 0
    one = form.bias << form.fraction_bits
    return min(value, one)


def expected(case: Case, lane: int, program, environment) -> tuple[int, int | None, int | None]:
    """(the destination's bits, the bit of the lane mask that is written, the bit of EXEC)."""
    kind = case.destination
    mnemonic = case.row.mnemonic
    bits = 32 if kind == "m64" else max(32, width(kind))
    old = 0
    if kind != "m64":
        old_register = register_of(operand_class("", kind, 3), 3)
        old = gather(old_register, min(bits, 64), lane)
        if bits == 128:
            old |= gather(register_of("int", 2), 64, lane) << 64
    enabled = case.exec >> lane & 1
    written = bool(enabled)
    env = dict(environment)
    from_lane = lane
    zero = False
    if case.dpp:
        from_lane = dpp_lane(case.dpp["control"], lane)
        valid = from_lane is not None and case.exec >> from_lane & 1
        in_masks = case.dpp["rows"] >> lane // 16 & 1 and case.dpp["banks"] >> lane // 4 % 4 & 1
        written = bool(enabled and in_masks and (valid or case.dpp["bound"]))
        zero = not valid
    if not written:
        # Lane masks get zeros for lanes that are off.
        return old, None if case.dpp else 0, 0
    for slot, source in enumerate(case.sources):
        if source == "m64":
            env["VCC"] = Value("u", 64, (MASK if case.form in ("VOP3", "VOP3B") else VCC) & FULL)
            continue
        if slot == 0 and case.dpp:
            value = Value("b", 64, 0) if zero else source_value(case, 0, from_lane)
            if zero and (case.neg[0] or case.abs[0]):
                value = Value("b", 64, with_sign(0, width(source), case.neg[0], case.abs[0]))
        else:
            value = source_value(case, slot, lane)
        env[f"S{slot}"] = value
    if "k32" in case.sources:
        literal = source_value(case, case.sources.index("k32"), lane)
        env.update(SIMM32=literal, SIMM16=literal)
        if case.sources[1] == "k32":  # the text calls the second register S1
            env["S1"] = env["S2"]
    env.setdefault("VCC", Value("u", 64, VCC))
    if kind == "m64":
        env["D0"] = Value("u", 64, 0)
    elif "div_scale" in mnemonic:
        env["D0"] = env["S0"]
    else:
        env["D0"] = Value("b", bits, old)
    env.update(
        laneId=Value("u", 32, lane),
        EXEC=Value("u", 64, case.exec),
        OPSEL=Value("u", 4, sum(b << i for i, b in enumerate(case.op_sel))),
        OPSEL_HI=Value("u", 3, sum(b << i for i, b in enumerate(case.op_sel_hi))),
        SDWA_SRC0_SEL=Value("u", 3, 0),
        declared={"D0", "D1", "VCC", "EXEC"},
        D1=Value("u", 1, 0),
    )
    if "mix" in case.sources:
        signs = []
        for slot in range(3):
            value = env[f"S{slot}"].raw
            size = 16 if case.op_sel_hi[slot] else 32
            if size == 16:
                shift = 16 * case.op_sel[slot]
                half = with_sign(value >> shift & 0xFFFF, 16, case.neg[slot], case.abs[slot])
                value = (value & ~(0xFFFF << shift)) | half << shift
            else:
                value = with_sign(value, 32, case.neg[slot], case.abs[slot])
            signs.append(Value("b", 32, value))
        env.update(S=signs, given=("S",))
    integer = not support_decode.is_float(kind)
    if unspecified(mnemonic, env):
        return None, None, None
    if case.clamp and integer:
        env["saturate"] = True
    program(env)
    result = env["D0"].raw
    mask_bit = None
    if kind == "m64":
        mask_bit = env["D0"].raw >> lane & 1
    elif case.carry:
        if "div_scale" in mnemonic:
            mask_bit = env["VCC"].raw & 1
        else:
            mask_bit = env["D1"].raw if "mad_" in mnemonic else env["VCC"].raw >> lane & 1
    if kind == "m64":
        return 0, mask_bit, mask_bit
    result = finish(case, result, old)
    return result & ((1 << bits) - 1), mask_bit, 0


def keeps_other_half(case: Case) -> bool:
    """16-bit results: instructions that also have a short form clear the rest of the register, as do those that
    keep the behaviour of older chips."""
    return not set(support_decode.SHORT) & set(case.row.forms) and "legacy" not in case.row.mnemonic


def finish(case: Case, result: int, old: int) -> int:
    kind = case.destination
    name, _, count = kind.partition("x")
    if support_decode.is_float(kind):
        form = fp.FORMATS["f", int(name[1:])]
        high_half = case.op_sel[3] or "mixhi" in case.row.mnemonic
        parts = []
        for i in range(int(count or 1)):
            at = form.bits * i + (16 if form.bits == 16 and high_half and result_is_placed(case) else 0)
            part = result >> at & ((1 << form.bits) - 1)
            parts.append(clamped(part, form) if case.clamp else part)
            case.loose = fp.is_nan(parts[-1], form)
        result = sum(part << form.bits * i for i, part in enumerate(parts))
    elif width(kind) == 16:
        result &= 0xFFFF
    if width(kind) == 16:
        high = case.op_sel[3] or "mixhi" in case.row.mnemonic
        if high:
            result = (old & 0xFFFF) | (result & 0xFFFF) << 16
        else:
            result = (old & 0xFFFF0000 if keeps_other_half(case) else 0) | (result & 0xFFFF)
    if case.sdwa and case.sdwa["dst"] != 6:
        select = case.sdwa["dst"]
        size = 8 if select < 4 else 16
        shift = 8 * select if select < 4 else 16 * (select - 4)
        part = result & ((1 << size) - 1)
        field = ((1 << size) - 1) << shift
        placed = part << shift
        if case.sdwa["unused"] == 1 and part >> (size - 1):
            placed |= 0xFFFFFFFF << (shift + size) & 0xFFFFFFFF
        if case.sdwa["unused"] == 2:
            placed |= old & ~field
        result = placed
    return result


def result_is_placed(case: Case) -> bool:
    """Whether the pseudo-code itself writes the upper half."""
    return "mixhi" in case.row.mnemonic or "legacy" in case.row.mnemonic or "v_mac_f16" in case.row.mnemonic


def lanes_to_compare(case: Case) -> range:
    """All of them for an instruction's plain forms; every third or second where only a modifier is new."""
    if case.dpp:
        return range(len(case.line) % 2, LANES, 2)
    return range(len(case.line) % 3, LANES, 3) if case.modifiers or any(case.neg + case.abs) else range(LANES)


def disagreements(case: Case, rows: np.ndarray) -> list[str]:
    """What differs, as sentences of lane, operands, result and expectation."""
    tolerance = tolerance_of(case.row.mnemonic)
    program, environment = pseudo_code_of(case.row.mnemonic, case.form)
    kind = case.destination
    dwords = 0 if kind == "m64" else max(1, width(kind) // 32)
    found = []
    for lane in lanes_to_compare(case):
        want, mask_bit, exec_bit = expected(case, lane, program, environment)
        got = sum(int(rows[i][lane]) << 32 * i for i in range(dwords))
        if want is None:
            continue
        if dwords and not same(kind, got, want, case, tolerance):
            found.append(report(case, lane, f"{got:#x}", f"{want:#x}"))
        masks = [int(rows[i][0]) | int(rows[i + 1][0]) << 32 for i in range(dwords, len(rows), 2)]
        if masks and mask_bit is not None and masks[0] >> lane & 1 != mask_bit:
            found.append(report(case, lane, f"mask bit {masks[0] >> lane & 1}", mask_bit))
        if len(masks) > 1 and masks[1] >> lane & 1 != exec_bit:
            found.append(report(case, lane, f"EXEC bit {masks[1] >> lane & 1}", exec_bit))
    return found


def report(case: Case, lane: int, got, want) -> str:
    operands = [
        "mask" if kind == "m64" else f"{source_value(case, slot, lane).raw:#x}"
        for slot, kind in enumerate(case.sources)
    ]
    return f"{case.line}: lane {lane} ({', '.join(operands)}): {got}, expected {want}"


def same(kind: str, got: int, want: int, case: Case, tolerance: int) -> bool:
    if got == want:
        return True
    if not support_decode.is_float(kind):
        return False
    if case.sdwa and case.sdwa["dst"] != 6:  # a NaN's bits, or an approximate last bit, moved elsewhere
        return case.loose or tolerance > 0
    name, _, count = kind.partition("x")
    form = fp.FORMATS["f", int(name[1:])]
    size = form.bits
    if size == 16 and not count:
        other = 0xFFFF if case.op_sel[3] or "mixhi" in case.row.mnemonic else 0xFFFF0000
        if (got ^ want) & other:
            return False
        shift = 16 if other == 0xFFFF else 0
        got, want = got >> shift & 0xFFFF, want >> shift & 0xFFFF
    for i in range(int(count or 1)):
        a, b = (x >> size * i & ((1 << size) - 1) for x in (got, want))
        if a != b and not (fp.is_nan(a, form) and fp.is_nan(b, form)) and abs(a - b) > tolerance:
            return False
    return True
