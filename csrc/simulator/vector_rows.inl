// Element-wise execution over 64 lanes. Included once per host instruction set (vector_targets.inl).

template <class To, class From>
inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
  return __builtin_bit_cast(To, from);
}

struct Half {
  uint16_t bits;
};

inline float to_float(Half half) {
  const uint32_t magnitude = half.bits & 0x7FFFu;
  const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
  const uint32_t normal = (magnitude << 13) + (magnitude >= 0x7C00 ? 0x70000000u : 0x38000000u);
  const uint32_t value = magnitude < 0x400 ? bit_cast<uint32_t>(subnormal) : normal;
  return bit_cast<float>(value | (half.bits & 0x8000u) << 16);
}

// Round to nearest even; NaN stays NaN, quiet.
inline Half to_half(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value), magnitude = bits & 0x7FFFFFFFu;
  const uint32_t subnormal = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3F000000u;
  const uint32_t normal = (magnitude + 0xFFF + (magnitude >> 13 & 1) - 0x38000000u) >> 13;
  uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
  result = magnitude >= 0x477FF000u ? 0x7C00u : result;
  result = magnitude > 0x7F800000u ? 0x7E00u | (magnitude >> 13 & 0x3FF) : result;
  return {static_cast<uint16_t>(result | (bits >> 16 & 0x8000u))};
}

// Round toward zero.
inline Half to_half_truncated(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value), magnitude = bits & 0x7FFFFFFFu;
  const uint32_t exponent = magnitude >> 23;
  const uint32_t shift = exponent < 113 ? 126 - exponent : 13;
  const uint32_t significand = (magnitude & 0x7FFFFF) | 0x800000;
  const uint32_t subnormal = shift > 24 ? 0 : significand >> shift;
  uint32_t result = exponent < 113 ? subnormal : (magnitude - 0x38000000u) >> 13;
  result = magnitude >= 0x47800000u ? (magnitude == 0x7F800000u ? 0x7C00u : 0x7BFFu) : result;
  result = magnitude > 0x7F800000u ? 0x7E00u | (magnitude >> 13 & 0x3FF) : result;
  return {static_cast<uint16_t>(result | (bits >> 16 & 0x8000u))};
}

// The float32 nearest below or above in the way that rounding it once more to float16 gives what rounding the
// float64 directly would (round to odd).
inline float to_float_odd(double value) {
  const float nearest = static_cast<float>(value);
  const double back = nearest;
  const uint32_t bits = bit_cast<uint32_t>(nearest);
  const bool inexact = back != value && value == value;
  const bool beyond = __builtin_fabs(back) > __builtin_fabs(value);
  return bit_cast<float>(inexact ? (bits - beyond) | 1 : bits);
}

// x86's invalid-operation NaN is negative, the machine's positive.
inline float canonical(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  return bit_cast<float>(bits ^ (bits == 0xFFC00000u ? 0x80000000u : 0u));
}
inline double canonical(double value) {
  const uint64_t bits = bit_cast<uint64_t>(value);
  return bit_cast<double>(bits ^ (bits == 0xFFF8000000000000u ? 0x8000000000000000u : 0u));
}

// How an element is kept in the 32-bit rows of registers.
template <class T>
struct Element;
template <>
struct Element<uint32_t> {
  static uint32_t get(const uint32_t* row, int lane) { return row[lane]; }
  static void put(uint32_t* row, int lane, uint32_t value) { row[lane] = value; }
};
template <>
struct Element<int32_t> {
  static int32_t get(const uint32_t* row, int lane) { return static_cast<int32_t>(row[lane]); }
  static void put(uint32_t* row, int lane, int32_t value) { row[lane] = static_cast<uint32_t>(value); }
};
template <>
struct Element<float> {
  static float get(const uint32_t* row, int lane) { return bit_cast<float>(row[lane]); }
  static void put(uint32_t* row, int lane, float value) { row[lane] = bit_cast<uint32_t>(value); }
};
template <>
struct Element<uint16_t> {
  static uint16_t get(const uint32_t* row, int lane) { return static_cast<uint16_t>(row[lane]); }
  static void put(uint32_t* row, int lane, uint16_t value) { row[lane] = value; }
};
template <>
struct Element<int16_t> {
  static int16_t get(const uint32_t* row, int lane) { return static_cast<int16_t>(row[lane]); }
  static void put(uint32_t* row, int lane, int16_t value) { row[lane] = static_cast<uint16_t>(value); }
};
template <>
struct Element<Half> {
  static Half get(const uint32_t* row, int lane) { return {static_cast<uint16_t>(row[lane])}; }
  static void put(uint32_t* row, int lane, Half value) { row[lane] = value.bits; }
};
template <>
struct Element<uint64_t> {
  static uint64_t get(const uint32_t* row, int lane) {
    return row[lane] | static_cast<uint64_t>(row[kLanes + lane]) << 32;
  }
  static void put(uint32_t* row, int lane, uint64_t value) {
    row[lane] = static_cast<uint32_t>(value);
    row[kLanes + lane] = static_cast<uint32_t>(value >> 32);
  }
};
template <>
struct Element<int64_t> {
  static int64_t get(const uint32_t* row, int lane) {
    return static_cast<int64_t>(Element<uint64_t>::get(row, lane));
  }
  static void put(uint32_t* row, int lane, int64_t value) {
    Element<uint64_t>::put(row, lane, static_cast<uint64_t>(value));
  }
};
template <>
struct Element<double> {
  static double get(const uint32_t* row, int lane) {
    return bit_cast<double>(Element<uint64_t>::get(row, lane));
  }
  static void put(uint32_t* row, int lane, double value) {
    Element<uint64_t>::put(row, lane, bit_cast<uint64_t>(value));
  }
};

