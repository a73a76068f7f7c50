// Where a matrix element lives: lane, register, LDS byte. Plain constexpr arithmetic, also compiled and
// tested on the host.
//
// A wave computes S^T = K·Q^T and O^T += V^T·P^T with 16x16x16 MFMAs. S^T leaves in each lane four
// consecutive kv rows of one query row, which is exactly the B operand that O^T wants: P never moves
// between lanes.
//
// Two orders are free, because a matrix product does not care, and are chosen for wide memory accesses:
//   - head dims inside S: one 16-byte read per lane feeds two MFMAs (the same order for Q and K);
//   - head dims inside O: MFMA row i of d-tile t is head dim 8·i + t, so that a lane ends with runs of
//     eight consecutive head dims and stores them as they are.
#pragma once

#include <cstdint>

#include "arguments.hpp"

#ifdef __HIP_DEVICE_COMPILE__
#define LRA_CONSTEXPR __attribute__((device, host, always_inline)) constexpr
#else
#define LRA_CONSTEXPR constexpr
#endif

namespace liteattention_rocm::fragments {

constexpr int kWaveSize = 64;
constexpr int kMfma = 16;                               // rows and columns of a matrix tile
constexpr int kRowBytes = kHeadDim * 2;                 // one bf16 row
constexpr int kChunkBytes = 16;                         // one b128 access
constexpr int kChunksPerRow = kRowBytes / kChunkBytes;  // 16
constexpr int kKvTiles = kKvRowsPerTile / kMfma;        // MFMA tiles along kv in a KV tile
constexpr int kDimTiles = kHeadDim / kMfma;             // MFMA tiles along the head dim
constexpr int kQueryTiles = 2;                          // MFMA tiles of query rows a wave holds
constexpr int kQueryRowsPerWave = kQueryTiles * kMfma;
constexpr int kDimSteps = 4;  // b128 reads along the head dim, two MFMAs each

// Lane → its column of B and D, or its row of A; and its group of four along k or along D's rows.
LRA_CONSTEXPR int lane_column(int lane) {
  return lane % kMfma;
}
LRA_CONSTEXPR int lane_group(int lane) {
  return lane / kMfma;
}

// 16-byte chunk of a Q or K row that a lane feeds to the MFMAs of one dim step.
LRA_CONSTEXPR int operand_chunk(int lane, int dim_step) {
  return dim_step * 4 + lane_group(lane);
}

// kv row inside the KV tile of score register `r` of MFMA tile `kv_tile`.
LRA_CONSTEXPR int score_row(int lane, int kv_tile, int r) {
  return kv_tile * kMfma + 4 * lane_group(lane) + r;
}

// First of the eight head dims that registers r of the dim tiles 0..7 hold in a lane.
LRA_CONSTEXPR int output_dim(int lane, int r) {
  return 32 * lane_group(lane) + 8 * r;
}

// K in LDS: row-major; the chunk index is XORed with the row so that 16 lanes that read one chunk of 16
// rows touch all banks.
constexpr int kKeyTileBytes = kKvRowsPerTile * kRowBytes;
LRA_CONSTEXPR int key_lds_offset(int row, int chunk) {
  return row * kRowBytes + (chunk ^ (row % kChunksPerRow)) * kChunkBytes;
}

// V in LDS, transposed: a cell of 8 bytes holds four consecutive kv rows of one head dim, two cells (kv
// and kv + 16) form the 16 bytes that a lane reads for two MFMAs.
//   quad    kv / 4 inside the tile: 4·(kv tile) + lane group
//   dim     head dim; its cell follows the order of O's rows
constexpr int kValueTileBytes = kKvRowsPerTile * kRowBytes;
LRA_CONSTEXPR int value_lds_offset(int quad, int dim) {
  const int kv_tile = quad / 4, group = quad % 4;
  const int cell = (dim % 8) * kMfma + dim / 8;
  return (((kv_tile / 2) * 4 + group) * kHeadDim + cell) * kChunkBytes + (kv_tile % 2) * 8;
}
// The 16 bytes that a lane reads for kv tiles 2·pair and 2·pair + 1 of one dim tile.
LRA_CONSTEXPR int value_operand_offset(int lane, int pair, int dim_tile) {
  return value_lds_offset(8 * pair + lane_group(lane), 8 * lane_column(lane) + dim_tile);
}

}  // namespace liteattention_rocm::fragments
