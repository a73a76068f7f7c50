#include "matrix_exact.hpp"

#include <cstring>

#include "matrix_exact_group.hpp"

#if defined(__x86_64__) && !defined(GFX942_PORTABLE)
#include <immintrin.h>
#endif

namespace gfx942 {
namespace {

constexpr int kLanes = 64;
constexpr int kGroup = exact::BrainFloat::kGroup;
using Register = uint32_t[kLanes];

// Formats of A and B. `kLift`: see below, at the vector code.
struct BrainFloat : exact::BrainFloat {
  static constexpr int kLift = 24;
};
struct HalfFloat : exact::HalfFloat {
  static constexpr int kLift = 0;
};

// An N x N tile with K products an element. N * K is 256: both operands fill two registers.
template <int N>
struct Shape {
  static constexpr int kDepth = 256 / N;
  static constexpr int kRegisters = N * N / kLanes;
  // A row of C or D lies in consecutive lanes.
  static constexpr int row_register(int row) { return N == 16 ? row % 4 : row / 8 * 4 + row % 4; }
  static constexpr int row_lane(int row) { return N == 16 ? row / 4 * 16 : row / 4 % 2 * 32; }
  // The 16 bits of element (row, k) of A, or (column, k) of B.
  static uint32_t operand(const Register* source, int row, int k) {
    const uint32_t pair = source[k % 4 / 2][N * (k / 4) + row];
    return k % 2 ? pair >> 16 : pair & 0xFFFF;
  }
};

template <class T, int N>
uint32_t multiply_add(const Register* a, const Register* b, int row, int column, uint32_t c) {
  constexpr int kDepth = Shape<N>::kDepth;
  uint32_t x[kDepth], y[kDepth];
  for (int k = 0; k < kDepth; ++k) {
    x[k] = Shape<N>::operand(a, row, k);
    y[k] = Shape<N>::operand(b, column, k);
  }
  return exact::multiply_add<T, T>(x, y, kDepth, c);
}

// ---- Any machine: one output element at a time ----

// Rows of A or columns of B. The exponent of a zero leaves any sum with it below those of products, that of
// an infinity or NaN leaves it above.
template <class T, int N>
struct Unpacked {
  static constexpr int kZero = -6000, kSpecial = 16000;
  int32_t significand[N][Shape<N>::kDepth], exponent[N][Shape<N>::kDepth];

