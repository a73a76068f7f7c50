"""Each rule of the loader: a valid code object in which one field is broken is refused by its name."""

from pathlib import Path

import pytest

import device_compiler
import simulated_hip as codes
import simulator_kernels
from code_object_edits import Edited
from liteattention_rocm import _C, code_object
from simulated_hip import Failed, Hip

OURS = _C.code_object("gfx942")
FIRST, SECOND, *_, LAST = code_object.parse(OURS).kernels
KERNEL = FIRST.name


@pytest.fixture(scope="module")
def hip():
    return Hip()


@pytest.fixture(scope="module")
def relocated():
    """Has relocations, variables, hidden arguments, scratch and kernels with dispatch pointers."""
    return device_compiler.compile_hip(simulator_kernels.SOURCE, "-O1")


def refused(hip, edited, message, code=codes.INVALID_IMAGE):
    if isinstance(edited, Edited):
        assert bytes(edited) != edited.original
    with pytest.raises(Failed, match=message) as failure:
        hip.module(bytes(edited))
    assert failure.value.code == code
    assert "; allowed: " in failure.value.message


def load(index, field, value):
    return lambda e: e.program("PT_LOAD", index, field, value)


def plus(distance):
    return lambda old: old + distance


def only(kind, field, value):
    return lambda e: e.program(kind, 0, field, value)


def in_section(name, field, value):
    return lambda e: e.section(name, field, value)


def kd(field, value):
    return lambda e: e.symbols(f"{KERNEL}.kd", field, value)


def kd_in_symtab(field, value):
    return lambda e: e.symbol(".symtab", f"{KERNEL}.kd", field, value)


def insert_symbol(e, name, **fields):
    """Makes the last symbol of .symtab that is local a global one with these fields and another's name."""
    table = e.elf.get_section_by_name(".symtab")
    symbols = list(table.iter_symbols())
    victim = next(i for i, one in enumerate(symbols) if i and one["st_info"]["bind"] == "STB_LOCAL")
    model = next(one for one in symbols if one.name == name)
    base = table["sh_offset"] + 24 * victim
    values = {"st_name": model["st_name"], "st_info": 0x11, "st_shndx": model["st_shndx"]} | fields
    e.put(base, "I", values["st_name"]).put(base + 4, "B", values["st_info"])
    return e.put(base + 6, "H", values["st_shndx"])


