// How much work each query tile has, and the order that starts with the most: what comes last should be
// short.
//
// A workgroup counts the listed tiles of up to 4096 query tiles of one head, then places each behind all that
// have more, or as many and a lower number.
#pragma once

#include "isa.hpp"
#include "skip_arguments.hpp"

namespace liteattention_rocm {

LRA_DEVICE void order_by_work(const OrderArguments& arguments) {
  alignas(16) LRA_SHARED uint32_t counts[kOrderedTiles];

  const int thread = __builtin_amdgcn_workitem_id_x();
  const int first = __builtin_amdgcn_workgroup_id_x() * kOrderedTiles;
  const int rest = arguments.query_tiles - first;
  const int tiles = rest < kOrderedTiles ? rest : kOrderedTiles;
  const int64_t first_row =
      static_cast<int64_t>(__builtin_amdgcn_workgroup_id_y()) * arguments.query_tiles + first;

  for (int tile = thread; tile < tiles; tile += kThreadsPerWorkgroup) {
    const uint32_t* row = arguments.list + (first_row + tile) * arguments.words;
    uint32_t count = 0;
#pragma unroll 4
    for (int word = 0; word < arguments.words; ++word) count += __builtin_popcount(row[word]);
    counts[tile] = count;
    arguments.counts[first_row + tile] = count;
  }
  isa::lds_barrier();
  for (int tile = thread; tile < tiles; tile += kThreadsPerWorkgroup) {
    const uint32_t count = counts[tile];
    int place = 0;
#pragma unroll 4
    for (int other = 0; other < tiles; ++other)
      place += counts[other] > count || (counts[other] == count && other < tile);
    arguments.order[first_row + place] = first + tile;
  }
}

}  // namespace liteattention_rocm
