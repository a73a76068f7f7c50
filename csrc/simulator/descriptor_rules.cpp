// Fields: LLVM's AMDGPU user guide, "Kernel Descriptor", columns GFX90A and GFX940.
#include <algorithm>
#include <cstring>

#include "hip_error.hpp"
#include "loader_rules.hpp"

namespace gfx942 {
namespace {

constexpr uint64_t kVgprGranule = 8, kAccumulatorGranule = 4, kSgprGranule = 8, kMaxSgprs = 112;
constexpr uint64_t kMaxUserSgprs = 16;

template <typename T>
T load(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

struct Field {
  const char* name;
  unsigned offset, bit, width;  // byte offset of the dword or word, bits in it
  const char* why;
};

// What must be 0 on gfx942.
constexpr Field kZeroFields[] = {
    {"reserved bytes 12 to 15", 12, 0, 32, "0, reserved"},
    {"reserved bytes 24 to 27", 24, 0, 32, "0, reserved"},
    {"reserved bytes 28 to 31", 28, 0, 32, "0, reserved"},
    {"reserved bytes 32 to 35", 32, 0, 32, "0, reserved"},
    {"reserved bytes 36 to 39", 36, 0, 32, "0, reserved"},
    {"reserved bytes 40 to 43", 40, 0, 32, "0, reserved"},
    {"reserved bytes 60 to 63", 60, 0, 32, "0, reserved"},
    {"PRIORITY", 48, 10, 2, "0, filled in by the packet processor"},
    {"PRIV", 48, 20, 1, "0, filled in by the packet processor"},
    {"DEBUG_MODE", 48, 22, 1, "0, filled in by the packet processor"},
    {"BULKY", 48, 24, 1, "0, filled in by the packet processor"},
    {"CDBG_USER", 48, 25, 1, "0, filled in by the packet processor"},
    {"bits 27 and 28 of compute_pgm_rsrc1", 48, 27, 2, "0, reserved"},
    {"WGP_MODE", 48, 29, 1, "0 before gfx10"},
    {"MEM_ORDERED", 48, 30, 1, "0 before gfx10"},
    {"FWD_PROGRESS", 48, 31, 1, "0 before gfx10"},
    {"ENABLE_TRAP_HANDLER", 52, 6, 1, "0, filled in by the packet processor"},
    {"ENABLE_EXCEPTION_ADDRESS_WATCH", 52, 13, 1, "0, filled in by the packet processor"},
    {"ENABLE_EXCEPTION_MEMORY", 52, 14, 1, "0, filled in by the packet processor"},
    {"GRANULATED_LDS_SIZE", 52, 15, 9, "0, filled in from the dispatch packet"},
    {"the floating-point and integer exceptions of compute_pgm_rsrc2", 52, 24, 7,
     "0: without a trap handler of its own a kernel that takes one is killed"},
    {"bit 31 of compute_pgm_rsrc2", 52, 31, 1, "0, reserved"},
    {"bits 6 to 15 of compute_pgm_rsrc3", 44, 6, 10, "0, reserved"},
    {"bits 17 to 31 of compute_pgm_rsrc3", 44, 17, 15, "0, reserved"},
    {"ENABLE_SGPR_PRIVATE_SEGMENT_BUFFER", 56, 0, 1, "0 with architected flat scratch"},
    {"ENABLE_SGPR_FLAT_SCRATCH_INIT", 56, 5, 1, "0 with architected flat scratch"},
    {"bits 7 to 9 of kernel_code_properties", 56, 7, 3, "0, reserved"},
    {"ENABLE_WAVEFRONT_SIZE32", 56, 10, 1, "0 before gfx10"},
    {"bits 12 to 15 of kernel_code_properties", 56, 12, 4, "0, reserved"},
};

}  // namespace

void check_descriptor(const uint8_t* descriptor, const KernelMetadata& metadata, int code_object_version) {
  const std::string of = " in the descriptor of kernel " + metadata.name;
  const auto bits = [&](unsigned offset, unsigned bit, unsigned width) -> uint64_t {
    const uint64_t word =
        offset == 56 ? load<uint16_t>(descriptor + 56) : load<uint32_t>(descriptor + offset);
    return word >> bit & ((uint64_t{1} << width) - 1);
  };
  for (const Field& field : kZeroFields) {
    const uint64_t value = bits(field.offset, field.bit, field.width);
    require(value == 0, field.name + of, hex(value), field.why);
  }
  const uint64_t group = load<uint32_t>(descriptor), scratch = load<uint32_t>(descriptor + 4);
  const uint64_t kernarg = load<uint32_t>(descriptor + 8);
  require(group == metadata.group_bytes, "group_segment_fixed_size" + of, group,
          "the metadata's .group_segment_fixed_size, " + std::to_string(metadata.group_bytes));
  require(scratch == metadata.private_bytes, "private_segment_fixed_size" + of, scratch,
          "the metadata's .private_segment_fixed_size, " + std::to_string(metadata.private_bytes));
  require(kernarg == 0 || kernarg == metadata.kernarg_bytes, "kernarg_size" + of, kernarg,
          "0, or the metadata's .kernarg_segment_size, " + std::to_string(metadata.kernarg_bytes));

  const uint64_t vgprs = (bits(48, 0, 6) + 1) * kVgprGranule;
  const uint64_t accumulators = (bits(44, 0, 6) + 1) * kAccumulatorGranule;
  require(vgprs <= 512 && vgprs >= metadata.vgprs, "GRANULATED_WORKITEM_VGPR_COUNT" + of,
          std::to_string(bits(48, 0, 6)) + ", for " + std::to_string(vgprs) + " VGPRs",
          "what allocates the " + std::to_string(metadata.vgprs) +
              " of .vgpr_count in blocks of 8, up to 512");
  require(accumulators <= vgprs, "ACCUM_OFFSET" + of,
          std::to_string(bits(44, 0, 6)) + ", AGPRs from register " + std::to_string(accumulators),
          "an offset within the " + std::to_string(vgprs) + " allocated VGPRs, in blocks of 4");
  require(accumulators + metadata.agprs <= vgprs, "ACCUM_OFFSET" + of,
          std::to_string(bits(44, 0, 6)) + ", AGPRs from register " + std::to_string(accumulators),
          "what leaves the " + std::to_string(metadata.agprs) + " of .agpr_count within " +
              std::to_string(vgprs) + " allocated VGPRs");
  // The user guide rounds to 16 registers, as the hardware allocates; compilers encode the blocks of 8.
  const uint64_t sgprs = (bits(48, 6, 4) + 1) * kSgprGranule;
  require(sgprs >= metadata.sgprs && sgprs <= kMaxSgprs, "GRANULATED_WAVEFRONT_SGPR_COUNT" + of,
          std::to_string(bits(48, 6, 4)) + ", for " + std::to_string(sgprs) + " SGPRs",
          "what allocates the " + std::to_string(metadata.sgprs) +
              " of .sgpr_count in blocks of 8, up to 112");

  require(bits(52, 11, 2) <= 2, "ENABLE_VGPR_WORKITEM_ID" + of, bits(52, 11, 2), "0 to 2");
  const uint64_t preload = load<uint16_t>(descriptor + 58);
  const uint64_t preloaded = preload & 0x7F, preload_offset = preload >> 7;
  uint64_t user = preloaded + bits(56, 6, 1);
  for (const unsigned bit : {1u, 2u, 3u, 4u}) user += 2 * bits(56, bit, 1);
  const uint64_t user_sgprs = bits(52, 1, 5);
  require(user_sgprs >= user && user_sgprs <= kMaxUserSgprs, "USER_SGPR_COUNT" + of, user_sgprs,
          std::to_string(user) + ", which the enabled ones take, to 16");
  require(!preloaded || 4 * (preload_offset + preloaded) <= metadata.kernarg_bytes, "kernarg_preload" + of,
          std::to_string(preloaded) + " dwords from dword " + std::to_string(preload_offset),
          "dwords within the " + std::to_string(metadata.kernarg_bytes) + " bytes of .kernarg_segment_size");
  const bool dynamic_stack = bits(56, 11, 1);
  if (code_object_version >= 5 && metadata.dynamic_stack_given)
    require(dynamic_stack == metadata.dynamic_stack, "USES_DYNAMIC_STACK" + of, uint64_t{dynamic_stack},
            "the metadata's .uses_dynamic_stack, " + std::to_string(metadata.dynamic_stack));
  require(!scratch || bits(52, 0, 1), "ENABLE_PRIVATE_SEGMENT" + of, uint64_t{0},
          "1, since private_segment_fixed_size is " + std::to_string(scratch));
}

}  // namespace gfx942