# Name, edit, what the message says.
ELF = [
    ("e_flags reserved", lambda e: e.header("e_flags", 0x154C), "e_flags is 0x154c; allowed: bits 12 to 23"),
    ("generic version", lambda e: e.header("e_flags", 0x0100054C), "generic version in e_flags is 1"),
    ("p_type TLS", only("PT_GNU_STACK", "p_type", 7), r"p_type of program header \d is 0x7"),
    ("p_type INTERP", only("PT_GNU_STACK", "p_type", 3), "p_type .* is 0x3"),
    ("p_type V1", only("PT_GNU_STACK", "p_type", 0x60000003), "p_type .* is 0x60000003"),
    ("p_align 0", load(1, "p_align", 0), "p_align of program header 2 is 0; allowed: a power of two"),
    ("p_align 3", load(1, "p_align", 3), "p_align of program header 2 is 3"),
    ("p_align 8192", load(1, "p_align", 8192), "p_align of program header 2 is 8192; .* up to 4096"),
    (
        "congruence",
        load(1, "p_offset", plus(64)),
        "p_vaddr of .* 2 is .*congruent to p_offset 0x",
    ),
    ("W and X", load(1, "p_flags", 7), r"p_flags of program header 2 is RWX .*; allowed: R--, RW- and R-X"),
    ("not readable", load(1, "p_flags", 1), r"p_flags of program header 2 is --X"),
    ("flag bits", load(1, "p_flags", 13), r"p_flags of program header 2 is R-X \(0xd\)"),
    (
        "overlap",
        load(1, "p_vaddr", lambda old: old % 4096 - 64),
        "p_vaddr of program header 2 is .*; allowed: at or above the end",
    ),
    ("order", load(0, "p_vaddr", 1 << 24), "p_vaddr of program header 2 is .*ascending"),
    ("p_memsz", load(1, "p_memsz", 16), "p_memsz of program header 2 is 16; allowed: p_filesz"),
    ("not executable", load(1, "p_flags", 4), r"sh_flags of section \d \(.text\)"),
    ("PT_PHDR", only("PT_PHDR", "p_offset", 0x80), "p_offset of program header 0 is 0x80"),
    ("PT_NOTE", only("PT_NOTE", "p_vaddr", 1 << 24), r"p_vaddr of program header \d is 0x1000000"),
    ("PT_NOTE align", only("PT_NOTE", "p_align", 2), "p_align .* PT_NOTE, is 2"),
    ("no note", only("PT_NOTE", "p_type", 0), "number of NT_AMDGPU_METADATA notes is 0; allowed: 1"),
    ("two notes", lambda e: two_notes(e), "number of NT_AMDGPU_METADATA notes is 2; allowed: 1"),
    ("RELRO", only("PT_GNU_RELRO", "p_vaddr", plus(8)), r"p_(vaddr|offset) of program header \d is 0x"),
    ("RELRO in code", lambda e: relro_in_code(e), "PT_GNU_RELRO, is .*a writable PT_LOAD"),
    ("no PT_DYNAMIC", only("PT_DYNAMIC", "p_type", 0), "number of PT_DYNAMIC .* is 0"),
    ("PT_DYNAMIC size", only("PT_DYNAMIC", "p_filesz", plus(-8)), "p_filesz .* PT_DYNAMIC, is"),
    ("PT_DYNAMIC offset", only("PT_DYNAMIC", "p_offset", plus(-16)), r"p_offset of program header \d is 0x"),
    ("e_shnum", lambda e: e.header("e_shnum", 0), "e_shnum is 0; allowed: 1 or more"),
    ("e_shstrndx", lambda e: e.header("e_shstrndx", 1), "e_shstrndx is 1"),
    ("no .symtab", in_section(".symtab", "sh_type", 1), r"SHT_SYMTAB\) is 0; allowed: 1"),
    (".symtab sh_entsize", in_section(".symtab", "sh_entsize", 16), "sh_entsize .* is 16; allowed: 24"),
    (
        ".symtab sh_size",
        in_section(".symtab", "sh_size", plus(-23)),
        "sh_size .*allowed: a multiple of 24",
    ),
    (".symtab sh_link", in_section(".symtab", "sh_link", 1), "sh_link of .symtab is 1"),
    (".dynsym sh_link", in_section(".dynsym", "sh_link", 1), r"sh_link of section \d \(.dynsym\) is 1"),
    (".dynsym sh_size", in_section(".dynsym", "sh_size", 24), r"sh_size .*\(.dynsym\) is 24"),
    (".dynsym sh_addr", in_section(".dynsym", "sh_addr", plus(8)), r"sh_addr .*\(.dynsym\) is .*DT_SYMTAB"),
    ("sh_addr outside", in_section(".rodata", "sh_addr", 1 << 24), r"sh_addr .*\(.rodata\) is 0x1000000"),
    ("sh_offset", in_section(".rodata", "sh_offset", plus(-64)), r"sh_offset .*\(.rodata\) is 0x"),
    ("DT_NEEDED", lambda e: e.dynamic("DT_SYMENT", new_tag=1), "DT_NEEDED is .*load no libraries"),
    ("DT_REL", lambda e: e.dynamic("DT_SYMENT", 64, new_tag=17), "DT_REL is 0x40"),
    ("DT_RELR", lambda e: e.dynamic("DT_SYMENT", 64, new_tag=36), "DT_RELR is 0x40.*packed relocations"),
    ("DT_SYMENT", lambda e: e.dynamic("DT_SYMENT", 16), "DT_SYMENT is 16; allowed: 24"),
    ("no DT_SYMENT", lambda e: e.dynamic("DT_SYMENT", new_tag=0x6FFFFFF0), "DT_SYMENT is 0"),
    ("no DT_SYMTAB", lambda e: e.dynamic("DT_SYMTAB", new_tag=0x6FFFFFF0), "DT_SYMTAB is missing"),
    ("no DT_STRTAB", lambda e: e.dynamic("DT_STRTAB", new_tag=0x6FFFFFF0), "(DT_STRTAB|string table)"),
    ("no DT_STRSZ", lambda e: e.dynamic("DT_STRSZ", new_tag=0x6FFFFFF0), "(DT_STRSZ|string table)"),
    ("no hash table", lambda e: without_hash_tables(e), "DT_HASH and DT_GNU_HASH is missing"),
    ("hash bucket", lambda e: hash_word(e, ".hash", 2, 0), "place of symbol .* in DT_HASH is not where"),
    ("gnu hash bloom", lambda e: hash_word(e, ".gnu.hash", 4, 0), "place of symbol .* in DT_GNU_HASH"),
    ("gnu hash shift", lambda e: hash_word(e, ".gnu.hash", 3, 7), "place of symbol .* in DT_GNU_HASH"),
    (
        "gnu hash bucket",
        lambda e: hash_word(e, ".gnu.hash", gnu_buckets(e), 2),
        "place of .* in DT_GNU_HASH",
    ),
    ("kd type", kd("st_info", 0x12), "type of symbol .*.kd is 2"),
    ("kd binding", kd("st_info", 1), "binding of symbol .*.kd is 0"),
    ("kd size", kd("st_size", 32), "st_size of symbol .*.kd is 32; allowed: 64"),
    ("kd alignment", kd("st_value", plus(32)), "st_value of symbol .*.kd is .*; allowed: a multiple of 64"),
    ("kd not in the file", lambda e: cut_descriptors(e), "st_value .*lie in the file's part"),
    ("kd differs", kd_in_symtab("st_value", plus(64)), "st_value .* in .symtab"),
    ("kd local", kd_in_symtab("st_info", 1), ".kd is not in .symtab"),
    ("kd section", kd_in_symtab("st_shndx", 0xFFF1), "st_shndx .* is 65521; allowed: the index of a section"),
    ("twice", lambda e: insert_symbol(e, f"{KERNEL}.kd"), "symbol .*.kd is defined twice"),
    ("common", lambda e: insert_symbol(e, KERNEL, st_info=0x15), "type of symbol .* is STT_COMMON"),
]


