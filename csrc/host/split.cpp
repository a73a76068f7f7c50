#include "host/split.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "device/split_arguments.hpp"
#include "host/plan.hpp"

namespace liteattention_rocm {
namespace {

// 5.3 TB/s of HBM over 304 compute units at 2.1 GHz, bytes per clock: what partial results move at.
constexpr double kBytesPerClock = 8;
// The merge of a row takes its pieces one after the other: the latency of HBM, and their addition.
constexpr double kMergeClocksPerPiece = 1'000;
// A split must be modelled as this much cheaper.
constexpr double kLeastGain = 0.01;

constexpr int64_t kMostPieces = 256;
constexpr int64_t kMostRounds = 8;  // of pieces over all places for workgroups

int64_t ceil_div(int64_t value, int64_t by) {
  return (value + by - 1) / by;
}

int64_t partial_bytes(const KernelTraits& kernel) {
  return int64_t{kernel.query_rows / kPartialRows} * kPartialBytes;
}

// `workgroups` dealt out evenly, each with so many clocks more than its KV tiles take.
double dealt_clocks(const KernelTraits& kernel, double workgroups, int64_t kv_tiles, int compute_units,
                    double more) {
  const double share = std::ceil(workgroups / compute_units);
  const auto clocks = [&](const KernelTraits::Clocks& one, double workgroups_at_once) {
    return one.fixed + static_cast<double>(kv_tiles) * one.per_kv_tile + workgroups_at_once * more;
  };
  const double pairs = kernel.paired ? std::floor(share / 2) : 0;
  return (kernel.paired ? pairs * clocks(*kernel.paired, 2) : 0) +
         (share - 2 * pairs) * clocks(kernel.alone, 1);
}

}  // namespace

int64_t Split::workspace_bytes(const KernelTraits& kernel) const {
  return pieces * split_blocks * partial_bytes(kernel);
}

double unsplit_clocks(const KernelTraits& kernel, double blocks, int64_t kv_tiles, int compute_units) {
  return dealt_clocks(kernel, blocks, kv_tiles, compute_units, 0);
}

double split_clocks(const KernelTraits& kernel, const Split& split, int64_t kv_tiles, int compute_units) {
  const double store = static_cast<double>(partial_bytes(kernel)) / kBytesPerClock;
  const double merge = static_cast<double>(split.workspace_bytes(kernel)) / kBytesPerClock / compute_units;
  const double pieces = static_cast<double>(split.pieces);
  return dealt_clocks(kernel, static_cast<double>(split.whole_blocks), kv_tiles, compute_units, 0) +
         dealt_clocks(kernel, pieces * static_cast<double>(split.split_blocks),
                      ceil_div(kv_tiles, split.pieces), compute_units, store) +
         kLaunchClocks + std::max(merge, pieces * kMergeClocksPerPiece);
}

std::optional<Split> cheapest_split(const KernelTraits& kernel, int64_t blocks, int64_t kv_tiles,
                                    int compute_units) {
  const int64_t places = int64_t{compute_units} * (kernel.paired ? 2 : 1);
  const int64_t rest = blocks % places;
  double least =
      (1 - kLeastGain) * unsplit_clocks(kernel, static_cast<double>(blocks), kv_tiles, compute_units);
  std::optional<Split> cheapest;
  if (rest == 0) return cheapest;
  const auto consider = [&](int64_t pieces) {
    const Split split{blocks - rest, rest, std::min({pieces, kv_tiles, kMostPieces})};
    if (split.pieces < 2 || !fits_grid(kernel, split)) return;
    const double clocks = split_clocks(kernel, split, kv_tiles, compute_units);
    if (clocks >= least) return;
    least = clocks;
    cheapest = split;
  };
  // The most pieces that fit so many rounds of one workgroup a compute unit; and where a round takes more
  // than that, the least sum of what shrinks with them and what grows.
  const int64_t most_rounds = kMostRounds * (kernel.paired ? 2 : 1);
  for (int64_t rounds = 1; rounds <= most_rounds; ++rounds) consider(rounds * compute_units / rest);
  consider(std::min(int64_t{compute_units} / rest,
                    std::lround(std::sqrt(static_cast<double>(kv_tiles) * kernel.alone.per_kv_tile /
                                          kMergeClocksPerPiece))));
  return cheapest;
}

std::optional<Split> uniform_split(int64_t blocks, int64_t kv_tiles, int64_t pieces) {
  if (pieces < 2 || kv_tiles < 2 || blocks == 0) return std::nullopt;
  return Split{0, blocks, std::min(pieces, kv_tiles)};
}

bool fits_grid(const KernelTraits& kernel, const Split& split) {
  // Work-items are counted in 32 bits, partial results in 31.
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  int64_t pieces = 0, workgroups = 0, items = 0, merged = 0;
  return !__builtin_mul_overflow(split.pieces, split.split_blocks, &pieces) &&
         !__builtin_add_overflow(pieces, split.whole_blocks, &workgroups) &&
         !__builtin_mul_overflow(workgroups, int64_t{kernel.threads}, &items) && items <= kMost &&
         !__builtin_mul_overflow(split.split_blocks, int64_t{kernel.query_rows / kPartialRows} * 64,
                                 &merged) &&
         merged <= kMost;
}

}  // namespace liteattention_rocm
