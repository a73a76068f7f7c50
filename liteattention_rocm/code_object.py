"""What an AMDGPU code object says about its kernels: registers, spills, LDS, scratch, arguments.

A code object is an ELF file for the machine EM_AMDGPU (224). Its kernels are described by a MessagePack note
(type NT_AMDGPU_METADATA = 32, owner "AMDGPU"). Numbers and keys are those of LLVM's "User Guide for AMDGPU
Backend", section "Code Object Metadata". This module needs pyelftools and msgpack but nothing of the package:
the build runs it by path.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import msgpack
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

__all__ = ["MAX_LDS_BYTES", "MAX_VGPRS", "Argument", "CodeObject", "Kernel", "parse", "violations"]

MAX_VGPRS = 256  # two waves per SIMD: half of its 512 registers per lane, AGPRs counted in
MAX_LDS_BYTES = 64 * 1024  # of one gfx942 compute unit

_EM_AMDGPU = 224
_NT_AMDGPU_METADATA = 32
# e_flags & 0xFF -> processor (EF_AMDGPU_MACH_*), for code objects whose metadata names no target
_PROCESSORS = {0x30: "gfx908", 0x3F: "gfx90a", 0x4C: "gfx942", 0x4F: "gfx950"}
_VERSION_OF_ABI = {1: 3, 2: 4, 3: 5, 4: 6}  # e_ident[EI_ABIVERSION] -> code object version


@dataclass(frozen=True)
class Argument:
    """One kernel argument: `offset` and `size` in bytes, `kind` as LLVM's .value_kind (e.g. by_value)."""

    name: str
    offset: int
    size: int
    kind: str


@dataclass(frozen=True)
class Kernel:
    """One kernel. `vgprs` is the allocation per lane, AGPRs (`agprs` of them) included."""

    name: str
    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    lds_bytes: int  # static, per workgroup
    scratch_bytes: int  # per work-item
    dynamic_stack: bool
    kernarg_bytes: int
    max_workgroup_size: int
    wavefront_size: int
    code_bytes: int
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class CodeObject:
    """A parsed code object of version 3 to 6. `target` is a full id: amdgcn-amd-amdhsa--gfx942:sramecc+."""

    target: str
    version: int
    kernels: tuple[Kernel, ...]
    bytes: int

    @property
    def architecture(self) -> str:
        """The processor without features: gfx942."""
        return self.target.rsplit("-", 1)[-1].split(":")[0]


def parse(image: bytes) -> CodeObject:
    """Reads a code object from its bytes.

    Raises ValueError when `image` is not an AMDGPU ELF file or carries no metadata note.
    """
    try:
        elf = ELFFile(io.BytesIO(image))
        if elf.header["e_machine"] not in ("EM_AMDGPU", _EM_AMDGPU):
            raise ValueError(f"not an AMDGPU code object: ELF machine is {elf.header['e_machine']}")
        metadata = _metadata(elf)
        sizes = _function_sizes(elf)
        abi = elf.header["e_ident"]["EI_ABIVERSION"]
        target = metadata.get("amdhsa.target") or _target(elf.header["e_flags"])
    except ELFError as error:
        raise ValueError(f"not an AMDGPU code object: {error}") from error
    if abi not in _VERSION_OF_ABI:
        raise ValueError(f"code object ABI version is {abi}, known are {sorted(_VERSION_OF_ABI)}")
    kernels = tuple(_kernel(entry, sizes) for entry in metadata["amdhsa.kernels"])
    return CodeObject(target, _VERSION_OF_ABI[abi], kernels, len(image))


def violations(code_object: CodeObject) -> list[str]:
    """Sentences about kernels that spill, use scratch, or take more than MAX_VGPRS or MAX_LDS_BYTES."""
    problems = [] if code_object.kernels else ["no kernels"]
    for kernel in code_object.kernels:
        bars = (
            ("VGPR spills", kernel.vgpr_spills, 0),
            ("SGPR spills", kernel.sgpr_spills, 0),
            ("bytes of scratch", kernel.scratch_bytes, 0),
            ("VGPRs", kernel.vgprs, MAX_VGPRS),
            ("bytes of LDS", kernel.lds_bytes, MAX_LDS_BYTES),
        )
        problems += [
            f"{kernel.name}: {value} {what}, at most {bar} allowed"
            for what, value, bar in bars
            if value > bar
        ]
        if kernel.dynamic_stack:
            problems.append(f"{kernel.name}: uses a dynamic stack")
    return problems


def _metadata(elf: ELFFile) -> dict:
    for segment in elf.iter_segments("PT_NOTE"):
        for note in segment.iter_notes():
            if note["n_name"] == "AMDGPU" and note["n_type"] in ("NT_AMDGPU_METADATA", _NT_AMDGPU_METADATA):
                return msgpack.unpackb(note["n_descdata"])
    raise ValueError("no AMDGPU metadata note (type 32)")


def _target(flags: int) -> str:
    machine = flags & 0xFF
    return "amdgcn-amd-amdhsa--" + _PROCESSORS.get(machine, f"unknown(0x{machine:02x})")


def _function_sizes(elf: ELFFile) -> dict[str, int]:
    """Code bytes by function. A symbol without a size reaches to the next function or its section's end."""
    functions = {
        symbol.name: symbol
        for section in elf.iter_sections()
        if isinstance(section, SymbolTableSection)
        for symbol in section.iter_symbols()
        if symbol["st_info"]["type"] == "STT_FUNC"
    }
    sizes = {}
    for name, symbol in functions.items():
        section = elf.get_section(symbol["st_shndx"])
        ends = [other["st_value"] for other in functions.values() if other["st_value"] > symbol["st_value"]]
        ends.append(section["sh_addr"] + section["sh_size"])
        sizes[name] = symbol["st_size"] or min(ends) - symbol["st_value"]
    return sizes


def _kernel(entry: dict, sizes: dict[str, int]) -> Kernel:
    arguments = tuple(
        Argument(a.get(".name", ""), a[".offset"], a[".size"], a[".value_kind"])
        for a in entry.get(".args", ())
    )
    return Kernel(
        name=entry[".name"],
        vgprs=entry[".vgpr_count"],
        agprs=entry.get(".agpr_count", 0),
        sgprs=entry[".sgpr_count"],
        vgpr_spills=entry.get(".vgpr_spill_count", 0),
        sgpr_spills=entry.get(".sgpr_spill_count", 0),
        lds_bytes=entry[".group_segment_fixed_size"],
        scratch_bytes=entry[".private_segment_fixed_size"],
        dynamic_stack=entry.get(".uses_dynamic_stack", False),
        kernarg_bytes=entry[".kernarg_segment_size"],
        max_workgroup_size=entry[".max_flat_workgroup_size"],
        wavefront_size=entry[".wavefront_size"],
        code_bytes=sizes.get(entry[".name"], 0),
        arguments=arguments,
    )
