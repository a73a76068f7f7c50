// Whether and how a dense call splits KV: a model of what its workgroups cost. Pure arithmetic.
#pragma once

#include <cstdint>
#include <optional>

namespace liteattention_rocm {

struct KernelTraits;

// The first whole_blocks query blocks have a workgroup each; the split_blocks behind them have `pieces` each.
struct Split {
  int64_t whole_blocks, split_blocks, pieces;

  int64_t workgroups() const { return whole_blocks + pieces * split_blocks; }
  // Of the partial results, float32.
  int64_t workspace_bytes(const KernelTraits& kernel) const;
};

// From the end of one kernel of a stream to the first wave of the next, about 5 µs at 2 GHz: an assumption.
constexpr double kLaunchClocks = 10'000;

// Modelled clocks of the compute unit with most work: workgroups are dealt out evenly, and those of a pair
// end together.
double unsplit_clocks(const KernelTraits& kernel, double blocks, int64_t kv_tiles, int compute_units);
// The same up to the end of the merge.
double split_clocks(const KernelTraits& kernel, const Split& split, int64_t kv_tiles, int compute_units);

// The cheapest split, if one is modelled as cheaper than none by more than the model can be trusted for. Full
// rounds of workgroups over the compute units stay whole.
std::optional<Split> cheapest_split(const KernelTraits& kernel, int64_t blocks, int64_t kv_tiles,
                                    int compute_units);

// Every block in so many pieces, or as many as there are KV tiles; none for 1.
std::optional<Split> uniform_split(int64_t blocks, int64_t kv_tiles, int64_t pieces);

// Workgroups that a grid of the splitting kernels may have.
bool fits_grid(const KernelTraits& kernel, const Split& split);

}  // namespace liteattention_rocm
