#include "elf.hpp"

#include <algorithm>
#include <cstring>

#include "hip_error.hpp"
#include "loader_rules.hpp"

namespace gfx942 {
namespace {

constexpr uint16_t kMachineAmdgpu = 224;
constexpr uint8_t kOsAbiHsa = 64;
constexpr uint32_t kMachGfx942 = 0x4C, kMachGfx9_4Generic = 0x5F;
constexpr uint32_t kNoteMetadata = 32;
constexpr uint64_t kMaxMemory = uint64_t{4} << 30;
constexpr uint64_t kMaxSymbols = 1 << 20;

[[noreturn]] void invalid(const std::string& message) {
  throw HipError(hipErrorInvalidImage, "code object: " + message);
}

// EF_AMDGPU_MACH values of LLVM's AMDGPU user guide that a caller is likely to bring.
std::string machine_name(uint32_t mach) {
  switch (mach) {
  case 0x2C: return "gfx900";
  case 0x2F: return "gfx906";
  case 0x30: return "gfx908";
  case 0x33: return "gfx1010";
  case 0x36: return "gfx1030";
  case 0x3F: return "gfx90a";
  case 0x40: return "gfx940";
  case 0x41: return "gfx1100";
  case 0x46: return "gfx1101";
  case 0x47: return "gfx1102";
  case 0x48: return "gfx1200";
  case 0x4B: return "gfx941";
  case 0x4E: return "gfx1201";
  case 0x4F: return "gfx950";
  case 0x51: return "gfx9-generic";
  default: return "machine number " + hex(mach);
  }
}

class ElfReader {
 public:
  explicit ElfReader(const std::vector<uint8_t>& file) : file_(file) {}

  ElfFile read() {
    read_header();
    read_program_headers();
    read_sections();
    read_dynamic();
    return std::move(out_);
  }

 private:
  template <typename T>
  T at(uint64_t offset) const {
    if (offset > file_.size() || sizeof(T) > file_.size() - offset)
      invalid("truncated: " + std::to_string(sizeof(T)) + " bytes wanted at offset " +
              std::to_string(offset) + " of " + std::to_string(file_.size()));
    T value;
    std::memcpy(&value, file_.data() + offset, sizeof value);
    return value;
  }

  // File offset of initialised memory [address, address + bytes).
  uint64_t offset_of(uint64_t address, uint64_t bytes, const char* what) const {
    const ElfFile::Segment* segment = out_.segment_of(address, bytes);
    if (!segment || address - segment->address + bytes > segment->file_bytes)
      invalid(std::string(what) + " at " + hex(address) + " lies outside the loaded segments");
    return segment->offset + (address - segment->address);
  }

  void read_header() {
    if (file_.size() < 64 || std::memcmp(file_.data(), "\177ELF", 4) != 0) invalid("not an ELF file");
    if (at<uint8_t>(4) != 2 || at<uint8_t>(5) != 1) invalid("not a 64-bit little-endian ELF file");
    if (at<uint16_t>(18) != kMachineAmdgpu)
      throw HipError(hipErrorNoBinaryForGpu, "ELF machine " + std::to_string(at<uint16_t>(18)) +
                                                 " is not AMDGPU; this device is gfx942");
    out_.flags = at<uint32_t>(48);
    const uint32_t mach = out_.flags & 0xFF;
    if (mach != kMachGfx942 && mach != kMachGfx9_4Generic)
      throw HipError(hipErrorNoBinaryForGpu,
                     "the code object is for " + machine_name(mach) + "; this device is gfx942");
    require(at<uint8_t>(6) == 1, "EI_VERSION", at<uint8_t>(6), "1");
    require(at<uint32_t>(20) == 1, "e_version", at<uint32_t>(20), "1");
    require(at<uint16_t>(52) == 64, "e_ehsize", at<uint16_t>(52), "64");
    require(at<uint8_t>(7) == kOsAbiHsa, "EI_OSABI", at<uint8_t>(7), "64, ELFOSABI_AMDGPU_HSA");
    require(at<uint16_t>(16) == 3, "e_type", at<uint16_t>(16), "3, ET_DYN: a linked code object");
    const int abi = at<uint8_t>(8);
    require(abi >= 2 && abi <= 4, "EI_ABIVERSION", static_cast<uint64_t>(abi),
            "2 to 4: code object V4 to V6");
    out_.code_object_version = abi + 2;
  }

