"""What a vector instruction should compute: AMD's pseudo-code within the rules of the instruction's form.

The texts speak of operands and results alone. Source and output modifiers, SDWA, DPP, and the half of a
register that a 16-bit result takes are applied around them here.
"""

import numpy as np

import floating_point as fp
import support_decode
from conformance_tables import pseudo_code_of, tolerance_of, unspecified
from conformance_vector import (
    FIRST_ROW,
    INPUTS,
    MASK,
    VCC,
    Case,
    operand_class,
    register_of,
    width,
)
from execute_kernels import LANES
from pseudo_code_values import Value

FULL_MASK = (1 << 64) - 1


def gather(case: Case, register: int, bits: int, lane: int) -> int:
    value = 0
    for i in range(max(1, bits // 32)):
        value |= INPUTS[case.draw][register - FIRST_ROW + i][lane] << 32 * i
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
    value = case.uniform[1] if slot == 0 and case.uniform else gather(case, case.registers[slot], bits, lane)
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
        old = gather(case, old_register, min(bits, 64), lane)
        if bits == 128:
            old |= gather(case, register_of("int", 2), 64, lane) << 64
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
            env["VCC"] = Value("u", 64, (MASK if case.form in ("VOP3", "VOP3B") else VCC) & FULL_MASK)
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
    """16-bit results: instructions that also have a short form clear the rest of the register, as do those
    that keep the behaviour of older chips."""
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
    plain = not (case.modifiers or case.uniform or any(case.neg + case.abs))
    return range(LANES) if plain else range(len(case.line) % 3, LANES, 3)


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
