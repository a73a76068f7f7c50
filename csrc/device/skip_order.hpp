// How much work each workgroup of attention has, and the order that starts with the most: what comes last
// should be short.
//
// A workgroup takes `merged` query tiles and visits what any of them lists: 1, or 3 in the out-of-phase
// kernel. A workgroup here counts that for up to 4096 such groups of one head, then places each behind all
// that have more, or as many and a lower number.
#pragma once

#include "rows.hpp"
#include "skip_arguments.hpp"

namespace liteattention_rocm {

LRA_DEVICE void order_by_work(const OrderArguments& arguments) {
  alignas(16) LRA_SHARED uint32_t counts[kOrderedTiles];

  const int thread = __builtin_amdgcn_workitem_id_x();
  const int first = __builtin_amdgcn_workgroup_id_x() * kOrderedTiles;
  const int groups = (arguments.query_tiles + arguments.merged - 1) / arguments.merged;
  const int rest = groups - first;
  const int tiles = rest < kOrderedTiles ? rest : kOrderedTiles;
  const int64_t head = __builtin_amdgcn_workgroup_id_y();
  const int64_t first_group = head * groups + first;

  const BufferResource counts_buffer =
      isa::make_buffer(arguments.counts + first_group, tiles * static_cast<uint32_t>(sizeof(uint32_t)));
  // Up to a multiple of four, what doesn't exist counts 0 and comes behind everything. The last group and its
  // last row stand in for what doesn't exist, so that every lane takes as many turns.
  int tile = thread;
  do {
    const bool exists = tile < tiles;
    const int first_tile = (first + (exists ? tile : tiles - 1)) * arguments.merged;
    const int rows_left = arguments.query_tiles - first_tile;
    const int last_row = (rows_left < arguments.merged ? rows_left : arguments.merged) - 1;
    const uint32_t* row = arguments.list + (head * arguments.query_tiles + first_tile) * arguments.words;
    uint32_t count = 0;
#pragma clang loop vectorize(disable) unroll(disable)
    for (int word = 0; word < arguments.words; ++word) {
      uint32_t listed = 0;
#pragma clang loop vectorize(disable) unroll(disable)
      for (int i = 0; i < arguments.merged; ++i)
        listed |= row[(i < last_row ? i : last_row) * static_cast<int64_t>(arguments.words) + word];
      count += __builtin_popcount(listed);
    }
    const uint32_t offset = tile * static_cast<uint32_t>(sizeof(uint32_t));
    isa::buffer_store_b32(count, counts_buffer, exists ? offset : kOutOfBounds);
    counts[tile] = exists ? count : 0;
    tile += kThreadsPerWorkgroup;
  } while (tile < (tiles + 3) / 4 * 4);
  isa::lds_barrier();
  for (tile = thread; tile < tiles; tile += kThreadsPerWorkgroup) {
    const uint32_t count = counts[tile];
    int place = 0;
#pragma unroll 1
    for (int other = 0; other < tiles; other += 4) {
      const Dword4 four = *reinterpret_cast<const Dword4*>(&counts[other]);
      for (int i = 0; i < 4; ++i) place += four[i] > count || (four[i] == count && other + i < tile);
    }
    arguments.order[first_group + place] = first + tile;
  }
}

}  // namespace liteattention_rocm
