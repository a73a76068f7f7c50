// A group of products and C, of one output element, in integers: any operand, any machine. matrix_exact.hpp
// describes the arithmetic.
#pragma once

#include <algorithm>
#include <cstdint>

namespace gfx942 {
namespace exact {

// Formats of A and B; an element is given as its kBits lowest bits. kGroup: products that are summed before C
// is added.
struct BrainFloat {
  static constexpr int kBits = 16, kFractionBits = 7, kBias = 127, kGroup = 8;
};
struct HalfFloat {
  static constexpr int kBits = 16, kFractionBits = 10, kBias = 15, kGroup = 8;
};
struct Xf32 {  // the upper bits of a float32
  static constexpr int kBits = 19, kFractionBits = 10, kBias = 127, kGroup = 4;
};
// The highest exponent of these is an ordinary one, and the pattern of minus zero the only NaN.
struct Fp8 {
  static constexpr int kBits = 8, kFractionBits = 3, kBias = 8, kGroup = 16;
};
struct Bf8 {
  static constexpr int kBits = 8, kFractionBits = 2, kBias = 16, kGroup = 16;
};

constexpr uint32_t kInfinity = 0x7F800000, kNan = 0x7FFFFFFF, kSign = 0x80000000;
constexpr int kNoProduct = -1000;  // the exponent of a product that is zero

inline int64_t shift_floor(int64_t value, int count) {
  return value >> std::min(count, 63);
}
inline int64_t shift_truncate(int64_t value, int count) {
  const int64_t magnitude = (value < 0 ? -value : value) >> std::min(count, 63);
  return value < 0 ? -magnitude : magnitude;
}

// `total` * 2^`exponent`, floored at 31 fractional bits and rounded to nearest even.
inline uint32_t round_to_float32(int64_t total, int exponent) {
  if (total == 0) return 0;
  const int leading = 63 - __builtin_clzll(static_cast<uint64_t>(total < 0 ? -total : total));
  const int normal = std::max(leading + exponent, -126);  // of the significand's unit
  const int dropped = normal - 31 - exponent;
  if (dropped > 0) total -= total & ((int64_t{1} << dropped) - 1);

  const uint32_t sign = total < 0 ? kSign : 0;
  const uint64_t magnitude = static_cast<uint64_t>(total < 0 ? -total : total);
  const int below = normal - 23 - exponent;  // bits under the last one of the result
  uint64_t significand = below > 0 ? magnitude >> below : magnitude << -below;
  if (below > 0) {
    const uint64_t rest = magnitude & ((uint64_t{1} << below) - 1), half = uint64_t{1} << (below - 1);
    significand += rest > half || (rest == half && (significand & 1));
  }
  // A carry out of the significand, and the step from subnormal to normal, are additions to the exponent
  // field.
  const uint64_t bits = (static_cast<uint64_t>(normal + 126) << 23) + significand;
  return sign | static_cast<uint32_t>(std::min<uint64_t>(bits, kInfinity));
}

struct Addend {
  int64_t significand;  // with its sign; 23 fractional bits
  int exponent;
};
inline Addend split(uint32_t c) {
  const int field = static_cast<int>(c >> 23 & 0xFF);
  const int64_t significand = (c & 0x7FFFFF) | (field ? 0x800000 : 0);
  return {c & kSign ? -significand : significand, std::max(field, 1) - 127};
}

// D of a group: its sum, with 24 fractional bits relative to 2^largest, and a finite C.
inline uint32_t add_addend(int64_t dot, int largest, uint32_t c) {
  const Addend addend = split(c);
  const int common = std::max(largest, addend.exponent);
  const int64_t total = shift_floor(dot * 256, common - largest) +
                        shift_floor(addend.significand * 2, common - addend.exponent) * 256;
  return round_to_float32(total, common - 32);
}

// bf16, float16 and xf32. T::kGroup products or fewer.
template <class T>
uint32_t add_group(const uint32_t* a, const uint32_t* b, int count, uint32_t c) {
  constexpr uint32_t kHidden = 1u << T::kFractionBits, kHighestField = 2 * T::kBias + 1;
  int64_t product[T::kGroup];  // 2 * kFractionBits fractional bits
  int exponent[T::kGroup], largest = kNoProduct;
  bool nan = false, positive_infinity = false, negative_infinity = false;
  for (int k = 0; k < count; ++k) {
    const uint32_t field_a = a[k] >> T::kFractionBits & kHighestField, fraction_a = a[k] & (kHidden - 1);
    const uint32_t field_b = b[k] >> T::kFractionBits & kHighestField, fraction_b = b[k] & (kHidden - 1);
    const uint32_t x = field_a ? kHidden | fraction_a : fraction_a;
    const uint32_t y = field_b ? kHidden | fraction_b : fraction_b;
    const bool negative = (a[k] ^ b[k]) >> (T::kBits - 1);
    product[k] = x * y;
    exponent[k] = static_cast<int>(std::max(field_a, 1u) + std::max(field_b, 1u)) - 2 * T::kBias;
    bool infinite = false;
    if (field_a == kHighestField || field_b == kHighestField) {
      infinite = true;
      nan |= (field_a == kHighestField && fraction_a) || (field_b == kHighestField && fraction_b) || !x || !y;
    } else if (product[k] == 0) {
      exponent[k] = kNoProduct;
    } else {
      infinite = exponent[k] + (product[k] >= 2 * kHidden * kHidden) >= 128;
    }
    positive_infinity |= infinite && !negative;
    negative_infinity |= infinite && negative;
    largest = std::max(largest, exponent[k]);
    if (negative) product[k] = -product[k];
  }
  if ((c & kInfinity) == kInfinity) {
    nan |= (c & 0x7FFFFF) != 0;
    (c & kSign ? negative_infinity : positive_infinity) = true;
  }
  if (nan || (positive_infinity && negative_infinity)) return kNan;
  if (positive_infinity) return kInfinity;
  if (negative_infinity) return kSign | kInfinity;

  int64_t dot = 0;  // 24 fractional bits
  for (int k = 0; k < count; ++k)
    dot += shift_truncate(product[k] * (1 << (24 - 2 * T::kFractionBits)), largest - exponent[k]);
  return add_addend(dot, largest, c);
}

// The two formats of eight bits: the sums of products with even and with odd k, which add_small_group joins.
template <class A, class B>
struct HalfGroup {
  int64_t dot = 0;  // 24 fractional bits
  int exponent = kNoProduct;

