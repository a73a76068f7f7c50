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
};

// As forward() in every other respect.
void skip_forward(int hip, int device, std::string_view arch, int compute_units, const SkipCall& call);

}  // namespace liteattention_rocm
