// exp2, log2, reciprocal, roots, sine and cosine. The machine's own are good to about 1 ulp and take float32
// subnormals as zero; here they are computed in float64 and rounded once, so that they are correctly rounded
// but for ties that float64 can't tell apart. Included once per host instruction set (vector_targets.inl).

inline float flush(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  return bit_cast<float>((bits & 0x7F800000u) ? bits : bits & 0x80000000u);
}

inline double multiply_add(double a, double b, double c) {
#ifdef VECTOR_AVX2
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

// 2^f on [-1/2, 1/2]: Chebyshev interpolation of degree 10, relative error below 2.2e-16.
inline double exp2_fraction(double f) {
  double sum = 7.0725859492692236999e-9;
  sum = multiply_add(sum, f, 1.0208690299958305835e-7);
  sum = multiply_add(sum, f, 1.3215442587921689653e-6);
  sum = multiply_add(sum, f, 1.5252657260200837064e-5);
  sum = multiply_add(sum, f, 1.5403530441736050155e-4);
  sum = multiply_add(sum, f, 1.3333558230164973899e-3);
  sum = multiply_add(sum, f, 9.6181291076068885273e-3);
  sum = multiply_add(sum, f, 5.5504108664447719166e-2);
  sum = multiply_add(sum, f, 0.2402265069591009822);
  sum = multiply_add(sum, f, 0.69314718055994998286);
  return multiply_add(sum, f, 1.0);
}

// Results below 2^-126 are flushed to zero.
inline float exp2_float(float x) {
  const float low = x > -160.0f ? x : -160.0f;
  const double clamped = low < 160.0f ? low : 160.0f;
  const double shifted = clamped + 0x1.8p52;  // the integer nearest to x, in the low bits
  const double whole = shifted - 0x1.8p52;
  const uint64_t exponent = bit_cast<uint64_t>(shifted) << 52;
  const double scale = bit_cast<double>(exponent + 0x3FF0000000000000u);
  const float result = flush(static_cast<float>(exp2_fraction(clamped - whole) * scale));
  return x != x ? bit_cast<float>(bit_cast<uint32_t>(x) | 0x400000u) : result;
}

inline float log2_float(float x) {
  if (x == 0) return -std::numeric_limits<float>::infinity();
  return static_cast<float>(std::log2(static_cast<double>(x)));
}
inline float reciprocal(float x) {
  return flush(1.0f / flush(x));
}
inline float reciprocal_root(float x) {
  x = flush(x);
  return x == 0 ? 1.0f / x : static_cast<float>(1.0 / std::sqrt(static_cast<double>(x)));
}
inline double turns(float x) {
  return (static_cast<double>(x) - std::floor(static_cast<double>(x))) * 6.28318530717958647693;
}
// The argument is in turns, and beyond 256 of them out of the instruction's range.
inline float sine(float x) {
  if (x == 0) return x;
  if (!(std::fabs(x) <= 256.0f)) return std::isfinite(x) ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  return static_cast<float>(std::sin(turns(x)));
}
inline float cosine(float x) {
  if (!(std::fabs(x) <= 256.0f)) return std::isfinite(x) ? 1.0f : std::numeric_limits<float>::quiet_NaN();
  return static_cast<float>(std::cos(turns(x)));
}

static void install(HandlerTable& table) {
  OP(V_EXP_F32, float, (float a), return exp2_float(flush(a)))
  OP(V_EXP_LEGACY_F32, float, (float a), return exp2_float(flush(a)))
  OP(V_LOG_F32, float, (float a), return canonical(log2_float(flush(a))))
  OP(V_LOG_LEGACY_F32, float, (float a), return canonical(log2_float(flush(a))))
  OP(V_RCP_F32, float, (float a), return reciprocal(a))
  OP(V_RCP_IFLAG_F32, float, (float a), return reciprocal(a))
  OP(V_RSQ_F32, float, (float a), return canonical(reciprocal_root(a)))
  OP(V_SQRT_F32, float, (float a), return canonical(__builtin_sqrtf(flush(a))))
  OP(V_SIN_F32, float, (float a), return canonical(sine(a)))
  OP(V_COS_F32, float, (float a), return canonical(cosine(a)))
  OP(V_RCP_F64, double, (double a), return 1.0 / a)
  OP(V_RSQ_F64, double, (double a), return canonical(a == 0 ? 1.0 / a : 1.0 / std::sqrt(a)))
  OP(V_SQRT_F64, double, (double a), return canonical(std::sqrt(a)))
  OP(V_RCP_F16, Half, (Half a), return to_half(1.0f / to_float(a)))
  OP(V_SQRT_F16, Half, (Half a), return to_half(canonical(__builtin_sqrtf(to_float(a)))))
  OP(V_RSQ_F16, Half, (Half a),
     return to_half(canonical(to_float_odd(1.0 / std::sqrt(static_cast<double>(to_float(a)))))))
  OP(V_LOG_F16, Half, (Half a),
     return to_half(canonical(to_float(a) == 0 ? -std::numeric_limits<float>::infinity()
                                               : to_float_odd(std::log2(static_cast<double>(to_float(a)))))))
  OP(V_EXP_F16, Half, (Half a), return to_half(to_float_odd(std::exp2(static_cast<double>(to_float(a))))))
  OP(V_SIN_F16, Half, (Half a), return to_half(canonical(sine(to_float(a)))))
  OP(V_COS_F16, Half, (Half a), return to_half(canonical(cosine(to_float(a)))))
}
