// The kernel-argument segment of one launch and the other memory that the command processor hands a kernel.
#pragma once

#include <memory>

#include "code_object.hpp"

namespace gfx942 {

// The launch as the caller gave it.
struct LaunchRequest {
  std::array<uint32_t, 3> grid{1, 1, 1};   // workgroups
  std::array<uint32_t, 3> block{1, 1, 1};  // work-items
  uint32_t dynamic_lds = 0;                // bytes
  void** parameters = nullptr;             // one pointer per explicit argument
  void** extra = nullptr;                  // HIP_LAUNCH_PARAM_* list with a packed buffer
};

// Read-only for the kernel. Layouts: AMDGPU user guide, "Kernel Dispatch" and "Code Object V3..V6 Metadata".
class DispatchMemory {
 public:
  // Throws HipError(hipErrorInvalidValue) when the arguments don't fit the kernel.
  DispatchMemory(const Function& function, const LaunchRequest& request);

  uint64_t kernarg_address() const { return address_; }  // 64-byte aligned
  uint64_t packet_address() const { return address_ + packet_offset_; }
  uint64_t queue_address() const { return address_ + queue_offset_; }
  const std::vector<Region>& regions() const { return regions_; }

 private:
  std::vector<uint8_t> storage_;
  uint64_t address_ = 0, packet_offset_ = 0, queue_offset_ = 0;
  std::vector<Region> regions_;
};

}  // namespace gfx942
