// float32, float64 and float16 arithmetic. Included once per host instruction set (vector_targets.inl).

#include "vector_minimum.inl"

inline Half canonical_half(float value) {
  return to_half(canonical(value));
}

inline Half fma_half(Half a, Half b, Half c) {
  const double sum =
      static_cast<double>(to_float(a)) * static_cast<double>(to_float(b)) + static_cast<double>(to_float(c));
  return to_half(canonical(to_float_odd(sum)));
}

inline float ldexp_float(float value, int32_t exponent) {
  exponent = exponent > 300 ? 300 : exponent < -300 ? -300 : exponent;
  // The product of two powers of two that are normal float64s; one rounding, to float32.
  const uint64_t bits = static_cast<uint64_t>(1023 + exponent) << 52;
  return static_cast<float>(static_cast<double>(value) * bit_cast<double>(bits));
}
inline double ldexp_double(double value, int32_t exponent) {
  if (value == 0 || value != value) return value;
  return std::ldexp(value, exponent);
}

inline float frexp_mantissa(float value) {
  int exponent;
  return std::isfinite(value) ? std::frexp(value, &exponent) : value;
}
inline double frexp_mantissa(double value) {
  int exponent;
  return std::isfinite(value) ? std::frexp(value, &exponent) : value;
}
template <class T>
inline int32_t frexp_exponent(T value) {
  int exponent = 0;
  if (std::isfinite(value) && value != 0) std::frexp(value, &exponent);
  return exponent;
}

// x - floor(x), below 1 even where the subtraction rounds up.
inline float fraction(float value) {
  const float part = value - std::floor(value);
  return part < 0x1.fffffep-1f || part != part ? part : 0x1.fffffep-1f;
}
inline double fraction(double value) {
  const double part = value - std::floor(value);
  return part < 0x1.fffffffffffffp-1 || part != part ? part : 0x1.fffffffffffffp-1;
}

// Product and sum, each rounded.
inline Half mad_half(Half a, Half b, Half c) {
  return canonical_half(to_float(canonical_half(to_float(a) * to_float(b))) + to_float(c));
}

// Which axis of a cube map's direction is the longest.
enum class Axis { kX, kY, kZ };
inline Axis major_axis(float x, float y, float z) {
  const float ax = __builtin_fabsf(x), ay = __builtin_fabsf(y), az = __builtin_fabsf(z);
  return az >= ax && az >= ay ? Axis::kZ : ay >= ax ? Axis::kY : Axis::kX;
}
inline float cube_face(float x, float y, float z) {
  const Axis axis = major_axis(x, y, z);
  return axis == Axis::kZ   ? (z < 0 ? 5.0f : 4.0f)
         : axis == Axis::kY ? (y < 0 ? 3.0f : 2.0f)
         : x < 0            ? 1.0f
                            : 0.0f;
}
inline float cube_s(float x, float y, float z) {
  const Axis axis = major_axis(x, y, z);
  return axis == Axis::kZ ? (z < 0 ? -x : x) : axis == Axis::kY ? x : x < 0 ? z : -z;
}
inline float cube_t(float x, float y, float z) {
  return major_axis(x, y, z) == Axis::kY ? (y < 0 ? -z : z) : -y;
}
inline float cube_major(float x, float y, float z) {
  const Axis axis = major_axis(x, y, z);
  return 2 * (axis == Axis::kZ ? z : axis == Axis::kY ? y : x);
}

inline float legacy_product(float a, float b) {
  return a == 0 || b == 0 ? 0.0f : a * b;
}

