// Where a matrix element lives in the kernel that does AITER's arithmetic, which fixes what fragments.hpp may
// choose: 32x32x8 MFMAs, and which eight products of a dot product each of them adds.
#pragma once

#include "fragments.hpp"

namespace liteattention_rocm::aiter_exact {

using fragments::kChunkBytes;

constexpr int kMfma = 32;       // rows and columns of a matrix tile
constexpr int kKvRows = kMfma;  // of one softmax step
constexpr int kRegisters = 16;  // of a matrix tile in a lane
constexpr int kQuads = 4;       // groups of four consecutive rows among them
constexpr int kKvSteps = kKvRowsPerTile / kKvRows;
constexpr int kDimTiles = kHeadDim / kMfma;
constexpr int kDimSteps = kHeadDim / 16;  // b128 reads along the head dim, two MFMAs each

// Lane → its column of B and D, or its row of A; and which four of the eight k, or of the rows of D, are its.
LRA_CONSTEXPR int lane_column(int lane) {
  return lane % kMfma;
}
LRA_CONSTEXPR int lane_half(int lane) {
  return lane / kMfma;
}

// Row of D, of S^T and O^T alike, in register 4·quad + i of a lane, i in 0..3.
LRA_CONSTEXPR int first_row(int lane, int quad) {
  return 8 * quad + 4 * lane_half(lane);
}

// 16-byte chunk of a Q or K row that a lane feeds to the two MFMAs of one dim step: the first adds head dims
// 16·step + {0..3, 8..11}, the second + {4..7, 12..15}.
LRA_CONSTEXPR int operand_chunk(int lane, int dim_step) {
  return 2 * dim_step + lane_half(lane);
}

// V in LDS, transposed: 8 bytes hold the four kv rows of quad kv / 4 of one head dim. The 16 bytes that a
// lane reads feed two MFMAs, of kv rows 0..7 and 8..15 of a run of 16. The XOR spreads head dims that are
// eight apart, which are written together, and neighbours, which are read together, over all banks.
LRA_CONSTEXPR int value_lds_offset(int quad, int dim) {
  const int run = quad / 4, second = quad / 2 % 2, half = quad % 2;
  const int cell = dim % 8 * 16 + (dim / 8 ^ dim % 8);
  return ((run * 2 + half) * kHeadDim + cell) * kChunkBytes + second * 8;
}
LRA_CONSTEXPR int value_operand_offset(int lane, int run, int dim_tile) {
  return value_lds_offset(4 * run + lane_half(lane), dim_tile * kMfma + lane_column(lane));
}

}  // namespace liteattention_rocm::aiter_exact
