#include "host/forward.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <stdexcept>
#include <string>

#include "host/kernels.hpp"
#include "host/launcher.hpp"

namespace liteattention_rocm {
namespace {

constexpr int64_t kElementBytes = 2;     // bf16
constexpr int64_t kAlignmentBytes = 16;  // of every row, for 16-byte loads
constexpr int64_t kAlignmentElements = kAlignmentBytes / kElementBytes;
constexpr double kLog2E = 1.4426950408889634074;
constexpr uint32_t kFlipSigns = 0x80008000;  // of a packed pair of bf16

[[noreturn]] void refuse(const std::string& name, const std::string& value, const std::string& allowed) {
  throw std::invalid_argument(name + " is " + value + ", allowed is " + allowed);
}

std::string address_text(uint64_t address) {
  char text[32];
  snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
  return text;
}

// What a tensor's strides may be, and what they are in bytes. The stride of a dimension of one entry means
// nothing and is replaced by a harmless one.
TensorStrides byte_strides(const char* name, uint64_t address, const Strides& strides,
                           const std::array<int64_t, 3>& extents, bool written) {
  static constexpr const char* kDimensions[] = {"batch", "head", "row"};
  check_address(name, address, kAlignmentBytes);
  std::array<int64_t, 3> bytes{0, 0, kHeadDim * kElementBytes};
  int64_t span = kHeadDim * kElementBytes;
  for (int i = 0; i < 3; ++i) {
    if (extents[i] <= 1) continue;
    const int64_t stride = strides[i];
    const auto refuse_stride = [&](const std::string& allowed) {
      refuse(std::string(name) + " stride of dimension " + kDimensions[i],
             std::to_string(stride) + " elements", allowed);
    };
    if (stride < 0 || stride % kAlignmentElements != 0)
      refuse_stride("a non-negative multiple of " + std::to_string(kAlignmentElements));
    if (written && stride < kHeadDim)
      refuse_stride("at least " + std::to_string(kHeadDim) + ": rows of an output must not overlap");
    if (i == 2 && stride > kMaxRowStrideBytes / kElementBytes)
      refuse_stride("at most " + std::to_string(kMaxRowStrideBytes / kElementBytes));
    int64_t reach = 0;
    if (__builtin_mul_overflow(stride, kElementBytes, &bytes[i]) ||
        __builtin_mul_overflow(bytes[i], extents[i] - 1, &reach) ||
        __builtin_add_overflow(span, reach, &span))
      refuse_stride("one that keeps the tensor within 2^63 bytes");
  }
  uint64_t end = 0;
  if (__builtin_add_overflow(address, static_cast<uint64_t>(span), &end))
    refuse(std::string(name) + " address", address_text(address), "one whose tensor ends below 2^64");
  return {bytes[0], bytes[1], bytes[2]};
}

// By rounding mode, with their names.
std::pair<const std::array<hipFunction_t, 3>&, const std::array<const char*, 3>&>
unsplit_kernels(const LoadedKernels& kernels, DenseKernel kernel) {
  switch (kernel) {
  case DenseKernel::kPingpong: return {kernels.pingpong, kPingpongKernels};
  case DenseKernel::kAiterExact: return {kernels.aiter_exact, kAiterExactKernels};
  default: return {kernels.forward, kForwardKernels};
  }
}

}  // namespace

void check_address(const char* name, uint64_t address, uint64_t alignment) {
  if (address == 0 || address % alignment != 0)
    refuse(std::string(name) + " address", address_text(address),
           "a nonzero multiple of " + std::to_string(alignment));
}

void check_workspace(const ForwardCall& call, int64_t needed) {
  if (needed == 0) return;
  check_address("workspace", call.workspace, kAlignmentBytes);
  if (call.workspace_bytes < needed)
    refuse("workspace", std::to_string(call.workspace_bytes) + " bytes",
           "at least " + std::to_string(needed) + ", the plan's workspace_bytes");
}

void set_split(SplitArguments& arguments, const ForwardCall& call, const Plan& plan, const Split& split) {
  arguments.partials = reinterpret_cast<char*>(call.workspace);
  arguments.query_tiles = static_cast<int32_t>(plan.query_tiles());
  arguments.whole_blocks = static_cast<int32_t>(split.whole_blocks);
  arguments.split_blocks = static_cast<int32_t>(split.split_blocks);
  arguments.pieces = static_cast<int32_t>(split.pieces);
  arguments.fragments = kernel_traits(plan.kernel()).query_rows / kPartialRows;
}

ForwardArguments checked_arguments(const ForwardCall& call) {
  const Problem& problem = call.problem;
  const double magnitude = std::fabs(call.scale);
  ForwardArguments arguments{};
  arguments.scale = static_cast<float>(magnitude);
  // Never 0: the kernel masks scores with -inf, and 0 · inf is NaN.
  arguments.scale_log2e = std::max(static_cast<float>(magnitude * kLog2E), FLT_TRUE_MIN);
  if (!std::isfinite(arguments.scale) || !std::isfinite(arguments.scale_log2e))
    refuse("scale", std::to_string(call.scale), "a number whose product with log2(e) is finite in float32");
  if (call.kernel == DenseKernel::kAiterExact && !(call.scale > 0))
    refuse("scale", std::to_string(call.scale), "a positive number for kernel aiter_exact");
  arguments.query_sign_mask = call.scale < 0 ? kFlipSigns : 0;

  const std::array<int64_t, 3> query_extents{problem.batch, problem.heads, problem.seqlen_q};
  const std::array<int64_t, 3> kv_extents{problem.batch, problem.kv_heads, problem.seqlen_kv};
  arguments.query_strides = byte_strides("query", call.query, call.query_strides, query_extents, false);
  arguments.key_strides = byte_strides("key", call.key, call.key_strides, kv_extents, false);
  arguments.value_strides = byte_strides("value", call.value, call.value_strides, kv_extents, false);
  arguments.out_strides = byte_strides("out", call.out, call.out_strides, query_extents, true);
  if (call.lse) check_address("lse", call.lse, alignof(float));

  arguments.seqlen_q = static_cast<int32_t>(problem.seqlen_q);
  arguments.seqlen_kv = static_cast<int32_t>(problem.seqlen_kv);
  arguments.heads = static_cast<int32_t>(problem.heads);
  arguments.heads_per_kv_head = static_cast<int32_t>(problem.heads / problem.kv_heads);
  return arguments;
}

void set_addresses(ForwardArguments& arguments, const ForwardCall& call, int64_t first_batch) {
  arguments.query = reinterpret_cast<const void*>(call.query + first_batch * arguments.query_strides.batch);
  arguments.key = reinterpret_cast<const void*>(call.key + first_batch * arguments.key_strides.batch);
  arguments.value = reinterpret_cast<const void*>(call.value + first_batch * arguments.value_strides.batch);
  arguments.out = reinterpret_cast<void*>(call.out + first_batch * arguments.out_strides.batch);
  const int64_t lse_entry = call.problem.heads * call.problem.seqlen_q * sizeof(float);
  arguments.lse = call.lse ? reinterpret_cast<float*>(call.lse + first_batch * lse_entry) : nullptr;
}

std::string launch_text(const char* kernel, const Launch& launch) {
  return "hipModuleLaunchKernel(" + std::string(kernel) + ", grid " + std::to_string(launch.grid[0]) + "x" +
         std::to_string(launch.grid[1]) + "x" + std::to_string(launch.grid[2]) + ")";
}

void forward(int library, int device, std::string_view arch, int compute_units, const ForwardCall& call) {
  (void)hip_library(library);
  if (Plan(call.problem, {1}).launch_count() == 0) return;
  DeviceProperties properties{compute_units};
  if (compute_units <= 0) {
    // Sizes first, then HIP.
    (void)checked_arguments(call);
    const auto stream = reinterpret_cast<hipStream_t>(call.stream);
    properties = load_kernels(library, device, arch, compute_units, stream).device;
  }
  forward(library, device, arch, compute_units, call,
          Plan(call.problem, properties, call.kernel, call.pieces));
}

void forward(int library, int device, std::string_view arch, int compute_units, const ForwardCall& call,
             const Plan& plan) {
  const HipLibrary& hip = hip_library(library);
  if (plan.launch_count() == 0) return;
  ForwardArguments arguments = checked_arguments(call);
  check_workspace(call, plan.workspace_bytes());

  const auto stream = reinterpret_cast<hipStream_t>(call.stream);
  const LoadedKernels& kernels = load_kernels(library, device, arch, compute_units, stream);
  const auto rounding = static_cast<size_t>(call.rounding);
  const DenseKernel kernel = plan.kernel();

  const CurrentDevice current(hip, device);
  const Launcher launch_kernel{hip, stream};
  if (plan.split()) {
    SplitArguments split{};
    static_cast<ForwardArguments&>(split) = arguments;
    set_addresses(split, call, 0);
    set_split(split, call, plan, *plan.split());
    const bool pingpong = kernel == DenseKernel::kPingpong;
    launch_kernel((pingpong ? kernels.pingpong_split : kernels.forward_split)[rounding],
                  (pingpong ? kPingpongSplitKernels : kForwardSplitKernels)[rounding], plan.split_launch(),
                  plan.threads(), split);
    launch_kernel(kernels.merge[rounding], kMergeKernels[rounding], plan.merge_launch(), kMergeThreads,
                  split);
    return;
  }
  for (int64_t i = 0; i < plan.launch_count(); ++i) {
    const Launch launch = plan.launch(i);
    set_addresses(arguments, call, launch.first_batch);
    const auto& [functions, names] = unsplit_kernels(kernels, kernel);
    launch_kernel(functions[rounding], names[rounding], launch, plan.threads(), arguments);
  }
}

}  // namespace liteattention_rocm
