// The HIP libraries of this process, and the kernels loaded through each of them, once per device.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "host/code_objects.hpp"
#include "host/hip.hpp"
#include "host/plan.hpp"

namespace liteattention_rocm {

constexpr int kMaxHipLibraries = 1024;
constexpr int kMaxDevices = 256;

struct LoadedKernels {
  std::string arch;  // as it was given to the load
  DeviceProperties device;
  std::array<hipFunction_t, kForwardKernels.size()> forward;  // by RoundMode
  std::array<hipFunction_t, kPingpongKernels.size()> pingpong;
  std::array<hipFunction_t, kAiterExactKernels.size()> aiter_exact;
  std::array<hipFunction_t, kForwardSplitKernels.size()> forward_split;
  std::array<hipFunction_t, kPingpongSplitKernels.size()> pingpong_split;
  std::array<hipFunction_t, kMergeKernels.size()> merge;
  std::array<hipFunction_t, kSkipKernels.size()> skip_forward;
  std::array<hipFunction_t, kSkipPingpongKernels.size()> skip_pingpong;
  std::array<hipFunction_t, kSkipSplitKernels.size()> skip_forward_split;
  std::array<hipFunction_t, kSkipPingpongSplitKernels.size()> skip_pingpong_split;
  std::array<hipFunction_t, kSkipMergeKernels.size()> skip_merge;
  std::array<hipFunction_t, kVarlenKernels.size()> varlen;
  hipFunction_t skip_order, skip_pieces;
};

// Opens a HIP library and gives its number; one library has one number. See open_hip_library for `path`.
int open_hip(const std::string& path);

// The library that open_hip gave `number` for. Throws std::invalid_argument for any other number.
const HipLibrary& hip_library(int number);

// The kernels for a device, loaded at the first call. Afterwards the cost is two atomic reads: no lock.
//
// compute_units 0 asks the device. `stream` is the one the caller wants to launch on, if any: a load is
// illegal while it captures, and that is asked only when there is something to load. Throws
// std::runtime_error for an architecture without a code object and for a load during capture, HipError for
// what HIP refuses.
const LoadedKernels& load_kernels(int library, int device, std::string_view arch, int compute_units,
                                  std::optional<hipStream_t> stream);

}  // namespace liteattention_rocm
