// Kernel arguments of the kernels that split KV, and of the one that merges: plain data, shared by host and
// device code.
#pragma once

#include "arguments.hpp"

namespace liteattention_rocm {

// A query block is what one workgroup of the unsplit kernel owns: the query rows of a tile of one head.
// Blocks are numbered query tile by query tile, head by head, batch entry by batch entry. The first
// `whole_blocks` have a workgroup each; each of the `split_blocks` behind them has `pieces` workgroups, which
// share its KV tiles evenly and leave partial results.
struct SplitArguments : ForwardArguments {
  char* partials;        // float32 [pieces, split_blocks, fragments] of kPartialBytes
  int32_t query_tiles;   // of a head
  int32_t whole_blocks;  // the workgroups of the grid are whole_blocks + pieces · split_blocks
  int32_t split_blocks;
  int32_t pieces;     // at most the KV tiles
  int32_t fragments;  // of a block: groups of 16 query rows, in the order of its waves
  int32_t padding;
};

// The partial result of 16 query rows, as a wave's registers hold it: O^T, not divided, a float4 a lane for
// each of 8 dim tiles; then the maximum of the lane's row and the row's sum of probabilities.
constexpr int kPartialRows = 16;
constexpr int kPartialOutputBytes = kPartialRows * kHeadDim * 4;
constexpr int kPartialMaximumBytes = 64 * 4;
constexpr int kPartialBytes = kPartialOutputBytes + 2 * kPartialMaximumBytes;

constexpr int kMergeThreads = 256;  // a wave merges the partial results of 16 query rows

}  // namespace liteattention_rocm
