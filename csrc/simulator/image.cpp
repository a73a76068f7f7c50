// Finding and copying the code object inside the image that a caller hands over.
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "elf.hpp"
#include "hip_error.hpp"
#include "loader_rules.hpp"

namespace gfx942 {
namespace {

constexpr uint64_t kMaxImageBytes = uint64_t{1} << 30;
constexpr uint64_t kChunk = uint64_t{1} << 20;
constexpr char kBundleMagic[] = "__CLANG_OFFLOAD_BUNDLE__";
constexpr uint64_t kBundleMagicBytes = sizeof kBundleMagic - 1;

[[noreturn]] void invalid(const std::string& message) {
  throw HipError(hipErrorInvalidImage, "code object: " + message);
}

// The memory behind an image, of known or unknown extent.
class Source {
 public:
  Source(const uint8_t* base, uint64_t bytes) : base_(base), bytes_(bytes) {}

  std::vector<uint8_t> read(uint64_t offset, uint64_t count) const {
    if (count > kMaxImageBytes || offset > bytes_ || count > bytes_ - offset)
      invalid("its headers point " + std::to_string(count) + " bytes past offset " + std::to_string(offset) +
              ", beyond the end of the image");
    std::vector<uint8_t> out;
    // In pieces, so that a wrong size costs no more memory than there is image.
    while (out.size() < count) {
      const uint64_t done = out.size(), piece = std::min(kChunk, count - done);
      out.resize(done + piece);
      copy(out.data() + done, base_ + offset + done, piece);
    }
    return out;
  }

 private:
  void copy(uint8_t* to, const uint8_t* from, uint64_t count) const {
    if (bytes_ != UINT64_MAX) {
      std::memcpy(to, from, count);
      return;
    }
    const iovec local{to, count}, remote{const_cast<uint8_t*>(from), count};
    const ssize_t copied = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
    if (copied == static_cast<ssize_t>(count)) return;
    // Where the system call is forbidden there is no probe; the caller's pointer is taken at its word.
    if (copied < 0 && (errno == ENOSYS || errno == EPERM))
      std::memcpy(to, from, count);
    else
      invalid("the image ends before its headers say (unreadable memory)");
  }

