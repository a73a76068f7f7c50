// Conversions between float32 and the 8-bit floats of gfx942 (fp8: 4 exponent bits, bf8: 5; one NaN, no
// infinity, no minus zero).
#include <cstring>

#include "small_float.hpp"
#include "vector.hpp"

namespace gfx942 {

namespace {

constexpr uint32_t kNan = 0x80;

template <class T>
struct Fields;
template <>
struct Fields<Fp8> {
  static constexpr int kFraction = 3, kBias = 8;
};
template <>
struct Fields<Bf8> {
  static constexpr int kFraction = 2, kBias = 16;
};

// To nearest even, or (kStochastic) by adding the upper bits of `random` to the fraction bits that are
// dropped. Overflow gives NaN or, with MODE's FP16_OVFL, the largest value.
template <class T, bool kStochastic>
uint32_t to_small(uint32_t bits, uint32_t random, bool clamps) {
  constexpr int kFraction = Fields<T>::kFraction, kDropped = 23 - kFraction;
  const uint32_t sign = bits >> 24 & 0x80, magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return kNan;
  if (magnitude == 0x7F800000) return clamps ? sign | 0x7F : kNan;
  const int exponent = magnitude < 0x800000 ? -126 : static_cast<int>(magnitude >> 23) - 127;
  uint64_t significand = (magnitude & 0x7FFFFF) | (magnitude < 0x800000 ? 0 : 0x800000);
  const int lowest = 1 - Fields<T>::kBias, below = exponent < lowest ? lowest - exponent : 0;
  if (below > 25) return 0;
  uint64_t result;  // the exponent and fraction fields; a carry out of the fraction raises the exponent
  if (kStochastic) {
    significand >>= below;
    result = (significand + (random >> (32 - kDropped))) >> kDropped;
  } else {
    const int dropped = kDropped + below;
    const uint64_t half = (uint64_t{1} << (dropped - 1)) - 1;
    result = (significand + half + (significand >> dropped & 1)) >> dropped;
  }
  if (!below) result += static_cast<uint64_t>(exponent - lowest) << kFraction;
  if (result > 0x7F) return clamps ? sign | 0x7F : kNan;
  return result ? sign | static_cast<uint32_t>(result) : 0;
}

template <class T>
void pack_small(Wave& wave, const Step& step) {
  if (step.prepare) prepare_sources(wave, step);
  const bool upper = wave.group->program->instruction(step).op_sel & 8;
  const bool clamps = wave.mode.small_overflow_clamps();
  const uint32_t *a = source(wave, step.src[0]), *b = source(wave, step.src[1]);
  const uint32_t* old = destination(wave, step.dst);
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint32_t pair = to_small<T, false>(a[lane], 0, clamps) | to_small<T, false>(b[lane], 0, clamps)
                                                                       << 8;
    wave.result[0][lane] = upper ? (old[lane] & 0xFFFF) | pair << 16 : (old[lane] & 0xFFFF0000) | pair;
  }
  write_lanes(wave, step.dst, 1, wave.exec());
}

template <class T>
void round_stochastically(Wave& wave, const Step& step) {
  if (step.prepare) prepare_sources(wave, step);
  const unsigned shift = 8 * (wave.group->program->instruction(step).op_sel >> 2);
  const bool clamps = wave.mode.small_overflow_clamps();
  const uint32_t *a = source(wave, step.src[0]), *random = source(wave, step.src[1]);
  const uint32_t* old = destination(wave, step.dst);
  for (int lane = 0; lane < kLanes; ++lane)
    wave.result[0][lane] = (old[lane] & ~(0xFFu << shift)) | to_small<T, true>(a[lane], random[lane], clamps)
                                                                 << shift;
  write_lanes(wave, step.dst, 1, wave.exec());
}

// kCount values from the low bytes, which SDWA may have selected.
template <class T, int kCount>
void unpack_small(Wave& wave, const Step& step) {
  if (step.prepare) prepare_sources(wave, step);
  const uint32_t* a = source(wave, step.src[0]);
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint32_t word = a[lane];
    for (int i = 0; i < kCount; ++i) {
      const float value = T::value(word >> 8 * i & 0xFF);
      std::memcpy(&wave.result[i][lane], &value, sizeof value);
    }
  }
  finish_result(wave, step);
}

}  // namespace

void install_vector_small_float(HandlerTable& table) {
  table[Op::V_CVT_PK_FP8_F32] = pack_small<Fp8>;
  table[Op::V_CVT_PK_BF8_F32] = pack_small<Bf8>;
  table[Op::V_CVT_SR_FP8_F32] = round_stochastically<Fp8>;
  table[Op::V_CVT_SR_BF8_F32] = round_stochastically<Bf8>;
  table[Op::V_CVT_F32_FP8] = unpack_small<Fp8, 1>;
  table[Op::V_CVT_F32_BF8] = unpack_small<Bf8, 1>;
  table[Op::V_CVT_PK_F32_FP8] = unpack_small<Fp8, 2>;
  table[Op::V_CVT_PK_F32_BF8] = unpack_small<Bf8, 2>;
}

}  // namespace gfx942
