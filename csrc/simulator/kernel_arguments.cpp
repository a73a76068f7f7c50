#include "kernel_arguments.hpp"

#include <algorithm>
#include <cstring>

#include "hip_error.hpp"
#include "registers.hpp"

namespace gfx942 {
namespace {

constexpr uint64_t kMaxArgumentBytes = 1 << 20;
constexpr uint64_t kLine = 64;
constexpr uint64_t kQueueBytes = 256;
// High halves of the addresses where LDS and scratch appear to flat instructions.
constexpr uint32_t kSharedBaseHigh = kSharedAperture >> 32, kPrivateBaseHigh = kPrivateAperture >> 32;

[[noreturn]] void refuse(const Function& function, const std::string& message) {
  throw HipError(hipErrorInvalidValue, "kernel " + function.kernel.name + ": " + message);
}

uint64_t line_up(uint64_t bytes) {
  return (bytes + kLine - 1) & ~(kLine - 1);
}

struct Packed {
  const uint8_t* buffer = nullptr;
  uint64_t bytes = 0;
};

Packed read_extra(const Function& function, void** extra) {
  Packed packed;
  const void* size = nullptr;
  for (int i = 0; i < 16; i += 2) {
    if (extra[i] == HIP_LAUNCH_PARAM_END) {
      if (size) std::memcpy(&packed.bytes, size, sizeof packed.bytes);
      if (packed.bytes && !packed.buffer) refuse(function, "`extra` has a buffer size but no buffer");
      if (packed.bytes > kMaxArgumentBytes)
        refuse(function, "`extra` names an argument buffer of " + std::to_string(packed.bytes) +
                             " bytes; allowed are " + std::to_string(kMaxArgumentBytes));
      return packed;
    }
    if (extra[i] == HIP_LAUNCH_PARAM_BUFFER_POINTER)
      packed.buffer = static_cast<const uint8_t*>(extra[i + 1]);
    else if (extra[i] == HIP_LAUNCH_PARAM_BUFFER_SIZE)
      size = extra[i + 1];
    else
      refuse(function, "`extra` has the unknown key " + hex(reinterpret_cast<uint64_t>(extra[i])));
  }
  refuse(function, "`extra` has no HIP_LAUNCH_PARAM_END");
}

// The value of one hidden argument; whatever the simulator has no service for (printf, hostcall, heap,
// device-side queues, multi-grid synchronisation) is null.
uint64_t hidden_value(const std::string& kind, const LaunchRequest& request, uint64_t queue) {
  const auto axis = [&] { return static_cast<size_t>(kind.back() - 'x') % 3; };
  const auto starts = [&](const char* prefix) { return kind.compare(0, std::strlen(prefix), prefix) == 0; };
  if (starts("hidden_block_count_")) return request.grid[axis()];
  if (starts("hidden_group_size_")) return request.block[axis()];
  if (starts("hidden_remainder_")) return 0;  // HIP launches whole workgroups only
  if (starts("hidden_global_offset_")) return 0;
  if (kind == "hidden_grid_dims")
    return request.grid[2] * request.block[2] > 1 ? 3 : request.grid[1] * request.block[1] > 1 ? 2 : 1;
  if (kind == "hidden_dynamic_lds_size") return request.dynamic_lds;
  if (kind == "hidden_private_base") return kPrivateBaseHigh;
  if (kind == "hidden_shared_base") return kSharedBaseHigh;
  if (kind == "hidden_queue_ptr") return queue;
  return 0;
}

}  // namespace

DispatchMemory::DispatchMemory(const Function& function, const LaunchRequest& request) {
  const KernelMetadata& metadata = function.metadata;
  Packed packed;
  if (request.parameters && request.extra) refuse(function, "both `kernelParams` and `extra` are given");
  if (request.extra) packed = read_extra(function, request.extra);
  const uint64_t needed = metadata.explicit_bytes();
  if (request.parameters ? !metadata.arguments_listed : packed.bytes < needed)
    refuse(function, request.parameters
                         ? "its metadata doesn't list its arguments: pass them packed, in `extra`"
                         : "the argument buffer has " + std::to_string(packed.bytes) +
                               " bytes, its arguments take " + std::to_string(needed));

  const uint64_t kernarg_bytes = line_up(std::max({metadata.kernarg_bytes, packed.bytes, kLine}));
  packet_offset_ = kernarg_bytes;
  queue_offset_ = packet_offset_ + kLine;
  storage_.resize(queue_offset_ + kQueueBytes + kLine);
  address_ = line_up(reinterpret_cast<uint64_t>(storage_.data()));
  uint8_t* kernarg = reinterpret_cast<uint8_t*>(address_);

  if (packed.bytes) std::memcpy(kernarg, packed.buffer, packed.bytes);
  size_t index = 0;
  for (const KernelArgument& argument : metadata.arguments) {
    if (argument.hidden()) {
      const uint64_t value = hidden_value(argument.value_kind, request, queue_address());
      std::memset(kernarg + argument.offset, 0, argument.bytes);
      std::memcpy(kernarg + argument.offset, &value, std::min<uint64_t>(argument.bytes, 8));
    } else if (request.parameters) {
      if (!request.parameters[index]) refuse(function, "kernelParams[" + std::to_string(index) + "] is null");
      std::memcpy(kernarg + argument.offset, request.parameters[index], argument.bytes);
      ++index;
    }
  }

  struct Packet {  // hsa_kernel_dispatch_packet_t
    uint16_t header, setup, workgroup_size[3], reserved0;
    uint32_t grid_size[3], private_segment_size, group_segment_size;
    uint64_t kernel_object, kernarg_address, reserved2, completion_signal;
  };
  static_assert(sizeof(Packet) == kLine);
  Packet packet{};
  packet.header = 2;  // HSA_PACKET_TYPE_KERNEL_DISPATCH
  packet.setup = 3;
  for (size_t i = 0; i < 3; ++i) {
    packet.workgroup_size[i] = static_cast<uint16_t>(request.block[i]);
    packet.grid_size[i] = request.grid[i] * request.block[i];
  }
  packet.private_segment_size = function.kernel.descriptor.private_segment_fixed_size;
  packet.group_segment_size = static_cast<uint32_t>(metadata.group_bytes) + request.dynamic_lds;
  packet.kernel_object = function.kernel.descriptor_address;
  packet.kernarg_address = address_;
  std::memcpy(kernarg + packet_offset_, &packet, sizeof packet);

  // amd_queue_t: code objects before v5 read the apertures there.
  std::memcpy(kernarg + queue_offset_ + 64, &kSharedBaseHigh, 4);
  std::memcpy(kernarg + queue_offset_ + 68, &kPrivateBaseHigh, 4);

  regions_ = {{address_, address_ + kernarg_bytes, false, "kernel arguments"},
              {packet_address(), packet_address() + kLine, false, "dispatch packet"},
              {queue_address(), queue_address() + kQueueBytes, false, "queue"}};
}

}  // namespace gfx942
