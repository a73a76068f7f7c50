"""Vector instructions in all their forms: lines with known registers, and the kernel that runs them."""

import dataclasses
import functools
import itertools
import re
from dataclasses import dataclass, field

import numpy as np

import support_decode
from execute_kernels import LANES, run, store

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


def with_edges(random, edges, slot, draw):
    """Random elements with edge values among them: in the first draw all of them, paired differently in every
    slot; then chosen at random."""
    values = np.array(random)
    if draw:
        chosen = RANDOM.choice(np.array(edges, values.dtype), LANES)
        return np.where(RANDOM.random(LANES) < 0.6, chosen, values)
    chosen = list(itertools.islice(itertools.cycle(edges), slot * 7, slot * 7 + 2 * len(edges), slot + 1))
    values[: min(len(chosen), LANES // 2 + 8)] = np.array(chosen[: LANES // 2 + 8], values.dtype)
    return np.roll(values, 5 * slot)


def uniform_bits(bits):
    return RANDOM.integers(0, 1 << bits, LANES, dtype=np.uint64)


def near_one(kind, slot, edges, pattern, draw):
    """Floats of similar magnitude, edges among them."""
    numbers = RANDOM.standard_normal(LANES) * 2.0 ** RANDOM.integers(-6, 7, LANES)
    return with_edges(numbers.astype(kind).view(pattern).astype(np.uint64), edges, slot, draw)


def operand_rows(draw: int) -> dict[str, list[np.ndarray]]:
    """Per class of operand eight rows: four operands of two dwords."""
    rows = {name: [] for name in CLASSES}
    for slot in range(4):
        for _ in range(2):
            rows["int"].append(with_edges(uniform_bits(32), INTEGER_EDGES, slot, draw))
            rows["f32"].append(near_one(np.float32, slot, F32_EDGES, np.uint32, draw))
            low, high = (near_one(np.float16, slot + k, F16_EDGES, np.uint16, draw) for k in (0, 2))
            rows["f16"].append(low | np.roll(high, 11) << np.uint64(16))
            rows["small"].append(RANDOM.integers(-40, 41, LANES).astype(np.uint32).astype(np.uint64))
        wide = near_one(np.float64, slot, F64_EDGES, np.uint64, draw)
        rows["f64"] += [wide & np.uint64(0xFFFFFFFF), wide >> np.uint64(32)]
    rows["small"][2][:6] = [0x7FFFFFFF, 0x80000000, 300, -300 % 2**32, 0x7FFF, 0x8000]
    return rows


CLASSES = ["int", "f32", "f16", "f64", "small"]
DRAWS = 4
# The contents of v32 and on, by draw.
INPUTS = [
    [[int(value) for value in row] for name in CLASSES for row in rows[name]]
    for rows in map(operand_rows, range(DRAWS))
]


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
    draw: int = 0  # of INPUTS
    uniform: tuple[str, int] | None = (
        None  # the text and the bits of source 0 where it isn't a vector register
    )
    loose: bool = False  # the last result computed was a NaN

    @functools.cached_property
    def sources(self) -> list[str]:
        kinds = list(self.row.operands[1:])
        if kinds and kinds[0] == "m64" and self.row.operands[0] != "m64":
            kinds = kinds[1:]
        return kinds

    @functools.cached_property
    def carry(self) -> bool:
        return (
            self.row.operands[:2][-1] == "m64"
            and self.row.operands[0] != "m64"
            and len(self.row.operands) > 1
        )

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


# What an inline constant means by the type of the operand.
INLINE_FLOATS = {
    "f16": [("0.5", 0x3800), ("-4.0", 0xC400), ("0.15915494", 0x3118)],
    "f32": [("0.5", 0x3F000000), ("-4.0", 0xC0800000), ("0.15915494", 0x3E22F983)],
    "f64": [("0.5", 0x3FE0 << 48), ("-4.0", 0xC010 << 48), ("0.15915494309189532", 0x3FC45F306DC9C882)],
    **{kind: [("1.0", 0x3F800000), ("-2.0", 0xC0000000)] for kind in ("i32", "u32", "b32")},
}


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

    def with_uniform_source(self, row, form):
        """Source 0 as a scalar register, as an inline constant and as a literal."""
        plain = self.new(row, form)
        kind = plain.sources[0] if plain.sources else "m64"
        if kind in ("m64", "mix") or "k32" in plain.sources or width(kind) > 64:
            return
        name, bits = kind.split("x")[0], width(kind)
        n = next(self.count)
        if "m64" not in plain.sources and "div_" not in row.mnemonic:  # which read another scalar register
            row_of_inputs = plain.registers[0] - FIRST_ROW
            value = INPUTS[0][row_of_inputs][n % LANES]
            value |= INPUTS[0][row_of_inputs + 1][n % LANES] << 32 if bits == 64 else 0
            yield self.new(row, form, uniform=("s50" if bits <= 32 else "s[50:51]", value))
        if form == "VOP3P":
            return
        number = (-16, -5, 0, 1, 33, 64)[n % 6]
        yield self.new(row, form, uniform=(str(number), number % (1 << max(32, bits))))
        if name in INLINE_FLOATS:
            text, *patterns = INLINE_FLOATS[name][n % len(INLINE_FLOATS[name])]
            yield self.new(row, form, uniform=(text, patterns[0]))
        if form in support_decode.SHORT and bits <= 32 and "m64" not in plain.sources:
            literal = 0x5A17 + 0x101 * (n % 64) if bits == 16 else 0x9A7B5C3D ^ n % 2048 << 20
            yield self.new(row, form, uniform=(hex(literal), literal))

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
            operands.append(
                f"v{RESULT}" if width(kind) <= 32 else f"v[{RESULT}:{RESULT + width(kind) // 32 - 1}]"
            )
        if case.carry:
            operands.append(mask)
        for slot, kind in enumerate(case.sources):
            register, bits = case.registers[slot], width(kind)
            if kind == "m64":
                operands.append("s[22:23]" if long_form else "vcc")
                continue
            if slot == 0 and case.uniform:
                operands.append(case.uniform[0])
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
            yield from self.with_uniform_source(row, form)
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
        scales = "omod" in allowed and support_decode.is_float(row.operands[0])
        if scales and not re.search(r"f16$|fp8|bf8", row.mnemonic):
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
                    yield self.new(row, form, op_sel=(selected + [0] * 3)[:3] + op_sel[-1:], modifiers=text)

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
            sdwa = {"select": selects, "sext": [*sext, False], "dst": 6, "unused": 0}
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
            dpp = {"control": control, "rows": rows, "banks": banks, "bound": bound}
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
                    row,
                    "VOP3P",
                    op_sel=[*map(int, low), 0],
                    op_sel_hi=list(map(int, high)),
                    neg=neg,
                    abs=absolute,
                    clamp=n == 2,
                    modifiers=" ".join(filter(None, words)),
                )
            return
        yield self.new(row, "VOP3P")
        yield from self.with_uniform_source(row, "VOP3P")
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
    """Every form of every executed vector instruction that has a result to compare; plain forms on all draws
    of operands."""
    generator = Generator()
    found = []
    for row in support_decode.rows():
        if (
            row.mnemonic.startswith("v_")
            and row.mnemonic in implemented
            and not UNMODELLED.match(row.mnemonic)
        ):
            found += [case for case in generator.cases(row) if (row.mnemonic, case.form) != ("v_nop", "VOP3")]
    plain = [case for case in found if not (case.modifiers or case.uniform or any(case.neg + case.abs))]
    return found + [dataclasses.replace(case, draw=draw) for draw in range(1, DRAWS) for case in plain]


# Running


def body_of(cases: list[Case]) -> str:
    lines = []
    for i in range(len(INPUTS[0])):
        lines.append(
            f"global_load_dword v{FIRST_ROW + i}, v1, s[4:5]\n s_add_u32 s4, s4, 256\n s_addc_u32 s5, s5, 0"
        )
    lines.append("s_waitcnt vmcnt(0)")
    for i, mask in enumerate((VCC, MASK, OLD_MASK)):
        for half in range(2):
            lines.append(f"s_mov_b32 s{20 + 2 * i + half}, {mask >> 32 * half & 0xFFFFFFFF:#x}")
    lines += [
        f"s_mov_b32 s{40 + h}, {(VCC if h < 2 else OLD_MASK) >> 32 * (h & 1) & 0xFFFFFFFF:#x}"
        for h in range(4)
    ]
    for case in cases:
        kind = case.destination
        dwords = 0 if kind == "m64" else max(1, width(kind) // 32)
        old = register_of(operand_class("", kind, 3), 3)
        for i in range(dwords):
            source = old + i if i < 2 else register_of("int", 2) + i - 2
            lines.append(f"v_mov_b32 v{RESULT + i}, v{source}")
        if case.uniform and case.uniform[0].startswith("s"):
            lines += [f"s_mov_b32 s{50 + i}, {case.uniform[1] >> 32 * i & 0xFFFFFFFF:#x}" for i in range(2)]
        lines.append("s_mov_b64 vcc, s[40:41]\n s_mov_b64 s[24:25], s[42:43]")
        if case.exec != FULL:
            for half in range(2):
                lines.append(
                    f"s_mov_b32 exec_{'lo' if half == 0 else 'hi'}, {case.exec >> 32 * half & 0xFFFFFFFF:#x}"
                )
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
    """Per case its output rows: the result's dwords, then the lane masks that it writes.

    Args:
        cases: all of one draw.
    """
    body = body_of(cases)
    out = run(
        body,
        [np.array(row, np.uint32) for row in INPUTS[cases[0].draw]],
        sum(case.outputs for case in cases),
        preload=False,
    )
    found, at = [], 0
    for case in cases:
        found.append(out[at : at + case.outputs])
        at += case.outputs
    return found
