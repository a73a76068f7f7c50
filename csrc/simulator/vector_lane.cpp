// Vector instructions that move values between lanes or need more than one result.
#include <cmath>
#include <limits>

#include "vector.hpp"

namespace gfx942 {

namespace {

int first_active_lane(const Wave& wave) {
  return wave.exec() ? __builtin_ctzll(wave.exec()) : 0;
}

void read_first_lane(Wave& wave, const Step& step) {
  if (step.prepare) prepare_sources(wave, step);
  *destination(wave, step.dst) = source(wave, step.src[0])[first_active_lane(wave)];
}

// The lane number of v_readlane and v_writelane: a scalar source, so it sits in a broadcast row.
void read_lane(Wave& wave, const Step& step) {
  if (step.prepare) prepare_sources(wave, step);
  const uint32_t lane = source(wave, step.src[1])[0] & 63;
  *destination(wave, step.dst) = source(wave, step.src[0])[lane];
}

void write_lane(Wave& wave, const Step& step) {
  if (step.prepare) prepare_sources(wave, step);
  const uint32_t lane = source(wave, step.src[1])[0] & 63;
  destination(wave, step.dst)[lane] = source(wave, step.src[0])[0];
}

// Bits of `mask` below each lane, plus an accumulator; `first` is the lane of the mask's bit 0.
template <int kFirst>
void count_below(Wave& wave, const Step& step) {
  if (step.prepare) prepare_sources(wave, step);
  const uint32_t* mask = source(wave, step.src[0]);
  const uint32_t* sum = source(wave, step.src[1]);
  for (int lane = 0; lane < kLanes; ++lane) {
    const int bits = lane - kFirst;
    const uint32_t below = bits <= 0 ? 0 : bits >= 32 ? ~uint32_t{0} : (1u << bits) - 1;
    wave.result[0][lane] = static_cast<uint32_t>(__builtin_popcount(mask[lane] & below)) + sum[lane];
  }
  finish_result(wave, step);
}

void swap_registers(Wave& wave, const Step& step) {
  uint32_t* a = destination(wave, step.dst);
  uint32_t* b = const_cast<uint32_t*>(source(wave, step.src[0]));
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(wave.exec() >> lane & 1)) continue;
    const uint32_t kept = a[lane];
    a[lane] = b[lane];
    b[lane] = kept;
  }
}

void write_carry(Wave& wave, const Step& step, uint64_t mask) {
  mask &= wave.exec();
  std::memcpy(reinterpret_cast<uint32_t*>(&wave) + (step.src[3] >> 48), &mask, 8);
}

uint64_t element64(const uint32_t* row, int lane) {
  return row[lane] | static_cast<uint64_t>(row[kLanes + lane]) << 32;
}

void multiply_add_unsigned(Wave& wave, const Step& step) {
  if (step.prepare) prepare_sources(wave, step);
  const uint32_t *a = source(wave, step.src[0]), *b = source(wave, step.src[1]),
                 *c = source(wave, step.src[2]);
  uint64_t carries = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint64_t product = uint64_t{a[lane]} * b[lane], sum = product + element64(c, lane);
    wave.result[0][lane] = static_cast<uint32_t>(sum);
    wave.result[1][lane] = static_cast<uint32_t>(sum >> 32);
    carries |= static_cast<uint64_t>(sum < product) << lane;
  }
  write_carry(wave, step, carries);
  finish_result(wave, step);
}

void multiply_add_signed(Wave& wave, const Step& step) {
  if (step.prepare) prepare_sources(wave, step);
  const uint32_t *a = source(wave, step.src[0]), *b = source(wave, step.src[1]),
                 *c = source(wave, step.src[2]);
  uint64_t carries = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    const int64_t product = int64_t{static_cast<int32_t>(a[lane])} * static_cast<int32_t>(b[lane]);
    int64_t sum;
    const bool overflow = __builtin_add_overflow(product, static_cast<int64_t>(element64(c, lane)), &sum);
    const bool sign = (sum < 0) != overflow;  // bit 64 of the exact sum
    wave.result[0][lane] = static_cast<uint32_t>(sum);
    wave.result[1][lane] = static_cast<uint32_t>(static_cast<uint64_t>(sum) >> 32);
    carries |= static_cast<uint64_t>(sign) << lane;
  }
  write_carry(wave, step, carries);
  finish_result(wave, step);
}

