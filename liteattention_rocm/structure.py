"""The structure of AMDGPU code objects side by side, from the ELF header to the metadata.

Names and layouts: ELF-64, and LLVM's "User Guide for AMDGPU Backend". Needs pyelftools and msgpack.
"""

from __future__ import annotations

import fnmatch
import io
import struct
from dataclasses import dataclass

import msgpack
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

__all__ = ["Row", "compare", "structure"]

ABSENT = "-"
# Name, byte offset, format, first bit, bits.
_DESCRIPTOR_FIELDS = (
    ("group_segment_fixed_size", 0, "I", 0, 32),
    ("private_segment_fixed_size", 4, "I", 0, 32),
    ("kernarg_size", 8, "I", 0, 32),
    ("GRANULATED_WORKITEM_VGPR_COUNT", 48, "I", 0, 6),
    ("GRANULATED_WAVEFRONT_SGPR_COUNT", 48, "I", 6, 4),
    ("PRIORITY", 48, "I", 10, 2),
    ("FLOAT_ROUND_MODE_32", 48, "I", 12, 2),
    ("FLOAT_ROUND_MODE_16_64", 48, "I", 14, 2),
    ("FLOAT_DENORM_MODE_32", 48, "I", 16, 2),
    ("FLOAT_DENORM_MODE_16_64", 48, "I", 18, 2),
    ("PRIV", 48, "I", 20, 1),
    ("ENABLE_DX10_CLAMP", 48, "I", 21, 1),
    ("DEBUG_MODE", 48, "I", 22, 1),
    ("ENABLE_IEEE_MODE", 48, "I", 23, 1),
    ("BULKY", 48, "I", 24, 1),
    ("CDBG_USER", 48, "I", 25, 1),
    ("FP16_OVFL", 48, "I", 26, 1),
    ("compute_pgm_rsrc1 27:31", 48, "I", 27, 5),
    ("ENABLE_PRIVATE_SEGMENT", 52, "I", 0, 1),
    ("USER_SGPR_COUNT", 52, "I", 1, 5),
    ("ENABLE_TRAP_HANDLER", 52, "I", 6, 1),
    ("ENABLE_SGPR_WORKGROUP_ID_X", 52, "I", 7, 1),
    ("ENABLE_SGPR_WORKGROUP_ID_Y", 52, "I", 8, 1),
    ("ENABLE_SGPR_WORKGROUP_ID_Z", 52, "I", 9, 1),
    ("ENABLE_SGPR_WORKGROUP_INFO", 52, "I", 10, 1),
    ("ENABLE_VGPR_WORKITEM_ID", 52, "I", 11, 2),
    ("compute_pgm_rsrc2 13:31", 52, "I", 13, 19),
    ("ACCUM_OFFSET", 44, "I", 0, 6),
    ("TG_SPLIT", 44, "I", 16, 1),
    ("compute_pgm_rsrc3 reserved", 44, "I", 17, 15),
    ("ENABLE_SGPR_PRIVATE_SEGMENT_BUFFER", 56, "H", 0, 1),
    ("ENABLE_SGPR_DISPATCH_PTR", 56, "H", 1, 1),
    ("ENABLE_SGPR_QUEUE_PTR", 56, "H", 2, 1),
    ("ENABLE_SGPR_KERNARG_SEGMENT_PTR", 56, "H", 3, 1),
    ("ENABLE_SGPR_DISPATCH_ID", 56, "H", 4, 1),
    ("ENABLE_SGPR_FLAT_SCRATCH_INIT", 56, "H", 5, 1),
    ("ENABLE_SGPR_PRIVATE_SEGMENT_SIZE", 56, "H", 6, 1),
    ("ENABLE_WAVEFRONT_SIZE32", 56, "H", 10, 1),
    ("USES_DYNAMIC_STACK", 56, "H", 11, 1),
    ("kernarg_preload", 58, "H", 0, 16),
)
_RESERVED = ((12, 16), (24, 44), (60, 64))
_FLAG_BITS = {"R": 4, "W": 2, "X": 1}  # of segments
_SECTION_FLAG_BITS = {"W": 1, "A": 2, "X": 4}
_FEATURES = {0: "not stated", 1: "any", 2: "off", 3: "on"}
_NAMED = (".args", ".name", ".symbol")


