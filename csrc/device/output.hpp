// From the accumulators of 16 query rows to memory: what every forward kernel ends with.
#pragma once

#include "rows.hpp"
#include "softmax.hpp"

namespace liteattention_rocm {
namespace {

constexpr float kLn2 = 0.693147180559945f;

// O^T of 16 query rows: D register r of dim tile d.
using OutputRegisters = float __attribute__((ext_vector_type(kDimTiles * 4)));
LRA_DEVICE float output_at(const OutputRegisters& output, int d, int r) {
  return output[4 * d + r];
}
LRA_DEVICE float output_at(const Float4 (&output)[kDimTiles], int d, int r) {
  return output[d][r];
}

// Divides, rounds and stores one query row a lane; a row whose scores are all −Inf is 0.
template <RoundMode kMode, typename Output>
LRA_DEVICE void store_output(const Output& output, float sum, BufferResource buffer, uint32_t row_offset,
                             int lane) {
  const bool empty = sum == 0.0f;
  const float denominator = empty ? 1.0f : sum;
  const float reciprocal = reciprocal_of(denominator);
  for (int r = 0; r < 4; ++r) {
    float row[kDimTiles];
    for (int d = 0; d < kDimTiles; ++d)
      row[d] = divide(empty ? 0.0f : output_at(output, d, r), denominator, reciprocal);
    Dword4 packed;
    for (int i = 0; i < 4; ++i) packed[i] = bf16::pack_output<kMode>(row[2 * i], row[2 * i + 1]);
    isa::buffer_store_b128(packed, buffer, row_offset + fragments::output_dim(lane, r) * 2);
  }
}

// The log-sum-exp of one query row, from its maximum and sum.
LRA_DEVICE float log_sum_exp(float maximum, float sum, float scale) {
  return maximum * scale + isa::log2(sum) * kLn2;
}

}  // namespace
}  // namespace liteattention_rocm