  void read_program_headers() {
    const uint64_t table = at<uint64_t>(32);
    const uint64_t count = at<uint16_t>(56);
    require(!count || at<uint16_t>(54) == 56, "e_phentsize", at<uint16_t>(54), "56");
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t entry = table + i * 56;
      const ElfFile::ProgramHeader header{at<uint32_t>(entry),      at<uint32_t>(entry + 4),
                                          at<uint64_t>(entry + 8),  at<uint64_t>(entry + 16),
                                          at<uint64_t>(entry + 32), at<uint64_t>(entry + 40),
                                          at<uint64_t>(entry + 48)};
      if (header.offset > file_.size() || header.file_bytes > file_.size() - header.offset)
        invalid("truncated: segment " + std::to_string(i) + " ends beyond the file");
      out_.program_headers.push_back(header);
      if (header.type != kSegmentLoad || !header.memory_bytes) continue;
      const std::string of = " of program header " + std::to_string(i);
      require(header.memory_bytes >= header.file_bytes && header.memory_bytes <= kMaxMemory, "p_memsz" + of,
              header.memory_bytes, "p_filesz, " + std::to_string(header.file_bytes) + ", to 2^32");
      require(header.address <= kMaxMemory, "p_vaddr" + of, hex(header.address), "0 to 2^32");
      if (!out_.segments.empty() &&
          header.address < out_.segments.back().address + out_.segments.back().memory_bytes)
        require(false, "p_vaddr" + of, hex(header.address),
                "at or above the end of the PT_LOAD before it: they are ascending and disjoint");
      out_.segments.push_back({header.offset, header.file_bytes, header.address, header.memory_bytes,
                               header.alignment, (header.flags & 2) != 0, (header.flags & 1) != 0});
    }
    if (out_.segments.empty()) invalid("it has nothing to load");
    for (const ElfFile::ProgramHeader& header : out_.program_headers)
      if (header.type == kSegmentNote) read_notes(header.offset, header.file_bytes);
  }

  void read_sections() {
    const uint64_t table = at<uint64_t>(40), count = at<uint16_t>(60), names = at<uint16_t>(62);
    if (!count) return;
    require(at<uint16_t>(58) == 64, "e_shentsize", at<uint16_t>(58), "64");
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t entry = table + i * 64;
      ElfFile::Section section{{},
                               at<uint32_t>(entry + 4),
                               at<uint64_t>(entry + 8),
                               at<uint64_t>(entry + 16),
                               at<uint64_t>(entry + 24),
                               at<uint64_t>(entry + 32),
                               at<uint32_t>(entry + 40),
                               at<uint32_t>(entry + 44),
                               at<uint64_t>(entry + 48),
                               at<uint64_t>(entry + 56)};
      if (section.type && section.type != kSectionNoBits &&
          (section.offset > file_.size() || section.bytes > file_.size() - section.offset))
        invalid("truncated: section " + std::to_string(i) + " ends beyond the file");
      out_.sections.push_back(std::move(section));
    }
    require(names < count && out_.sections[names].type == kSectionStrings, "e_shstrndx", names,
            "the index of a string table");
    const ElfFile::Section& strings = out_.sections[names];
    for (uint64_t i = 0; i < count; ++i)
      out_.sections[i].name = string_at(strings.offset, strings.bytes, at<uint32_t>(table + i * 64));
    for (const ElfFile::Section& section : out_.sections) {
      if (section.type != kSectionSymbols) continue;
      require(section.link < count && out_.sections[section.link].type == kSectionStrings,
              "sh_link of " + section.name, section.link, "the index of a string table");
      const ElfFile::Section& table_strings = out_.sections[section.link];
      read_symbols(out_.static_symbols, section.offset, section.bytes / 24, table_strings.offset,
                   table_strings.bytes);
    }
  }