def structure(image: bytes) -> dict[str, dict[str, str]]:
    """What a code object is made of, without what differs from kernel to kernel: {group: {field: value}}.

    Where kernels of one object differ in a field, its values are listed.

    Raises:
        ValueError: the bytes are not an AMDGPU code object with a metadata note.
    """
    try:
        elf = ELFFile(io.BytesIO(image))
        if elf.header["e_machine"] not in ("EM_AMDGPU", 224):
            raise ValueError(f"not an AMDGPU code object: ELF machine is {elf.header['e_machine']}")
        notes = [note for one in elf.iter_segments("PT_NOTE") for note in one.iter_notes()]
        (metadata,) = (msgpack.unpackb(n["n_descdata"]) for n in notes if n["n_name"] == "AMDGPU")
        return {
            "ELF header": _header(elf),
            "segments": _segments(elf),
            "sections": _sections(elf),
            "notes": _listed((f"{n['n_name']} {n['n_type']}", "1") for n in notes),
            "dynamic table": _dynamic(elf),
            "symbols": _symbols(elf),
            "descriptors": _descriptors(elf, image, metadata),
            "metadata": _metadata(metadata),
        }
    except (ELFError, struct.error, IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a complete code object: {error}") from error


def _listed(pairs) -> dict[str, str]:
    """A field's different values, in the order of their first appearance."""
    values: dict[str, dict[str, None]] = {}
    for field, value in pairs:
        values.setdefault(field, {})[str(value)] = None
    return {field: ", ".join(seen) for field, seen in values.items()}


def _header(elf) -> dict[str, str]:
    header, flags = elf.header, elf.header["e_flags"]
    return {
        "class": header["e_ident"]["EI_CLASS"],
        "EI_OSABI": {64: "ELFOSABI_AMDGPU_HSA"}.get(elf.stream.getbuffer()[7], "another"),
        "EI_ABIVERSION": str(header["e_ident"]["EI_ABIVERSION"]),
        "e_type": str(header["e_type"]),
        "e_entry": hex(header["e_entry"]),
        "e_flags processor": hex(flags & 0xFF),
        "e_flags xnack": _FEATURES[flags >> 8 & 3],
        "e_flags sramecc": _FEATURES[flags >> 10 & 3],
        "e_flags others": hex(flags & ~0xFFF),
        "section headers": "yes" if header["e_shnum"] else "no",
    }


def _segments(elf) -> dict[str, str]:
    rows: dict[str, list[str]] = {}
    for one in elf.iter_segments():
        flags = "".join(letter if one["p_flags"] & bit else "-" for letter, bit in _FLAG_BITS.items())
        rows.setdefault(str(one["p_type"]), []).append(f"{flags}/{one['p_align']}")
    rows["PT_LOAD, first address"] = [hex(next(elf.iter_segments("PT_LOAD"))["p_vaddr"])]
    return {field: " ".join(values) for field, values in rows.items()}


def _sections(elf) -> dict[str, str]:
    rows = {}
    for one in elf.iter_sections():
        if not one.name:
            continue
        flags = "".join(letter for letter, bit in _SECTION_FLAG_BITS.items() if one["sh_flags"] & bit)
        rows[one.name] = f"{str(one['sh_type']).removeprefix('SHT_')} {flags or ABSENT} {one['sh_addralign']}"
    return rows


def _dynamic(elf) -> dict[str, str]:
    tags = [tag for one in elf.iter_segments("PT_DYNAMIC") for tag in one.iter_tags()]
    fixed = ("DT_SYMENT", "DT_RELAENT", "DT_FLAGS")
    return _listed((t.entry.d_tag, t.entry.d_val if t.entry.d_tag in fixed else "present") for t in tags)


def _symbols(elf) -> dict[str, str]:
    def rows():
        for table in (".symtab", ".dynsym"):
            section = elf.get_section_by_name(table)
            for one in section.iter_symbols() if section else ():
                kind = {"STT_FUNC": "kernels", "STT_OBJECT": "variables"}.get(one["st_info"]["type"])
                if kind is None or one["st_info"]["bind"] == "STB_LOCAL":
                    continue
                size = "sized" if one["st_size"] else "size 0"
                if one.name.endswith(".kd"):
                    kind, size = "descriptors", f"{one['st_size']} bytes"
                binding = one["st_info"]["bind"].removeprefix("STB_")
                visibility = one["st_other"]["visibility"].removeprefix("STV_")
                yield f"{kind} in {table}", f"{binding} {visibility} {size}"

    return _listed(rows())


def _descriptors(elf, image: bytes, metadata: dict) -> dict[str, str]:
    symbols = elf.get_section_by_name(".dynsym")

    def rows():
        for kernel in metadata["amdhsa.kernels"]:
            address = symbols.get_symbol_by_name(kernel[".symbol"])[0]["st_value"]
            segment = next(
                one for one in elf.iter_segments("PT_LOAD")
                if one["p_vaddr"] <= address < one["p_vaddr"] + one["p_filesz"]
            )  # fmt: skip
            begin = address - segment["p_vaddr"] + segment["p_offset"]
            descriptor = image[begin : begin + 64]
            for name, offset, kind, bit, width in _DESCRIPTOR_FIELDS:
                (word,) = struct.unpack_from(f"<{kind}", descriptor, offset)
                yield name, word >> bit & (1 << width) - 1
            zero = all(not any(descriptor[first:last]) for first, last in _RESERVED)
            yield "reserved bytes", "0" if zero else "not 0"
            yield "address modulo 64", address % 64
            yield "entry modulo 256", (address + struct.unpack_from("<q", descriptor, 16)[0]) % 256

    return _listed(rows())


def _metadata(metadata: dict) -> dict[str, str]:
    def rows():
        for key, value in metadata.items():
            yield key, "present" if key == "amdhsa.kernels" else value
        for kernel in metadata["amdhsa.kernels"]:
            for key, value in kernel.items():
                yield f"kernel {key}", "present" if key in _NAMED else value
            for argument in kernel.get(".args", ()):
                for key in argument:
                    yield f"argument {key}", "present"
                yield "argument kinds", argument[".value_kind"]

    return _listed(rows())


@dataclass(frozen=True)
class Row:
    """One field of several code objects: `values` in their order, ABSENT where one hasn't got it.

    `loader` says whether the field decides if and how a code object is loaded; `note` what the difference
    means. Both are None where nothing differs, and `note` is None too where the difference is unexplained.
    """

    group: str
    field: str
    values: tuple[str, ...]
    loader: bool | None = None
    note: str | None = None

    @property
    def differs(self) -> bool:
        return len(set(self.values)) > 1

    @property
    def unexplained(self) -> bool:
        return self.differs and self.note is None


# Group, pattern of fields, whether the loader goes by it, what a difference means.
_EXPLANATIONS = (
    ("ELF header", "EI_ABIVERSION", True,
     "code object V4 (2), V5 (3) or V6 (4): which metadata and hidden arguments apply; ROCm "
     "loads all of them"),
    ("ELF header", "e_flags xnack", True, "any and off run on a device with xnack-; on does not"),
    ("ELF header", "e_flags sramecc", True, "any and on run on a device with sramecc+; off does not"),
    ("ELF header", "e_flags others", True, "the generic version of a V6 object for a generic processor"),
    ("ELF header", "e_flags processor", True, "the processor that it is for"),
    ("segments", "PT_LOAD", True,
     "one more writable segment where there are variables; each is copied to its address"),
    ("sections", ".bss", False,
     "variables without a value; HIP sources get __hip_cuid_*, one byte, from clang"),
    ("sections", ".data", False, "variables with a value"),
    ("sections", ".rela.dyn", True, "relocations, which the loader applies"),
    ("sections", ".rela.*", False, "the linker's own relocations, kept"),
    ("sections", ".AMDGPU.*", False, "the compiler's notes about registers; not loaded"),
    ("sections", ".debug*", False, "debugging information; not loaded"),
    ("sections", ".comment", False, "the producer's name; not loaded"),
    ("sections", ".relro_padding", False, "fills a page; nothing is read from it"),
    ("dynamic table", "DT_RELA*", True, "relocations, which the loader applies"),
    ("dynamic table", "DT_FLAGS*", False, "not read"),
    ("symbols", "kernels *", False,
     "a size of 0 is an assembler source without .size; descriptors lead to the code, not these "
     "symbols"),
    ("symbols", "descriptors *", True,
     "global and defined either way; protected or default changes nothing for a loader that "
     "links nothing"),
    ("symbols", "variables *", False, "variables that a host may look up"),
    ("descriptors", "group_segment_fixed_size", False, "LDS of the kernel"),
    ("descriptors", "private_segment_fixed_size", False, "scratch of the kernel"),
    ("descriptors", "ENABLE_PRIVATE_SEGMENT", False, "kernels with scratch need it"),
    ("descriptors", "kernarg_size", True, "0 leaves the size to the metadata, which ROCm's HIP reads"),
    ("descriptors", "GRANULATED_*", False, "registers of the kernel"),
    ("descriptors", "ACCUM_OFFSET", False, "where the kernel's AGPRs begin"),
    ("descriptors", "FLOAT_ROUND_*", False, "float mode that the kernel starts with"),
    ("descriptors", "FLOAT_DENORM_*", False, "0 flushes denormals, 3 keeps them: arithmetic, not loading"),
    ("descriptors", "ENABLE_DX10_CLAMP", False, "whether a clamp turns NaN into 0: arithmetic, not loading"),
    ("descriptors", "ENABLE_IEEE_MODE", False, "quieting of signalling NaNs: arithmetic, not loading"),
    ("descriptors", "FP16_OVFL", False, "overflow of half precision: arithmetic, not loading"),
    ("descriptors", "USER_SGPR_COUNT", False, "SGPRs that the launch fills; counts what is enabled"),
    ("descriptors", "ENABLE_SGPR_*", False, "what the launch hands the kernel in SGPRs"),
    ("descriptors", "ENABLE_VGPR_WORKITEM_ID", False,
     "how many dimensions of the work-item's id the kernel gets"),
    ("descriptors", "USES_DYNAMIC_STACK", True, "scratch may grow at run time"),
    ("descriptors", "TG_SPLIT", False, "whether a workgroup may be split over compute units"),
    ("descriptors", "kernarg_preload", False, "argument dwords that the launch loads into SGPRs"),
    ("metadata", "amdhsa.version", True,
     "1.0 is the schema of V3, without a target; 1.1 of V4; 1.2 of V5 and V6"),
    ("metadata", "amdhsa.target", True, "required from 1.1 on; ROCm itself goes by e_flags"),
    ("metadata", "amdhsa.printf", False, "format strings"),
    ("metadata", "kernel .reqd_workgroup_size", True, "launches with another block are refused"),
    ("metadata", "kernel .uniform_work_group_size", False, "optional: 1 promises whole workgroups"),
    ("metadata", "kernel .*_count", False,
     "registers and spills of the kernel; only .vgpr_count and .sgpr_count are required"),
    ("metadata", "kernel .*_size", False, "sizes and limits of the kernel"),
    ("metadata", "kernel .kernarg_segment_align", True,
     "alignment of the argument buffer: a power of two; the runtime's buffers are 64-byte "
     "aligned or better"),
    ("metadata", "kernel .uses_dynamic_stack", False, "optional: false where absent"),
    ("metadata", "kernel .language*", False, "optional: the source's language"),
    ("metadata", "argument .value_type", False, "a key of older schemata; not read"),
    ("metadata", "argument .name", False, "optional: for listings"),
    ("metadata", "argument .type_name", False, "optional: for listings"),
    ("metadata", "argument .*access", False, "optional: read or written"),
    ("metadata", "argument .address_space", False, "of pointers: global, constant, local"),
    ("metadata", "argument .is_*", False, "optional: qualifiers"),
    ("metadata", "argument .pointee_align", False, "alignment of dynamic LDS"),
    ("metadata", "argument kinds", True,
     "how arguments are passed; hidden_ ones are filled in by the runtime"),
)  # fmt: skip


def _explained(group: str, field: str) -> tuple[bool | None, str | None]:
    for of, pattern, loader, note in _EXPLANATIONS:
        if of == group and fnmatch.fnmatchcase(field, pattern):
            return loader, note
    return None, None


def compare(structures: list[dict[str, dict[str, str]]]) -> list[Row]:
    """All fields of the structures, with a note where they differ."""
    rows = []
    for group in structures[0]:
        fields = dict.fromkeys(field for one in structures for field in one[group])
        for field in fields:
            values = tuple(one[group].get(field, ABSENT) for one in structures)
            row = Row(group, field, values)
            rows.append(Row(group, field, values, *_explained(group, field)) if row.differs else row)
    return rows
