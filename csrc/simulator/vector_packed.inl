// Packed pairs, mixed precision and dot products (VOP3P). Sources arrive with op_sel, op_sel_hi and neg
// already applied (prepare_sources). Included once per host instruction set (vector_targets.inl).

struct FloatPair {
  float low, high;
};
template <>
struct Element<FloatPair> {
  static FloatPair get(const uint32_t* row, int lane) {
    return {bit_cast<float>(row[lane]), bit_cast<float>(row[kLanes + lane])};
  }
  static void put(uint32_t* row, int lane, FloatPair value) {
    row[lane] = bit_cast<uint32_t>(value.low);
    row[kLanes + lane] = bit_cast<uint32_t>(value.high);
  }
};

inline Half low_half(uint32_t value) {
  return {static_cast<uint16_t>(value)};
}
inline Half high_half(uint32_t value) {
  return {static_cast<uint16_t>(value >> 16)};
}
inline uint32_t pack_halves(Half low, Half high) {
  return low.bits | static_cast<uint32_t>(high.bits) << 16;
}
inline uint32_t pack_u16(uint32_t low, uint32_t high) {
  return (low & 0xFFFF) | high << 16;
}
inline uint32_t low_u16(uint32_t value) {
  return value & 0xFFFF;
}
inline uint32_t high_u16(uint32_t value) {
  return value >> 16;
}
inline int32_t low_i16(uint32_t value) {
  return static_cast<int16_t>(value);
}
inline int32_t high_i16(uint32_t value) {
  return static_cast<int16_t>(value >> 16);
}
inline uint32_t pack_i16(int32_t low, int32_t high) {
  return pack_u16(static_cast<uint32_t>(low), static_cast<uint32_t>(high));
}
inline int32_t saturate_i16(int32_t v) {
  return v < -0x8000 ? -0x8000 : v > 0x7FFF ? 0x7FFF : v;
}
inline uint32_t saturate_u16(int64_t v) {
  return static_cast<uint32_t>(v < 0 ? 0 : v > 0xFFFF ? 0xFFFF : v);
}

inline Half fma_half_pair(Half a, Half b, Half c) {
  const double sum =
      static_cast<double>(to_float(a)) * static_cast<double>(to_float(b)) + static_cast<double>(to_float(c));
  return to_half(canonical(to_float_odd(sum)));
}
#include "vector_minimum.inl"

// Each product is exact in float32; each sum is rounded.
inline float dot_halves(uint32_t a, uint32_t b, float c) {
  const float sum = c + to_float(low_half(a)) * to_float(low_half(b));
  return canonical(sum + to_float(high_half(a)) * to_float(high_half(b)));
}
inline int64_t dot_signed(uint32_t a, uint32_t b, uint32_t c, int bits) {
  int64_t sum = static_cast<int32_t>(c);
  for (int shift = 0; shift < 32; shift += bits) {
    const int32_t x = static_cast<int32_t>(a << (32 - bits - shift)) >> (32 - bits);
    const int32_t y = static_cast<int32_t>(b << (32 - bits - shift)) >> (32 - bits);
    sum += int64_t{x} * y;
  }
  return sum;
}
inline uint64_t dot_unsigned(uint32_t a, uint32_t b, uint32_t c, int bits) {
  uint64_t sum = c;
  for (int shift = 0; shift < 32; shift += bits)
    sum += uint64_t{a << (32 - bits - shift) >> (32 - bits)} * (b << (32 - bits - shift) >> (32 - bits));
  return sum;
}
inline uint32_t saturate_dot(int64_t v) {
  const int64_t limited = v < -0x80000000ll ? -0x80000000ll : v > 0x7FFFFFFF ? 0x7FFFFFFF : v;
  return static_cast<uint32_t>(limited);
}
inline uint32_t saturate_dot(uint64_t v) {
  return v > 0xFFFFFFFF ? 0xFFFFFFFF : static_cast<uint32_t>(v);
}

// A source of v_fma_mix: float32, or the half of a register that op_sel picks.
inline void load_mixed(Wave& wave, const Step& step, const Instruction& instruction, unsigned i, float* to) {
  const uint32_t* row = source(wave, step.src[i]);
  const bool half = instruction.op_sel_hi >> i & 1, high = instruction.op_sel >> i & 1;
  const bool neg = instruction.neg >> i & 1, abs = instruction.abs >> i & 1;
  for (int lane = 0; lane < kLanes; ++lane) {
    float value =
        half ? to_float(high ? high_half(row[lane]) : low_half(row[lane])) : bit_cast<float>(row[lane]);
    if (abs) value = __builtin_fabsf(value);
    to[lane] = neg ? -value : value;
  }
}