def two_notes(e):
    """The program header of the stack becomes a second one of the notes."""
    begin = e.elf["e_phoff"]
    kinds = [one["p_type"] for one in e.elf.iter_segments()]
    stack, note = (begin + 56 * kinds.index(kind) for kind in ("PT_GNU_STACK", "PT_NOTE"))
    e.content[stack : stack + 56] = e.content[note : note + 56]
    return e


def relro_in_code(e):
    code = list(e.elf.iter_segments("PT_LOAD"))[1]
    for field in ("p_vaddr", "p_offset"):
        e.program("PT_GNU_RELRO", 0, field, code[field])
    return e


def without_hash_tables(e):
    return e.dynamic("DT_HASH", new_tag=0x6FFFFFF0).dynamic("DT_GNU_HASH", new_tag=0x6FFFFFF1)


def cut_descriptors(e):
    """The first segment's file part ends where the descriptors begin."""
    return e.program("PT_LOAD", 0, "p_filesz", e.address_of(f"{KERNEL}.kd"))


def gnu_buckets(e):
    """The first word behind header and bloom filter."""
    return 4 + 2 * e.get(e.elf.get_section_by_name(".gnu.hash")["sh_offset"] + 8, "I")


def hash_word(e, name, index, value):
    section = e.elf.get_section_by_name(name)
    words = [index] if name == ".gnu.hash" else range(index, index + e.get(section["sh_offset"], "I"))
    for word in words:
        e.put(section["sh_offset"] + 4 * word, "I", value)
    return e


@pytest.mark.parametrize(("edit", "message"), [row[1:] for row in ELF], ids=[row[0] for row in ELF])
def test_elf(hip, edit, message):
    refused(hip, edit(Edited(OURS)), message)