template <class T>
T element(const uint32_t* row, int lane) {
  T value;
  uint64_t bits = row[lane];
  if (sizeof(T) == 8) bits = element64(row, lane);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
template <class T>
void put_element(Wave& wave, int lane, T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  wave.result[0][lane] = static_cast<uint32_t>(bits);
  if (sizeof(T) == 8) wave.result[1][lane] = static_cast<uint32_t>(bits >> 32);
}

// Scales a division's numerator or denominator (whichever src0 is) so that the Newton iteration neither
// overflows nor loses bits to subnormals; VCC tells v_div_fmas to undo it.
template <class T>
void division_scale(Wave& wave, const Step& step) {
  if (step.prepare) prepare_sources(wave, step);
  constexpr bool kDouble = sizeof(T) == 8;
  constexpr int kScale = kDouble ? 128 : 64;
  constexpr int kLargeGap = kDouble ? 768 : 96;
  constexpr int kSmallNumerator = kDouble ? 53 : 23;
  const DoublePrecisionMode mode(wave);
  const uint32_t *s0 = source(wave, step.src[0]), *s1 = source(wave, step.src[1]),
                 *s2 = source(wave, step.src[2]);
  const auto biased_exponent = [](T value) {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    return static_cast<int>(bits >> (kDouble ? 52 : 23)) & (kDouble ? 0x7FF : 0xFF);
  };
  const auto subnormal = [](T value) {
    return value != 0 && std::fabs(value) < std::numeric_limits<T>::min();
  };
  uint64_t scaled = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    const T value = element<T>(s0, lane), denominator = element<T>(s1, lane),
            numerator = element<T>(s2, lane);
    T result = value;
    bool undo = false;
    const bool is_denominator = value == denominator, is_numerator = value == numerator;
    if (numerator == 0 || denominator == 0) {
      result = std::numeric_limits<T>::quiet_NaN();
    } else if (biased_exponent(numerator) - biased_exponent(denominator) >= kLargeGap) {
      undo = true;  // the quotient would be near overflow: scale the denominator up
      if (is_denominator) result = std::ldexp(value, kScale);
    } else if (subnormal(denominator)) {
      result = std::ldexp(value, kScale);
    } else if (subnormal(T{1} / denominator) && subnormal(numerator / denominator)) {
      undo = true;
      if (is_denominator) result = std::ldexp(value, kScale);
    } else if (subnormal(T{1} / denominator)) {
      result = std::ldexp(value, -kScale);
    } else if (subnormal(numerator / denominator)) {
      undo = true;
      if (is_numerator) result = std::ldexp(value, kScale);
    } else if (biased_exponent(numerator) <= kSmallNumerator) {
      result = std::ldexp(value, kScale);
    }
    scaled |= static_cast<uint64_t>(undo) << lane;
    put_element(wave, lane, result);
  }
  write_carry(wave, step, scaled);
  finish_result(wave, step);
}

template <class T>
void division_fma(Wave& wave, const Step& step) {
  if (step.prepare) prepare_sources(wave, step);
  constexpr int kScale = sizeof(T) == 8 ? 64 : 32;
  const DoublePrecisionMode mode(wave);
  const uint32_t *a = source(wave, step.src[0]), *b = source(wave, step.src[1]),
                 *c = source(wave, step.src[2]);
  const uint64_t scaled = wave.vcc();
  for (int lane = 0; lane < kLanes; ++lane) {
    T value = std::fma(element<T>(a, lane), element<T>(b, lane), element<T>(c, lane));
    if (scaled >> lane & 1) {
      // The quotient of a scaled denominator is too small, that of a scaled numerator too large.
      value = std::ldexp(value, std::ilogb(element<T>(c, lane)) > 0 ? 2 * kScale : -2 * kScale);
    }
    put_element(wave, lane, value);
  }
  finish_result(wave, step);
}

void no_operation(Wave&, const Step&) {}

}  // namespace

void install_vector_lane(HandlerTable& table) {
  table[Op::V_NOP] = no_operation;
  table[Op::V_CLREXCP] = no_operation;  // exceptions are not modelled
  table[Op::V_READFIRSTLANE_B32] = read_first_lane;
  table[Op::V_READLANE_B32] = read_lane;
  table[Op::V_WRITELANE_B32] = write_lane;
  table[Op::V_MBCNT_LO_U32_B32] = count_below<0>;
  table[Op::V_MBCNT_HI_U32_B32] = count_below<32>;
  table[Op::V_SWAP_B32] = swap_registers;
  table[Op::V_MAD_U64_U32] = multiply_add_unsigned;
  table[Op::V_MAD_I64_I32] = multiply_add_signed;
  table[Op::V_DIV_SCALE_F32] = division_scale<float>;
  table[Op::V_DIV_SCALE_F64] = division_scale<double>;
  table[Op::V_DIV_FMAS_F32] = division_fma<float>;
  table[Op::V_DIV_FMAS_F64] = division_fma<double>;
}

}  // namespace gfx942
