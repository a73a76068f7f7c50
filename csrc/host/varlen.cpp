#include "host/varlen.hpp"

#include <algorithm>
#include <stdexcept>

#include "device/varlen_arguments.hpp"
#include "host/kernels.hpp"

namespace liteattention_rocm {

void varlen_forward(int library, int device, std::string_view arch, int compute_units,
                    const VarlenCall& call) {
  constexpr int64_t kMaxSequences = 65535;  // workgroups along z of a grid
  const HipLibrary& hip = hip_library(library);
  const Problem& total = call.forward.problem;
  if (Plan(total, {1}, DenseKernel::kForward).launch_count() == 0) return;
  if (total.batch != 1)
    throw std::invalid_argument("batch is " + std::to_string(total.batch) + ", allowed is 1: it is packed");
  if (call.sequences < 1 || call.sequences > kMaxSequences)
    throw std::invalid_argument("sequences is " + std::to_string(call.sequences) + ", allowed are 1 to " +
                                std::to_string(kMaxSequences));
  if (call.max_seqlen_q < 0 || call.max_seqlen_q > total.seqlen_q)
    throw std::invalid_argument("max_seqlen_q is " + std::to_string(call.max_seqlen_q) +
                                ", allowed are 0 to " + std::to_string(total.seqlen_q));
  VarlenArguments arguments{};
  static_cast<ForwardArguments&>(arguments) = checked_arguments(call.forward);
  set_addresses(arguments, call.forward, 0);
  check_address("cu_seqlens_q", call.cu_seqlens_q, alignof(int32_t));
  check_address("cu_seqlens_k", call.cu_seqlens_k, alignof(int32_t));
  arguments.cu_seqlens_q = reinterpret_cast<const int32_t*>(call.cu_seqlens_q);
  arguments.cu_seqlens_k = reinterpret_cast<const int32_t*>(call.cu_seqlens_k);
  if (call.max_seqlen_q == 0) return;

  const auto stream = reinterpret_cast<hipStream_t>(call.forward.stream);
  const LoadedKernels& kernels = load_kernels(library, device, arch, compute_units, stream);
  const auto rounding = static_cast<size_t>(call.forward.rounding);
  const auto tiles = (call.max_seqlen_q + kQueryRowsPerWorkgroup - 1) / kQueryRowsPerWorkgroup;
  const Launch launch{{static_cast<uint32_t>(tiles), static_cast<uint32_t>(total.heads),
                       static_cast<uint32_t>(call.sequences)},
                      0};
  const CurrentDevice current(hip, device);
  size_t bytes = sizeof arguments;
  void* extra[] = {HIP_LAUNCH_PARAM_BUFFER_POINTER, &arguments, HIP_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   HIP_LAUNCH_PARAM_END};
  if (const hipError_t error =
          hip.module_launch_kernel(kernels.varlen[rounding], launch.grid[0], launch.grid[1], launch.grid[2],
                                   kThreadsPerWorkgroup, 1, 1, 0, stream, nullptr, extra))
    hip.fail(error, launch_text(kVarlenKernels[rounding], launch));
}

}  // namespace liteattention_rocm
