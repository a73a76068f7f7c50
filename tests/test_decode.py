"""The simulator's decoder against the assembler of the pinned compiler."""

import json
import re
import struct
import subprocess
from pathlib import Path

import pytest

import support_decode as support
from device_compiler import assemble
from liteattention_rocm import simulator

SOURCES = Path(__file__).parents[1] / "csrc" / "simulator"
LINES_PER_FORM = 6

# Forms whose text does not say which of two encodings was meant, so the assembler takes the shorter.
INDISTINGUISHABLE = {("v_nop", "VOP3"), ("v_clrexcp", "VOP3")}


def source(lines) -> str:
    return ".text\n" + "".join(f"{line}\n" for line in lines)


def text_section(elf: bytes) -> bytes:
    (sections,) = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQ", elf, sections + i * size) for i in range(count)]
    for name, _, _, _, offset, length in headers:
        start = headers[names][4] + name
        if elf[start : elf.index(b"\0", start)] == b".text":
            return elf[offset : offset + length]
    raise ValueError("no .text section")


@pytest.fixture(scope="module")
def cases():
    lines = support.Lines(seed=942)
    return [
        (row, form, lines.line(row, form))
        for row in support.rows()
        for form in row.forms
        if (row.mnemonic, form) not in INDISTINGUISHABLE
        for _ in range(LINES_PER_FORM)
    ]


@pytest.fixture(scope="module")
def code_object(cases):
    """All lines, assembled. The assembler refuses none of them."""
    return assemble(source(line for _, _, line in cases))