def test_first_segment_begins_at_0(hip, tmp_path):
    """The loader counts from there, and subtracts the first address twice in relative relocations."""
    script = tmp_path / "script"
    script.write_text("SECTIONS { . = 0x10000; }")
    image = device_compiler.compile_hip(
        'extern "C" __global__ void store(u32* out) { out[0] = 77; }', "-Xoffload-linker", f"-T{script}"
    )
    refused(hip, image, "p_vaddr of program header .*, the first PT_LOAD, is 0x10000; allowed: 0")


RELOCATIONS = [
    (
        "type",
        lambda e: e.relocation(0, "r_type", 5),
        "type of relocation 0 is 5; allowed: 1, 2, 3, 6, 13",
    ),
    ("none", lambda e: e.relocation(0, "r_type", 0), "the type of relocation 0 is 0"),
    ("offset", lambda e: e.relocation(0, "r_offset", 0x900000), "r_offset of relocation 0 is 0x900000"),
    ("null symbol", lambda e: e.relocation(0, "r_type", 3), "is not defined in it"),
    (
        "symbol index",
        lambda e: e.relocation(0, "r_symbol", 999),
        "symbol of .* is 999; allowed: 0 to",
    ),
    ("DT_RELAENT", lambda e: e.dynamic("DT_RELAENT", 16), "DT_RELAENT is 16; allowed: 24"),
    ("sh_info", lambda e: e.section(".rela.dyn", "sh_info", 7), r"sh_info .*\(.rela.dyn\) is 7; allowed: 0"),
    ("sh_link", lambda e: e.section(".rela.dyn", "sh_link", 1), r"sh_link .*\(.rela.dyn\) is 1"),
    ("no section", lambda e: e.section(".rela.dyn", "sh_type", 1), "DT_RELA is .*a SHT_RELA section"),
]


@pytest.mark.parametrize(
    ("edit", "message"), [row[1:] for row in RELOCATIONS], ids=[row[0] for row in RELOCATIONS]
)
def test_relocations(hip, relocated, edit, message):
    edited = edit(Edited(relocated))
    undefined = "not defined" in message
    refused(hip, edited, message, codes.SYMBOL_NOT_FOUND if undefined else codes.INVALID_IMAGE)


METADATA = """
.amdgpu_metadata
amdhsa.version: [1, 2]
amdhsa.kernels: []
.end_amdgpu_metadata
"""


def test_relocations_need_typed_symbols(hip):
    """ROCm's loader looks symbols without a type up by name, and finds none."""
    source = (
        ".data\n.p2align 3\n.globl label\nlabel: .quad label\n.type label,@{}\n.size label, 8\n" + METADATA
    )
    hip.hipModuleUnload(hip.module(device_compiler.assemble(source.format("object"))))
    refused(
        hip, device_compiler.assemble(source.format("notype")), "type of symbol label is 0; allowed: 1, STT_"
    )


def test_names_that_the_loader_cuts(hip):
    source = '.data\n.globl "a:b"\n.type "a:b",@object\n"a:b": .long 1\n.size "a:b", 4\n' + METADATA
    refused(hip, device_compiler.assemble(source), "name of symbol a:b is a:b; allowed: one without ':'")


def bits(offset, bit, width, value):
    """A bit field of the descriptor's dword at `offset`."""
    mask = (1 << width) - 1 << bit

    def edit(e):
        return e.descriptor(
            KERNEL, offset, "H" if offset == 56 else "I", lambda old: old & ~mask | value << bit
        )

    return edit


ZERO_BITS = [(offset, bit) for offset in (12, 24, 28, 32, 36, 40, 60) for bit in (0, 31)]
ZERO_BITS += [(48, bit) for bit in (10, 11, 20, 22, 24, 25, 27, 28, 29, 30, 31)]
ZERO_BITS += [(52, bit) for bit in (6, 13, 14, *range(15, 32))]
ZERO_BITS += [(44, bit) for bit in (*range(6, 16), *range(17, 32))]
ZERO_BITS += [(56, bit) for bit in (0, 5, 7, 8, 9, 10, 12, 13, 14, 15)]


def test_bits_that_must_be_zero(hip):
    for offset, bit in ZERO_BITS:
        refused(hip, bits(offset, bit, 1, 1)(Edited(OURS)), f"in the descriptor of kernel {KERNEL} is 0x")


