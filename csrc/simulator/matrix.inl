// Matrix products in plain float32 and integer arithmetic, k in ascending order.
// Included once per host instruction set (vector_targets.inl).

#ifdef VECTOR_AVX2
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif
typedef float Floats __attribute__((vector_size(4 * kWidth), aligned(4), may_alias));

inline Floats load(const float* from) {
  return *reinterpret_cast<const Floats*>(from);
}
inline void store(float* to, Floats value) {
  *reinterpret_cast<Floats*>(to) = value;
}
// Rounded once where `kFused`. The products of 16-bit floats need no such care, and elsewhere than here a
// fused operation may be slow.
template <bool kFused>
inline Floats multiply_add(const float* a, Floats b, Floats c) {
#ifdef VECTOR_AVX2
  return _mm256_fmadd_ps(_mm256_broadcast_ss(a), b, c);
#else
  if (!kFused) return *a * b + c;
  for (int i = 0; i < kWidth; ++i) c[i] = std::fma(*a, b[i], c[i]);
  return c;
#endif
}

// Position of row `row` of C and D within their registers: lanes hold columns, 64 / kSize rows to a register.
template <int kSize>
inline int row_offset(int row) {
  if (kSize == 32) return ((row / 8) * 4 + row % 4) * kLanes + (row / 4 % 2) * 32;
  return (row % 4) * kLanes + row / 4 * 16;
}

