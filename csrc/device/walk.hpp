// Which KV tiles a workgroup visits, and in what order. The forward kernel is written for either walk.
//
// A tile is named by the KV rows from its first one to the end of the sequence: what masks and bounds need.
#pragma once

#include "arguments.hpp"
#include "isa.hpp"

namespace liteattention_rocm {

// First to last.
struct EveryTile {
  static constexpr bool kVotes = false;

  template <typename Share>
  LRA_DEVICE EveryTile(const ForwardArguments&, const Share&) {}

  // The first tile, given all rows; 0 or less: there is none.
  static LRA_DEVICE int first(int rows) { return rows; }
  // The tile that follows; 0 or less: there is none.
  static LRA_DEVICE int next(int remaining) { return remaining - kKvRowsPerTile; }
};

}  // namespace liteattention_rocm
