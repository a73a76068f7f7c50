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
  struct ProgramHeader {
    uint32_t type, flags;
    uint64_t offset, address, file_bytes, memory_bytes, alignment;
  };
  struct Segment {  // PT_LOAD
    uint64_t offset, file_bytes, address, memory_bytes, alignment;
    bool writable, executable;
  };
  struct Section {
    std::string name;
    uint32_t type;
    uint64_t flags, address, offset, bytes;
    uint32_t link, info;
    uint64_t alignment, entry_bytes;
  };
  struct Symbol {
    std::string name;
    uint64_t address, bytes;
    uint16_t section;
    uint8_t type, binding;
    bool defined() const { return section != 0; }
  };
  struct HashTable {  // DT_HASH
    std::vector<uint32_t> buckets, chains;
  };
  struct GnuHashTable {  // DT_GNU_HASH; `hashes` begins with that of symbol `first`
    uint32_t first = 0, shift = 0;
    std::vector<uint64_t> bloom;
    std::vector<uint32_t> buckets, hashes;
  };
  struct Relocation {
    uint64_t address;
    uint32_t type, symbol;
    int64_t addend;
  };

  int code_object_version = 0;
  uint32_t flags = 0;  // e_flags
  std::vector<ProgramHeader> program_headers;
  std::vector<Segment> segments;                       // ascending, disjoint
  std::vector<Section> sections;                       // empty where the section header table is left out
  std::vector<std::pair<uint64_t, uint64_t>> dynamic;  // tag and value, DT_NULL left out
  std::vector<Symbol> symbols;                         // the dynamic symbol table, null symbol included
  std::vector<Symbol> static_symbols;                  // .symtab, which ROCm's loader reads
  HashTable hash;
  GnuHashTable gnu_hash;
  std::vector<Relocation> relocations;
  MessagePack metadata;  // the map of the NT_AMDGPU_METADATA note
  int metadata_notes = 0;

  // The segment that wholly contains [address, address + bytes), or nullptr.
  const Segment* segment_of(uint64_t address, uint64_t bytes) const;
  // The value of a dynamic tag; `fallback` when absent.
  uint64_t dynamic_value(uint64_t tag, uint64_t fallback = 0) const;
};

// Throws HipError: hipErrorNoBinaryForGpu for another architecture, hipErrorInvalidImage otherwise.
ElfFile read_elf(const std::vector<uint8_t>& file);

constexpr uint32_t kSegmentLoad = 1, kSegmentDynamic = 2, kSegmentNote = 4;
constexpr uint32_t kSectionStrings = 3, kSectionRela = 4, kSectionNoBits = 8, kSectionSymbols = 2,
                   kSectionDynamicSymbols = 11;
constexpr uint8_t kSymbolNone = 0, kSymbolObject = 1, kSymbolFunction = 2, kSymbolCommon = 5;
constexpr uint8_t kBindingLocal = 0;
constexpr uint64_t kTagHash = 4, kTagStrings = 5, kTagSymbols = 6, kTagRela = 7, kTagRelaBytes = 8,
                   kTagStringBytes = 10, kTagJumpRelaBytes = 2, kTagJumpRela = 23, kTagGnuHash = 0x6FFFFEF5;

// The relocation types that ROCm's loader applies
constexpr uint32_t kRelocationAbs32Lo = 1, kRelocationAbs32Hi = 2, kRelocationAbs64 = 3, kRelocationAbs32 = 6,
                   kRelocationRelative64 = 13;

}  // namespace gfx942
