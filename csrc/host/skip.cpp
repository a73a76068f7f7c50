#include "host/skip.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "device/skip_split_arguments.hpp"
#include "host/kernels.hpp"
#include "host/launcher.hpp"
#include "host/skip_plan.hpp"

namespace liteattention_rocm {
namespace {

SkipArguments checked_arguments(const SkipCall& call, const SkipPlan& plan) {
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
  arguments.words = static_cast<int32_t>(plan.words());
  arguments.backward = call.backward;
  // Where nothing is worth keeping, not even the first tile, only the list is affected.
  arguments.votes_count = call.votes_count && call.threshold < 0;
  if (call.votes_count && call.forward.kernel == DenseKernel::kPingpong)
    throw std::invalid_argument("votes_count is true, allowed with the kernel pingpong is false");
  return arguments;
}

// One kernel, over a grid of query blocks for as many batch entries as a grid takes.
void launch_unsplit(const Launcher& launch_kernel, const LoadedKernels& kernels, const SkipCall& call,
                    const Plan& plan, SkipArguments& arguments) {
  const auto rounding = static_cast<size_t>(call.forward.rounding);
  const bool pingpong = plan.kernel() == DenseKernel::kPingpong;
  const int64_t lists_per_head =
      (call.forward.problem.seqlen_q + kQueryRowsPerWorkgroup - 1) / kQueryRowsPerWorkgroup;
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
    launch_kernel((pingpong ? kernels.skip_pingpong : kernels.skip_forward)[rounding],
                  (pingpong ? kSkipPingpongKernels : kSkipKernels)[rounding], launch, plan.threads(),
                  arguments);
  }
}

// The lists of the pieces, attention, and the merge.
void launch_split(const Launcher& launch_kernel, const LoadedKernels& kernels, const SkipCall& call,
                  const SkipPlan& plan, const SkipArguments& checked) {
  const auto rounding = static_cast<size_t>(call.forward.rounding);
  const bool pingpong = plan.unsplit().kernel() == DenseKernel::kPingpong;
  SkipSplitArguments arguments{};
  static_cast<ForwardArguments&>(arguments) = checked;
  set_addresses(arguments, call.forward, 0);
  set_split(arguments, call.forward, plan.unsplit(), *plan.split());
  arguments.read_list = reinterpret_cast<const uint32_t*>(call.read_list);
  arguments.write_list = reinterpret_cast<uint32_t*>(call.write_list);
  arguments.order = reinterpret_cast<const uint32_t*>(call.order);
  arguments.threshold = checked.threshold;
  arguments.words = checked.words;
  arguments.backward = checked.backward;
  arguments.votes_count = checked.votes_count;
  const uint64_t workspace = call.forward.workspace;
  arguments.list_pieces = reinterpret_cast<ListPiece*>(workspace + plan.list_pieces_offset());
  arguments.piece_lists = reinterpret_cast<uint32_t*>(workspace + plan.piece_lists_offset());
  arguments.votes = reinterpret_cast<uint32_t*>(workspace + plan.votes_offset());
  arguments.lists = static_cast<int32_t>(plan.lists());
  launch_kernel(kernels.skip_pieces, kPiecesKernel, plan.pieces_launch(), kListPieceThreads, arguments);
  launch_kernel((pingpong ? kernels.skip_pingpong_split : kernels.skip_forward_split)[rounding],
                (pingpong ? kSkipPingpongSplitKernels : kSkipSplitKernels)[rounding], plan.split_launch(),
                plan.unsplit().threads(), arguments);
  launch_kernel(kernels.skip_merge[rounding], kSkipMergeKernels[rounding], plan.merge_launch(), kMergeThreads,
                arguments);
}

}  // namespace

void skip_forward(int library, int device, std::string_view arch, int compute_units, const SkipCall& call) {
  const HipLibrary& hip = hip_library(library);
  const DenseKernel schedule = call.forward.kernel.value_or(DenseKernel::kForward);
  const SkipPlan shape(call.forward.problem, {1}, schedule, 1, call.visited);
  if (shape.unsplit().launch_count() == 0) return;
  SkipArguments arguments = checked_arguments(call, shape);
  // What is planned for is known before HIP is asked anything, unless the caller leaves it to the device.
  std::optional<SkipPlan> plan;
  const auto make_plan = [&](const DeviceProperties& properties) {
    plan.emplace(call.forward.problem, properties, schedule, call.forward.pieces, call.visited);
    check_workspace(call.forward, plan->workspace_bytes());
  };
  if (compute_units > 0) make_plan({compute_units});

  const auto stream = reinterpret_cast<hipStream_t>(call.forward.stream);
  const LoadedKernels& kernels = load_kernels(library, device, arch, compute_units, stream);
  if (!plan) make_plan(kernels.device);

  const CurrentDevice current(hip, device);
  const Launcher launch_kernel{hip, stream};
  if (plan->split())
    launch_split(launch_kernel, kernels, call, *plan, arguments);
  else
    launch_unsplit(launch_kernel, kernels, call, plan->unsplit(), arguments);
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
  const Launcher launch_kernel{hip, stream};
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
    launch_kernel(kernels.skip_order, kOrderKernel, launch, kThreadsPerWorkgroup, arguments);
  }
}

}  // namespace liteattention_rocm
