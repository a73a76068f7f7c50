// Splitting KV: which part of the work a workgroup has, and what it leaves for the merge.
#pragma once

#include "output.hpp"
#include "split_arguments.hpp"

namespace liteattention_rocm {
namespace {

// A query block and a range of its KV rows.
struct Share {
  uint32_t query_tile;
  int head, batch;
  int first_kv_row, kv_rows;
  int partial;  // its place in the workspace; below 0: this share is the whole block, whose result is final
};

// Of the kernels with a workgroup for every query block: its place in the grid (query tiles, heads, batch).
LRA_DEVICE Share grid_share(const ForwardArguments& arguments) {
  return {__builtin_amdgcn_workgroup_id_x(),
          static_cast<int>(__builtin_amdgcn_workgroup_id_y()),
          static_cast<int>(__builtin_amdgcn_workgroup_id_z()),
          0,
          arguments.seqlen_kv,
          -1};
}

LRA_DEVICE Share block_share(const SplitArguments& arguments, uint32_t block) {
  const uint32_t query_tiles = arguments.query_tiles, heads = arguments.heads;
  const uint32_t head = block / query_tiles;
  return {block % query_tiles,
          static_cast<int>(head % heads),
          static_cast<int>(head / heads),
          0,
          arguments.seqlen_kv,
          -1};
}

// Whole blocks come first: what follows fills the compute units that they leave idle. Workgroups that follow
// each other have the same piece of neighbouring blocks, and so share K and V in the caches.
LRA_DEVICE Share share_of(const SplitArguments& arguments, uint32_t workgroup) {
  if (workgroup < static_cast<uint32_t>(arguments.whole_blocks)) return block_share(arguments, workgroup);
  const uint32_t place = workgroup - arguments.whole_blocks, blocks = arguments.split_blocks;
  const int piece = place / blocks, pieces = arguments.pieces;
  Share share = block_share(arguments, arguments.whole_blocks + place % blocks);
  // The first `rest` pieces have a tile more.
  const int tiles = (arguments.seqlen_kv + kKvRowsPerTile - 1) / kKvRowsPerTile;
  const int least = tiles / pieces, rest = tiles % pieces;
  const int first_tile = piece * least + (piece < rest ? piece : rest);
  share.first_kv_row = first_tile * kKvRowsPerTile;
  const int behind = arguments.seqlen_kv - share.first_kv_row;
  const int rows = (least + (piece < rest)) * kKvRowsPerTile;
  share.kv_rows = rows < behind ? rows : behind;
  share.partial = place;
  return share;
}

LRA_DEVICE Share workgroup_share(const SplitArguments& arguments) {
  return share_of(arguments, __builtin_amdgcn_workgroup_id_x());
}

template <typename Arguments>
constexpr bool kSplits = false;
template <>
constexpr bool kSplits<SplitArguments> = true;

// A partial result in global memory. It is whole, whether its query rows exist or not: no bounds are needed.
using PartialAddress = __attribute__((address_space(1))) char*;
LRA_DEVICE PartialAddress partial_address(const SplitArguments& arguments, int partial, int fragment) {
  const int64_t index = static_cast<int64_t>(partial) * arguments.fragments + fragment;
  return (PartialAddress)arguments.partials + index * kPartialBytes;
}
template <typename Value>
LRA_DEVICE __attribute__((address_space(1))) Value& lane_value(PartialAddress address, int offset, int lane) {
  return *(__attribute__((address_space(1))) Value*)(address + offset + lane * sizeof(Value));
}
LRA_DEVICE auto& partial_output(PartialAddress address, int dim_tile, int lane) {
  return lane_value<Float4>(address, dim_tile * fragments::kWaveSize * sizeof(Float4), lane);
}
LRA_DEVICE auto& partial_maximum(PartialAddress address, int lane) {
  return lane_value<float>(address, kPartialOutputBytes, lane);
}
LRA_DEVICE auto& partial_sum(PartialAddress address, int lane) {
  return lane_value<float>(address, kPartialOutputBytes + kPartialMaximumBytes, lane);
}

// Stores what the merge needs of 16 query rows. maximum, sum: of the lane's row.
template <typename Output>
LRA_DEVICE void store_partial(const Output& output, float maximum, float sum, PartialAddress address,
                              int lane) {
  for (int d = 0; d < kDimTiles; ++d) {
    Float4 registers;
    for (int r = 0; r < 4; ++r) registers[r] = output_at(output, d, r);
    partial_output(address, d, lane) = registers;
  }
  partial_maximum(address, lane) = maximum;
  partial_sum(address, lane) = sum;
}

}  // namespace
}  // namespace liteattention_rocm
