// float32 → bf16 in the three rounding modes of AITER's kernels, two values to a dword.
#pragma once

#include "isa.hpp"

namespace liteattention_rocm {

enum class RoundMode { kRtne = 0, kRtna = 1, kRtz = 2 };

namespace bf16 {

constexpr uint32_t kLowHalves = 0x05040100;   // perm selector: {low of high, low of low}
constexpr uint32_t kHighHalves = 0x07060302;  // perm selector: {high of high, high of low}
constexpr uint32_t kNan = 0x7FFF;             // what AITER's rtne and rtna make of every NaN

// The value whose upper 16 bits are the bf16 result. Finite x and ±Inf only for rtne and rtna: the carry
// of the addition runs through a NaN's mantissa.
template <RoundMode kMode>
LRA_DEVICE uint32_t round_in_place(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  if constexpr (kMode == RoundMode::kRtne) return bits + ((bits >> 16) & 1) + 0x7FFF;
  if constexpr (kMode == RoundMode::kRtna) return bits + 0x8000;
  return bits;
}

// {bf16(high), bf16(low)}: for probabilities. A NaN probability makes its row sum NaN, and with it the
// whole output row, whatever bits the NaN gets here.
template <RoundMode kMode>
LRA_DEVICE uint32_t pack(float low, float high) {
  return isa::perm(round_in_place<kMode>(high), round_in_place<kMode>(low), kHighHalves);
}

// As pack, for outputs: a NaN becomes 0x7FFF in rtne and rtna and keeps its upper 16 bits in rtz.
template <RoundMode kMode>
LRA_DEVICE uint32_t pack_output(float low, float high) {
  if constexpr (kMode == RoundMode::kRtz) return pack<kMode>(low, high);
  const uint32_t low_bits = low == low ? round_in_place<kMode>(low) : kNan << 16;
  const uint32_t high_bits = high == high ? round_in_place<kMode>(high) : kNan << 16;
  return isa::perm(high_bits, low_bits, kHighHalves);
}

}  // namespace bf16
}  // namespace liteattention_rocm