FREE_BITS = [(48, bit, 1) for bit in (*range(12, 20), 21, 23, 26)] + [(44, 16, 1)]


def test_bits_that_are_free(hip):
    """Float modes, clamping, IEEE mode, overflow of half precision, threadgroup splitting."""
    for offset, bit, width in FREE_BITS:
        edited = Edited(OURS).descriptor(KERNEL, offset, "I", lambda old, bit=bit: old ^ (1 << bit))
        assert width == 1 and bytes(edited) != OURS
        hip.hipModuleUnload(hip.module(bytes(edited)))


DESCRIPTOR = [
    ("LDS", bits(0, 0, 32, 12), f"group_segment_fixed_size .* is 12; .*{FIRST.lds_bytes}"),
    ("scratch", bits(4, 0, 32, 16), "private_segment_fixed_size .* is 16; .*private_segment_fixed_size, 0"),
    ("kernarg", bits(8, 0, 32, 160), f"kernarg_size .* is 160; allowed: 0, or .*{FIRST.kernarg_bytes}"),
    ("vgprs", bits(48, 0, 6, 0), f"GRANULATED_WORKITEM_VGPR_COUNT .* is 0, for 8 .*{FIRST.vgprs} of .vgpr"),
    ("sgprs", bits(48, 6, 4, 0), f"GRANULATED_WAVEFRONT_SGPR_COUNT .* for 8 .*{FIRST.sgprs} of .sgpr_count"),
    ("too many sgprs", bits(48, 6, 4, 15), "GRANULATED_WAVEFRONT_SGPR_COUNT .* 128 SGPRs; .*up to 112"),
    ("accum_offset", lambda e: bits(44, 0, 6, 63)(bits(48, 0, 6, 1)(small_kernel(e))), "ACCUM_OFFSET .* 256"),
    ("workitem id", bits(52, 11, 2, 3), "ENABLE_VGPR_WORKITEM_ID .* is 3; allowed: 0 to 2"),
    (
        "user sgprs",
        bits(52, 1, 5, 1),
        "USER_SGPR_COUNT .* is 1; allowed: 2, which .*, to 16",
    ),
    ("user sgprs 17", bits(52, 1, 5, 17), "USER_SGPR_COUNT .* is 17"),
    ("dispatch pointer", bits(56, 1, 1, 1), "USER_SGPR_COUNT .* is 2; allowed: 4"),
    ("queue pointer", bits(56, 2, 1, 1), "USER_SGPR_COUNT .* is 2; allowed: 4"),
    ("dispatch id", bits(56, 4, 1, 1), "USER_SGPR_COUNT .* is 2; allowed: 4"),
    ("private size", bits(56, 6, 1, 1), "USER_SGPR_COUNT .* is 2; allowed: 3"),
    ("preload", lambda e: e.descriptor(KERNEL, 58, "H", 3), "USER_SGPR_COUNT .* is 2; allowed: 5"),
    ("preload beyond", lambda e: preload(e, 1, 511), "kernarg_preload .* is 1 dwords from dword 511; "),
    ("dynamic stack", bits(56, 11, 1, 1), "USES_DYNAMIC_STACK .* is 1; .*uses_dynamic_stack, 0"),
    ("entry", lambda e: move_entry(e, 64), "the entry of kernel .* is 0x.*40; allowed: a multiple of 256"),
    ("entry outside", lambda e: move_entry(e, 1 << 20), "the entry of kernel .* is .*executable segment"),
    (
        "entry in data",
        lambda e: enter_headers(e),
        "the entry of kernel .* executable segment",
    ),
]


def preload(e, count, first):
    e.descriptor(KERNEL, 58, "H", lambda _: count | first << 7)
    return bits(52, 1, 5, 2 + count)(e)


def move_entry(e, distance):
    return e.descriptor(KERNEL, 16, "q", plus(distance))


def enter_headers(e):
    return e.descriptor(KERNEL, 16, "q", -e.address_of(f"{KERNEL}.kd"))


def small_kernel(e):
    """A descriptor and metadata that ask for 16 VGPRs."""
    e.metadata(lambda root: root["amdhsa.kernels"][0].update({".vgpr_count": 13}) or drop(root))
    return e