// The special cases of a division p / d whose quotient estimate is q. `kOverflows`: an estimate that is NaN
// although p and d are ordinary comes from an iteration that overflowed.
template <bool kOverflows, class T>
inline T division_fixup(T q, T d, T p, T invalid) {
  constexpr int kFraction = sizeof(T) == 8 ? 52 : 23, kExponents = sizeof(T) == 8 ? 0x7FF : 0xFF;
  constexpr int kUnderflow = sizeof(T) == 8 ? -1075 : -150;
  const auto exponent = [](T value) { return static_cast<int>(raw(value) >> kFraction) & kExponents; };
  const bool negative = std::signbit(d) != std::signbit(p);
  const T infinity = std::numeric_limits<T>::infinity();
  if (p != p) return quiet(p);
  if (d != d) return quiet(d);
  if ((d == 0 && p == 0) || (std::isinf(d) && std::isinf(p))) return invalid;
  if (d == 0 || std::isinf(p)) return negative ? -infinity : infinity;
  if (std::isinf(d) || p == 0) return negative ? -T{0} : T{0};
  if (exponent(p) - exponent(d) < kUnderflow) return negative ? -T{0} : T{0};
  const T magnitude = kOverflows && q != q ? infinity : std::fabs(q);
  return negative ? -magnitude : magnitude;
}
inline float fixup(float q, float d, float p) {
  return division_fixup<true>(q, d, p, bit_cast<float>(0xFFC00000u));
}
inline double fixup(double q, double d, double p) {
  return division_fixup<true>(q, d, p, bit_cast<double>(uint64_t{0xFFF8000000000000u}));
}
inline Half fixup(Half q, Half d, Half p) {
  return to_half(division_fixup<false>(to_float(q), to_float(d), to_float(p), bit_cast<float>(0xFFC00000u)));
}