  std::string string_at(uint64_t table, uint64_t bytes, uint64_t index) const {
    require(index < bytes, "the place of a name in its string table", index,
            "less than the table's " + std::to_string(bytes) + " bytes");
    const auto begin = file_.begin() + static_cast<int64_t>(table + index);
    const auto end = file_.begin() + static_cast<int64_t>(table + bytes);
    return std::string(begin, std::find(begin, end, 0));
  }

  void read_notes(uint64_t offset, uint64_t bytes) {
    const uint64_t end = offset + bytes;
    while (end - offset >= 12) {
      const uint64_t name_bytes = at<uint32_t>(offset), text_bytes = at<uint32_t>(offset + 4);
      const uint32_t type = at<uint32_t>(offset + 8);
      const uint64_t name = offset + 12, text = name + ((name_bytes + 3) & ~uint64_t{3});
      if (text > end || text_bytes > end - text) invalid("a note ends beyond its segment");
      if (type == kNoteMetadata && name_bytes == 7 && std::memcmp(file_.data() + name, "AMDGPU", 7) == 0) {
        try {
          out_.metadata = read_message_pack(file_.data() + text, text_bytes);
        } catch (const std::runtime_error& error) {
          invalid(error.what());
        }
        ++out_.metadata_notes;
        if (out_.metadata.type != MessagePack::Type::kMap) invalid("metadata: not a map");
      }
      offset = std::min(end, text + ((text_bytes + 3) & ~uint64_t{3}));
    }
  }

  void read_dynamic() {
    for (const ElfFile::ProgramHeader& header : out_.program_headers) {
      if (header.type != kSegmentDynamic) continue;
      for (uint64_t entry = 0; entry + 16 <= header.file_bytes; entry += 16) {
        const uint64_t tag = at<uint64_t>(header.offset + entry);
        if (!tag) break;
        out_.dynamic.emplace_back(tag, at<uint64_t>(header.offset + entry + 8));
      }
    }
    if (const uint64_t table = out_.dynamic_value(kTagHash)) read_hash(table);
    if (const uint64_t table = out_.dynamic_value(kTagGnuHash)) read_gnu_hash(table);
    if (const uint64_t table = out_.dynamic_value(kTagSymbols)) {
      const uint64_t count = out_.hash.chains.empty() ? out_.gnu_hash.first + out_.gnu_hash.hashes.size()
                                                      : out_.hash.chains.size();
      const uint64_t string_bytes = out_.dynamic_value(kTagStringBytes);
      if (count && string_bytes)
        read_symbols(out_.symbols, offset_of(table, count * 24, "the dynamic symbol table"), count,
                     offset_of(out_.dynamic_value(kTagStrings), string_bytes, "the dynamic string table"),
                     string_bytes);
    }
    if (const uint64_t bytes = out_.dynamic_value(kTagRelaBytes))
      read_relocations(out_.dynamic_value(kTagRela), bytes);
    if (const uint64_t bytes = out_.dynamic_value(kTagJumpRelaBytes))
      read_relocations(out_.dynamic_value(kTagJumpRela), bytes);
  }

  template <typename T>
  std::vector<T> words(uint64_t address, uint64_t count, const char* what) const {
    if (count > kMaxSymbols) invalid(std::string(what) + " has " + std::to_string(count) + " entries");
    std::vector<T> out(count);
    const uint64_t offset = offset_of(address, count * sizeof(T), what);
    if (count) std::memcpy(out.data(), file_.data() + offset, count * sizeof(T));
    return out;
  }