@pytest.mark.parametrize(
    ("edit", "message"), [row[1:] for row in DESCRIPTOR], ids=[row[0] for row in DESCRIPTOR]
)
def test_descriptor(hip, edit, message):
    refused(hip, edit(Edited(OURS)), message)


def drop(root):
    """Makes room: the last kernel loses keys that are optional."""
    for key in (".uses_dynamic_stack", ".vgpr_spill_count", ".sgpr_spill_count", ".uniform_work_group_size"):
        root["amdhsa.kernels"][-1].pop(key, None)


def kernel(**values):
    """Replaces keys of the first kernel; None deletes."""

    def change(root):
        drop(root)
        for key, value in values.items():
            if value is None:
                root["amdhsa.kernels"][0].pop("." + key, None)
            else:
                root["amdhsa.kernels"][0]["." + key] = value

    return change


def top(key, value):
    def change(root):
        drop(root)
        if value is None:
            root.pop(key)
        else:
            root[key] = value

    return change


def argument(**values):
    """Replaces keys of the first kernel's argument."""

    def change(root):
        drop(root)
        for key, value in values.items():
            if value is None:
                root["amdhsa.kernels"][0][".args"][0].pop("." + key)
            else:
                root["amdhsa.kernels"][0][".args"][0]["." + key] = value

    return change


def arguments(*rows):
    def change(root):
        drop(root)
        root["amdhsa.kernels"][0][".args"] = [
            {".offset": offset, ".size": size, ".value_kind": kind} for offset, size, kind in rows
        ]

    return change


