// One forward call that visits the KV tiles of a skip list and writes the next list: check, plan, launch.
#pragma once

#include "host/forward.hpp"

namespace liteattention_rocm {

// Lists are uint32 [batch, heads, query tiles, words], contiguous, as csrc/device/skip_arguments.hpp says.
struct SkipCall {
  ForwardCall forward;
  uint64_t read_list, write_list;  // device addresses; write_list holds the tiles that are kept anyway
  uint64_t order;                  // uint32 [batch, heads, query tiles], a permutation in each row; 0: none
  double threshold;                // log2 units, below 0 or +Inf
  bool backward;
  bool votes_count;  // a wave leaves out of this very call what is negligible for its 32 rows; kForward alone
  int64_t visited;   // KV tiles of a workgroup in the mean, for the plan's choice of pieces; 0: all
  // forward.kernel is the schedule: kForward, 128 query rows a workgroup, or kPingpong, 384 rows, for which
  // `order` is [batch, heads, ceil(query tiles / 3)]; none: kForward. forward.pieces and workspace are those
  // of a SkipPlan.
};

// As forward() in every other respect.
void skip_forward(int hip, int device, std::string_view arch, int compute_units, const SkipCall& call);

// Counts the tiles that any of `merged` consecutive rows of `list`, uint32 [heads, query_tiles, words],
// lists, and orders these groups of each head by falling count; `heads` are those of all batch entries.
// counts and order: uint32 [heads, ceil(query_tiles / merged)].
struct OrderCall {
  int64_t heads, query_tiles, words, merged;
  uint64_t list, counts, order;  // device addresses
  uint64_t stream;
};
void skip_order(int hip, int device, std::string_view arch, int compute_units, const OrderCall& call);

}  // namespace liteattention_rocm
