// Kernel arguments of the skipping forward kernel: plain data, shared by host and device code.
#pragma once

#include "arguments.hpp"

namespace liteattention_rocm {

constexpr int kTilesPerWord = 32;

// A skip list is uint32 [batch, heads, query tiles, words], contiguous: bit i of word w stands for KV tile
// 32·w + i. Bits behind the last tile are 0.
struct SkipArguments : ForwardArguments {
  const uint32_t* read_list;  // tiles to visit
  uint32_t* write_list;       // receives the tiles to visit next; holds those that are kept anyway
  const uint32_t* order;  // [batch, heads, workgroups]: which query rows each workgroup takes; null: its own
  float threshold;        // in log2 units; NaN stands for −Inf: no score is below it
  int32_t words;          // of a row
  int32_t backward;       // 0 or 1: walk from the last tile to the first
  int32_t votes_count;    // 0 or 1: a wave leaves out a tile that is negligible for all its rows
};

// Kernel arguments of attention_skip_order.
struct OrderArguments {
  const uint32_t* list;
  uint32_t* counts;  // [batch, heads, groups of query tiles]: tiles that any of a group lists
  uint32_t* order;   // [batch, heads, groups]: groups of a head by falling count
  int32_t query_tiles;
  int32_t words;   // of a row
  int32_t merged;  // query tiles of a group, the last one perhaps fewer
  int32_t reserved;
};
// Groups that one workgroup orders; further ones form an order of their own behind these.
constexpr int kOrderedTiles = 4096;

}  // namespace liteattention_rocm
