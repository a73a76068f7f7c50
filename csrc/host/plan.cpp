#include "host/plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "device/split_arguments.hpp"

namespace liteattention_rocm {
namespace {

// HIP reports 65535 for grid dimensions y and z on current runtimes.
constexpr int64_t kMaxGridYz = 65535;
// Row indices are 32-bit in the kernel, and a tile may start this close to the end.
constexpr int64_t kMaxSequence =
    std::numeric_limits<int32_t>::max() - std::max(kQueryRowsPerWorkgroup, kKvRowsPerTile);

constexpr std::array<KernelTraits, 3> kKernelTraits = {{
    {"forward", kQueryRowsPerWorkgroup, kThreadsPerWorkgroup, {5500, 5400}, KernelTraits::Clocks{7700, 7750}},
    {"pingpong", kPingpongQueryRowsPerWorkgroup, kPingpongThreadsPerWorkgroup, {11900, 6590}, std::nullopt},
    {"aiter_exact",
     kQueryRowsPerWorkgroup,
     kThreadsPerWorkgroup,
     {4000, 4620},
     KernelTraits::Clocks{7300, 6340}},
}};

// A dispatch counts work-items in 32 bits.
constexpr bool dispatches_fit() {
  for (const KernelTraits& kernel : kKernelTraits)
    if ((kMaxSequence / kernel.query_rows + 1) * kernel.threads > std::numeric_limits<uint32_t>::max())
      return false;
  return true;
}
static_assert(dispatches_fit());

int64_t ceil_div(int64_t value, int64_t by) {
  return (value + by - 1) / by;
}

void check_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high)
    throw std::invalid_argument(std::string(name) + " is " + std::to_string(value) + ", allowed are " +
                                std::to_string(low) + " to " + std::to_string(high));
}

// One kernel's way to compute the problem.
struct Candidate {
  std::optional<Split> split;
  double clocks;
};

Candidate candidate(const Problem& problem, const DeviceProperties& device, DenseKernel kernel,
                    int64_t pieces) {
  const KernelTraits& traits = kernel_traits(kernel);
  const int64_t kv_tiles = ceil_div(problem.seqlen_kv, kKvRowsPerTile);
  const int64_t blocks_of_heads = ceil_div(problem.seqlen_q, traits.query_rows) * problem.heads;
  Candidate result{std::nullopt,
                   unsplit_clocks(traits,
                                  static_cast<double>(blocks_of_heads) * static_cast<double>(problem.batch),
                                  kv_tiles, device.compute_units)};
  int64_t blocks = 0;
  const bool unsplit = pieces == 1 || kernel == DenseKernel::kAiterExact;
  if (unsplit || __builtin_mul_overflow(blocks_of_heads, problem.batch, &blocks)) return result;
  result.split = pieces == 0 ? cheapest_split(traits, blocks, kv_tiles, device.compute_units)
                             : uniform_split(blocks, kv_tiles, pieces);
  if (result.split) result.clocks = split_clocks(traits, *result.split, kv_tiles, device.compute_units);
  return result;
}

}  // namespace

const KernelTraits& kernel_traits(DenseKernel kernel) {
  return kKernelTraits[static_cast<size_t>(kernel)];
}

std::optional<DenseKernel> dense_kernel(std::string_view name) {
  if (name.empty()) return std::nullopt;
  for (size_t i = 0; i < kKernelTraits.size(); ++i)
    if (name == kKernelTraits[i].name) return static_cast<DenseKernel>(i);
  throw std::invalid_argument("kernel is '" + std::string(name) +
                              "', allowed are forward, pingpong, aiter_exact and ''");
}

Plan::Plan(const Problem& problem, const DeviceProperties& device, std::optional<DenseKernel> kernel,
           int64_t pieces)
    : problem_(problem), device_(device) {
  check_range("batch", problem.batch, 0, std::numeric_limits<int32_t>::max());
  check_range("heads", problem.heads, 1, kMaxGridYz);
  check_range("kv_heads", problem.kv_heads, 1, problem.heads);
  check_range("seqlen_q", problem.seqlen_q, 0, kMaxSequence);
  check_range("seqlen_kv", problem.seqlen_kv, 1, kMaxSequence);
  check_range("compute_units", device.compute_units, 1, std::numeric_limits<int32_t>::max());
  check_range("pieces", pieces, 0, std::numeric_limits<int32_t>::max());
  if (problem.heads % problem.kv_heads != 0)
    throw std::invalid_argument("kv_heads is " + std::to_string(problem.kv_heads) +
                                ", allowed are divisors of heads (" + std::to_string(problem.heads) + ")");

  kernel_ = kernel.value_or(DenseKernel::kForward);
  Candidate chosen = candidate(problem, device, kernel_, pieces);
  if (!kernel) {
    const Candidate other = candidate(problem, device, DenseKernel::kPingpong, pieces);
    if (other.clocks < chosen.clocks) {
      kernel_ = DenseKernel::kPingpong;
      chosen = other;
    }
  }
  split_ = chosen.split;
  modelled_clocks_ = chosen.clocks;
  query_tiles_ = ceil_div(problem.seqlen_q, kernel_traits(kernel_).query_rows);
  kv_tiles_ = ceil_div(problem.seqlen_kv, kKvRowsPerTile);
  // At most 2^24 tiles × 2^16 heads × 2^31 entries: beyond 63 bits only for batches no memory holds.
  if (__builtin_mul_overflow(query_tiles_ * problem.heads, problem.batch, &workgroups_))
    throw std::invalid_argument("batch is " + std::to_string(problem.batch) + ": more than 2^63 workgroups");
  workgroups_per_compute_unit_ = ceil_div(workgroups_, device.compute_units);
  launch_count_ = workgroups_ == 0 ? 0 : ceil_div(problem.batch, kMaxGridYz);
  if (split_ && !fits_grid(kernel_traits(kernel_), *split_))
    throw std::invalid_argument("pieces is " + std::to_string(pieces) + ": more than 2^31 work-items");
}

Launch Plan::launch(int64_t index) const {
  const int64_t first = index * kMaxGridYz;
  const int64_t entries = std::min(problem_.batch - first, kMaxGridYz);
  return {{static_cast<uint32_t>(query_tiles_), static_cast<uint32_t>(problem_.heads),
           static_cast<uint32_t>(entries)},
          first};
}

Launch Plan::split_launch() const {
  return {{static_cast<uint32_t>(split_->workgroups()), 1, 1}, 0};
}

Launch Plan::merge_launch() const {
  constexpr int64_t kRows = kPartialRows * (kMergeThreads / 64);  // of a workgroup
  const int64_t rows = split_->split_blocks * kernel_traits(kernel_).query_rows;
  return {{static_cast<uint32_t>(ceil_div(rows, kRows)), 1, 1}, 0};
}

double Plan::occupancy() const {
  if (workgroups_ == 0) return 1.0;
  return static_cast<double>(workgroups_) /
         (static_cast<double>(workgroups_per_compute_unit_) * device_.compute_units);
}

}  // namespace liteattention_rocm