  HalfGroup(const uint32_t* a, const uint32_t* b) {
    constexpr int kCount = A::kGroup / 2;
    constexpr uint32_t kHiddenA = 1u << A::kFractionBits, kHiddenB = 1u << B::kFractionBits;
    int64_t product[kCount];
    int exponents[kCount];
    for (int i = 0; i < kCount; ++i) {
      const uint32_t x = a[2 * i], y = b[2 * i];
      const uint32_t field_x = (x & 0x7F) >> A::kFractionBits, field_y = (y & 0x7F) >> B::kFractionBits;
      product[i] = ((x & (kHiddenA - 1)) | (field_x ? kHiddenA : 0)) *
                   ((y & (kHiddenB - 1)) | (field_y ? kHiddenB : 0));
      exponents[i] =
          product[i] ? static_cast<int>(std::max(field_x, 1u) + std::max(field_y, 1u)) - A::kBias - B::kBias
                     : kNoProduct;
      exponent = std::max(exponent, exponents[i]);
      if ((x ^ y) & 0x80) product[i] = -product[i];
    }
    for (int i = 0; i < kCount; ++i)
      dot += shift_truncate(product[i] * (1 << (24 - A::kFractionBits - B::kFractionBits)),
                            exponent - exponents[i]);
  }
};

// A::kGroup products.
template <class A, class B>
uint32_t add_small_group(const uint32_t* a, const uint32_t* b, uint32_t c) {
  bool nan = (c & ~kSign) > kInfinity;
  for (int k = 0; k < A::kGroup; ++k) nan |= a[k] == 0x80 || b[k] == 0x80;
  if (nan) return kNan;
  if ((c & kInfinity) == kInfinity) return c;
  const HalfGroup<A, B> even(a, b), odd(a + 1, b + 1);
  const int largest = std::max(even.exponent, odd.exponent);
  const int64_t dot =
      shift_floor(even.dot, largest - even.exponent) + shift_floor(odd.dot, largest - odd.exponent);
  const Addend addend = split(c);
  const int common = std::max(largest, addend.exponent), distance = common - addend.exponent;
  const int64_t aligned = distance > 25 ? 0 : shift_floor(addend.significand * 2, distance);
  return round_to_float32(shift_floor(dot * 256, common - largest) + aligned * 256, common - 32);
}

// C + the `count` products, k ascending.
template <class A, class B>
uint32_t multiply_add(const uint32_t* a, const uint32_t* b, int count, uint32_t c) {
  for (int begin = 0; begin < count; begin += A::kGroup) {
    if constexpr (A::kBits == 8)
      c = add_small_group<A, B>(a + begin, b + begin, c);
    else
      c = add_group<A>(a + begin, b + begin, std::min(A::kGroup, count - begin), c);
  }
  return c;
}

}  // namespace exact
}  // namespace gfx942