  explicit Unpacked(const Register* source) {
    constexpr uint32_t kHidden = 1u << T::kFractionBits, kHighestField = 2 * T::kBias + 1;
    for (int row = 0; row < N; ++row)
      for (int k = 0; k < Shape<N>::kDepth; ++k) {
        const uint32_t bits = Shape<N>::operand(source, row, k);
        const uint32_t field = bits >> T::kFractionBits & kHighestField;
        const int32_t magnitude = static_cast<int32_t>((bits & (kHidden - 1)) | (field ? kHidden : 0));
        significand[row][k] = bits >> 15 ? -magnitude : magnitude;
        exponent[row][k] = field == kHighestField ? kSpecial
                           : magnitude == 0       ? kZero
                                                  : std::max(static_cast<int>(field), 1) - T::kBias;
      }
  }
};

// False where infinities, NaN or an overflow are possible.
template <class T>
bool add_ordinary_group(const int32_t* a, const int32_t* a_exponent, const int32_t* b,
                        const int32_t* b_exponent, uint32_t& c) {
  int largest = exact::kNoProduct;
  for (int k = 0; k < kGroup; ++k) largest = std::max(largest, a_exponent[k] + b_exponent[k]);
  if (largest > 126 || (c & exact::kInfinity) == exact::kInfinity) return false;
  int32_t dot = 0;
  for (int k = 0; k < kGroup; ++k) {
    const int32_t product = a[k] * b[k] * (1 << (24 - 2 * T::kFractionBits));
    const int distance = std::min(largest - a_exponent[k] - b_exponent[k], 31);
    dot += product < 0 ? -(-product >> distance) : product >> distance;
  }
  c = exact::add_addend(dot, largest, c);
  return true;
}

template <class T, int N>
void multiply_portable(const Register* a, const Register* b, const Register* c, Register* d) {
  const Unpacked<T, N> x(a), y(b);
  for (int row = 0; row < N; ++row) {
    const int r = Shape<N>::row_register(row), lane = Shape<N>::row_lane(row);
    for (int column = 0; column < N; ++column) {
      uint32_t sum = c[r][lane + column];
      bool ordinary = true;
      for (int k = 0; k < Shape<N>::kDepth && ordinary; k += kGroup)
        ordinary = add_ordinary_group<T>(&x.significand[row][k], &x.exponent[row][k],
                                         &y.significand[column][k], &y.exponent[column][k], sum);
      d[r][lane + column] = ordinary ? sum : multiply_add<T, N>(a, b, row, column, c[r][lane + column]);
    }
  }
}

// ---- Eight output elements at a time; GFX942_PORTABLE leaves this out ----
#if defined(__x86_64__) && !defined(GFX942_PORTABLE)
#define GFX942_AVX2 __attribute__((target("avx2,fma"), noinline))
#define GFX942_AVX2_INLINE __attribute__((target("avx2,fma"), always_inline)) inline

// A group's largest exponent is kept as a float32 field, biased by 127; sums of two fields are biased by 254.
// Products are formed 2^T::kLift too large, so that those from kLowest on are normal float32 numbers; those
// up to kHighest stay finite. Below kSafe a result may be subnormal unless C is large enough.
constexpr int kBias = 127;
constexpr int kLowest = 1, kSafe = kBias - 90;
template <class T>
constexpr int kHighest = kBias + 126 - T::kLift;
// Fields of an operand that is zero, and of one that is infinite, NaN or overflows when lifted. Whatever the
// other operand is, a sum with kZeroField alone is negative, one with kSpecialField is above kHighest, and
// none leaves 16 bits.
constexpr int kZeroField = -6000, kSpecialField = 16000;
// The largest exponent of products that are all zero; negative at the place of a float32's exponent too.
constexpr int kNoProduct = -200;

// Each pass over a tile is a loop of its own: the dependency chains are long, and the shorter a body is the
// more of them overlap.
template <int N>
struct Tile {
  static constexpr int kDepth = Shape<N>::kDepth, kGroups = kDepth / kGroup;
  alignas(32) float a[kDepth][N], b[kDepth][N];  // a: lifted
  alignas(32) uint32_t a_field[kDepth][N];       // twice the 16-bit field, for a broadcast
  alignas(32) int16_t b_field[kDepth][N];
  alignas(32) int16_t largest[kGroups][N * N];
  alignas(32) int32_t largest_in_place[kGroups][N * N];  // where a float32 has its exponent
  alignas(32) int32_t dot[kGroups][N * N];               // 24 fractional bits
  alignas(32) float sum[kGroups][N * N];                 // C of each group
};

// Each pass begins with this. GCC 12 may address a store relative to a null pointer when it merges induction
// variables, overlooks the store afterwards, takes a pass for a pure function and drops the call.
inline void keep_stores() {
  asm volatile("" : : : "memory");
}

template <typename T>
GFX942_AVX2_INLINE __m256i load(const T* from) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
}
GFX942_AVX2_INLINE __m256i load_unaligned(const uint32_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
template <typename T>
GFX942_AVX2_INLINE void store(T* to, __m256i value) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), value);
}
GFX942_AVX2_INLINE __m256i splat(uint32_t value) {
  return _mm256_set1_epi32(static_cast<int>(value));
}
GFX942_AVX2_INLINE __m256i splat16(int value) {
  return _mm256_set1_epi16(static_cast<int16_t>(value));
}
GFX942_AVX2_INLINE __m256i widen(const int16_t* from) {
  return _mm256_cvtepi16_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(from)));
}