// kPlace: 0 float32, 1 lower half, 2 upper half of the destination.
template <int kPlace>
void mixed_fma(Wave& wave, const Step& step) {
  if (step.prepare) prepare_sources(wave, step);
  const Instruction& instruction = wave.group->program->instruction(step);
  float a[kLanes], b[kLanes], c[kLanes];
  load_mixed(wave, step, instruction, 0, a);
  load_mixed(wave, step, instruction, 1, b);
  load_mixed(wave, step, instruction, 2, c);
  const uint32_t* old = destination(wave, step.dst);
  for (int lane = 0; lane < kLanes; ++lane) {
    float value = canonical(__builtin_fmaf(a[lane], b[lane], c[lane]));
    if (instruction.clamp) value = value > 0 ? (value < 1 ? value : 1.0f) : 0.0f;
    const uint32_t half = to_half(value).bits;
    if (kPlace == 0) wave.result[0][lane] = bit_cast<uint32_t>(value);
    if (kPlace == 1) wave.result[0][lane] = (old[lane] & 0xFFFF0000u) | half;
    if (kPlace == 2) wave.result[0][lane] = (old[lane] & 0xFFFFu) | half << 16;
  }
  write_lanes(wave, step.dst, 1, wave.exec());
}

#define PACKED_FLOAT(NAME, LOW, HIGH)                                                                        \
  OP(NAME, FloatPair, (FloatPair a, FloatPair b), return (FloatPair{canonical(LOW), canonical(HIGH)}))
#define PACKED_HALF(NAME, FUNCTION)                                                                          \
  OP(NAME, uint32_t, (uint32_t a, uint32_t b),                                                               \
     return pack_halves(to_half(canonical(FUNCTION(to_float(low_half(a)), to_float(low_half(b))))),          \
                        to_half(canonical(FUNCTION(to_float(high_half(a)), to_float(high_half(b)))))))

inline float plus(float a, float b) {
  return a + b;
}
inline float times(float a, float b) {
  return a * b;
}