REQUIRED = ["name", "symbol", "kernarg_segment_size", "kernarg_segment_align", "group_segment_fixed_size"]
REQUIRED += ["private_segment_fixed_size", "wavefront_size", "sgpr_count", "vgpr_count"]
REQUIRED += ["max_flat_workgroup_size"]
INTEGERS = [*REQUIRED[2:], "agpr_count", "sgpr_spill_count", "vgpr_spill_count", "uniform_work_group_size"]
SCHEMA = [(f"no .{key}", kernel(**{key: None}), rf"\.{key} of kernel.* is missing") for key in REQUIRED]
SCHEMA += [(f".{key} text", kernel(**{key: "1"}), rf"\.{key} of .* is a string") for key in INTEGERS]
SCHEMA += [(f".{key} negative", kernel(**{key: -1}), rf"\.{key} of .* is -1; allowed: ") for key in INTEGERS]
SCHEMA += [
    ("no version", top("amdhsa.version", None), "amdhsa.version is missing"),
    ("version 2.0", top("amdhsa.version", [2, 0]), "amdhsa.version is 2.0; allowed: 1.0 to 1.2"),
    ("version 1.3", top("amdhsa.version", [1, 3]), "amdhsa.version is 1.3"),
    ("version of three", top("amdhsa.version", [1, 2, 0]), "amdhsa.version is an array of 3; allowed: 2"),
    ("version text", top("amdhsa.version", ["1", "2"]), "element of amdhsa.version is a string"),
    ("no target", top("amdhsa.target", None), "amdhsa.target is missing"),
    ("other target", top("amdhsa.target", "amdgcn-amd-amdhsa--gfx90a"), "amdhsa.target is '.*gfx90a'"),
    ("target xnack", top("amdhsa.target", "amdgcn-amd-amdhsa--gfx942:xnack-"), "amdhsa.target is .*xnack-"),
    ("no kernels", top("amdhsa.kernels", None), "amdhsa.kernels is missing"),
    ("kernels a map", top("amdhsa.kernels", {}), "amdhsa.kernels is a map; allowed: an array"),
    (
        "a kernel missing",
        lambda root: root["amdhsa.kernels"].pop(),
        "metadata of descriptor .*.kd is missing",
    ),
    ("printf", top("amdhsa.printf", [1]), "element of amdhsa.printf is an integer; allowed: a string"),
    ("name twice", kernel(name=SECOND.name), "name of a kernel is '.*' twice"),
    ("symbol twice", kernel(symbol=f"{SECOND.name}.kd"), "symbol of a kernel is '.*.kd' twice"),
    ("empty name", kernel(name=""), "name of a kernel is empty"),
    ("symbol", kernel(symbol="other.kd"), "(metadata of descriptor|symbol of kernel) .*"),
    ("language", kernel(language="CUDA"), "language of .* is 'CUDA'; allowed: OpenCL C, .*HIP"),
    ("language_version", kernel(language_version=[2]), "language_version .* is an array of 1; allowed: 2"),
    ("kind", kernel(kind="main"), "kind of .* is 'main'; allowed: normal, init, fini"),
    ("wavefront_size", kernel(wavefront_size=32), "wavefront_size of .* is 32; allowed: 64"),
    ("align 6", kernel(kernarg_segment_align=6), "kernarg_segment_align of .* is 6; allowed: a power of two"),
    ("LDS", kernel(group_segment_fixed_size=65540), "group_segment_fixed_size of .* is 65540; .*0 to 65536"),
    ("vgprs", kernel(vgpr_count=513), "vgpr_count of .* is 513; allowed: 0 to 512"),
    ("agprs", kernel(agpr_count=257), "agpr_count of .* is 257; allowed: 0 to 256"),
    (
        "more agprs",
        kernel(vgpr_count=7, agpr_count=8),
        "agpr_count .* is 8; allowed: at most .vgpr_count, 7",
    ),
    ("sgprs", kernel(sgpr_count=113), "sgpr_count of .* is 113; allowed: 0 to 112"),
    ("agpr room", kernel(agpr_count=FIRST.vgprs), "ACCUM_OFFSET .* what leaves"),
    (
        "workgroup",
        kernel(max_flat_workgroup_size=1025),
        "max_flat_workgroup_size .* 1025; .*1 to 1024",
    ),
    ("reqd", kernel(reqd_workgroup_size=[256, 2]), "reqd_workgroup_size of .* an array of 2; allowed: 3"),
    ("reqd 0", kernel(reqd_workgroup_size=[0, 1, 1]), "reqd_workgroup_size of .* is 0; allowed: 1 to 1024"),
    ("reqd product", kernel(reqd_workgroup_size=[64, 32, 1]), "product of .reqd_workgroup_size .* is 2048; "),
    ("hint", kernel(workgroup_size_hint=7), "workgroup_size_hint of .* is an integer; allowed: an array"),
    ("uniform", kernel(uniform_work_group_size=2), "uniform_work_group_size of .* is 2; allowed: 0 to 1"),
    ("stack", kernel(uses_dynamic_stack=0), "uses_dynamic_stack of .* is an integer; allowed: a boolean"),
    ("stack differs", kernel(uses_dynamic_stack=True), "USES_DYNAMIC_STACK .* is 0; .*uses_dynamic_stack, 1"),
    ("args a map", kernel(args={}), "args of .* is a map; allowed: an array"),
    ("args of integers", kernel(args=[1]), "element of .args of .* is an integer; allowed: a map"),
    ("no offset", argument(offset=None), "offset of argument 0 of .* is missing"),
    ("no size", argument(size=None), "size of argument 0 of .* is missing"),
    ("no value_kind", argument(value_kind=None), "value_kind of argument 0 of .* is missing"),
    (
        "value_kind",
        argument(value_kind="by_ref"),
        "value_kind of .* is 'by_ref'; allowed: by_value",
    ),
    ("size text", argument(size="8"), "size of argument 0 of .* is a string"),
    (
        "address_space",
        argument(address_space="lds"),
        "address_space .* is 'lds'; allowed: private, global",
    ),
    ("access", argument(access="read"), "access of argument 0 .* is 'read'; allowed: read_only"),
    ("actual_access", argument(actual_access="rw"), "actual_access of .* is 'rw'"),
    ("is_const", argument(is_const=1), "is_const of argument 0 .* is an integer; allowed: a boolean"),
    (
        "beyond",
        argument(size=FIRST.kernarg_bytes + 1),
        "offset of .* end within .kernarg_segment_size",
    ),
    ("buffer size", arguments((0, 4, "global_buffer")), "size of argument 0 .* is 4; allowed: 8"),
    ("buffer offset", arguments((4, 8, "global_buffer")), "offset of argument 0 .* is 4; .*multiple of 8"),
    (
        "overlap",
        arguments((0, 8, "global_buffer"), (4, 8, "by_value")),
        "offset of argument 1 .* is 4; allowed: 8 or more, where argument 0 ends",
    ),
    (
        "hidden size",
        arguments((0, 8, "by_value"), (8, 8, "hidden_block_count_x")),
        "size of argument 1 .* is 8; allowed: 4 for hidden_block_count_x",
    ),
    (
        "hidden offset",
        arguments((0, 8, "by_value"), (12, 4, "hidden_block_count_x")),
        "offset of argument 1 .* is 12; allowed: 8 for hidden_block_count_x",
    ),
]


