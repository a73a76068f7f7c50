// Online softmax of one tile of 16 query rows, one query row per lane column, in float32.
#pragma once

#include "bf16.hpp"
#include "fragments.hpp"

namespace liteattention_rocm {

using fragments::kDimTiles;
using fragments::kKvTiles;

// Lowest finite float: a row whose scores are all −Inf keeps it, and every P of that row is then 0.
constexpr float kLowestScore = -3.402823466e+38f;

// The largest value over the four lanes that share a query row.
LRA_DEVICE float max_over_groups(float x, int half_swap_address) {
  x = __builtin_fmaxf(x, isa::swizzle_xor16(x));
  return __builtin_fmaxf(x, isa::bpermute(half_swap_address, x));
}

LRA_DEVICE float sum_over_groups(float x, int half_swap_address) {
  x += isa::swizzle_xor16(x);
  return x + isa::bpermute(half_swap_address, x);
}

// Excludes the kv rows from `valid_rows` on: −Inf never raises a maximum and gives P = 0, since c > 0.
LRA_DEVICE void mask_scores(Float4 (&scores)[kKvTiles], int valid_rows, int lane) {
  for (int t = 0; t < kKvTiles; ++t)
    for (int r = 0; r < 4; ++r)
      scores[t][r] = fragments::score_row(lane, t, r) < valid_rows ? scores[t][r] : -__builtin_inff();
}

// The row's largest score in the tile, the same in all four lanes. maxnum drops NaN scores.
LRA_DEVICE float row_maximum(const Float4 (&scores)[kKvTiles], int half_swap_address) {
  float maximum = scores[0][0];
  for (int t = 0; t < kKvTiles; ++t)
    for (int r = 0; r < 4; ++r) maximum = __builtin_fmaxf(maximum, scores[t][r]);
  return max_over_groups(maximum, half_swap_address);
}

struct OnlineSoftmax {
  float maximum = kLowestScore;  // of the row, over all tiles so far; the same in all four lanes
  float sum = 0.0f;              // of this lane's share of unrounded P

  // Turns scores into P in place and returns the factor by which earlier sums and outputs shrink.
  // P = 2^((S − m)·c): exactly 1 where S = m, however large |m|. NaN scores reach the sum as NaN.
  LRA_DEVICE float update(Float4 (&scores)[kKvTiles], float tile_maximum, float c) {
    const float new_maximum = __builtin_fmaxf(maximum, tile_maximum);
    const float shrink = isa::exp2((maximum - new_maximum) * c);
    maximum = new_maximum;

    sum *= shrink;
    for (int t = 0; t < kKvTiles; ++t)
      for (int r = 0; r < 4; ++r) {
        scores[t][r] = isa::exp2((scores[t][r] - maximum) * c);
        sum += scores[t][r];
      }
    return shrink;
  }
};

// numerator / denominator: one Newton step on v_rcp_f32 and one on the quotient, so that x / x is exactly 1;
// v_div_fixup_f32 for Inf and NaN.
LRA_DEVICE float divide(float numerator, float denominator, float reciprocal) {
  const float quotient = numerator * reciprocal;
  const float residual = __builtin_fmaf(-denominator, quotient, numerator);
  return isa::div_fixup(__builtin_fmaf(residual, reciprocal, quotient), denominator, numerator);
}
LRA_DEVICE float reciprocal_of(float denominator) {
  const float r = isa::rcp(denominator);
  return __builtin_fmaf(__builtin_fmaf(-denominator, r, 1.0f), r, r);
}

}  // namespace liteattention_rocm
