#include <algorithm>
#include <set>

#include "hip_error.hpp"
#include "loader_rules.hpp"

namespace gfx942 {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kAllocated = 2;  // SHF_ALLOC
constexpr uint64_t kTagNeeded = 1, kTagRel = 17, kTagSymbolBytes = 11, kTagRelaEntryBytes = 9, kTagRelr = 36;

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

std::string flags_text(uint32_t flags) {
  return std::string(flags & 4 ? "R" : "-") + (flags & 2 ? "W" : "-") + (flags & 1 ? "X" : "-");
}

void check_flags(const ElfFile& elf) {
  // EF_AMDGPU_*: MACH 0xff, FEATURE_XNACK_V4 0x300, FEATURE_SRAMECC_V4 0xc00, GENERIC_VERSION 0xff000000
  const auto unsupported = [&](const char* feature, const char* device) {
    throw HipError(hipErrorNoBinaryForGpu, "code object: e_flags is " + hex(elf.flags) + ", which asks for " +
                                               feature + "; allowed: what runs on gfx942:sramecc+:xnack-, " +
                                               device);
  };
  if ((elf.flags & 0x300) == 0x300) unsupported("xnack+", "xnack any or off");
  if ((elf.flags & 0xC00) == 0x800) unsupported("sramecc-", "sramecc any or on");
  require(!(elf.flags & 0xFFF000), "e_flags", hex(elf.flags), "bits 12 to 23 zero");
  const uint32_t generic = elf.flags >> 24;
  if ((elf.flags & 0xFF) == 0x4C) {
    require(!generic, "the generic version in e_flags", generic, "0 for gfx942");
  } else {
    require(elf.code_object_version >= 6, "the code object version of gfx9-4-generic",
            static_cast<uint64_t>(elf.code_object_version), "6, which has generic versions");
    require(generic >= 1, "the generic version in e_flags", generic, "1 to 255 for gfx9-4-generic");
  }
}

void check_segments(const ElfFile& elf) {
  constexpr uint32_t kInterpreter = 3, kSharedLibrary = 5, kHeaders = 6, kThreadLocal = 7;
  constexpr uint32_t kFirstHsa = 0x60000000, kLastHsa = 0x60000003, kRelro = 0x6474E552;
  int dynamic = 0;
  const ElfFile::ProgramHeader* first = nullptr;
  for (size_t i = 0; i < elf.program_headers.size(); ++i) {
    const ElfFile::ProgramHeader& header = elf.program_headers[i];
    const std::string of = " of program header " + std::to_string(i);
    const uint64_t end = header.address + header.memory_bytes;
    require(header.type != kInterpreter && header.type != kSharedLibrary && header.type != kThreadLocal &&
                !(header.type >= kFirstHsa && header.type <= kLastHsa),
            "p_type" + of, hex(header.type),
            "PT_LOAD, PT_DYNAMIC, PT_NOTE, PT_PHDR and the PT_GNU_* types; a device has no interpreter and "
            "no thread-local storage");
    if (header.type == kSegmentLoad) {
      require(header.alignment && !(header.alignment & (header.alignment - 1)) && header.alignment <= kPage,
              "p_align" + of, header.alignment, "a power of two up to 4096, the granularity of the loader");
      require(header.address % header.alignment == header.offset % header.alignment, "p_vaddr" + of,
              hex(header.address),
              "congruent to p_offset " + hex(header.offset) + " modulo p_align " +
                  std::to_string(header.alignment));
      require((header.flags & 4) && (header.flags & 3) != 3 && !(header.flags & ~uint32_t{7}), "p_flags" + of,
              flags_text(header.flags) + " (" + hex(header.flags) + ")", "R--, RW- and R-X");
      if (!first) {
        first = &header;
        require(header.address == 0, "p_vaddr" + of + ", the first PT_LOAD,", hex(header.address),
                "0, from where the loader counts addresses");
      }
      continue;
    }
    if (header.type != kSegmentDynamic && header.type != kSegmentNote && header.type != kHeaders &&
        header.type != kRelro)
      continue;
    const ElfFile::Segment* around = elf.segment_of(header.address, header.memory_bytes);
    require(end >= header.address && around, "p_vaddr" + of, hex(header.address),
            "an address for which all " + std::to_string(header.memory_bytes) + " bytes lie in one PT_LOAD");
    require(header.offset - around->offset == header.address - around->address, "p_offset" + of,
            hex(header.offset),
            hex(around->offset + (header.address - around->address)) + ", as in the PT_LOAD around it");
    if (header.type == kRelro)
      require(around->writable, "p_vaddr" + of + ", PT_GNU_RELRO,", hex(header.address),
              "an address in a writable PT_LOAD");
    if (header.type == kSegmentNote)
      require(header.alignment >= 4 && header.alignment % 4 == 0, "p_align" + of + ", PT_NOTE,",
              header.alignment, "a multiple of 4");
    if (header.type == kSegmentDynamic) {
      ++dynamic;
      require(header.file_bytes % 16 == 0, "p_filesz" + of + ", PT_DYNAMIC,", header.file_bytes,
              "a multiple of 16");
    }
  }
  require(dynamic == 1, "the number of PT_DYNAMIC program headers", static_cast<uint64_t>(dynamic), "1");
  require(elf.metadata_notes == 1, "the number of NT_AMDGPU_METADATA notes",
          static_cast<uint64_t>(elf.metadata_notes), "1");
}

void check_sections(const ElfFile& elf) {
  require(!elf.sections.empty(), "e_shnum", uint64_t{0},
          "1 or more: the loader finds symbols and relocations through section headers");
  int tables = 0;
  for (size_t i = 0; i < elf.sections.size(); ++i) {
    const ElfFile::Section& section = elf.sections[i];
    const std::string of = " of section " + std::to_string(i) + " (" + section.name + ")";
    if (section.type == kSectionSymbols || section.type == kSectionDynamicSymbols) {
      require(section.entry_bytes == 24, "sh_entsize" + of, section.entry_bytes, "24");
      require(section.bytes % 24 == 0, "sh_size" + of, section.bytes, "a multiple of 24");
      require(section.link < elf.sections.size() && elf.sections[section.link].type == kSectionStrings,
              "sh_link" + of, section.link, "the index of a string table");
    }
    tables += section.type == kSectionSymbols;
    if (section.type == kSectionDynamicSymbols) {
      require(section.address == elf.dynamic_value(kTagSymbols), "sh_addr" + of, hex(section.address),
              hex(elf.dynamic_value(kTagSymbols)) + ", the address in DT_SYMTAB");
      require(section.bytes / 24 == elf.symbols.size(), "sh_size" + of, section.bytes,
              std::to_string(elf.symbols.size() * 24) + ", for the symbols that the hash table has");
    }
    if (section.type == kSectionRela && section.flags & kAllocated) {
      require(section.info == 0, "sh_info" + of, section.info,
              "0: others are taken as applied by the linker");
      require(section.link < elf.sections.size() && elf.sections[section.link].type == kSectionDynamicSymbols,
              "sh_link" + of, section.link, "the index of the dynamic symbol table");
    }
    if (!(section.flags & kAllocated) || !section.bytes) continue;
    // Kernel descriptors are read from their section, kernels run from their segment.
    const ElfFile::Segment* around = elf.segment_of(section.address, section.bytes);
    require(around, "sh_addr" + of, hex(section.address),
            "an address for which all " + std::to_string(section.bytes) + " bytes lie in one PT_LOAD");
    if (section.type != kSectionNoBits)
      require(section.offset - around->offset == section.address - around->address, "sh_offset" + of,
              hex(section.offset),
              hex(around->offset + (section.address - around->address)) + ", as in the PT_LOAD around it");
    const bool code = section.flags & 4;
    require(!code || around->executable, "sh_flags" + of, hex(section.flags),
            "SHF_EXECINSTR in an executable PT_LOAD only");
  }
  require(tables == 1, "the number of symbol tables (SHT_SYMTAB)", static_cast<uint64_t>(tables),
          "1: a stripped code object has no kernels for the loader");
}

void check_dynamic(const ElfFile& elf) {
  for (const auto& [tag, name, reason] :
       {std::tuple{kTagNeeded, "DT_NEEDED", "code objects load no libraries"},
        std::tuple{kTagRel, "DT_REL", "the target uses relocations with addends"},
        std::tuple{kTagRelr, "DT_RELR", "the loader does not apply packed relocations"}})
    require(!elf.dynamic_value(tag), name, hex(elf.dynamic_value(tag)),
            std::string("no such entry: ") + reason);
  for (const auto& [tag, name] : {std::pair{kTagSymbols, "DT_SYMTAB"}, std::pair{kTagStrings, "DT_STRTAB"},
                                  std::pair{kTagStringBytes, "DT_STRSZ"}})
    require(elf.dynamic_value(tag), name, std::string("missing or 0"),
            "one entry, since symbols are looked up");
  require(elf.dynamic_value(kTagHash) || elf.dynamic_value(kTagGnuHash), "DT_HASH and DT_GNU_HASH",
          std::string("missing"), "one of them or both");
  require(elf.dynamic_value(kTagSymbolBytes) == 24, "DT_SYMENT", elf.dynamic_value(kTagSymbolBytes), "24");
  if (elf.dynamic_value(kTagRela))
    require(elf.dynamic_value(kTagRelaEntryBytes) == 24, "DT_RELAENT", elf.dynamic_value(kTagRelaEntryBytes),
            "24");
  if (elf.dynamic_value(kTagRelaBytes))
    require(std::any_of(elf.sections.begin(), elf.sections.end(),
                        [&](const ElfFile::Section& section) {
                          return section.type == kSectionRela &&
                                 section.address == elf.dynamic_value(kTagRela) &&
                                 section.bytes == elf.dynamic_value(kTagRelaBytes);
                        }),
            "DT_RELA", hex(elf.dynamic_value(kTagRela)),
            "the address of a SHT_RELA section of DT_RELASZ bytes, which is what the loader applies");
}

void check_symbols(const ElfFile& elf) {
  std::set<std::string> names;
  for (const ElfFile::Symbol& symbol : elf.static_symbols) {
    if (symbol.type != kSymbolObject && symbol.type != kSymbolCommon) continue;
    const std::string of = " of symbol " + symbol.name;
    require(symbol.type != kSymbolCommon, "the type" + of, std::string("STT_COMMON"),
            "a defined symbol: nothing else could define it");
    require(symbol.section && symbol.section < elf.sections.size(), "st_shndx" + of, symbol.section,
            "the index of a section");
    if (symbol.binding == kBindingLocal) continue;
    require(names.insert(symbol.name).second, "the symbol " + symbol.name, std::string("defined twice"),
            "one definition");
    require(symbol.name.find(':') == std::string::npos, "the name" + of, symbol.name,
            "one without ':', where the loader cuts names");
  }
  for (const ElfFile::Symbol& symbol : elf.symbols) {
    if (!symbol.defined() || !ends_with(symbol.name, ".kd")) continue;
    const std::string of = " of symbol " + symbol.name;
    require(symbol.type == kSymbolObject, "the type" + of, symbol.type, "1, STT_OBJECT");
    require(symbol.binding != kBindingLocal, "the binding" + of, symbol.binding, "STB_GLOBAL or STB_WEAK");
    require(symbol.bytes == 64, "st_size" + of, symbol.bytes, "64, a kernel descriptor");
    require(symbol.address % 64 == 0, "st_value" + of, hex(symbol.address), "a multiple of 64");
    const ElfFile::Segment* around = elf.segment_of(symbol.address, symbol.bytes);
    require(around && symbol.address - around->address + symbol.bytes <= around->file_bytes, "st_value" + of,
            hex(symbol.address), "an address whose 64 bytes lie in the file's part of a PT_LOAD");
    const auto same =
        std::find_if(elf.static_symbols.begin(), elf.static_symbols.end(), [&](const ElfFile::Symbol& other) {
          return other.name == symbol.name && other.binding != kBindingLocal;
        });
    require(same != elf.static_symbols.end(), "the symbol " + symbol.name, std::string("not in .symtab"),
            "the same symbol in .symtab and in .dynsym: the loader reads the former");
    require(same->address == symbol.address && same->type == symbol.type && same->bytes == symbol.bytes,
            "st_value" + of + " in .symtab", hex(same->address),
            hex(symbol.address) + " with the type and size that it has in .dynsym");
  }
}

uint32_t sysv_hash(const std::string& name) {
  uint32_t hash = 0;
  for (const char c : name) {
    hash = (hash << 4) + static_cast<uint8_t>(c);
    hash = (hash ^ (hash >> 24 & 0xF0)) & 0x0FFFFFFF;
  }
  return hash;
}

uint32_t gnu_hash(const std::string& name) {
  uint32_t hash = 5381;
  for (const char c : name) hash = hash * 33 + static_cast<uint8_t>(c);
  return hash;
}

bool found_by_sysv_hash(const ElfFile& elf, size_t index) {
  const auto& [buckets, chains] = elf.hash;
  if (buckets.empty()) return false;
  size_t steps = 0;
  for (uint32_t at = buckets[sysv_hash(elf.symbols[index].name) % buckets.size()];
       at && at < chains.size() && steps <= chains.size(); at = chains[at], ++steps)
    if (at == index) return true;
  return false;
}

bool found_by_gnu_hash(const ElfFile& elf, size_t index) {
  const ElfFile::GnuHashTable& table = elf.gnu_hash;
  const uint32_t hash = gnu_hash(elf.symbols[index].name);
  if (table.buckets.empty() || table.bloom.empty()) return false;
  const uint64_t word = table.bloom[hash / 64 % table.bloom.size()];
  if (!(word >> hash % 64 & 1) || !(word >> (hash >> (table.shift & 31)) % 64 & 1)) return false;
  for (uint64_t at = table.buckets[hash % table.buckets.size()];
       at >= table.first && at - table.first < table.hashes.size(); ++at) {
    const uint32_t entry = table.hashes[at - table.first];
    if (at == index && (entry | 1) == (hash | 1)) return true;
    if (entry & 1) return false;
  }
  return false;
}

void check_hash_tables(const ElfFile& elf) {
  for (size_t i = 1; i < elf.symbols.size(); ++i) {
    const ElfFile::Symbol& symbol = elf.symbols[i];
    if (!symbol.defined() || symbol.binding == kBindingLocal) continue;
    const std::string field = "the place of symbol " + symbol.name + " in ";
    require(!elf.dynamic_value(kTagHash) || found_by_sysv_hash(elf, i), field + "DT_HASH",
            std::string("not where its name's hash leads"), "the chain of its bucket");
    require(!elf.dynamic_value(kTagGnuHash) || found_by_gnu_hash(elf, i), field + "DT_GNU_HASH",
            std::string("not where its name's hash leads"), "the bloom filter and the chain of its bucket");
  }
}

void check_relocations(const ElfFile& elf) {
  for (size_t i = 0; i < elf.relocations.size(); ++i) {
    const ElfFile::Relocation& relocation = elf.relocations[i];
    const std::string of = " of relocation " + std::to_string(i);
    const uint32_t type = relocation.type;
    require(type == kRelocationAbs32Lo || type == kRelocationAbs32Hi || type == kRelocationAbs64 ||
                type == kRelocationAbs32 || type == kRelocationRelative64,
            "the type" + of, type,
            "1, 2, 3, 6, 13: R_AMDGPU_ABS32_LO, ABS32_HI, ABS64, ABS32 and RELATIVE64");
    const uint64_t bytes = type == kRelocationAbs64 || type == kRelocationRelative64 ? 8 : 4;
    require(elf.segment_of(relocation.address, bytes), "r_offset" + of, hex(relocation.address),
            "an address for which all " + std::to_string(bytes) + " bytes lie in one PT_LOAD");
    if (type == kRelocationRelative64) continue;
    const ElfFile::Symbol& symbol = elf.symbols[relocation.symbol];
    if (!symbol.defined())
      throw HipError(hipErrorSharedObjectSymbolNotFound,
                     "code object: symbol '" + symbol.name + "'" + of +
                         " is not defined in it; allowed: defined symbols, weak ones too");
    require(symbol.type == kSymbolObject || symbol.type == kSymbolFunction,
            "the type of symbol " + symbol.name, symbol.type,
            "1, STT_OBJECT, and 2, STT_FUNC, in relocations");
  }
}

}  // namespace

void require(bool kept, const std::string& field, const std::string& value, const std::string& allowed) {
  if (!kept)
    throw HipError(hipErrorInvalidImage, "code object: " + field + " is " + value + "; allowed: " + allowed);
}

void require(bool kept, const std::string& field, uint64_t value, const std::string& allowed) {
  if (!kept) require(kept, field, std::to_string(value), allowed);
}

void check_elf(const ElfFile& elf) {
  check_flags(elf);
  check_segments(elf);
  check_dynamic(elf);
  check_sections(elf);
  check_symbols(elf);
  check_hash_tables(elf);
  check_relocations(elf);
}

}  // namespace gfx942