// The values in the upper halves of eight dwords. Of infinities and NaN nothing need remain but the field
// below.
template <class T>
GFX942_AVX2_INLINE __m256 to_float32(__m256i upper) {
  if (T::kBias == kBias) return _mm256_castsi256_ps(upper);
  const __m256i magnitude =
      _mm256_srli_epi32(_mm256_and_si256(upper, splat(0x7FFF0000)), T::kFractionBits - 7);
  const __m256 scaled = _mm256_mul_ps(_mm256_castsi256_ps(magnitude),
                                      _mm256_castsi256_ps(splat((2u * kBias - T::kBias) << 23)));
  return _mm256_or_ps(scaled, _mm256_castsi256_ps(_mm256_and_si256(upper, splat(0x80000000))));
}

// Fields of sixteen values; those with an exponent above `highest` of their own format are special.
template <class T>
GFX942_AVX2_INLINE __m256i exponent_fields(__m256i values, int highest) {
  const __m256i magnitude = _mm256_add_epi16(values, values);
  const __m256i field = _mm256_srli_epi16(magnitude, T::kFractionBits + 1);
  const __m256i normal = _mm256_max_epi16(field, splat16(1));
  const __m256i zero = _mm256_cmpeq_epi16(magnitude, _mm256_setzero_si256());
  const __m256i finite =
      _mm256_blendv_epi8(_mm256_add_epi16(normal, splat16(kBias - T::kBias)), splat16(kZeroField), zero);
  return _mm256_blendv_epi8(finite, splat16(kSpecialField), _mm256_cmpgt_epi16(field, splat16(highest)));
}

template <class T, int N>
GFX942_AVX2 void unpack_a(const Register* a, Tile<N>& tile) {
  keep_stores();
  constexpr int kFinite = 2 * T::kBias - T::kLift;
  const __m256i high = splat(0xFFFF0000);
  const __m256 lift = _mm256_set1_ps(1 << T::kLift);
  for (int r = 0; r < 2; ++r)
    for (int lane = 0; lane < kLanes; lane += 8) {
      const int k = 4 * (lane / N) + 2 * r, row = lane % N;
      const __m256i pairs = load_unaligned(&a[r][lane]);
      const __m256i even = _mm256_slli_epi32(pairs, 16), odd = _mm256_and_si256(pairs, high);
      _mm256_store_ps(&tile.a[k][row], _mm256_mul_ps(to_float32<T>(even), lift));
      _mm256_store_ps(&tile.a[k + 1][row], _mm256_mul_ps(to_float32<T>(odd), lift));
      const __m256i even_twice = _mm256_or_si256(even, _mm256_andnot_si256(high, pairs));
      const __m256i odd_twice = _mm256_or_si256(odd, _mm256_srli_epi32(pairs, 16));
      store(&tile.a_field[k][row], exponent_fields<T>(even_twice, kFinite));
      store(&tile.a_field[k + 1][row], exponent_fields<T>(odd_twice, kFinite));
    }
}

template <class T, int N>
GFX942_AVX2 void unpack_b(const Register* b, Tile<N>& tile) {
  keep_stores();
  constexpr int kFinite = 2 * T::kBias;
  const __m256i high = splat(0xFFFF0000);
  for (int r = 0; r < 2; ++r)
    for (int lane = 0; lane < kLanes; lane += 16) {
      const int k = 4 * (lane / N) + 2 * r, column = lane % N;
      __m256i even[2], odd[2];
      for (int part = 0; part < 2; ++part) {
        const __m256i pairs = load_unaligned(&b[r][lane + 8 * part]);
        _mm256_store_ps(&tile.b[k][column + 8 * part], to_float32<T>(_mm256_slli_epi32(pairs, 16)));
        _mm256_store_ps(&tile.b[k + 1][column + 8 * part], to_float32<T>(_mm256_and_si256(pairs, high)));
        even[part] = _mm256_andnot_si256(high, pairs);
        odd[part] = _mm256_srli_epi32(pairs, 16);
      }
      // Packing works within halves of a vector: the permutation restores the order of columns.
      const __m256i even_values = _mm256_permute4x64_epi64(_mm256_packus_epi32(even[0], even[1]), 0xD8);
      const __m256i odd_values = _mm256_permute4x64_epi64(_mm256_packus_epi32(odd[0], odd[1]), 0xD8);
      store(&tile.b_field[k][column], exponent_fields<T>(even_values, kFinite));
      store(&tile.b_field[k + 1][column], exponent_fields<T>(odd_values, kFinite));
    }
}

