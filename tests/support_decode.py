"""Assembly lines for every row of the simulator's instruction table, in the spelling that LLVM prints.

The rows supply mnemonics, operand types and forms; encodings come from the assembler alone, so a decoded line
that equals the generated one was decoded right.
"""

import random
import re
from dataclasses import dataclass
from pathlib import Path

TABLES = Path(__file__).parents[1] / "csrc" / "simulator"
ROW = re.compile(r'^INSTRUCTION\((\w+), "(\w+)", (\w+), "([^"]*)", (.*)\)$', re.M)
FORM = re.compile(r'(\w+)(?:\((0x[0-9a-f]+)(?:, "([^"]*)")?\))?')
SHORT = ("VOP1", "VOP2", "VOPC")


@dataclass(frozen=True)
class Row:
    mnemonic: str
    operands: tuple[str, ...]
    forms: dict[str, str]  # encoding, SDWA or DPP -> modifiers


def rows() -> list[Row]:
    """The rows of instructions*.def."""
    found = []
    for path in sorted(TABLES.glob("instructions_*.def")):
        for _, mnemonic, _, operands, forms in ROW.findall(path.read_text()):
            parsed = {name: modifiers for name, _, modifiers in FORM.findall(forms)}
            found.append(Row(mnemonic, tuple(operands.split()), parsed))
    return found


