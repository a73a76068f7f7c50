// One forward call: check, plan, launch.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "device/split_arguments.hpp"
#include "host/code_objects.hpp"
#include "host/plan.hpp"

namespace liteattention_rocm {

using Strides = std::array<int64_t, 3>;  // (batch, head, row), in elements

// Tensors are bf16 [batch, heads or kv_heads, sequence, 128] by their strides, the last dimension contiguous.
struct ForwardCall {
  Problem problem;
  uint64_t query, key, value, out;  // device addresses
  uint64_t lse;                     // float32 [batch, heads, seqlen_q], contiguous; 0: not written
  Strides query_strides, key_strides, value_strides, out_strides;
  double scale;  // of the scores, before softmax
  RoundMode rounding;
  uint64_t stream;                                   // hipStream_t
  std::optional<DenseKernel> kernel = std::nullopt;  // none: the plan's choice
  int64_t pieces = 1;                                // as Plan takes them
  uint64_t workspace = 0;                            // device memory for the plan's workspace_bytes
  int64_t workspace_bytes = 0;
};

// compute_units is what the call is planned for, and used by the call that loads the kernels; 0 asks the
// device. Launches on the call's stream
// and returns. The current device is left as it was found. Throws std::invalid_argument for sizes, addresses
// or strides the kernel can't take, before anything is launched; HipError for what HIP refuses;
// std::runtime_error when the kernels would have to be loaded during capture.
void forward(int hip, int device, std::string_view arch, int compute_units, const ForwardCall& call);
// The same with the plan for the call's problem, kernel and pieces made before.
void forward(int hip, int device, std::string_view arch, int compute_units, const ForwardCall& call,
             const Plan& plan);

// The call's kernel arguments without addresses, which differ between launches. Throws std::invalid_argument
// for what forward refuses.
ForwardArguments checked_arguments(const ForwardCall& call);
// Those for the launch whose first batch entry is `first_batch`.
void set_addresses(ForwardArguments& arguments, const ForwardCall& call, int64_t first_batch);

// What a split adds to them.
void set_split(SplitArguments& arguments, const ForwardCall& call, const Plan& plan, const Split& split);

// Throws std::invalid_argument unless the call's workspace is a place for so many bytes; 0: none is needed.
void check_workspace(const ForwardCall& call, int64_t needed);
// Throws std::invalid_argument unless the address is a nonzero multiple of `alignment`.
void check_address(const char* name, uint64_t address, uint64_t alignment);

// "hipModuleLaunchKernel(kernel, grid 1x2x3)"
std::string launch_text(const char* kernel, const Launch& launch);

}  // namespace liteattention_rocm