  const uint8_t* base_;
  uint64_t bytes_;  // UINT64_MAX: unknown
};

template <typename T>
T field(const std::vector<uint8_t>& bytes, uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::vector<uint8_t> copy_elf(const Source& source, uint64_t base, uint64_t limit) {
  const std::vector<uint8_t> header = source.read(base, 64);
  if (std::memcmp(header.data(), "\177ELF", 4) != 0) invalid("neither an ELF file nor an offload bundle");
  const uint64_t table = field<uint64_t>(header, 32);
  const uint64_t entry_bytes = field<uint16_t>(header, 54), count = field<uint16_t>(header, 56);
  require(!count || entry_bytes == 56, "e_phentsize", entry_bytes, "56");
  require(table <= kMaxImageBytes, "e_phoff", table, "up to 1 GiB");
  uint64_t extent = std::max<uint64_t>(64, table + count * entry_bytes);
  const std::vector<uint8_t> programs = source.read(base + table, count * entry_bytes);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t offset = field<uint64_t>(programs, i * 56 + 8),
                   bytes = field<uint64_t>(programs, i * 56 + 32);
    if (offset > kMaxImageBytes || bytes > kMaxImageBytes) invalid("an ELF segment exceeds 1 GiB");
    extent = std::max(extent, offset + bytes);
  }
  // ROCm's loader reads sections as well.
  const uint64_t section_table = field<uint64_t>(header, 40), sections = field<uint16_t>(header, 60);
  if (sections) {
    require(field<uint16_t>(header, 58) == 64, "e_shentsize", field<uint16_t>(header, 58), "64");
    require(section_table <= kMaxImageBytes, "e_shoff", section_table, "up to 1 GiB");
    extent = std::max(extent, section_table + sections * 64);
    const std::vector<uint8_t> table = source.read(base + section_table, sections * 64);
    for (uint64_t i = 0; i < sections; ++i) {
      const uint64_t offset = field<uint64_t>(table, i * 64 + 24),
                     bytes = field<uint64_t>(table, i * 64 + 32);
      const uint32_t type = field<uint32_t>(table, i * 64 + 4);
      if (!type || type == kSectionNoBits) continue;
      if (offset > kMaxImageBytes || bytes > kMaxImageBytes) invalid("an ELF section exceeds 1 GiB");
      extent = std::max(extent, offset + bytes);
    }
  }
  if (extent > limit)
    invalid("truncated: its segments and sections end at byte " + std::to_string(extent) + " of " +
            std::to_string(limit));
  return source.read(base, extent);
}

// How well an entry suits the device, gfx942:sramecc+:xnack-; 0: not at all.
int suitability(const std::string& triple) {
  // e.g. hipv4-amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-; the environment may be "unknown"
  constexpr char kSystem[] = "-amdgcn-amd-amdhsa-";
  const size_t system = triple.find(kSystem);
  if (triple.compare(0, 3, "hip") != 0 || system == std::string::npos) return 0;
  const std::string rest = triple.substr(system + sizeof kSystem - 1);
  const size_t dash = rest.find('-');
  if (dash == std::string::npos) return 0;
  const std::string target = rest.substr(dash + 1), processor = target.substr(0, target.find(':'));
  const std::string features = target.substr(processor.size());
  if (features.find(":xnack+") != std::string::npos || features.find(":sramecc-") != std::string::npos)
    return 0;
  return processor == "gfx942" ? 2 : processor == "gfx9-4-generic" ? 1 : 0;
}

std::vector<uint8_t> copy_bundled(const Source& source) {
  const uint64_t count = field<uint64_t>(source.read(kBundleMagicBytes, 8), 0);
  if (count > 4096) invalid("malformed offload bundle: " + std::to_string(count) + " entries");
  uint64_t cursor = kBundleMagicBytes + 8;
  std::string seen;
  int best = 0;
  uint64_t best_offset = 0, best_bytes = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const std::vector<uint8_t> entry = source.read(cursor, 24);
    const uint64_t offset = field<uint64_t>(entry, 0), bytes = field<uint64_t>(entry, 8);
    const uint64_t name_bytes = field<uint64_t>(entry, 16);
    if (name_bytes > 1024)
      invalid("malformed offload bundle: an entry's name has " + std::to_string(name_bytes) + " bytes");
    const std::vector<uint8_t> name = source.read(cursor + 24, name_bytes);
    const std::string triple(name.begin(), name.end());
    if (suitability(triple) > best) {
      if (offset > kMaxImageBytes || bytes > kMaxImageBytes)
        invalid("malformed offload bundle: entry exceeds 1 GiB");
      best = suitability(triple);
      best_offset = offset;
      best_bytes = bytes;
    }
    seen += (seen.empty() ? "" : ", ") + triple;
    cursor += 24 + name_bytes;
  }
  if (best) return copy_elf(source, best_offset, best_bytes);
  throw HipError(hipErrorNoBinaryForGpu,
                 "the offload bundle holds no code object for gfx942:sramecc+:xnack-, only for: " + seen);
}

std::vector<uint8_t> copy_from(const Source& source, uint64_t limit) {
  const std::vector<uint8_t> magic = source.read(0, 4);
  if (std::memcmp(magic.data(), "CCOB", 4) == 0)
    throw HipError(hipErrorInvalidImage,
                   "compressed offload bundles are not supported: build with --no-offload-compress");
  if (std::memcmp(magic.data(), kBundleMagic, 4) == 0) {
    const std::vector<uint8_t> rest = source.read(4, kBundleMagicBytes - 4);
    if (std::memcmp(rest.data(), kBundleMagic + 4, rest.size()) == 0) return copy_bundled(source);
  }
  return copy_elf(source, 0, limit);
}

}  // namespace

std::string hex(uint64_t number) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  do {
    text.insert(text.begin(), digits[number & 15]);
    number >>= 4;
  } while (number);
  return "0x" + text;
}

std::vector<uint8_t> copy_image(const void* image) {
  return copy_from(Source(static_cast<const uint8_t*>(image), UINT64_MAX), UINT64_MAX);
}

std::vector<uint8_t> copy_image(const uint8_t* image, uint64_t bytes) {
  return copy_from(Source(image, bytes), bytes);
}

}  // namespace gfx942