// Returns nonzero bits where an element may be out of range.
template <class T, int N>
GFX942_AVX2 __m256i find_largest(Tile<N>& tile) {
  constexpr int kRows = 4;  // that share a load of B
  const __m256i safe = splat16(kSafe + kBias), highest = splat16(kHighest<T> + kBias);
  __m256i outside = _mm256_setzero_si256();
  for (int group = 0; group < Tile<N>::kGroups; ++group) {
    keep_stores();
    for (int row = 0; row < N; row += kRows)
      for (int column = 0; column < N; column += 16) {
        __m256i largest[kRows];
#pragma GCC unroll 8
        for (int i = 0; i < kGroup; ++i) {
          const int k = group * kGroup + i;
          const __m256i b_field = load(&tile.b_field[k][column]);
#pragma GCC unroll 4
          for (int j = 0; j < kRows; ++j) {
            const __m256i field = _mm256_add_epi16(splat(tile.a_field[k][row + j]), b_field);
            largest[j] = i ? _mm256_max_epi16(largest[j], field) : field;
          }
        }
#pragma GCC unroll 4
        for (int j = 0; j < kRows; ++j) {
          // Negative where there is no product, which as an unsigned number is above all others.
          const __m256i within = _mm256_min_epi16(_mm256_max_epu16(largest[j], safe), highest);
          outside = _mm256_or_si256(outside, _mm256_xor_si256(within, largest[j]));
          const __m256i field = _mm256_sub_epi16(largest[j], splat16(kBias));
          store(&tile.largest[group][(row + j) * N + column], _mm256_max_epi16(field, splat16(kNoProduct)));
        }
      }
  }
  return outside;
}

template <class T, int N>
GFX942_AVX2 void sum_products(Tile<N>& tile) {
  for (int group = 0; group < Tile<N>::kGroups; ++group) {
    keep_stores();
    for (int row = 0; row < N; ++row)
      for (int column = 0; column < N; column += 8) {
        const int element = row * N + column;
        const __m256i largest = _mm256_slli_epi32(widen(&tile.largest[group][element]), 23);
        store(&tile.largest_in_place[group][element], largest);
        const __m256 scale =  // 2^(24 - kLift - e)
            _mm256_castsi256_ps(_mm256_sub_epi32(splat((2u * kBias + 24 - T::kLift) << 23), largest));
        __m256i dot = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int i = 0; i < kGroup; ++i) {
          const int k = group * kGroup + i;
          const __m256 product =
              _mm256_mul_ps(_mm256_set1_ps(tile.a[k][row]), _mm256_load_ps(&tile.b[k][column]));
          dot = _mm256_add_epi32(dot, _mm256_cvttps_epi32(_mm256_mul_ps(product, scale)));
        }
        store(&tile.dot[group][element], dot);
      }
  }
}