// Four rows (in as many registers) and two vectors of columns of D = A * B + C; a and b are [k][kSize]. Not
// inlined: operands come from the cache, where a compiler that sees the loops around would hoist and spill
// them.
template <int kSize, int kDepth, bool kFused>
__attribute__((noinline)) void product_block(float* d, const float* a, const float* b, const float* c,
                                             size_t c_step) {
  constexpr int kRows = 4;
  Floats sum[kRows][2];
  for (int i = 0; i < kRows; ++i) {
    sum[i][0] = load(c + static_cast<size_t>(i) * c_step);
    sum[i][1] = load(c + static_cast<size_t>(i) * c_step + kWidth);
  }
#pragma GCC unroll 16
  for (int k = 0; k < kDepth; ++k) {
    const Floats b0 = load(b + k * kSize), b1 = load(b + k * kSize + kWidth);
    for (int i = 0; i < kRows; ++i) {
      sum[i][0] = multiply_add<kFused>(a + k * kSize + i, b0, sum[i][0]);
      sum[i][1] = multiply_add<kFused>(a + k * kSize + i, b1, sum[i][1]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    store(d + i * kLanes, sum[i][0]);
    store(d + i * kLanes + kWidth, sum[i][1]);
  }
}

// A constant C has one register that stands for all.
template <int kSize, int kDepth, bool kFused>
inline void product(float* d, const float* a, const float* b, const float* c, bool constant_c) {
  for (int row = 0; row < kSize; row += 4) {
    for (int column = 0; column < kSize; column += 2 * kWidth) {
      const int at = row_offset<kSize>(row) + column;
      product_block<kSize, kDepth, kFused>(d + at, a + row, b + column, constant_c ? c : c + at,
                                           constant_c ? 0 : kLanes);
    }
  }
}

struct BrainFloat {
  static float low(uint32_t pair) { return bit_cast<float>(pair << 16); }
  static float high(uint32_t pair) { return bit_cast<float>(pair & 0xFFFF0000u); }
};
struct HalfFloat {
  static float low(uint32_t pair) { return to_float(Half{static_cast<uint16_t>(pair)}); }
  static float high(uint32_t pair) { return to_float(Half{static_cast<uint16_t>(pair >> 16)}); }
};

// Four consecutive k of one row or column in each lane's two registers, to float[k][kSize].
template <class T, int kSize>
inline void unpack_pairs(const uint32_t* from, float* to) {
  for (int group = 0; group < kLanes / kSize; ++group) {
    for (int r = 0; r < 2; ++r) {
      const uint32_t* pairs = from + r * kLanes + group * kSize;
      float* even = to + (4 * group + 2 * r) * kSize;
      float* odd = even + kSize;
      for (int i = 0; i < kSize; ++i) {
        even[i] = T::low(pairs[i]);
        odd[i] = T::high(pairs[i]);
      }
    }
  }
}

// Operand C: a constant, or registers (a copy when D overlaps them without being them).
template <int kRegisters>
inline const uint32_t* accumulator(const Wave& wave, const Step& step, uint32_t* copy, bool& constant) {
  const uint32_t* c = source(wave, step.src[2]);
  constant = step.src[2] >> 32 != 0;
  const uint32_t* d = reinterpret_cast<const uint32_t*>(reinterpret_cast<const char*>(&wave) + step.dst);
  if (!constant && c != d && c < d + kRegisters * kLanes && d < c + kRegisters * kLanes) {
    std::memcpy(copy, c, kRegisters * kLanes * 4);
    return copy;
  }
  return c;
}

// 16-bit floats: 16x16x16 and 32x32x8.
template <class T, int kSize>
void matrix_half(Wave& wave, const Step& step) {
  constexpr int kDepth = 4 * kLanes / kSize, kRegisters = kSize * kSize / kLanes;
  alignas(64) uint32_t copy[kRegisters * kLanes];
  bool constant;
  const uint32_t* c = accumulator<kRegisters>(wave, step, copy, constant);
  uint32_t* d = destination(wave, step.dst);
  if (wave.group->launch->matrix == MatrixArithmetic::kExact) {
    exact_product(std::is_same<T, BrainFloat>::value, kSize, d, source(wave, step.src[0]),
                  source(wave, step.src[1]), c, constant);
    return;
  }
  const MatrixMode mode(wave);
  alignas(64) float a[kDepth * kSize], b[kDepth * kSize];
  unpack_pairs<T, kSize>(source(wave, step.src[0]), a);
  unpack_pairs<T, kSize>(source(wave, step.src[1]), b);
  product<kSize, kDepth, false>(reinterpret_cast<float*>(d), a, b, reinterpret_cast<const float*>(c),
                                constant);
}

// float32: 16x16x4 and 32x32x2, one k per lane.
template <int kSize>
void matrix_float(Wave& wave, const Step& step) {
  constexpr int kDepth = kLanes / kSize, kRegisters = kSize * kSize / kLanes;
  alignas(64) uint32_t copy[kRegisters * kLanes];
  bool constant;
  const uint32_t* c = accumulator<kRegisters>(wave, step, copy, constant);
  const MatrixMode mode(wave);
  alignas(64) float a[kLanes], b[kLanes];
  std::memcpy(a, source(wave, step.src[0]), sizeof a);
  std::memcpy(b, source(wave, step.src[1]), sizeof b);
  product<kSize, kDepth, true>(reinterpret_cast<float*>(destination(wave, step.dst)), a, b,
                               reinterpret_cast<const float*>(c), constant);
}

// int8: 16x16x32 and 32x32x16, eight consecutive k of one row or column in each lane.
template <int kSize>
void matrix_int8(Wave& wave, const Step& step) {
  constexpr int kDepth = 8 * kLanes / kSize, kRegisters = kSize * kSize / kLanes;
  alignas(64) uint32_t copy[kRegisters * kLanes];
  bool constant;
  const uint32_t* c = accumulator<kRegisters>(wave, step, copy, constant);
  int8_t a[kSize][kDepth], b[kSize][kDepth];
  const uint32_t *from_a = source(wave, step.src[0]), *from_b = source(wave, step.src[1]);
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int k = 0; k < 8; ++k) {
      const int at = (k / 4) * kLanes + lane;
      a[lane % kSize][8 * (lane / kSize) + k] = static_cast<int8_t>(from_a[at] >> 8 * (k % 4));
      b[lane % kSize][8 * (lane / kSize) + k] = static_cast<int8_t>(from_b[at] >> 8 * (k % 4));
    }
  }
  uint32_t* d = destination(wave, step.dst);
  for (int row = 0; row < kSize; ++row) {
    for (int column = 0; column < kSize; ++column) {
      int32_t sum = 0;
      for (int k = 0; k < kDepth; ++k) sum += int32_t{a[row][k]} * b[column][k];
      const int at = row_offset<kSize>(row) + column;
      d[at] = static_cast<uint32_t>(sum) + (constant ? c[0] : c[at]);
    }
  }
}

static void install(HandlerTable& table) {
  table[Op::V_MFMA_F32_16X16X16_BF16] = matrix_half<BrainFloat, 16>;
  table[Op::V_MFMA_F32_32X32X8_BF16] = matrix_half<BrainFloat, 32>;
  table[Op::V_MFMA_F32_16X16X16_F16] = matrix_half<HalfFloat, 16>;
  table[Op::V_MFMA_F32_32X32X8_F16] = matrix_half<HalfFloat, 32>;
  table[Op::V_MFMA_F32_16X16X4_F32] = matrix_float<16>;
  table[Op::V_MFMA_F32_32X32X2_F32] = matrix_float<32>;
  table[Op::V_MFMA_I32_16X16X32_I8] = matrix_int8<16>;
  table[Op::V_MFMA_I32_32X32X16_I8] = matrix_int8<32>;
}
