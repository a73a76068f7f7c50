#include "host/plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "device/arguments.hpp"

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

DenseKernel fastest(const Problem& problem, const DeviceProperties& device) {
  return Plan::modelled_clocks(problem, device, DenseKernel::kPingpong) <
                 Plan::modelled_clocks(problem, device, DenseKernel::kForward)
             ? DenseKernel::kPingpong
             : DenseKernel::kForward;
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

double Plan::modelled_clocks(const Problem& problem, const DeviceProperties& device, DenseKernel kernel) {
  const KernelTraits& traits = kernel_traits(kernel);
  const double query_tiles = static_cast<double>(ceil_div(problem.seqlen_q, traits.query_rows));
  const double kv_tiles = static_cast<double>(ceil_div(problem.seqlen_kv, kKvRowsPerTile));
  const double share = std::ceil(query_tiles * static_cast<double>(problem.heads) *
                                 static_cast<double>(problem.batch) / device.compute_units);
  const auto clocks = [&](const KernelTraits::Clocks& one) { return one.fixed + kv_tiles * one.per_kv_tile; };
  const double pairs = traits.paired ? std::floor(share / 2) : 0;
  return (traits.paired ? pairs * clocks(*traits.paired) : 0) + (share - 2 * pairs) * clocks(traits.alone);
}

Plan::Plan(const Problem& problem, const DeviceProperties& device, std::optional<DenseKernel> kernel)
    : problem_(problem), device_(device) {
  check_range("batch", problem.batch, 0, std::numeric_limits<int32_t>::max());
  check_range("heads", problem.heads, 1, kMaxGridYz);
  check_range("kv_heads", problem.kv_heads, 1, problem.heads);
  check_range("seqlen_q", problem.seqlen_q, 0, kMaxSequence);
  check_range("seqlen_kv", problem.seqlen_kv, 1, kMaxSequence);
  check_range("compute_units", device.compute_units, 1, std::numeric_limits<int32_t>::max());
  if (problem.heads % problem.kv_heads != 0)
    throw std::invalid_argument("kv_heads is " + std::to_string(problem.kv_heads) +
                                ", allowed are divisors of heads (" + std::to_string(problem.heads) + ")");

  kernel_ = kernel ? *kernel : fastest(problem, device);
  query_tiles_ = ceil_div(problem.seqlen_q, kernel_traits(kernel_).query_rows);
  kv_tiles_ = ceil_div(problem.seqlen_kv, kKvRowsPerTile);
  // At most 2^24 tiles × 2^16 heads × 2^31 entries: beyond 63 bits only for batches no memory holds.
  if (__builtin_mul_overflow(query_tiles_ * problem.heads, problem.batch, &workgroups_))
    throw std::invalid_argument("batch is " + std::to_string(problem.batch) + ": more than 2^63 workgroups");
  workgroups_per_compute_unit_ = ceil_div(workgroups_, device.compute_units);
  launch_count_ = workgroups_ == 0 ? 0 : ceil_div(problem.batch, kMaxGridYz);
}

Launch Plan::launch(int64_t index) const {
  const int64_t first = index * kMaxGridYz;
  const int64_t entries = std::min(problem_.batch - first, kMaxGridYz);
  return {{static_cast<uint32_t>(query_tiles_), static_cast<uint32_t>(problem_.heads),
           static_cast<uint32_t>(entries)},
          first};
}

double Plan::occupancy() const {
  if (workgroups_ == 0) return 1.0;
  return static_cast<double>(workgroups_) /
         (static_cast<double>(workgroups_per_compute_unit_) * device_.compute_units);
}

}  // namespace liteattention_rocm
