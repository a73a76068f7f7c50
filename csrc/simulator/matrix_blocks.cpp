// The less common matrix instructions: several blocks at once, float64, xf32, and 8-bit floats. One element
// at a time.
//
// Each of kBlocks independent blocks is D = A * B + C with kSize rows and columns. Lanes count the rows of A,
// or columns of B, then the blocks, then the groups of kPerLane consecutive k that a lane holds.
#include <cmath>
#include <cstring>
#include <type_traits>

#include "matrix_exact_group.hpp"
#include "small_float.hpp"
#include "vector.hpp"

namespace gfx942 {

namespace {

// Elements of A and B: bits within a lane's registers, and their value. `Core` is the format in the matrix
// core's own arithmetic; without one that is a chain of fused multiply-adds, or of integer ones.
struct Single {
  using Core = void;
  static constexpr int kBits = 32;
  using Sum = float;
  static float value(uint64_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
};
// "xf32": of a float32 the matrix core takes the upper 19 bits. That makes an infinity of a NaN whose payload
// is below them.
struct Reduced {
  using Core = exact::Xf32;
  static constexpr int kBits = 32;
  using Sum = float;
  static uint32_t core_bits(uint64_t bits) { return static_cast<uint32_t>(bits >> 13); }
  static float value(uint64_t bits) { return Single::value(bits & ~uint64_t{0x1FFF}); }
};
struct Double {
  using Core = void;
  static constexpr int kBits = 64;
  using Sum = double;
  static double value(uint64_t bits) {
    double value;
    std::memcpy(&value, &bits, 8);
    return value;
  }
};
struct Brain {
  using Core = exact::BrainFloat;
  static constexpr int kBits = 16;
  using Sum = float;
  static uint32_t core_bits(uint64_t bits) { return static_cast<uint32_t>(bits); }
  static float value(uint64_t bits) { return Single::value(bits << 16); }
};
template <class Format, class Exact>
struct SmallFloat : Format {
  using Core = Exact;
  static uint32_t core_bits(uint64_t bits) { return static_cast<uint32_t>(bits); }
};
using Half = SmallFloat<Small<5, 10, 15, false>, exact::HalfFloat>;
using Fp8Element = SmallFloat<Fp8, exact::Fp8>;
using Bf8Element = SmallFloat<Bf8, exact::Bf8>;
struct Byte {
  using Core = void;
  static constexpr int kBits = 8;
  using Sum = int32_t;
  static int32_t value(uint64_t bits) { return static_cast<int8_t>(bits); }
};

// Element i of a lane's registers.
template <class T>
uint64_t element_bits(const uint32_t* rows, int lane, int i) {
  if (T::kBits == 64) return rows[lane] | static_cast<uint64_t>(rows[kLanes + lane]) << 32;
  const int per_register = 32 / T::kBits;
  const uint32_t word = rows[i / per_register * kLanes + lane] >> T::kBits % 32 * (i % per_register);
  return T::kBits == 32 ? word : word & ((uint64_t{1} << T::kBits % 32) - 1);
}

template <class T>
T accumulate(T a, T b, T sum) {
  return std::fma(a, b, sum);
}
int32_t accumulate(int32_t a, int32_t b, int32_t sum) {
  return static_cast<int32_t>(static_cast<uint32_t>(sum) + static_cast<uint32_t>(a * b));
}

// C + the products, k ascending, as plain arithmetic of C's type has it.
template <class A, class B, int kDepth>
typename A::Sum plain_sum(const uint64_t* x, const uint64_t* y, typename A::Sum sum) {
  for (int k = 0; k < kDepth; ++k) sum = accumulate(A::value(x[k]), B::value(y[k]), sum);
  return sum;
}
// As the matrix core has it.
template <class A, class B, int kDepth>
typename A::Sum core_sum(const uint64_t* x, const uint64_t* y, typename A::Sum sum) {
  if constexpr (std::is_void<typename A::Core>::value) {
    return plain_sum<A, B, kDepth>(x, y, sum);
  } else {
    uint32_t from_a[kDepth], from_b[kDepth], c;
    for (int k = 0; k < kDepth; ++k) {
      from_a[k] = A::core_bits(x[k]);
      from_b[k] = B::core_bits(y[k]);
    }
    std::memcpy(&c, &sum, 4);
    c = exact::multiply_add<typename A::Core, typename B::Core>(from_a, from_b, kDepth, c);
    return Single::value(c);
  }
}

struct Position {
  int register_index, lane;
};
// Where C and D keep an element of a block.
template <int kSize, bool kDouble>
Position position(int block, int row, int column) {
  if (kSize == 4 && kDouble) return {0, 16 * block + 4 * row + column};
  if (kSize == 4) return {row, 4 * block + column};
  if (kDouble) return {row / 4, row % 4 * 16 + column};
  if (kSize == 16) return {4 * block + row % 4, row / 4 * 16 + column};
  return {16 * block + row / 8 * 4 + row % 4, row / 4 % 2 * 32 + column};
}

template <class A, class B, int kSize, int kBlocks, int kPerLane>
void blocks(Wave& wave, const Step& step) {
  using Sum = typename A::Sum;
  constexpr bool kDouble = A::kBits == 64;
  constexpr int kRegisters = kSize * kSize * kBlocks / kLanes;
  constexpr int kDepth = kPerLane * kLanes / (kSize * kBlocks);
  const uint32_t *a = source(wave, step.src[0]), *b = source(wave, step.src[1]),
                 *c = source(wave, step.src[2]);
  const bool constant = step.src[2] >> 32 != 0;
  Sum result[kRegisters][kLanes];
  const bool core = wave.group->launch->matrix == MatrixArithmetic::kExact;
  const MatrixMode mode(wave);
  for (int block = 0; block < kBlocks; ++block) {
    for (int row = 0; row < kSize; ++row) {
      for (int column = 0; column < kSize; ++column) {
        const Position at = position<kSize, kDouble>(block, row, column);
        const uint32_t* from = constant ? c : c + at.register_index * (kDouble ? 2 : 1) * kLanes;
        uint64_t bits = from[at.lane];
        if (kDouble) bits |= static_cast<uint64_t>(from[kLanes + at.lane]) << 32;
        Sum sum;
        std::memcpy(&sum, &bits, sizeof sum);
        uint64_t x[kDepth], y[kDepth];
        for (int k = 0; k < kDepth; ++k) {
          const int first = (block + kBlocks * (k / kPerLane)) * kSize;
          x[k] = element_bits<A>(a, first + row, k % kPerLane);
          y[k] = element_bits<B>(b, first + column, k % kPerLane);
        }
        sum = core ? core_sum<A, B, kDepth>(x, y, sum) : plain_sum<A, B, kDepth>(x, y, sum);
        result[at.register_index][at.lane] = sum;
      }
    }
  }
  uint32_t* d = destination(wave, step.dst);
  for (int r = 0; r < kRegisters; ++r) {
    for (int lane = 0; lane < kLanes; ++lane) {
      uint64_t bits = 0;
      std::memcpy(&bits, &result[r][lane], sizeof(Sum));
      uint32_t* to = d + r * (kDouble ? 2 : 1) * kLanes;
      to[lane] = static_cast<uint32_t>(bits);
      if (kDouble) to[kLanes + lane] = static_cast<uint32_t>(bits >> 32);
    }
  }
}

}  // namespace

void install_matrix_blocks(HandlerTable& table) {
  table[Op::V_MFMA_F32_32X32X1_2B_F32] = blocks<Single, Single, 32, 2, 1>;
  table[Op::V_MFMA_F32_16X16X1_4B_F32] = blocks<Single, Single, 16, 4, 1>;
  table[Op::V_MFMA_F32_4X4X1_16B_F32] = blocks<Single, Single, 4, 16, 1>;
  table[Op::V_MFMA_F32_32X32X4_2B_F16] = blocks<Half, Half, 32, 2, 4>;
  table[Op::V_MFMA_F32_16X16X4_4B_F16] = blocks<Half, Half, 16, 4, 4>;
  table[Op::V_MFMA_F32_4X4X4_16B_F16] = blocks<Half, Half, 4, 16, 4>;
  table[Op::V_MFMA_F32_32X32X4_2B_BF16] = blocks<Brain, Brain, 32, 2, 4>;
  table[Op::V_MFMA_F32_16X16X4_4B_BF16] = blocks<Brain, Brain, 16, 4, 4>;
  table[Op::V_MFMA_F32_4X4X4_16B_BF16] = blocks<Brain, Brain, 4, 16, 4>;
  table[Op::V_MFMA_I32_32X32X4_2B_I8] = blocks<Byte, Byte, 32, 2, 4>;
  table[Op::V_MFMA_I32_16X16X4_4B_I8] = blocks<Byte, Byte, 16, 4, 4>;
  table[Op::V_MFMA_I32_4X4X4_16B_I8] = blocks<Byte, Byte, 4, 16, 4>;
  table[Op::V_MFMA_F32_16X16X8_XF32] = blocks<Reduced, Reduced, 16, 1, 2>;
  table[Op::V_MFMA_F32_32X32X4_XF32] = blocks<Reduced, Reduced, 32, 1, 2>;
  table[Op::V_MFMA_F64_16X16X4_F64] = blocks<Double, Double, 16, 1, 1>;
  table[Op::V_MFMA_F64_4X4X4_4B_F64] = blocks<Double, Double, 4, 4, 1>;
  table[Op::V_MFMA_F32_16X16X32_FP8_FP8] = blocks<Fp8Element, Fp8Element, 16, 1, 8>;
  table[Op::V_MFMA_F32_16X16X32_FP8_BF8] = blocks<Fp8Element, Bf8Element, 16, 1, 8>;
  table[Op::V_MFMA_F32_16X16X32_BF8_FP8] = blocks<Bf8Element, Fp8Element, 16, 1, 8>;
  table[Op::V_MFMA_F32_16X16X32_BF8_BF8] = blocks<Bf8Element, Bf8Element, 16, 1, 8>;
  table[Op::V_MFMA_F32_32X32X16_FP8_FP8] = blocks<Fp8Element, Fp8Element, 32, 1, 8>;
  table[Op::V_MFMA_F32_32X32X16_FP8_BF8] = blocks<Fp8Element, Bf8Element, 32, 1, 8>;
  table[Op::V_MFMA_F32_32X32X16_BF8_FP8] = blocks<Bf8Element, Fp8Element, 32, 1, 8>;
  table[Op::V_MFMA_F32_32X32X16_BF8_BF8] = blocks<Bf8Element, Bf8Element, 32, 1, 8>;
}

}  // namespace gfx942
