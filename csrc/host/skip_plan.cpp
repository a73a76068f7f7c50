#include "host/skip_plan.hpp"

#include <stdexcept>
#include <string>

#include "device/skip_split_arguments.hpp"

namespace liteattention_rocm {
namespace {

int64_t ceil_div(int64_t value, int64_t by) {
  return (value + by - 1) / by;
}

int64_t aligned(int64_t bytes) {
  return ceil_div(bytes, 16) * 16;
}

constexpr int64_t kWordBytes = sizeof(uint32_t);

}  // namespace

SkipPlan::SkipPlan(const Problem& problem, const DeviceProperties& device, DenseKernel kernel, int64_t pieces,
                   int64_t visited)
    : unsplit_(problem, device, kernel, 1), compute_units_(device.compute_units),
      visited_(visited ? visited : unsplit_.kv_tiles()) {
  if (kernel == DenseKernel::kAiterExact)
    throw std::invalid_argument("kernel is 'aiter_exact', allowed with skip lists are forward and pingpong");
  if (visited < 0 || visited > unsplit_.kv_tiles())
    throw std::invalid_argument("visited is " + std::to_string(visited) + ", allowed are 0 to " +
                                std::to_string(unsplit_.kv_tiles()) + " KV tiles");
  const int64_t workgroups = unsplit_.workgroups();
  if (pieces != 0) {
    (void)Plan(problem, device, kernel, pieces);  // refuses some
    if (pieces > 1 && workgroups > 0) split_ = uniform_split(workgroups, unsplit_.kv_tiles(), pieces);
    return;
  }
  if (workgroups == 0) return;
  split_ = cheapest_split(kernel_traits(kernel), workgroups, visited_, compute_units_);
  // Full lists are split as dense attention is, for its bits, though one launch more is made.
  if (split_ && visited_ < unsplit_.kv_tiles() && modelled_clocks() >= whole_clocks()) split_.reset();
}

double SkipPlan::whole_clocks() const {
  return unsplit_clocks(kernel_traits(unsplit_.kernel()), static_cast<double>(unsplit_.workgroups()),
                        visited_, compute_units_);
}

int64_t SkipPlan::words() const {
  return ceil_div(unsplit_.kv_tiles(), kTilesPerWord);
}

int64_t SkipPlan::lists() const {
  return kernel_traits(unsplit_.kernel()).query_rows / kQueryRowsPerWorkgroup;
}

Launch SkipPlan::pieces_launch() const {
  constexpr int64_t kPieces = kListPieceThreads / 64;  // of a workgroup
  return {{static_cast<uint32_t>(ceil_div(pieces_in_all(), kPieces)), 1, 1}, 0};
}

Launch SkipPlan::split_launch() const {
  return {{static_cast<uint32_t>(split_->workgroups()), 1, 1}, 0};
}

Launch SkipPlan::merge_launch() const {
  constexpr int64_t kRows = kPartialRows * (kMergeThreads / 64);
  const int64_t rows = split_->split_blocks * kernel_traits(unsplit_.kernel()).query_rows;
  return {{static_cast<uint32_t>(ceil_div(rows, kRows)), 1, 1}, 0};
}

int64_t SkipPlan::list_pieces_offset() const {
  return split_->workspace_bytes(kernel_traits(unsplit_.kernel()));
}

int64_t SkipPlan::piece_lists_offset() const {
  return list_pieces_offset() + pieces_in_all() * static_cast<int64_t>(sizeof(ListPiece));
}

int64_t SkipPlan::votes_offset() const {
  return piece_lists_offset() + aligned(pieces_in_all() * lists() * words() * kWordBytes);
}

int64_t SkipPlan::workspace_bytes() const {
  if (!split_) return 0;
  const int fragments = kernel_traits(unsplit_.kernel()).query_rows / kPartialRows;
  return votes_offset() + aligned(pieces_in_all() * vote_rows(fragments) * words() * kWordBytes);
}

double SkipPlan::modelled_clocks() const {
  if (!split_) return whole_clocks();
  return split_clocks(kernel_traits(unsplit_.kernel()), *split_, visited_, compute_units_) + kLaunchClocks;
}

}  // namespace liteattention_rocm