def width(kind: str) -> int:
    """32-bit registers of an operand type such as f32, b96 or bf16x4."""
    bits, _, count = re.match(r"[a-z]+(\d*)(x?)(\d*)", kind).groups()
    return max(1, int(bits or 32) * int(count or 1) // 32)


def is_float(kind: str) -> bool:
    return kind == "mix" or bool(re.match(r"b?f\d", kind))


class Lines:
    """Random lines of one form of one row."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)

    def pick(self, *choices):
        return self.random.choice(choices)

    def group(self, file: str, registers: int, low: int, high: int) -> str:
        align = 1 if registers == 1 else 2 if file != "s" else min(registers, 4)
        first = self.random.randrange(low, high - registers + 1) // align * align
        return f"{file}{first}" if registers == 1 else f"{file}[{first}:{first + registers - 1}]"

    # Sources and destinations are disjoint: some instructions forbid an overlap.
    def v(self, registers: int = 1, file: str = "v") -> str:
        return self.group(file, registers, 0, 160)

    def dst(self, registers: int = 1, file: str = "v") -> str:
        return self.group(file, registers, 192, 256)

    def s(self, registers: int = 1) -> str:
        if registers <= 2 and self.random.random() < 0.25:
            return (
                self.pick("vcc", "exec", "flat_scratch", "xnack_mask", "ttmp[4:5]")
                if registers == 2
                else self.pick(
                    "vcc_lo",
                    "vcc_hi",
                    "m0",
                    "exec_lo",
                    "exec_hi",
                    "flat_scratch_lo",
                    "xnack_mask_hi",
                    "ttmp7",
                )
            )
        return self.group("s", registers, 0, 96)

    def constant(self, kind: str) -> str:
        integer = str(self.random.randrange(-16, 65))
        if re.match(r"[iub]16", kind) or kind in ("mix", "l32"):
            return integer
        return self.pick(integer, "0.5", "-0.5", "1.0", "-1.0", "2.0", "-2.0", "4.0", "-4.0")

    def literal(self, kind: str) -> str:
        if re.match(r"[a-z]+16$", kind):
            return hex(self.random.randrange(0x1000, 0x3000))
        return hex(self.random.randrange(0x12345678, 0x30000000))

    def scalar_source(self, kind: str) -> str:
        choice = self.random.random()
        if choice < 0.2:
            return self.constant(kind)
        return self.literal(kind) if choice < 0.3 else self.s(width(kind))

    def vector_source(self, kind: str, scalar: bool, literal: bool) -> str:
        choice = self.random.random()
        if choice < 0.2:
            return self.constant(kind)
        if scalar and choice < 0.35:
            return self.s(width(kind))
        if literal and choice < 0.45:
            return self.literal(kind)
        return self.v(width(kind))

    def float_modifiers(self, source: str, absolute: bool = True) -> str:
        if not re.match(r"[vs\[]|vcc", source):
            return source
        return self.pick(source, f"-{source}", *([f"|{source}|", f"-|{source}|"] if absolute else []))

    def bits(self, name: str, count: int) -> str:
        return f" {name}:[{','.join(self.pick('0', '1') for _ in range(count))}]"

    # --- scalar -------------------------------------------------------------------------------------------

    def scalar(self, row: Row) -> str:
        name, kinds = row.mnemonic, row.operands
        if name == "s_set_gpr_idx_on":
            return (
                f"{name} {self.group('s', 1, 0, 96)}, gpr_idx({self.pick('SRC0', 'SRC0,DST', 'SRC1,SRC2')})"
            )
        operands = [] if kinds[0] == "-" else [self.s(width(kinds[0]))]
        register_only = re.match(r"s_(movrels|setpc|swappc|rfe_b64|cbranch)", name)
        literal = False
        for kind in kinds[1:]:
            source = self.s(width(kind)) if register_only else self.scalar_source(kind)
            while source.startswith("0x") and literal:
                source = self.scalar_source(kind)
            literal |= source.startswith("0x")
            operands.append(source)
        return f"{name} {', '.join(operands)}"

    def scalar_immediate(self, row: Row) -> str:
        name = row.mnemonic
        register = (
            "hwreg("
            + self.pick("HW_REG_MODE", "HW_REG_HW_ID, 8, 4", "HW_REG_XCC_ID, 0, 4", "30, 1, 31")
            + ")"
        )
        if name == "s_setreg_imm32_b32":
            return f"{name} {register}, {hex(self.random.randrange(65, 1 << 31))}"
        if name == "s_setreg_b32":
            return f"{name} {register}, {self.s()}"
        target = self.s(2 if "b64" in name or "fork" in name else 1)
        if name == "s_getreg_b32":
            return f"{name} {target}, {register}"
        if "fork" in name or "call" in name:
            return f"{name} {target}, {self.random.randrange(-99, 99)}"
        return f"{name} {target}, {hex(self.random.randrange(1 << 16))}"

    def program_control(self, row: Row) -> str:
        name = row.mnemonic
        if name == "s_waitcnt":
            vmcnt, expcnt, lgkmcnt = (self.random.randrange(limit) for limit in (63, 7, 15))
            full = f"vmcnt({vmcnt}) expcnt({expcnt}) lgkmcnt({lgkmcnt})"
            return f"{name} " + self.pick(full, "vmcnt(0)", "vmcnt(62)", "lgkmcnt(3)", "expcnt(0) lgkmcnt(0)")
        if "branch" in name:
            return f"{name} {self.random.randrange(-999, 999)}"
        if "sendmsg" in name:
            message = self.pick("MSG_INTERRUPT", "MSG_GS, GS_OP_CUT, 1", "MSG_GS_DONE, GS_OP_NOP")
            return f"{name} sendmsg({message})"
        if name == "s_set_gpr_idx_mode":
            return f"{name} gpr_idx({self.pick('SRC1', 'SRC0,SRC1,SRC2,DST', 'DST')})"
        if name in (
            "s_nop",
            "s_sleep",
            "s_sethalt",
            "s_setkill",
            "s_setprio",
            "s_trap",
            "s_incperflevel",
            "s_decperflevel",
        ):
            return f"{name} {self.random.randrange(4)}"
        return name + (self.pick("", " 3") if name == "s_endpgm" else "")

    def scalar_memory(self, row: Row) -> str:
        name, kinds = row.mnemonic, row.operands
        if not kinds:
            return name
        operands = []
        if kinds[0] == "k7":
            operands.append(str(self.random.randrange(64)))
        elif kinds[0] != "-":
            operands.append(self.group("s", width(kinds[0]), 0, 96))
        if len(kinds) == 1:
            return f"{name} {operands[0]}"
        operands.append(self.group("s", width(kinds[1]), 0, 96))
        buffer = "_buffer" in name
        low = 0 if buffer else -(1 << 20)
        immediate = self.random.randrange(low, 1 << 20)
        immediate = f"-{hex(-immediate)}" if immediate < 0 else hex(immediate)
        operands.append(
            self.pick(immediate, self.group("s", 1, 0, 96), f"{self.group('s', 1, 0, 96)} offset:{immediate}")
        )
        glc = self.pick("", " glc") if kinds[0] not in ("-", "k7") else ""
        return f"{name} {', '.join(operands)}{glc}"

    # --- vector -------------------------------------------------------------------------------------------

    def vector_destinations(self, row: Row, long_form: bool) -> tuple[list[str], list[str]]:
        kinds, operands = list(row.operands), []
        first = kinds.pop(0)
        if first == "m64":
            operands.append(self.group("s", 2, 0, 96) if long_form else "vcc")
        elif first.startswith("s"):
            operands.append(self.group("s", 1, 0, 96))
        else:
            operands.append(self.dst(width(first), "a" if first.startswith("a") else "v"))
        if first != "m64" and kinds and kinds[0] == "m64":
            kinds.pop(0)
            operands.append(self.group("s", 2, 0, 96) if long_form else "vcc")
        return operands, kinds

    def short(self, row: Row, form: str) -> str:
        if not row.operands:
            return row.mnemonic
        suffix = "_e32" if {"VOP3", "VOP3B"} & set(row.forms) or row.mnemonic == "v_pk_fmac_f16" else ""
        operands, kinds = self.vector_destinations(row, False)
        masked = "m64" in kinds
        for i, kind in enumerate(kinds):
            if kind == "m64":
                operands.append("vcc")
            elif kind.startswith("k"):
                operands.append(hex(self.random.randrange(0x1000, 0x3000)))
            elif kind.startswith("a"):
                operands.append(self.v(1, "a"))
            elif i > 0 or row.mnemonic in ("v_readfirstlane_b32", "v_swap_b32"):
                operands.append(self.v(width(kind)))
            else:
                has_literal = any(k.startswith("k") for k in kinds)
                operands.append(
                    self.vector_source(kind, not masked and not has_literal, not masked and not has_literal)
                )
        return f"{row.mnemonic}{suffix} {', '.join(operands)}"

    def sdwa(self, row: Row, form: str) -> str:
        operands, kinds = self.vector_destinations(row, False)
        if form == "VOPC":
            operands[0] = self.pick("vcc", self.group("s", 2, 0, 96))
        selects = ["BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1", "DWORD"]
        text, count = [], 0
        scalar = "m64" not in kinds
        for kind in kinds:
            if kind == "m64":
                operands.append("vcc")
                continue
            source = self.pick(self.v(), self.v(), self.group("s", 1, 0, 96)) if scalar else self.v()
            scalar &= source.startswith("v")
            if is_float(kind):
                source = self.float_modifiers(source)
            elif "fp8" not in row.mnemonic and "bf8" not in row.mnemonic and row.mnemonic != "v_cndmask_b32":
                source = self.pick(source, f"sext({source})")
            operands.append(source)
            text.append(f"src{count}_sel:{self.pick(*selects)}")
            count += 1
        modifiers = ""
        if form != "VOPC" and not re.match(r"v_cvt_(pk_)?f32_[fb][pf]8", row.mnemonic):
            if any("clamp" in m for m in row.forms.values()):
                modifiers += self.pick("", " clamp")
            unused = self.pick("UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE")
            modifiers += f" dst_sel:{self.pick(*selects)} dst_unused:{unused}"
        return f"{row.mnemonic}_sdwa {', '.join(operands)}{modifiers} {' '.join(text)}"

    def dpp(self, row: Row, form: str) -> str:
        operands, kinds = self.vector_destinations(row, False)
        wide = max(width(kind) for kind in (row.operands[0], kinds[0])) > 1
        for kind in kinds:
            source = "vcc" if kind == "m64" else self.v(width(kind))
            operands.append(self.float_modifiers(source) if is_float(kind) and "x" not in kind else source)
        controls = [f"row_newbcast:{self.random.randrange(16)}"]
        if not wide:
            controls += [f"quad_perm:[{','.join(self.pick('0', '1', '2', '3') for _ in range(4))}]"]
            controls += [f"row_{way}:{self.random.randrange(1, 16)}" for way in ("shl", "shr", "ror")]
            controls += [
                "wave_shl:1",
                "wave_rol:1",
                "wave_shr:1",
                "wave_ror:1",
                "row_mirror",
                "row_half_mirror",
            ]
            controls += ["row_bcast:15", "row_bcast:31"]
        masks = f"row_mask:{self.pick('0xf', '0xa', '0x0')} bank_mask:{self.pick('0xf', '0x3')}"
        bound = self.pick("", " bound_ctrl:1")
        return f"{row.mnemonic}_dpp {', '.join(operands)} {self.pick(*controls)} {masks}{bound}"

    def vop3(self, row: Row, form: str) -> str:
        name, allowed = row.mnemonic, row.forms[form].split()
        suffix = "_e64" if set(SHORT) & set(row.forms) else ""
        if name in ("v_readlane_b32", "v_writelane_b32"):
            lane = self.pick(str(self.random.randrange(64)), self.group("s", 1, 0, 96), "m0")
            if name == "v_readlane_b32":
                return f"{name} {self.group('s', 1, 0, 96)}, {self.v()}, {lane}"
            value = self.pick("1.0", "-3") if not lane.isdigit() else self.group("s", 1, 0, 96)
            return f"{name} {self.dst()}, {value}, {lane}"
        operands, kinds = self.vector_destinations(row, True)
        scalar = "m64" not in kinds and "div_fmas" not in name  # which reads VCC
        for i, kind in enumerate(kinds):
            if kind == "m64":
                operands.append(self.group("s", 2, 0, 96))
                continue
            vector_only = name == "v_mqsad_u32_u8" and i == 2
            source = self.v(width(kind)) if vector_only else self.vector_source(kind, scalar, False)
            scalar &= not re.match(r"s|vcc|m0|exec|flat|xnack|ttmp", source)
            if "neg" in allowed and is_float(kind) and source[0] in "vs" and "x" not in kind:
                source = self.float_modifiers(source, form == "VOP3")
            operands.append(source)
        text = f"{name}{suffix} {', '.join(operands)}"
        if "op_sel" in allowed and self.random.random() < 0.5:
            count = 4 if len(kinds) == 3 else 3
            if name.startswith("v_cvt_pk_"):
                text += " op_sel:[0,0,1]" if "8_f32" in name else ""
            elif name.startswith("v_cvt_sr"):
                text += " op_sel:[0,0,1,1]"
            else:
                text += f" op_sel:[1,{','.join(self.pick('0', '1') for _ in range(count - 1))}]"
        if "clamp" in allowed:
            text += self.pick("", " clamp")
        if "omod" in allowed and is_float(row.operands[0]) and not re.search(r"f16$|fp8|bf8", name):
            text += self.pick("", " mul:2", " mul:4", " div:2")
        return text

    def vop3p(self, row: Row, form: str) -> str:
        name, kinds = row.mnemonic, row.operands
        if name.startswith("v_accvgpr"):
            if name == "v_accvgpr_read_b32":
                return f"{name} {self.dst()}, {self.v(1, 'a')}"
            return f"{name} {self.dst(1, 'a')}, {self.pick(self.v(), '1.0', '-7')}"
        count = len(kinds) - 1
        mixed = kinds[1] == "mix"
        sources, scalar = [], True
        for kind in kinds[1:]:
            source = self.pick(
                self.v(width(kind)),
                self.v(width(kind)),
                self.s(width(kind)) if scalar else self.v(width(kind)),
            )
            scalar &= source.startswith("v[") or bool(re.match(r"v\d", source))
            sources.append(self.float_modifiers(source) if mixed else source)
        text = f"{name} {self.dst(width(kinds[0]))}, {', '.join(sources)}"
        if mixed:
            high = [self.pick("0", "1") for _ in range(count)]
            low = [self.pick("0", bit) for bit in high]
            text += f" op_sel:[{','.join(low)}]" if "1" in low else ""
            text += f" op_sel_hi:[{','.join(high)}]" if "1" in high else ""
            return text + self.pick("", " clamp")
        if name.startswith(("v_dot4", "v_dot8")):
            return text + self.pick("", " clamp")
        if not name.startswith("v_dot2") and self.random.random() < 0.6:
            low, high = self.bits("op_sel", count), self.bits("op_sel_hi", count)
            text += low if "1" in low else ""
            text += high if "0" in high else ""
        if "f16" in name or "f32" in name:
            low, high = self.bits("neg_lo", count), self.bits("neg_hi", count)
            text += low if "1" in low else ""
            text += high if "1" in high else ""
        clamps = not name.startswith(
            (
                "v_pk_mov",
                "v_pk_lsh",
                "v_pk_ash",
                "v_pk_mul_lo",
                "v_pk_min_i",
                "v_pk_min_u",
                "v_pk_max_i",
                "v_pk_max_u",
            )
        )
        return text + (self.pick("", " clamp") if clamps else "")

    def matrix(self, row: Row, form: str) -> str:
        kinds = row.operands
        target = self.pick("v", "a")
        destination = self.dst(width(kinds[0]), target)
        sources = [self.v(width(kind), self.pick("v", "a")) for kind in kinds[1:3]]
        if row.mnemonic.startswith("v_smfmac"):
            sources.append(self.v())
        else:
            sources.append(
                self.pick(destination, destination, "1.0", "0", self.group(target, width(kinds[3]), 0, 160))
            )
        text = f"{row.mnemonic} {destination}, {', '.join(sources)}"
        if kinds[0].startswith("f64"):
            negated = self.bits("neg", 3)
            return text + (negated if "1" in negated else "")
        if "smfmac" in row.mnemonic or re.search(r"x1_|4x4x4_16b|_2b_|_4b_|_16b_", row.mnemonic):
            text += self.pick("", " cbsz:1 abid:1")
        if "smfmac" not in row.mnemonic and not re.search(r"xf32|i8|fp8|bf8|bf16", row.mnemonic):
            text += self.pick("", " blgp:3")
        return text

    # --- memory -------------------------------------------------------------------------------------------

    def lds(self, row: Row, form: str) -> str:
        name, kinds = row.mnemonic, row.operands
        if name.startswith("ds_gws"):
            value = " " + self.v(2).split(":")[0].replace("[", "") if kinds else ""  # an even register
            return f"{name}{value}{self.pick('', ' offset:8')} gds"
        if not kinds:
            return name
        file = self.pick("v", "a")
        operands = [] if kinds[0] == "-" else [self.dst(width(kinds[0]), file)]
        for kind in kinds[1:]:
            if kind != "-":
                operands.append(self.v() if kind == "a32" else self.v(width(kind), file))
        if "read2" in name or "write2" in name or "wrxchg2" in name:
            offsets = self.pick("", " offset0:3", " offset1:255", " offset0:17 offset1:9")
        elif name == "ds_swizzle_b32":
            offsets = " offset:" + self.pick(
                "swizzle(QUAD_PERM,3,0,1,2)",
                "swizzle(SWAP,16)",
                "swizzle(REVERSE,8)",
                "swizzle(BROADCAST,4,1)",
                'swizzle(BITMASK_PERM,"01pip")',
                "49443",
            )
        else:
            offsets = self.pick("", " offset:4", " offset:65535")
        return f"{name} {', '.join(operands)}{offsets}"

    def cache(self) -> str:
        return self.pick("", " sc0") + self.pick("", " nt") + self.pick("", " sc1")

    def buffer(self, row: Row, form: str) -> str:
        name, kinds = row.mnemonic, row.operands
        if not kinds:
            return name + (
                self.pick("", " sc0") + self.pick("", " sc1") if name in ("buffer_wbl2", "buffer_inv") else ""
            )
        resource, soffset = (
            self.group("s", 4, 0, 96),
            self.pick(self.group("s", 1, 0, 96), "0", "m0", "64", "-1"),
        )
        mode, registers = self.pick(("", 0), (" idxen", 1), (" offen", 1), (" idxen offen", 2))
        address = self.v(registers) if registers else "off"
        lds = self.random.random() < 0.3 and name in (
            "buffer_load_dword",
            "buffer_load_ubyte",
            "buffer_load_sshort",
        )
        operands = [] if lds else [self.v(width(kinds[-1]), self.pick("v", "a"))]
        operands += [address, resource, soffset]
        format_ = ""
        if form == "MTBUF":
            format_ = self.pick(
                "", " format:[BUF_DATA_FORMAT_16_16,BUF_NUM_FORMAT_SNORM]", " format:[BUF_NUM_FORMAT_FLOAT]"
            )
        cache = (
            self.pick("", " sc0") + self.pick("", " nt") + (self.pick("", " sc1") if form == "MUBUF" else "")
        )
        offset = self.pick("", " offset:4", " offset:4095")
        return f"{name} {', '.join(operands)}{format_}{mode}{offset}{cache}{' lds' if lds else ''}"

    def flat(self, row: Row, form: str) -> str:
        name, kinds = row.mnemonic, row.operands
        file = self.pick("v", "a")
        atomic, store, lds = "atomic" in name, kinds[0] == "-", kinds[0] == "lds"
        with_result = not store and not lds and (not atomic or self.random.random() < 0.5)
        operands = [self.dst(width(kinds[0]), file)] if with_result else []
        scalar = None
        if form == "GLOBAL":
            scalar = self.pick("off", self.group("s", 2, 0, 96))
            address = self.v(2 if scalar == "off" else 1)
        elif form == "SCRATCH":
            scalar, address = self.pick(
                ("off", self.v()), (self.group("s", 1, 0, 96), "off"), (self.group("s", 1, 0, 96), self.v())
            )
        else:
            address = self.v(2)
        operands.append(address)
        if len(kinds) > 1:
            operands.append(self.v(width(kinds[1]), file))
        if scalar:
            operands.append(scalar)
        offset = self.pick("", " offset:8", " offset:4095" if form == "FLAT" else " offset:-4096")
        cache = (" sc0" if with_result else "") if atomic else self.pick("", " sc0")
        return f"{name} {', '.join(operands)}{offset}{cache}{self.pick('', ' nt')}{self.pick('', ' sc1')}"

    def line(self, row: Row, form: str) -> str:
        short = next((name for name in SHORT if name in row.forms), None)
        if form in ("SOP1", "SOP2", "SOPC"):
            return self.scalar(row)
        if form == "SOPK":
            return self.scalar_immediate(row)
        if form == "SOPP":
            return self.program_control(row)
        if form == "SMEM":
            return self.scalar_memory(row)
        if form in SHORT:
            return self.short(row, form)
        if form == "SDWA":
            return self.sdwa(row, short)
        if form == "DPP":
            return self.dpp(row, short)
        if form in ("VOP3", "VOP3B"):
            return self.vop3(row, form)
        if form == "VOP3P":
            return self.vop3p(row, form)
        if form == "MFMA":
            return self.matrix(row, form)
        if form == "DS":
            return self.lds(row, form)
        return self.buffer(row, form) if form in ("MUBUF", "MTBUF") else self.flat(row, form)