// Eight results of a group. `largest` is in place; C is not -0.
GFX942_AVX2_INLINE __m256 add_and_round(__m256i dot, __m256i largest, __m256 c) {
  const __m256i c_bits = _mm256_castps_si256(c);
  const __m256i c_exponent = _mm256_and_si256(c_bits, splat(exact::kInfinity));
  const __m256i common = _mm256_max_epi32(largest, c_exponent);
  const __m256i distance = _mm256_srli_epi32(_mm256_sub_epi32(common, largest), 23);

  // C with 24 fractional bits: its significand as a float32 in [2^24, 2^25), then shifted. E is at least
  // kSafe, so that nothing stays of what this makes of zeros and subnormals.
  const __m256 significand = _mm256_castsi256_ps(
      _mm256_or_si256(_mm256_and_si256(c_bits, splat(0x807FFFFF)), splat((kBias + 24u) << 23)));
  const __m256i addend = _mm256_srav_epi32(_mm256_cvtps_epi32(significand),
                                           _mm256_srli_epi32(_mm256_sub_epi32(common, c_exponent), 23));

  // total = dot * 2^(8 - distance) + addend * 2^8, with 32 fractional bits, can take 39 bits:
  // high = total >> 14, low = the 14 bits below.
  const __m256i eight = splat(8);
  const __m256i high = _mm256_srai_epi32(_mm256_add_epi32(_mm256_srav_epi32(dot, distance), addend), 6);
  const __m256i aligned = _mm256_sllv_epi32(_mm256_srav_epi32(dot, _mm256_subs_epu16(distance, eight)),
                                            _mm256_subs_epu16(eight, distance));
  __m256i low = _mm256_and_si256(_mm256_add_epi32(aligned, _mm256_slli_epi32(addend, 8)), splat(0x3FFF));

  // With 31 fractional bits of its own exponent a total of 2^(32 + j) or more loses j + 1 bits. For a
  // negative one j is that of |total| - 1, which differs only where the bits to lose are zero.
  const __m256i size = _mm256_xor_si256(high, _mm256_srai_epi32(high, 31));
  const __m256i size_field = _mm256_srli_epi32(_mm256_castps_si256(_mm256_cvtepi32_ps(size)), 23);
  const __m256i lost = _mm256_subs_epu16(size_field, splat(kBias + 32 - 14 - 1));
  low = _mm256_and_si256(low, _mm256_sllv_epi32(splat(~0u), lost));

  // Both parts are exact in float32, so that the fused sum rounds once.
  const __m256 rounded =
      _mm256_fmadd_ps(_mm256_cvtepi32_ps(high), _mm256_set1_ps(1 << 14), _mm256_cvtepi32_ps(low));
  const __m256 unit = _mm256_castsi256_ps(_mm256_sub_epi32(common, splat(32u << 23)));
  // Without a product (`largest` negative) the result is C, however small.
  return _mm256_blendv_ps(_mm256_mul_ps(rounded, unit), c, _mm256_castsi256_ps(largest));
}

GFX942_AVX2_INLINE __m256i infinite_or_nan(__m256 value) {
  const __m256i infinity = splat(exact::kInfinity);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_castps_si256(value), infinity), infinity);
}

// Writes D, and C and what lies between into the tile. Returns nonzero bits where a group's C is infinite or
// NaN.
template <int N>
GFX942_AVX2 __m256i add_groups(Tile<N>& tile, const Register* c, Register* d) {
  __m256i special = _mm256_setzero_si256();
  for (int group = 0; group < Tile<N>::kGroups; ++group) {
    keep_stores();
    for (int row = 0; row < N; ++row) {
      const int r = Shape<N>::row_register(row), lane = Shape<N>::row_lane(row);
      const bool last = group + 1 == Tile<N>::kGroups;
      float* to = last ? reinterpret_cast<float*>(&d[r][lane]) : &tile.sum[group + 1][row * N];
      for (int column = 0; column < N; column += 8) {
        const int element = row * N + column;
        __m256 addend;
        if (group) {
          addend = _mm256_load_ps(&tile.sum[group][element]);
        } else {
          // Adding 0 makes +0 of -0 and nothing else.
          addend =
              _mm256_add_ps(_mm256_castsi256_ps(load_unaligned(&c[r][lane + column])), _mm256_setzero_ps());
          _mm256_store_ps(&tile.sum[0][element], addend);
        }
        special = _mm256_or_si256(special, infinite_or_nan(addend));
        const __m256i dot = load(&tile.dot[group][element]);
        const __m256i largest = load(&tile.largest_in_place[group][element]);
        _mm256_storeu_ps(to + column, add_and_round(dot, largest, addend));
      }
    }
  }
  return special;
}