static void install(HandlerTable& table) {
  OP(V_ADD_F32, float, (float a, float b), return canonical(a + b))
  OP(V_SUB_F32, float, (float a, float b), return canonical(a - b))
  OP(V_SUBREV_F32, float, (float a, float b), return canonical(b - a))
  OP(V_MUL_F32, float, (float a, float b), return canonical(a * b))
  OP(V_MUL_LEGACY_F32, float, (float a, float b), return canonical(legacy_product(a, b)))
  OP(V_FMA_F32, float, (float a, float b, float c), return canonical(__builtin_fmaf(a, b, c)))
  OP(V_FMAC_F32, float, (float a, float b, float c), return canonical(__builtin_fmaf(a, b, c)))
  OP(V_FMAMK_F32, float, (float a, float k, float b), return canonical(__builtin_fmaf(a, k, b)))
  OP(V_FMAAK_F32, float, (float a, float b, float k), return canonical(__builtin_fmaf(a, b, k)))
  OP(V_MAX_F32, float, (float a, float b), return maximum(a, b))
  OP(V_MIN_F32, float, (float a, float b), return minimum(a, b))
  OP(V_MAX3_F32, float, (float a, float b, float c), return maximum(maximum(a, b), c))
  OP(V_MIN3_F32, float, (float a, float b, float c), return minimum(minimum(a, b), c))
  OP(V_MED3_F32, float, (float a, float b, float c), return median(a, b, c))
  OP(V_LDEXP_F32, float, (float a, int32_t b), return ldexp_float(a, b))
  OP(V_FRACT_F32, float, (float a), return canonical(fraction(a)))
  OP(V_TRUNC_F32, float, (float a), return __builtin_truncf(a))
  OP(V_CEIL_F32, float, (float a), return __builtin_ceilf(a))
  OP(V_FLOOR_F32, float, (float a), return __builtin_floorf(a))
  OP(V_RNDNE_F32, float, (float a), return __builtin_roundevenf(a))
  OP(V_FREXP_MANT_F32, float, (float a), return frexp_mantissa(a))
  OP(V_FREXP_EXP_I32_F32, int32_t, (float a), return frexp_exponent(a))
  OP(V_CUBEID_F32, float, (float x, float y, float z), return cube_face(x, y, z))
  OP(V_CUBESC_F32, float, (float x, float y, float z), return cube_s(x, y, z))
  OP(V_CUBETC_F32, float, (float x, float y, float z), return cube_t(x, y, z))
  OP(V_CUBEMA_F32, float, (float x, float y, float z), return cube_major(x, y, z))
  OP(V_DIV_FIXUP_F32, float, (float q, float d, float p), return fixup(q, d, p))

  OP(V_ADD_F64, double, (double a, double b), return canonical(a + b))
  OP(V_MUL_F64, double, (double a, double b), return canonical(a * b))
  OP(V_FMA_F64, double, (double a, double b, double c), return canonical(__builtin_fma(a, b, c)))
  OP(V_FMAC_F64, double, (double a, double b, double c), return canonical(__builtin_fma(a, b, c)))
  OP(V_MAX_F64, double, (double a, double b), return maximum(a, b))
  OP(V_MIN_F64, double, (double a, double b), return minimum(a, b))
  OP(V_LDEXP_F64, double, (double a, int32_t b), return ldexp_double(a, b))
  OP(V_FRACT_F64, double, (double a), return canonical(fraction(a)))
  OP(V_TRUNC_F64, double, (double a), return __builtin_trunc(a))
  OP(V_CEIL_F64, double, (double a), return __builtin_ceil(a))
  OP(V_FLOOR_F64, double, (double a), return __builtin_floor(a))
  OP(V_RNDNE_F64, double, (double a), return __builtin_roundeven(a))
  OP(V_FREXP_MANT_F64, double, (double a), return frexp_mantissa(a))
  OP(V_FREXP_EXP_I32_F64, int32_t, (double a), return frexp_exponent(a))
  OP(V_DIV_FIXUP_F64, double, (double q, double d, double p), return fixup(q, d, p))

  OP(V_ADD_F16, Half, (Half a, Half b), return canonical_half(to_float(a) + to_float(b)))
  OP(V_SUB_F16, Half, (Half a, Half b), return canonical_half(to_float(a) - to_float(b)))
  OP(V_SUBREV_F16, Half, (Half a, Half b), return canonical_half(to_float(b) - to_float(a)))
  OP(V_MUL_F16, Half, (Half a, Half b), return canonical_half(to_float(a) * to_float(b)))
  OP(V_FMA_F16, Half, (Half a, Half b, Half c), return fma_half(a, b, c))
  OP(V_MAC_F16, Half, (Half a, Half b, Half c), return mad_half(a, b, c))
  OP(V_MAD_F16, Half, (Half a, Half b, Half c), return mad_half(a, b, c))
  OP(V_MADMK_F16, Half, (Half a, Half k, Half b), return mad_half(a, k, b))
  OP(V_MADAK_F16, Half, (Half a, Half b, Half k), return mad_half(a, b, k))
  OP(V_FMA_LEGACY_F16, Half, (Half a, Half b, Half c), return fma_half(a, b, c))
  OP(V_MAD_LEGACY_F16, Half, (Half a, Half b, Half c), return mad_half(a, b, c))
  OP(V_MAX_F16, Half, (Half a, Half b), return to_half(maximum(to_float(a), to_float(b))))
  OP(V_MIN_F16, Half, (Half a, Half b), return to_half(minimum(to_float(a), to_float(b))))
  OP(V_MAX3_F16, Half, (Half a, Half b, Half c),
     return to_half(maximum(maximum(to_float(a), to_float(b)), to_float(c))))
  OP(V_MIN3_F16, Half, (Half a, Half b, Half c),
     return to_half(minimum(minimum(to_float(a), to_float(b)), to_float(c))))
  OP(V_MED3_F16, Half, (Half a, Half b, Half c),
     return to_half(median(to_float(a), to_float(b), to_float(c))))
  OP(V_LDEXP_F16, Half, (Half a, int16_t b), return to_half(ldexp_float(to_float(a), b)))
  OP(V_FRACT_F16, Half, (Half a), const Half part = to_half(to_float(a) - __builtin_floorf(to_float(a)));
     return (part.bits == 0x3C00 ? Half{0x3BFF} : part))
  OP(V_TRUNC_F16, Half, (Half a), return to_half(__builtin_truncf(to_float(a))))
  OP(V_CEIL_F16, Half, (Half a), return to_half(__builtin_ceilf(to_float(a))))
  OP(V_FLOOR_F16, Half, (Half a), return to_half(__builtin_floorf(to_float(a))))
  OP(V_RNDNE_F16, Half, (Half a), return to_half(__builtin_roundevenf(to_float(a))))
  OP(V_FREXP_MANT_F16, Half, (Half a), return to_half(frexp_mantissa(to_float(a))))
  OP(V_FREXP_EXP_I16_F16, int16_t, (Half a), return static_cast<int16_t>(frexp_exponent(to_float(a))))
  OP(V_DIV_FIXUP_F16, Half, (Half q, Half d, Half p), return fixup(q, d, p))
  OP(V_DIV_FIXUP_LEGACY_F16, Half, (Half q, Half d, Half p), return fixup(q, d, p))
}