// Lanes are independent and a destination overlaps a source lane by lane, so the loops have no dependence
// between iterations (ivdep).
template <class K, class R, class A>
inline void map_rows(R (*)(A), uint32_t* d, const uint32_t* a, const uint32_t*, const uint32_t*) {
#pragma GCC ivdep
  for (int lane = 0; lane < kLanes; ++lane) Element<R>::put(d, lane, K::apply(Element<A>::get(a, lane)));
}
template <class K, class R, class A, class B>
inline void map_rows(R (*)(A, B), uint32_t* d, const uint32_t* a, const uint32_t* b, const uint32_t*) {
#pragma GCC ivdep
  for (int lane = 0; lane < kLanes; ++lane)
    Element<R>::put(d, lane, K::apply(Element<A>::get(a, lane), Element<B>::get(b, lane)));
}
template <class K, class R, class A, class B, class C>
inline void map_rows(R (*)(A, B, C), uint32_t* d, const uint32_t* a, const uint32_t* b, const uint32_t* c) {
#pragma GCC ivdep
  for (int lane = 0; lane < kLanes; ++lane)
    Element<R>::put(d, lane,
                    K::apply(Element<A>::get(a, lane), Element<B>::get(b, lane), Element<C>::get(c, lane)));
}

template <class R>
struct IsDouble {
  static constexpr bool value = false;
};
template <>
struct IsDouble<double> {
  static constexpr bool value = true;
};
template <class R, class... A>
constexpr bool uses_double(R (*)(A...)) {
  return IsDouble<R>::value || (IsDouble<A>::value || ...);
}

template <class K>
void vector_op(Wave& wave, const Step& step) {
  if (step.prepare) prepare_sources(wave, step);
  const uint32_t* a = source(wave, step.src[0]);
  const uint32_t* b = source(wave, step.src[1]);
  const uint32_t* c = source(wave, step.src[2]);
  const bool direct = wave.exec() == ~uint64_t{0} && !step.finish;
  uint32_t* d = direct ? destination(wave, step.dst) : wave.result[0];
  if constexpr (uses_double(&K::apply)) {
    const DoublePrecisionMode mode(wave);
    map_rows<K>(&K::apply, d, a, b, c);
  } else {
    map_rows<K>(&K::apply, d, a, b, c);
  }
  if (!direct) finish_result(wave, step);
}

// Bit l is set where row[l] is all ones; the row holds zeros and all ones.
inline uint64_t pack_mask(const uint32_t* row) {
  uint64_t mask = 0;
#ifdef VECTOR_AVX2
  for (int group = 0; group < 8; ++group) {
    const __m256 lanes = _mm256_loadu_ps(reinterpret_cast<const float*>(row + 8 * group));
    mask |= static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_ps(lanes))) << 8 * group;
  }
#elif defined(__SSE2__)
  for (int group = 0; group < 16; ++group) {
    const __m128 lanes = _mm_loadu_ps(reinterpret_cast<const float*>(row + 4 * group));
    mask |= static_cast<uint64_t>(static_cast<uint32_t>(_mm_movemask_ps(lanes))) << 4 * group;
  }
#else
  for (int lane = 0; lane < kLanes; ++lane) mask |= static_cast<uint64_t>(row[lane] & 1) << lane;
#endif
  return mask;
}

// All ones in the lanes that `mask` names.
inline void unpack_mask(uint64_t mask, uint32_t* row) {
  static constexpr uint32_t kBit[8] = {1, 2, 4, 8, 16, 32, 64, 128};
  for (int group = 0; group < 8; ++group) {
    const uint32_t byte = static_cast<uint32_t>(mask >> 8 * group) & 0xFF;
    for (int i = 0; i < 8; ++i) row[8 * group + i] = (byte & kBit[i]) ? ~uint32_t{0} : 0;
  }
}

#define OP(NAME, RESULT, ARGUMENTS, ...)                                                                     \
  {                                                                                                          \
    struct NAME##_ {                                                                                         \
      static inline RESULT apply ARGUMENTS { __VA_ARGS__; }                                                  \
    };                                                                                                       \
    table[Op::NAME] = vector_op<NAME##_>;                                                                    \
  }
#define SATURATING(NAME, RESULT, ARGUMENTS, ...)                                                             \
  {                                                                                                          \
    struct NAME##_ {                                                                                         \
      static inline RESULT apply ARGUMENTS { __VA_ARGS__; }                                                  \
    };                                                                                                       \
    table.saturating[static_cast<size_t>(Op::NAME)] = vector_op<NAME##_>;                                    \
  }