// Computes in integers the elements that the passes couldn't.
template <class T, int N>
GFX942_AVX2 void correct(const Tile<N>& tile, const Register* a, const Register* b, Register* d) {
  for (int element = 0; element < N * N; element += 8) {
    __m256i wrong = _mm256_setzero_si256();
    for (int group = 0; group < Tile<N>::kGroups; ++group) {
      const __m256 c = _mm256_load_ps(&tile.sum[group][element]);
      const __m256i c_field =
          _mm256_srli_epi32(_mm256_and_si256(_mm256_castps_si256(c), splat(exact::kInfinity)), 23);
      const __m256i largest = widen(&tile.largest[group][element]);
      const __m256i unsafe = _mm256_cmpgt_epi32(splat(kSafe), _mm256_max_epi32(largest, c_field));
      const __m256i outside = _mm256_or_si256(_mm256_cmpgt_epi32(splat(kLowest), largest),
                                              _mm256_cmpgt_epi32(largest, splat(kHighest<T>)));
      const __m256i no_product = _mm256_cmpeq_epi32(largest, _mm256_set1_epi32(kNoProduct));
      wrong = _mm256_or_si256(wrong, _mm256_andnot_si256(no_product, _mm256_or_si256(unsafe, outside)));
      wrong = _mm256_or_si256(wrong, infinite_or_nan(c));
    }
    for (int lanes = _mm256_movemask_ps(_mm256_castsi256_ps(wrong)); lanes; lanes &= lanes - 1) {
      const int i = element + __builtin_ctz(static_cast<unsigned>(lanes)), row = i / N, column = i % N;
      uint32_t c;
      std::memcpy(&c, &tile.sum[0][i], 4);
      d[Shape<N>::row_register(row)][Shape<N>::row_lane(row) + column] =
          multiply_add<T, N>(a, b, row, column, c);
    }
  }
}

template <class T, int N>
GFX942_AVX2 void multiply_avx2(const Register* a, const Register* b, const Register* c, Register* d) {
  constexpr unsigned kFlags = 0x3F, kControl = 0x1F80;  // round to nearest even, keep subnormals
  const unsigned control = _mm_getcsr();
  const bool foreign = (control & ~kFlags) != kControl;
  if (foreign) _mm_setcsr(kControl);
  Tile<N> tile;
  unpack_a<T>(a, tile);
  unpack_b<T>(b, tile);
  const __m256i outside = find_largest<T>(tile);
  sum_products<T>(tile);
  const __m256i wrong = _mm256_or_si256(add_groups(tile, c, d), outside);
  if (!_mm256_testz_si256(wrong, wrong)) correct<T>(tile, a, b, d);
  if (foreign) _mm_setcsr(control);
}
#endif

template <class T, int N>
void multiply(const uint32_t* a, const uint32_t* b, const uint32_t* c, bool constant_c, uint32_t* d) {
  constexpr int kRegisters = Shape<N>::kRegisters;
  const auto registers = [](const uint32_t* from) { return reinterpret_cast<const Register*>(from); };
  // D is written while operands are still needed: what overlaps it is copied, and a constant is spread.
  const auto overlaps = [&](const uint32_t* from, int count) {
    return from < d + kRegisters * kLanes && d < from + count * kLanes;
  };
  Register a_copy[2], b_copy[2], c_copy[kRegisters];
  if (overlaps(a, 2)) a = static_cast<uint32_t*>(std::memcpy(a_copy, a, sizeof a_copy));
  if (overlaps(b, 2)) b = static_cast<uint32_t*>(std::memcpy(b_copy, b, sizeof b_copy));
  if (constant_c) {
    for (Register& copy : c_copy) std::memcpy(copy, c, sizeof copy);
    c = c_copy[0];
  } else if (c != d && overlaps(c, kRegisters)) {
    c = static_cast<uint32_t*>(std::memcpy(c_copy, c, sizeof c_copy));
  }
#if defined(__x86_64__) && !defined(GFX942_PORTABLE)
  static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2)
    return multiply_avx2<T, N>(registers(a), registers(b), registers(c), reinterpret_cast<Register*>(d));
#endif
  multiply_portable<T, N>(registers(a), registers(b), registers(c), reinterpret_cast<Register*>(d));
}

}  // namespace

void exact_product(bool brain_float, int size, uint32_t* d, const uint32_t* a, const uint32_t* b,
                   const uint32_t* c, bool constant_c) {
  if (brain_float)
    size == 16 ? multiply<BrainFloat, 16>(a, b, c, constant_c, d)
               : multiply<BrainFloat, 32>(a, b, c, constant_c, d);
  else
    size == 16 ? multiply<HalfFloat, 16>(a, b, c, constant_c, d)
               : multiply<HalfFloat, 32>(a, b, c, constant_c, d);
}

}  // namespace gfx942
