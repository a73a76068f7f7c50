// Which launches a skipping call makes. Pure arithmetic.
#pragma once

#include "host/plan.hpp"

namespace liteattention_rocm {

// Of one schedule, kForward or kPingpong.
class SkipPlan {
 public:
  // pieces: as Plan takes them; where the plan decides (0), as for dense attention over `visited` KV tiles,
  // what a workgroup visits in the mean; 0: all. Throws std::invalid_argument naming the argument that is out
  // of range.
  SkipPlan(const Problem& problem, const DeviceProperties& device, DenseKernel kernel, int64_t pieces,
           int64_t visited);

  const Plan& unsplit() const { return unsplit_; }
  // None: unsplit(). Otherwise one launch each of the kernel that prepares the lists of the pieces, of the
  // one that attends, and of the merge.
  const std::optional<Split>& split() const { return split_; }
  Launch pieces_launch() const;
  Launch split_launch() const;
  Launch merge_launch() const;

  int64_t words() const;  // of a list
  int64_t lists() const;  // query tiles of a workgroup
  // Where the parts of the workspace lie, in bytes: partial results first.
  int64_t list_pieces_offset() const;
  int64_t piece_lists_offset() const;
  int64_t votes_offset() const;
  int64_t workspace_bytes() const;
  // Of the compute unit with most work.
  double modelled_clocks() const;

 private:
  double whole_clocks() const;
  int64_t pieces_in_all() const { return split_->pieces * split_->split_blocks; }

  Plan unsplit_;
  int compute_units_;
  int64_t visited_;
  std::optional<Split> split_;
};

}  // namespace liteattention_rocm