  void read_hash(uint64_t table) {
    constexpr char kWhat[] = "the symbol hash table (DT_HASH)";
    const std::vector<uint32_t> header = words<uint32_t>(table, 2, kWhat);
    out_.hash.buckets = words<uint32_t>(table + 8, header[0], kWhat);
    out_.hash.chains = words<uint32_t>(table + 8 + uint64_t{4} * header[0], header[1], kWhat);
  }

  void read_gnu_hash(uint64_t table) {
    constexpr char kWhat[] = "the symbol hash table (DT_GNU_HASH)";
    const std::vector<uint32_t> header = words<uint32_t>(table, 4, kWhat);
    ElfFile::GnuHashTable& out = out_.gnu_hash;
    out.first = header[1];
    out.shift = header[3];
    out.bloom = words<uint64_t>(table + 16, header[2], kWhat);
    const uint64_t buckets = table + 16 + uint64_t{8} * header[2];
    out.buckets = words<uint32_t>(buckets, header[0], kWhat);
    // The table doesn't say how long it is: the chain of the highest bucket leads to its end.
    uint64_t last = 0;
    for (const uint32_t bucket : out.buckets) last = std::max<uint64_t>(last, bucket);
    if (last < out.first) return;
    const uint64_t hashes = buckets + uint64_t{4} * header[0];
    uint64_t count = last - out.first;
    while (!(words<uint32_t>(hashes + 4 * count, 1, kWhat)[0] & 1)) ++count;
    out.hashes = words<uint32_t>(hashes, count + 1, kWhat);
  }

  void read_symbols(std::vector<ElfFile::Symbol>& out, uint64_t table, uint64_t count, uint64_t strings,
                    uint64_t string_bytes) const {
    if (count > kMaxSymbols) invalid(std::to_string(count) + " symbols");
    for (uint64_t entry = table; entry < table + count * 24; entry += 24) {
      const uint8_t info = at<uint8_t>(entry + 4);
      out.push_back({string_at(strings, string_bytes, at<uint32_t>(entry)), at<uint64_t>(entry + 8),
                     at<uint64_t>(entry + 16), at<uint16_t>(entry + 6), static_cast<uint8_t>(info & 0xF),
                     static_cast<uint8_t>(info >> 4)});
    }
  }

  void read_relocations(uint64_t table, uint64_t bytes) {
    require(bytes % 24 == 0, "DT_RELASZ", bytes, "a multiple of 24");
    const uint64_t offset = offset_of(table, bytes, "the relocation table");
    for (uint64_t entry = offset; entry < offset + bytes; entry += 24) {
      const uint64_t info = at<uint64_t>(entry + 8);
      const ElfFile::Relocation relocation{at<uint64_t>(entry), static_cast<uint32_t>(info),
                                           static_cast<uint32_t>(info >> 32), at<int64_t>(entry + 16)};
      if (relocation.symbol && relocation.symbol >= out_.symbols.size())
        require(false, "the symbol of a relocation", relocation.symbol,
                "0 to " + std::to_string(out_.symbols.size() - 1));
      out_.relocations.push_back(relocation);
    }
  }

  const std::vector<uint8_t>& file_;
  ElfFile out_;
};

}  // namespace

const ElfFile::Segment* ElfFile::segment_of(uint64_t address, uint64_t bytes) const {
  for (const Segment& segment : segments)
    if (address >= segment.address && address - segment.address <= segment.memory_bytes &&
        bytes <= segment.memory_bytes - (address - segment.address))
      return &segment;
  return nullptr;
}

uint64_t ElfFile::dynamic_value(uint64_t tag, uint64_t fallback) const {
  for (const auto& [key, value] : dynamic)
    if (key == tag) return value;
  return fallback;
}

ElfFile read_elf(const std::vector<uint8_t>& file) {
  return ElfReader(file).read();
}

}  // namespace gfx942
