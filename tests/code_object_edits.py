"""Changes of single fields in a valid code object, with pyelftools to find them."""

import io
import struct

import msgpack
from elftools.elf.elffile import ELFFile

HEADER = {"EI_OSABI": (7, "B"), "EI_ABIVERSION": (8, "B"), "e_type": (16, "H"), "e_machine": (18, "H")}
HEADER |= {"e_flags": (48, "I"), "e_phentsize": (54, "H"), "e_phnum": (56, "H"), "e_shentsize": (58, "H")}
HEADER |= {"e_shnum": (60, "H"), "e_shstrndx": (62, "H")}
PROGRAM = {"p_type": (0, "I"), "p_flags": (4, "I"), "p_offset": (8, "Q"), "p_vaddr": (16, "Q")}
PROGRAM |= {"p_filesz": (32, "Q"), "p_memsz": (40, "Q"), "p_align": (48, "Q")}
SECTION = {"sh_type": (4, "I"), "sh_flags": (8, "Q"), "sh_addr": (16, "Q"), "sh_offset": (24, "Q")}
SECTION |= {"sh_size": (32, "Q"), "sh_link": (40, "I"), "sh_info": (44, "I"), "sh_entsize": (56, "Q")}
SYMBOL = {"st_name": (0, "I"), "st_info": (4, "B"), "st_shndx": (6, "H"), "st_value": (8, "Q")}
SYMBOL |= {"st_size": (16, "Q")}
RELOCATION = {"r_offset": (0, "Q"), "r_type": (8, "I"), "r_symbol": (12, "I"), "r_addend": (16, "q")}


class Edited:
    """A copy of a code object in which fields are overwritten; `bytes(edited)` is the outcome.

    A new value is a number or maps the old number to the new one.
    """

    def __init__(self, image: bytes):
        self.original = image
        self.content = bytearray(image)
        self.elf = ELFFile(io.BytesIO(image))

    def __bytes__(self) -> bytes:
        return bytes(self.content)

    def put(self, offset: int, kind: str, value):
        if callable(value):
            value = value(self.get(offset, kind))
        struct.pack_into(f"<{kind}", self.content, offset, value)
        return self

    def get(self, offset: int, kind: str) -> int:
        return struct.unpack_from(f"<{kind}", self.content, offset)[0]

    def header(self, field: str, value):
        return self.put(*HEADER[field], value)

    def program(self, kind: str, index: int, field: str, value):
        """The `index`-th program header of that type, e.g. PT_LOAD."""
        entries = [i for i, one in enumerate(self.elf.iter_segments()) if one["p_type"] == kind]
        offset, code = PROGRAM[field]
        return self.put(self.elf["e_phoff"] + 56 * entries[index] + offset, code, value)

    def section(self, name: str, field: str, value):
        offset, code = SECTION[field]
        return self.put(self.elf["e_shoff"] + 64 * self.elf.get_section_index(name) + offset, code, value)

    def dynamic(self, tag: str, value=None, new_tag: int | None = None):
        """Overwrites the value of a dynamic entry, or its tag."""
        table = self.elf.get_section_by_name(".dynamic")
        index = [one.entry.d_tag for one in table.iter_tags()].index(tag)
        if new_tag is not None:
            self.put(table["sh_offset"] + 16 * index, "Q", new_tag)
        if value is not None:
            self.put(table["sh_offset"] + 16 * index + 8, "Q", value)
        return self

    def symbol(self, table: str, name: str, field: str, value):
        section = self.elf.get_section_by_name(table)
        index = [one.name for one in section.iter_symbols()].index(name)
        offset, code = SYMBOL[field]
        return self.put(section["sh_offset"] + 24 * index + offset, code, value)

    def symbols(self, name: str, field: str, value):
        """In both symbol tables."""
        return self.symbol(".dynsym", name, field, value).symbol(".symtab", name, field, value)

    def relocation(self, index: int, field: str, value):
        offset, code = RELOCATION[field]
        table = self.elf.get_section_by_name(".rela.dyn")
        return self.put(table["sh_offset"] + 24 * index + offset, code, value)

    def file_offset(self, address: int) -> int:
        for one in self.elf.iter_segments("PT_LOAD"):
            if one["p_vaddr"] <= address < one["p_vaddr"] + one["p_filesz"]:
                return address - one["p_vaddr"] + one["p_offset"]
        raise ValueError(f"{address:#x} is not in the file")

    def address_of(self, name: str) -> int:
        return self.elf.get_section_by_name(".dynsym").get_symbol_by_name(name)[0]["st_value"]

    def descriptor(self, kernel: str, offset: int, kind: str, value):
        """Overwrites a field of the kernel's descriptor."""
        return self.put(self.file_offset(self.address_of(f"{kernel}.kd")) + offset, kind, value)

    def metadata(self, change):
        """Edits the decoded metadata in place. What that shortens is filled with a key of no meaning."""
        (note,) = (note for one in self.elf.iter_segments("PT_NOTE") for note in one.iter_notes())
        place = note["n_offset"] + note["n_size"] - (note["n_descsz"] + 3) // 4 * 4
        decoded = msgpack.unpackb(note["n_descdata"])
        change(decoded)
        spare = note["n_descsz"] - len(msgpack.packb(decoded))
        for letters in range(spare):
            if len(msgpack.packb(decoded)) < note["n_descsz"]:
                decoded["-"] = "-" * letters
        packed = msgpack.packb(decoded)
        if len(packed) != note["n_descsz"]:
            raise ValueError(f"{len(packed)} bytes of metadata instead of {note['n_descsz']}")
        self.content[place : place + len(packed)] = packed
        return self
