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

  // Up to a multiple of four, what doesn't exist counts 0 and comes behind everything.
  for (int tile = thread; tile < (tiles + 3) / 4 * 4; tile += kThreadsPerWorkgroup) {
    uint32_t count = 0;
    if (tile < tiles) {
      const uint32_t* row = arguments.list + (first_row + tile) * arguments.words;
#pragma unroll 1
      for (int word = 0; word < arguments.words; ++word) count += __builtin_popcount(row[word]);
      arguments.counts[first_row + tile] = count;
    }
    counts[tile] = count;
  }
  isa::lds_barrier();
  for (int tile = thread; tile < tiles; tile += kThreadsPerWorkgroup) {
    const uint32_t count = counts[tile];
    int place = 0;
#pragma unroll 1
    for (int other = 0; other < tiles; other += 4) {
      const Dword4 four = *reinterpret_cast<const Dword4*>(&counts[other]);
      for (int i = 0; i < 4; ++i) place += four[i] > count || (four[i] == count && other + i < tile);
    }
    arguments.order[first_row + place] = first + tile;
  }
}

}  // namespace liteattention_rocm