@pytest.mark.parametrize(("change", "message"), [row[1:] for row in SCHEMA], ids=[row[0] for row in SCHEMA])
def test_metadata(hip, change, message):
    refused(hip, Edited(OURS).metadata(change), message)


def test_hidden_arguments_of_version_4(hip):
    """V4 has other kinds, and its global offsets come first."""
    image = device_compiler.compile_hip(simulator_kernels.SOURCE, code_object_version=4)
    hip.hipModuleUnload(hip.module(image))

    def change(root):
        for one in root["amdhsa.kernels"]:
            for value in one[".args"]:
                if value[".value_kind"] == "hidden_global_offset_x":
                    value[".value_kind"] = "hidden_heap_v1"
                    return

    refused(hip, Edited(image).metadata(change), "hidden_heap_v1'; allowed: .* code object V4")


def test_hidden_arguments_of_version_5(hip, relocated):
    def change(root):
        for one in root["amdhsa.kernels"]:
            for value in one[".args"]:
                if value[".value_kind"] == "hidden_remainder_z":
                    value[".offset"] += 2
                    return

    refused(hip, Edited(relocated).metadata(change), r"offset of argument \d+ of .* for hidden_remainder_z")


def test_a_key_given_twice(hip):
    note = OURS.index(b".sgpr_spill_count")
    twice = OURS[:note] + b".vgpr_spill_count" + OURS[note + 17 :]
    refused(hip, twice, "vgpr_spill_count of .* is given twice; allowed: each key once")


def test_scratch_needs_its_setup(hip, relocated):
    edited = Edited(relocated).descriptor("attention", 52, "I", lambda old: old & ~1)
    refused(hip, edited, "ENABLE_PRIVATE_SEGMENT in the descriptor of kernel attention is 0; allowed: 1")


def test_without_a_kernarg_size(hip):
    """AITER's descriptors leave it to the metadata."""
    edited = Edited(OURS).descriptor(KERNEL, 8, "I", lambda _: 0)
    kernel = hip.kernel(bytes(edited), KERNEL)
    with pytest.raises(Failed, match=f"takes? {FIRST.kernarg_bytes}"):
        hip.launch(kernel, (1, 1, 1), (256, 1, 1), bytes(8))


def test_keys_of_no_meaning_are_left_alone(hip):
    edited = Edited(OURS).metadata(lambda root: drop(root) or root.update({"vendor.key": [1, None]}))
    hip.hipModuleUnload(hip.module(bytes(edited)))


LEVELS = ["-O0", "-O1", "-O2", "-O3", "-Os"]


@pytest.mark.parametrize("version", [4, 5, 6])
@pytest.mark.parametrize("level", LEVELS)
def test_what_the_compiler_makes_loads(hip, level, version):
    image = device_compiler.compile_hip(simulator_kernels.SOURCE, level, code_object_version=version)
    hip.hipModuleUnload(hip.module(image))


def test_all_of_aiter_loads(hip, aiter):
    files = sorted(Path(aiter.find()).parent.glob("**/*.co"))
    assert len(files) >= 3
    for file in files:
        hip.hipModuleUnload(hip.module(file.read_bytes()))


def test_a_bad_object_is_not_half_loaded(hip):
    """Nothing of a refused object stays behind: the next one loads and runs."""
    for _ in range(20):
        with pytest.raises(Failed):
            hip.module(bytes(move_entry(Edited(OURS), 64)))
    assert hip.kernel(OURS, KERNEL)