@pytest.fixture(scope="module")
def fields(tmp_path_factory):
    """Maps a code object to the decoded fields of its instructions."""
    program = tmp_path_factory.mktemp("decode") / "decode_fields"
    decoder = [*SOURCES.glob("decode*.cpp"), SOURCES / "op_info.cpp"]
    command = ["g++", "-std=c++17", "-O1", f"-I{SOURCES}", Path(__file__).with_name("decode_fields.cpp")]
    subprocess.run([*command, *decoder, "-o", program], check=True)

    def run(code_object: bytes) -> list[dict]:
        code = text_section(code_object)
        words = struct.unpack(f"<{len(code) // 4}I", code[: len(code) // 4 * 4])
        answer = subprocess.run(
            [program],
            input=" ".join(f"{word:x}" for word in words),
            text=True,
            capture_output=True,
            check=True,
        )
        return [json.loads(line) for line in answer.stdout.splitlines()]

    return run


def test_every_mnemonic_disassembles_to_its_assembly(cases, code_object, record_property):
    instructions = simulator.disassemble(code_object)["instructions"]
    expected = [line for _, _, line in cases]
    wrong = [
        (want, got["text"]) for want, got in zip(expected, instructions, strict=True) if want != got["text"]
    ]
    assert wrong == []
    mnemonics = {row.mnemonic for row, _, _ in cases}
    record_property("mnemonics", len(mnemonics))
    record_property("lines", len(expected))
    assert {instruction["op"] for instruction in instructions} == mnemonics
    assert mnemonics == {row["name"] for row in simulator.coverage()}
    assert len(mnemonics) > 1100


# Vector registers read and written


def registers(text: str) -> set[int]:
    """VGPRs named in assembly, and AGPRs from 256."""
    found = set()
    for file, single, first, last in re.findall(r"\b([va])(?:(\d+)\b|\[(\d+):(\d+)\])", text):
        low, high = (int(single), int(single)) if single else (int(first), int(last))
        found |= {number + 256 * (file == "a") for number in range(low, high + 1)}
    return found


READS_DESTINATION = re.compile(
    r"v_fmac|v_mac_f16|v_pk_fmac|v_dot\dc|v_writelane|v_smfmac|v_fma_mix(lo|hi)"
    r"|v_cvt_(pk|sr)_(fp8|bf8)_f32|v_(mad|fma|div_fixup)_f16|v_mad_[iu]16|\w+_d16"
)


def expected_registers(row, form, line) -> tuple[set[int], set[int]]:
    mnemonic, _, rest = line.partition(" ")
    operands = re.split(r", (?![^(]*\))", rest)
    memory = form in ("DS", "MUBUF", "MTBUF", "FLAT", "GLOBAL", "SCRATCH")
    atomic = memory and "_atomic_" in mnemonic
    buffer = form in ("MUBUF", "MTBUF")
    to_lds = row.operands[:1] == ("lds",) or line.endswith(" lds")
    written: set[int] = set()
    sources = operands
    if row.mnemonic == "v_swap_b32":
        return registers(rest), registers(rest)
    if buffer and atomic:
        if " sc0" in line:
            written = set(sorted(registers(operands[0]))[: support.width(row.operands[0])])
    elif row.operands and row.operands[0] != "-" and not to_lds and not (atomic and " sc0" not in line):
        written, sources = registers(operands[0]), operands[1:]
    read = set().union(*(registers(operand) for operand in sources)) if sources else set()
    op_sel = re.search(r" op_sel:\[([01,]+)\]", line)
    partial = (
        bool(READS_DESTINATION.match(mnemonic))
        or ("UNUSED_PRESERVE" in line and "dst_sel:DWORD" not in line)
        or ("row_mask" in line and not line.endswith("row_mask:0xf bank_mask:0xf bound_ctrl:1"))
        or (form == "VOP3" and op_sel is not None and op_sel[1].endswith("1"))
    )
    return read | (written if partial else set()), written


def test_vector_registers_read_and_written(cases, code_object, fields):
    wrong = []
    for (row, form, line), decoded in zip(cases, fields(code_object), strict=True):
        got = [
            {number for first, count in decoded[name] for number in range(first, first + count)}
            for name in ("reads", "writes")
        ]
        want = expected_registers(row, form, line)
        if got != list(want):
            wrong.append((line, got, want))
    assert wrong == []


# Constants


CONSTANT = 4  # Operand::Kind


@pytest.mark.parametrize(
    ("line", "operand", "value"),
    [
        ("v_add_f32_e32 v0, 1.0, v1", "src0", 0x3F800000),
        ("v_add_f32_e32 v0, -4.0, v1", "src0", 0xC0800000),
        ("v_add_f32_e32 v0, 0.15915494, v1", "src0", 0x3E22F983),
        ("v_add_f32_e32 v0, 64, v1", "src0", 64),
        ("v_add_f32_e32 v0, 0x40490fdb, v1", "src0", 0x40490FDB),
        ("v_add_f16_e32 v0, 1.0, v1", "src0", 0x3C00),
        ("v_add_f16_e32 v0, -0.5, v1", "src0", 0xB800),
        ("v_add_f16_e64 v0, v1, 0.15915494", "src1", 0x3118),
        ("v_add_f16_e32 v0, 0x1234, v1", "src0", 0x1234),
        ("v_add_u32_e32 v0, -16, v1", "src0", 0xFFFFFFF0),
        ("v_add_u32_e32 v0, 2.0, v1", "src0", 0x40000000),
        ("v_add_u32_e32 v0, 0xdeadbeef, v1", "src0", 0xDEADBEEF),
        ("v_add_f64 v[0:1], v[2:3], 1.0", "src1", 0x3FF0000000000000),
        ("v_add_f64 v[0:1], v[2:3], 0.15915494309189532", "src1", 0x3FC45F306DC9C882),
        ("v_add_f64 v[0:1], v[2:3], -1", "src1", 0xFFFFFFFFFFFFFFFF),
        ("v_trunc_f64_e32 v[0:1], 0x40490000", "src0", 0x4049000000000000),
        ("v_cvt_f64_f32_e32 v[0:1], 1.0", "src0", 0x3F800000),
        ("v_ldexp_f64 v[0:1], v[2:3], -2", "src1", 0xFFFFFFFE),
        ("v_cmp_lt_i64_e32 vcc, -5, v[2:3]", "src0", 0xFFFFFFFFFFFFFFFB),
        ("v_cmp_lt_i64_e32 vcc, 0x80000000, v[2:3]", "src0", 0xFFFFFFFF80000000),
        ("v_cmp_lt_u64_e32 vcc, 0x80000000, v[2:3]", "src0", 0x80000000),
        ("v_cmp_class_f64_e64 vcc, v[0:1], 5", "src1", 5),
        ("v_lshlrev_b64 v[0:1], -1, v[2:3]", "src0", 0xFFFFFFFF),
        ("v_lshlrev_b64 v[0:1], 3, -1", "src1", 0xFFFFFFFFFFFFFFFF),
        ("v_mad_u64_u32 v[0:1], vcc, v2, -1, 0", "src1", 0xFFFFFFFF),
        ("v_mad_u64_u32 v[0:1], vcc, v2, v3, -1", "src2", 0xFFFFFFFFFFFFFFFF),
        ("v_fmaak_f32 v0, v1, v2, 0x41234567", "src2", 0x41234567),
        ("v_fmamk_f32 v0, v1, 0x41234567, v2", "src1", 0x41234567),
        ("v_pk_add_f16 v0, v1, 1.0", "src1", 0x3C00),
        ("v_pk_fma_f32 v[0:1], v[2:3], v[4:5], 1.0", "src2", 0x3F800000),
        ("v_fma_mix_f32 v0, v1, 1.0, v2", "src1", 0x3F800000),
        ("v_fma_mix_f32 v0, v1, 1.0, v2 op_sel_hi:[0,1,0]", "src1", 0x3C00),
        ("v_mfma_f32_16x16x16_bf16 v[0:3], v[4:5], v[6:7], 1.0", "src2", 0x3F800000),
        ("v_mfma_i32_16x16x32_i8 v[0:3], v[4:5], v[6:7], -1", "src2", 0xFFFFFFFF),
        ("v_mfma_f64_16x16x4_f64 v[0:7], v[8:9], v[10:11], 1.0", "src2", 0x3FF0000000000000),
        ("v_accvgpr_write_b32 a0, -3", "src0", 0xFFFFFFFD),
        ("s_add_u32 s0, s1, 0xffffff00", "src1", 0xFFFFFF00),
        ("s_add_u32 s0, 0.5, s1", "src0", 0x3F000000),
        ("s_mov_b64 s[0:1], -1", "src0", 0xFFFFFFFFFFFFFFFF),
        ("s_mov_b64 s[0:1], 1.0", "src0", 0x3FF0000000000000),
        ("s_mov_b64 s[0:1], 0x80000000", "src0", 0x80000000),
        ("s_ashr_i64 s[0:1], 0x80000000, s2", "src0", 0xFFFFFFFF80000000),
        ("s_lshl_b64 s[0:1], s[2:3], -1", "src1", 0xFFFFFFFF),
        ("s_setreg_imm32_b32 hwreg(HW_REG_MODE), 0x12345678", "src0", 0x12345678),
        ("buffer_load_dword v0, off, s[4:7], -1", "src3", 0xFFFFFFFF),
    ],
)
def test_constants_have_the_width_of_their_operand(fields, line, operand, value):
    (decoded,) = fields(assemble(source([line])))
    kind, _, _, got = decoded[operand]
    assert (kind, int(got, 16)) == (CONSTANT, value)


@pytest.mark.parametrize(
    ("line", "offset"),
    [
        ("s_branch -4", -4),
        ("s_movk_i32 s0, 0xfffe", -2),
        ("s_load_dword s0, s[2:3], -0x10", -16),
        ("s_load_dword s0, s[2:3], 0xffffc", 0xFFFFC),
        ("global_load_dword v0, v[2:3], off offset:-4096", -4096),
        ("scratch_load_dword v0, off, s2 offset:4095", 4095),
        ("flat_load_dword v0, v[2:3] offset:4095", 4095),
        ("buffer_load_dword v0, off, s[4:7], 0 offset:4095", 4095),
        ("ds_read_b32 v0, v1 offset:65535", 65535),
        ("ds_read2_b32 v[0:1], v2 offset0:255 offset1:1", 255),
    ],
)
def test_immediate_offsets(fields, line, offset):
    (decoded,) = fields(assemble(source([line])))
    assert decoded["offset"] == offset


# What is not an instruction


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("0xc4000000, 0", "unknown encoding 0xc4000000"),
        ("0xe4000000, 0", "unknown encoding 0xe4000000"),
        ("0x9a800000", "unknown SOP2 opcode 0x35"),
        ("0xbfff0000", "unknown SOPP opcode 0x7f"),
        ("0xbf8a0001", "reserved immediate of SOPP"),  # s_barrier
        ("0xbe801d82", "the source must be a scalar register"),  # s_setpc_b64 2
        ("0x2c000000", "unknown VOP2 opcode 0x16"),
        ("0x7e0002fe", "reserved source operand code 254"),  # src_lds_direct
        ("0x7e0002ef", "reserved source operand code 239"),
        ("0x7e00027d", "operand code 125 is not a scalar register"),
        ("0x7e00a200", "source operand code 0 is not a vector register"),  # v_swap_b32 v0, s0
        ("0xd1cb0000, 0x03fe00ff", "a literal constant is not allowed here"),  # v_fma_f32
        ("0xd1ff0000, 0x24040501", "VOP3 negates source 0 of an instruction that cannot"),  # v_add3_u32
        ("0xd1ff8000, 0x04040501", "VOP3 clamp on an instruction that has none"),
        ("0xd2800001, 0x00020502", "vector register 1 cannot start a group of 2"),  # v_add_f64 v[1:2]
        ("0xd2800000, 0x00020405", "scalar register 5 cannot start a group of 2"),
        ("0xd3e10000, 0x04020402", "source operand code 2 is not a vector register"),  # MFMA
        ("0xd3e10000, 0x04020503", "vector register 3 cannot start a group of 2"),
        ("0xd8ed0000, 0", "gfx942 has no global data share"),
        ("0xd86c0000, 0x00000100", "reserved register field of DS"),  # ds_read_b32 with data
        ("0xe0550000, 0x80010000", "the lds bit of MUBUF"),  # buffer_load_dwordx2
        ("0xe0f80000, 0", "unknown MUBUF opcode 0x3e"),  # buffer_wbinvl1
        ("0xdc50c000, 0", "reserved segment of FLAT"),
        ("0xdc501000, 0", "the offset of a flat instruction has 12 bits"),
        ("0xc0028001, 0", "reserved bit 15 of SMEM"),
        ("0xc02a0081, 0", "scalar register 2 cannot start a group of 4"),  # s_buffer_load_dwordx4 s4, s[2:5]
        ("0x7e0002fa, 0xff018000", "reserved DPP control 384"),
        ("0x7e0002fa, 0xff031100", "reserved bits of DPP"),
        ("0x7e0002f9, 0x00060700", "reserved destination selection of SDWA"),
        ("0x7e002ef9, 0x00060600", "v_trunc_f64 has no SDWA form"),
    ],
)
def test_what_is_not_an_instruction_is_reported(words, reason):
    first = simulator.disassemble(assemble(source([f".long {words}"])))["instructions"][0]
    assert first["op"] is None
    assert first["text"].startswith(".long 0x") and reason in first["text"]


def test_truncated_instruction(fields):
    decoded = fields(assemble(source(["s_nop 0", ".long 0xd1ff0000"])))
    assert decoded[1]["reason"] == "the code ends inside an 8-byte instruction"
