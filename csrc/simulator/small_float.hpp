// Floating point formats of 16 and 8 bits, from their fields.
#pragma once

#include <cmath>
#include <cstdint>

namespace gfx942 {

// Sign, exponent and fraction fields. With kFinite the all-ones exponent is an ordinary one and the pattern
// of minus zero the only NaN ("fnuz").
template <int kExponentBits, int kFractionBits, int kBias, bool kFinite>
struct Small {
  static constexpr int kBits = 1 + kExponentBits + kFractionBits;
  using Sum = float;
  static float value(uint64_t bits) {
    const int exponent = static_cast<int>(bits >> kFractionBits & ((1u << kExponentBits) - 1));
    const int fraction = static_cast<int>(bits & ((1u << kFractionBits) - 1));
    const bool negative = bits >> (kBits - 1) & 1;
    if (kFinite && bits == uint64_t{1} << (kBits - 1)) return std::nanf("");
    if (!kFinite && exponent == (1 << kExponentBits) - 1)
      return fraction ? std::nanf("") : negative ? -HUGE_VALF : HUGE_VALF;
    const int significand = exponent ? fraction | 1 << kFractionBits : fraction;
    const float magnitude =
        std::ldexp(static_cast<float>(significand), (exponent ? exponent : 1) - kBias - kFractionBits);
    return negative ? -magnitude : magnitude;
  }
};
using Fp8 = Small<4, 3, 8, true>;
using Bf8 = Small<5, 2, 16, true>;

}  // namespace gfx942
