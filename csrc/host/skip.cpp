#include "host/skip.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "device/skip_arguments.hpp"
#include "host/kernels.hpp"

namespace liteattention_rocm {
namespace {

SkipArguments checked_arguments(const SkipCall& call, const Plan& plan) {
  SkipArguments arguments{};
  static_cast<ForwardArguments&>(arguments) = checked_arguments(call.forward);
  if (!(call.threshold < 0 || std::isinf(call.threshold)))
    throw std::invalid_argument("threshold is " + std::to_string(call.threshold) +
                                ", allowed are numbers below 0, and infinity");
  check_address("read_list", call.read_list, alignof(uint32_t));
  check_address("write_list", call.write_list, alignof(uint32_t));
  if (call.order) check_address("order", call.order, alignof(uint32_t));
  if (call.read_list == call.write_list)
    throw std::invalid_argument("write_list is read_list, allowed is another buffer");
  const float threshold = static_cast<float>(call.threshold);
  arguments.threshold = threshold == -std::numeric_limits<float>::infinity()
                            ? std::numeric_limits<float>::quiet_NaN()
                            : threshold;
  arguments.words = static_cast<int32_t>((plan.kv_tiles() + kTilesPerWord - 1) / kTilesPerWord);
  arguments.backward = call.backward;
  // Where nothing is worth keeping, not even the first tile, only the list is affected.
  arguments.votes_count = call.votes_count && call.threshold < 0;
  if (call.votes_count && call.forward.kernel == DenseKernel::kPingpong)
    throw std::invalid_argument("votes_count is true, allowed with the kernel pingpong is false");
  return arguments;
}

}  // namespace

void skip_forward(int library, int device, std::string_view arch, int compute_units, const SkipCall& call) {
  const HipLibrary& hip = hip_library(library);
  const DenseKernel schedule = call.forward.kernel.value_or(DenseKernel::kForward);
  const Plan shape(call.forward.problem, {1}, schedule);
  if (shape.launch_count() == 0) return;
  SkipArguments arguments = checked_arguments(call, shape);

  const auto stream = reinterpret_cast<hipStream_t>(call.forward.stream);
  const LoadedKernels& kernels = load_kernels(library, device, arch, compute_units, stream);
  const int rounding = static_cast<int>(call.forward.rounding);
  const Plan plan(call.forward.problem, kernels.device, schedule);
  const bool pingpong = schedule == DenseKernel::kPingpong;
  const int64_t lists_per_head =
      (call.forward.problem.seqlen_q + kQueryRowsPerWorkgroup - 1) / kQueryRowsPerWorkgroup;

  const CurrentDevice current(hip, device);
  size_t bytes = sizeof arguments;
  void* extra[] = {HIP_LAUNCH_PARAM_BUFFER_POINTER, &arguments, HIP_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   HIP_LAUNCH_PARAM_END};
  for (int64_t i = 0; i < plan.launch_count(); ++i) {
    const Launch launch = plan.launch(i);
    set_addresses(arguments, call.forward, launch.first_batch);
    const int64_t first_head = launch.first_batch * call.forward.problem.heads;
    const auto words_at = [&](uint64_t address, int64_t words_per_head) {
      return reinterpret_cast<uint32_t*>(address ? address + first_head * words_per_head * sizeof(uint32_t)
                                                 : 0);
    };
    arguments.read_list = words_at(call.read_list, lists_per_head * arguments.words);
    arguments.write_list = words_at(call.write_list, lists_per_head * arguments.words);
    arguments.order = words_at(call.order, plan.query_tiles());
    if (const hipError_t error = hip.module_launch_kernel(
            (pingpong ? kernels.skip_pingpong : kernels.skip_forward)[rounding], launch.grid[0],
            launch.grid[1], launch.grid[2], plan.threads(), 1, 1, 0, stream, nullptr, extra))
      hip.fail(error, launch_text((pingpong ? kSkipPingpongKernels : kSkipKernels)[rounding], launch));
  }
}

void skip_order(int library, int device, std::string_view arch, int compute_units, const OrderCall& call) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  constexpr int64_t kMaxGridY = 65535;
  const HipLibrary& hip = hip_library(library);
  for (const auto& [name, value] : {std::pair{"heads", call.heads},
                                    {"query_tiles", call.query_tiles},
                                    {"words", call.words},
                                    {"merged", call.merged}})
    if (value < 0 || value > kMost)
      throw std::invalid_argument(std::string(name) + " is " + std::to_string(value) + ", allowed are 0 to " +
                                  std::to_string(kMost));
  if (call.merged == 0) throw std::invalid_argument("merged is 0, allowed are positive numbers");
  if (call.heads == 0 || call.query_tiles == 0) return;
  check_address("list", call.list, alignof(uint32_t));
  check_address("counts", call.counts, alignof(uint32_t));
  check_address("order", call.order, alignof(uint32_t));

  const auto stream = reinterpret_cast<hipStream_t>(call.stream);
  const LoadedKernels& kernels = load_kernels(library, device, arch, compute_units, stream);
  const CurrentDevice current(hip, device);
  OrderArguments arguments{};
  arguments.query_tiles = static_cast<int32_t>(call.query_tiles);
  arguments.words = static_cast<int32_t>(call.words);
  arguments.merged = static_cast<int32_t>(call.merged);
  const int64_t groups = (call.query_tiles + call.merged - 1) / call.merged;
  size_t bytes = sizeof arguments;
  void* extra[] = {HIP_LAUNCH_PARAM_BUFFER_POINTER, &arguments, HIP_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   HIP_LAUNCH_PARAM_END};
  for (int64_t first = 0; first < call.heads; first += kMaxGridY) {
    const Launch launch{{static_cast<uint32_t>((groups + kOrderedTiles - 1) / kOrderedTiles),
                         static_cast<uint32_t>(std::min(call.heads - first, kMaxGridY)), 1},
                        first};
    const auto words_at = [&](uint64_t address, int64_t words_per_head) {
      return reinterpret_cast<uint32_t*>(address + first * words_per_head * sizeof(uint32_t));
    };
    arguments.list = words_at(call.list, call.query_tiles * call.words);
    arguments.counts = words_at(call.counts, groups);
    arguments.order = words_at(call.order, groups);
    if (const hipError_t error =
            hip.module_launch_kernel(kernels.skip_order, launch.grid[0], launch.grid[1], launch.grid[2],
                                     kThreadsPerWorkgroup, 1, 1, 0, stream, nullptr, extra))
      hip.fail(error, launch_text(kOrderKernel, launch));
  }
}

}  // namespace liteattention_rocm
