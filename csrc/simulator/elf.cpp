#include "elf.hpp"

#include <algorithm>
#include <cstring>

#include "hip_error.hpp"

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
    if (dynamic_bytes_) read_dynamic();
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
    const uint32_t mach = at<uint32_t>(48) & 0xFF;
    if (mach != kMachGfx942 && mach != kMachGfx9_4Generic)
      throw HipError(hipErrorNoBinaryForGpu,
                     "the code object is for " + machine_name(mach) + "; this device is gfx942");
    if (at<uint8_t>(7) != kOsAbiHsa) invalid("its OS ABI is not AMDGPU HSA");
    if (at<uint16_t>(16) != 3) invalid("not a linked (ET_DYN) ELF file");
    const int abi = at<uint8_t>(8);
    if (abi < 2 || abi > 4)
      invalid("code object ABI version " + std::to_string(abi) +
              " is not supported (2 to 4: code object v4 to v6)");
    out_.code_object_version = abi + 2;
  }

  void read_program_headers() {
    const uint64_t table = at<uint64_t>(32);
    const uint64_t count = at<uint16_t>(56);
    if (count && at<uint16_t>(54) != 56) invalid("malformed ELF program headers");
    std::vector<std::pair<uint64_t, uint64_t>> notes;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t entry = table + i * 56;
      const uint32_t type = at<uint32_t>(entry), flags = at<uint32_t>(entry + 4);
      const uint64_t offset = at<uint64_t>(entry + 8), address = at<uint64_t>(entry + 16);
      const uint64_t file_bytes = at<uint64_t>(entry + 32), memory_bytes = at<uint64_t>(entry + 40);
      const uint64_t alignment = at<uint64_t>(entry + 48);
      constexpr uint32_t kLoad = 1, kDynamic = 2, kNote = 4;
      if (type != kLoad && type != kDynamic && type != kNote) continue;
      if (offset > file_.size() || file_bytes > file_.size() - offset)
        invalid("truncated: segment " + std::to_string(i) + " ends beyond the file");
      if (type == kNote) notes.emplace_back(offset, file_bytes);
      if (type == kDynamic) dynamic_ = offset, dynamic_bytes_ = file_bytes;
      if (type != kLoad || !memory_bytes) continue;
      if (memory_bytes < file_bytes || memory_bytes > kMaxMemory || address > kMaxMemory)
        invalid("segment " + std::to_string(i) + " has an impossible size or address");
      if (alignment & (alignment - 1) || alignment > (1 << 21))
        invalid("segment " + std::to_string(i) + " has alignment " + std::to_string(alignment));
      if (!out_.segments.empty() &&
          address < out_.segments.back().address + out_.segments.back().memory_bytes)
        invalid("its segments overlap");
      out_.segments.push_back(
          {offset, file_bytes, address, memory_bytes, alignment, (flags & 2) != 0, (flags & 1) != 0});
    }
    if (out_.segments.empty()) invalid("it has nothing to load");
    for (const auto& [offset, bytes] : notes) read_notes(offset, bytes);
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
        if (out_.metadata.type != MessagePack::Type::kMap) invalid("metadata: not a map");
      }
      offset = std::min(end, text + ((text_bytes + 3) & ~uint64_t{3}));
    }
  }

  void read_dynamic() {
    uint64_t symbols = 0, strings = 0, string_bytes = 0, hash = 0, gnu_hash = 0;
    uint64_t rela = 0, rela_bytes = 0, jump_rela = 0, jump_bytes = 0, relr = 0, relr_bytes = 0;
    for (uint64_t entry = 0; entry + 16 <= dynamic_bytes_; entry += 16) {
      const uint64_t tag = at<uint64_t>(dynamic_ + entry), value = at<uint64_t>(dynamic_ + entry + 8);
      if (!tag) break;
      switch (tag) {
      case 2: jump_bytes = value; break;
      case 4: hash = value; break;
      case 5: strings = value; break;
      case 6: symbols = value; break;
      case 7: rela = value; break;
      case 8: rela_bytes = value; break;
      case 10: string_bytes = value; break;
      case 17: invalid("REL relocations are not used on AMDGPU");
      case 23: jump_rela = value; break;
      case 35: relr_bytes = value; break;
      case 36: relr = value; break;
      case 0x6FFFFEF5: gnu_hash = value; break;
      default: break;
      }
    }
    if (symbols) read_symbols(symbols, strings, string_bytes, symbol_count(hash, gnu_hash));
    if (rela_bytes) read_relocations(rela, rela_bytes);
    if (jump_bytes) read_relocations(jump_rela, jump_bytes);
    if (relr_bytes) read_packed_relocations(relr, relr_bytes);
  }

  uint64_t symbol_count(uint64_t hash, uint64_t gnu_hash) const {
    if (hash) return at<uint32_t>(offset_of(hash, 8, "the symbol hash table") + 4);
    if (!gnu_hash) return 0;
    // The GNU table doesn't say: follow the chain of the highest bucket to its end.
    const uint64_t table = offset_of(gnu_hash, 16, "the symbol hash table");
    const uint32_t buckets = at<uint32_t>(table), first = at<uint32_t>(table + 4),
                   bloom = at<uint32_t>(table + 8);
    const uint64_t bucket_table = table + 16 + uint64_t{8} * bloom;
    uint64_t last = 0;
    for (uint64_t i = 0; i < buckets; ++i)
      last = std::max<uint64_t>(last, at<uint32_t>(bucket_table + 4 * i));
    if (last < first) return first;
    const uint64_t chains = bucket_table + uint64_t{4} * buckets;
    while (!(at<uint32_t>(chains + 4 * (last - first)) & 1)) ++last;
    return last + 1;
  }

  void read_symbols(uint64_t table, uint64_t strings, uint64_t string_bytes, uint64_t count) {
    if (count > kMaxSymbols) invalid(std::to_string(count) + " dynamic symbols");
    if (!count) return;
    const uint64_t offset = offset_of(table, count * 24, "the dynamic symbol table");
    const uint64_t names = offset_of(strings, string_bytes, "the dynamic string table");
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t entry = offset + i * 24;
      const uint64_t name = at<uint32_t>(entry);
      if (name >= string_bytes) invalid("the name of symbol " + std::to_string(i) + " is out of range");
      const auto begin = file_.begin() + static_cast<int64_t>(names + name);
      const auto end = file_.begin() + static_cast<int64_t>(names + string_bytes);
      const uint8_t info = at<uint8_t>(entry + 4);
      out_.symbols.push_back({std::string(begin, std::find(begin, end, 0)), at<uint64_t>(entry + 8),
                              at<uint64_t>(entry + 16), static_cast<uint8_t>(info & 0xF),
                              at<uint16_t>(entry + 6) != 0, info >> 4 == 2});
    }
  }

  void read_relocations(uint64_t table, uint64_t bytes) {
    if (bytes % 24) invalid("the relocation table has " + std::to_string(bytes) + " bytes");
    const uint64_t offset = offset_of(table, bytes, "the relocation table");
    for (uint64_t entry = offset; entry < offset + bytes; entry += 24) {
      const uint64_t info = at<uint64_t>(entry + 8);
      const ElfFile::Relocation relocation{at<uint64_t>(entry), static_cast<uint32_t>(info),
                                           static_cast<uint32_t>(info >> 32), at<int64_t>(entry + 16)};
      if (relocation.symbol && relocation.symbol >= out_.symbols.size())
        invalid("a relocation names symbol " + std::to_string(relocation.symbol) + " of " +
                std::to_string(out_.symbols.size()));
      out_.relocations.push_back(relocation);
    }
  }

  void read_packed_relocations(uint64_t table, uint64_t bytes) {
    const uint64_t offset = offset_of(table, bytes, "the packed relocation table");
    uint64_t next = 0;
    for (uint64_t entry = 0; entry + 8 <= bytes; entry += 8) {
      const uint64_t word = at<uint64_t>(offset + entry);
      if (!(word & 1)) {
        out_.relative_words.push_back(word);
        next = word + 8;
        continue;
      }
      for (uint64_t bit = 1; bit < 64; ++bit)
        if (word >> bit & 1) out_.relative_words.push_back(next + 8 * (bit - 1));
      next += 8 * 63;
    }
  }

  const std::vector<uint8_t>& file_;
  ElfFile out_;
  uint64_t dynamic_ = 0, dynamic_bytes_ = 0;
};

}  // namespace

const ElfFile::Segment* ElfFile::segment_of(uint64_t address, uint64_t bytes) const {
  for (const Segment& segment : segments)
    if (address >= segment.address && address - segment.address <= segment.memory_bytes &&
        bytes <= segment.memory_bytes - (address - segment.address))
      return &segment;
  return nullptr;
}

ElfFile read_elf(const std::vector<uint8_t>& file) {
  return ElfReader(file).read();
}

}  // namespace gfx942