#define INTEGER_DOT(NAME, SIGN, BITS)                                                                        \
  OP(NAME, uint32_t, (uint32_t a, uint32_t b, uint32_t c),                                                   \
     return static_cast<uint32_t>(dot_##SIGN(a, b, c, BITS)))                                                \
  SATURATING(NAME, uint32_t, (uint32_t a, uint32_t b, uint32_t c),                                           \
             return saturate_dot(dot_##SIGN(a, b, c, BITS)))

static void install(HandlerTable& table) {
  PACKED_FLOAT(V_PK_ADD_F32, a.low + b.low, a.high + b.high)
  PACKED_FLOAT(V_PK_MUL_F32, a.low * b.low, a.high * b.high)
  OP(V_PK_FMA_F32, FloatPair, (FloatPair a, FloatPair b, FloatPair c),
     return (FloatPair{canonical(__builtin_fmaf(a.low, b.low, c.low)),
                       canonical(__builtin_fmaf(a.high, b.high, c.high))}))
  // op_sel has put the element that each source gives into its low word.
  OP(V_PK_MOV_B32, uint64_t, (uint64_t a, uint64_t b), return (a & 0xFFFFFFFF) | b << 32)

  PACKED_HALF(V_PK_ADD_F16, plus)
  PACKED_HALF(V_PK_MUL_F16, times)
  PACKED_HALF(V_PK_MAX_F16, maximum)
  PACKED_HALF(V_PK_MIN_F16, minimum)
  OP(V_PK_FMA_F16, uint32_t, (uint32_t a, uint32_t b, uint32_t c),
     return pack_halves(fma_half_pair(low_half(a), low_half(b), low_half(c)),
                        fma_half_pair(high_half(a), high_half(b), high_half(c))))
  OP(V_PK_FMAC_F16, uint32_t, (uint32_t a, uint32_t b, uint32_t c),
     return pack_halves(fma_half_pair(low_half(a), low_half(b), low_half(c)),
                        fma_half_pair(high_half(a), high_half(b), high_half(c))))

  OP(V_PK_ADD_U16, uint32_t, (uint32_t a, uint32_t b), return pack_u16(a + b, high_u16(a) + high_u16(b)))
  OP(V_PK_ADD_I16, uint32_t, (uint32_t a, uint32_t b), return pack_u16(a + b, high_u16(a) + high_u16(b)))
  OP(V_PK_SUB_U16, uint32_t, (uint32_t a, uint32_t b), return pack_u16(a - b, high_u16(a) - high_u16(b)))
  OP(V_PK_SUB_I16, uint32_t, (uint32_t a, uint32_t b), return pack_u16(a - b, high_u16(a) - high_u16(b)))
  OP(V_PK_MUL_LO_U16, uint32_t, (uint32_t a, uint32_t b), return pack_u16(a * b, high_u16(a) * high_u16(b)))
  OP(V_PK_MAD_U16, uint32_t, (uint32_t a, uint32_t b, uint32_t c),
     return pack_u16(a * b + c, high_u16(a) * high_u16(b) + high_u16(c)))
  OP(V_PK_MAD_I16, uint32_t, (uint32_t a, uint32_t b, uint32_t c),
     return pack_u16(a * b + c, high_u16(a) * high_u16(b) + high_u16(c)))
  OP(V_PK_MAX_U16, uint32_t, (uint32_t a, uint32_t b),
     return pack_u16(low_u16(a) > low_u16(b) ? a : b, high_u16(a) > high_u16(b) ? high_u16(a) : high_u16(b)))
  OP(V_PK_MIN_U16, uint32_t, (uint32_t a, uint32_t b),
     return pack_u16(low_u16(a) < low_u16(b) ? a : b, high_u16(a) < high_u16(b) ? high_u16(a) : high_u16(b)))
  OP(V_PK_MAX_I16, uint32_t, (uint32_t a, uint32_t b),
     return pack_u16(low_i16(a) > low_i16(b) ? a : b, high_i16(a) > high_i16(b) ? high_u16(a) : high_u16(b)))
  OP(V_PK_MIN_I16, uint32_t, (uint32_t a, uint32_t b),
     return pack_u16(low_i16(a) < low_i16(b) ? a : b, high_i16(a) < high_i16(b) ? high_u16(a) : high_u16(b)))
  OP(V_PK_LSHLREV_B16, uint32_t, (uint32_t a, uint32_t b),
     return pack_u16(b << (a & 15), high_u16(b) << (a >> 16 & 15)))
  OP(V_PK_LSHRREV_B16, uint32_t, (uint32_t a, uint32_t b),
     return pack_u16(low_u16(b) >> (a & 15), high_u16(b) >> (a >> 16 & 15)))
  OP(V_PK_ASHRREV_I16, uint32_t, (uint32_t a, uint32_t b),
     return pack_i16(low_i16(b) >> (a & 15), high_i16(b) >> (a >> 16 & 15)))

  SATURATING(V_PK_ADD_U16, uint32_t, (uint32_t a, uint32_t b),
             return pack_u16(saturate_u16(int64_t{low_u16(a)} + low_u16(b)),
                             saturate_u16(int64_t{high_u16(a)} + high_u16(b))))
  SATURATING(V_PK_SUB_U16, uint32_t, (uint32_t a, uint32_t b),
             return pack_u16(saturate_u16(int64_t{low_u16(a)} - low_u16(b)),
                             saturate_u16(int64_t{high_u16(a)} - high_u16(b))))
  SATURATING(V_PK_ADD_I16, uint32_t, (uint32_t a, uint32_t b),
             return pack_i16(saturate_i16(low_i16(a) + low_i16(b)), saturate_i16(high_i16(a) + high_i16(b))))
  SATURATING(V_PK_SUB_I16, uint32_t, (uint32_t a, uint32_t b),
             return pack_i16(saturate_i16(low_i16(a) - low_i16(b)), saturate_i16(high_i16(a) - high_i16(b))))
  SATURATING(V_PK_MAD_U16, uint32_t, (uint32_t a, uint32_t b, uint32_t c),
             return pack_u16(saturate_u16(int64_t{low_u16(a)} * low_u16(b) + low_u16(c)),
                             saturate_u16(int64_t{high_u16(a)} * high_u16(b) + high_u16(c))))
  SATURATING(V_PK_MAD_I16, uint32_t, (uint32_t a, uint32_t b, uint32_t c),
             return pack_i16(saturate_i16(low_i16(a) * low_i16(b) + low_i16(c)),
                             saturate_i16(high_i16(a) * high_i16(b) + high_i16(c))))

  OP(V_DOT2_F32_F16, float, (uint32_t a, uint32_t b, float c), return dot_halves(a, b, c))
  OP(V_DOT2C_F32_F16, float, (uint32_t a, uint32_t b, float c), return dot_halves(a, b, c))

  INTEGER_DOT(V_DOT2_I32_I16, signed, 16)
  INTEGER_DOT(V_DOT2C_I32_I16, signed, 16)
  INTEGER_DOT(V_DOT2_U32_U16, unsigned, 16)
  INTEGER_DOT(V_DOT4_I32_I8, signed, 8)
  INTEGER_DOT(V_DOT4C_I32_I8, signed, 8)
  INTEGER_DOT(V_DOT4_U32_U8, unsigned, 8)
  INTEGER_DOT(V_DOT8_I32_I4, signed, 4)
  INTEGER_DOT(V_DOT8C_I32_I4, signed, 4)
  INTEGER_DOT(V_DOT8_U32_U4, unsigned, 4)

  table[Op::V_FMA_MIX_F32] = mixed_fma<0>;
  table[Op::V_FMA_MIXLO_F16] = mixed_fma<1>;
  table[Op::V_FMA_MIXHI_F16] = mixed_fma<2>;
}
