// The parts of an AMDGPU ELF file that a loader needs, read with every offset checked.
// Layout: ELF-64 object file format, and LLVM's "User Guide for AMDGPU Backend" for flags and relocations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "msgpack.hpp"

namespace gfx942 {

// The code object for this device inside `image`: an ELF file, or the gfx942 entry of an uncompressed
// __CLANG_OFFLOAD_BUNDLE__. HIP passes a pointer without a size, so the size comes from the headers, and
// memory is probed before it is read: an image that ends early is an error, not a fault.
std::vector<uint8_t> copy_image(const void* image);
// The same from memory of known size.
std::vector<uint8_t> copy_image(const uint8_t* image, uint64_t bytes);

struct ElfFile {
  struct Segment {  // PT_LOAD
    uint64_t offset, file_bytes, address, memory_bytes, alignment;
    bool writable, executable;
  };
  struct Symbol {
    std::string name;
    uint64_t address, bytes;
    uint8_t type;
    bool defined, weak;
  };
  struct Relocation {
    uint64_t address;
    uint32_t type, symbol;
    int64_t addend;
  };

  int code_object_version = 0;
  std::vector<Segment> segments;  // ascending, disjoint
  std::vector<Symbol> symbols;    // the dynamic symbol table, null symbol included
  std::vector<Relocation> relocations;
  std::vector<uint64_t> relative_words;  // addresses of packed relative relocations (DT_RELR)
  MessagePack metadata;                  // the map of the NT_AMDGPU_METADATA note

  // The segment that wholly contains [address, address + bytes), or nullptr.
  const Segment* segment_of(uint64_t address, uint64_t bytes) const;
};

// Throws HipError: hipErrorNoBinaryForGpu for another architecture, hipErrorInvalidImage otherwise.
ElfFile read_elf(const std::vector<uint8_t>& file);

// Symbol types
constexpr uint8_t kSymbolObject = 1, kSymbolFunction = 2;

// Relocation types that lld leaves to the loader
constexpr uint32_t kRelocationNone = 0, kRelocationAbs32Lo = 1, kRelocationAbs32Hi = 2, kRelocationAbs64 = 3,
                   kRelocationRel64 = 5, kRelocationAbs32 = 6, kRelocationRelative64 = 13;

}  // namespace gfx942
