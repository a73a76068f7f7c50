#include "vector.hpp"

#include <cstring>
#include <string_view>

namespace gfx942 {

namespace {

// Output modifiers flush subnormal results, and -0, to +0.
template <class T>
T scaled(T value, unsigned omod) {
  if (omod == 0) return value;
  const T result = omod == 3 ? value / 2 : value * static_cast<T>(2 * omod);
  return std::fabs(result) < std::numeric_limits<T>::min() ? T{0} : result;
}

// NaN becomes 0 where MODE has DX10_CLAMP, and stays otherwise.
template <class T>
T clamped(T value, bool dx10_clamp) {
  if (value != value) return dx10_clamp ? T{0} : value;
  return value < 0 ? T{0} : value > 1 ? T{1} : value == 0 ? T{0} : value;
}

float half_to_float(uint32_t half) {
  const uint32_t magnitude = half & 0x7FFF;
  float value = std::ldexp(static_cast<float>(magnitude & 0x3FF), -24);
  if (magnitude >= 0x7C00)
    value =
        magnitude > 0x7C00 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  else if (magnitude >= 0x400)
    value =
        std::ldexp(static_cast<float>((magnitude & 0x3FF) | 0x400), static_cast<int>(magnitude >> 10) - 25);
  return half & 0x8000 ? -value : value;
}

uint32_t clamped_half(uint32_t half, bool dx10_clamp) {
  if ((half & 0x7FFF) > 0x7C00) return dx10_clamp ? 0 : half;
  if (half & 0x8000) return 0;
  return half > 0x3C00 ? 0x3C00 : half;
}

// Exact: what would be subnormal is flushed.
uint32_t scaled_half(uint32_t half, unsigned omod) {
  if (omod == 0) return half;
  const float value = scaled(half_to_float(half), omod);
  if (value != value) return half;
  const float magnitude = std::fabs(value);
  if (magnitude < 0x1p-14f) return 0;
  if (magnitude >= 65536.0f) return (half & 0x8000) | 0x7C00;
  const int exponent = std::ilogb(magnitude);
  const auto significand =
      static_cast<uint32_t>(std::ldexp(magnitude, 10 - exponent));  // leading one included
  return (half & 0x8000) | ((static_cast<uint32_t>(exponent + 14) << 10) + significand);
}

// The output modifier that takes effect: none in IEEE mode, nor where results may be subnormal.
unsigned effective_scale(const Wave& wave, const Instruction& instruction, unsigned bits) {
  const unsigned denormals = bits == 32 ? wave.mode.denormals_f32() : wave.mode.denormals_f16_f64();
  return wave.mode.ieee() || (denormals & 2) ? 0 : instruction.omod;
}

void scale_and_clamp(Wave& wave, const Instruction& instruction, const StepDetail& detail) {
  const bool dx10 = wave.mode.dx10_clamp();
  const unsigned omod = effective_scale(wave, instruction, detail.result_bits);
  uint32_t* low = wave.result[0];
  uint32_t* high = wave.result[1];
  for (int lane = 0; lane < kLanes; ++lane) {
    if (detail.result_packed && detail.result_bits == 64) {
      for (uint32_t* row : {low, high}) {
        float value;
        std::memcpy(&value, row + lane, 4);
        if (instruction.clamp) value = clamped(value, dx10);
        std::memcpy(row + lane, &value, 4);
      }
    } else if (detail.result_bits == 64) {
      const uint64_t bits = low[lane] | static_cast<uint64_t>(high[lane]) << 32;
      double value;
      std::memcpy(&value, &bits, 8);
      value = scaled(value, omod);
      if (instruction.clamp) value = clamped(value, dx10);
      std::memcpy(low + lane, &value, 4);
      std::memcpy(high + lane, reinterpret_cast<char*>(&value) + 4, 4);
    } else if (detail.result_bits == 32) {
      float value;
      std::memcpy(&value, low + lane, 4);
      value = scaled(value, omod);
      if (instruction.clamp) value = clamped(value, dx10);
      std::memcpy(low + lane, &value, 4);
    } else if (detail.result_packed) {
      low[lane] = clamped_half(low[lane] & 0xFFFF, dx10) | clamped_half(low[lane] >> 16, dx10) << 16;
    } else {
      uint32_t value = scaled_half(low[lane] & 0xFFFF, omod);
      if (instruction.clamp) value = clamped_half(value, dx10);
      low[lane] = value;
    }
  }
}

void place_sdwa(Wave& wave, const Sdwa& sdwa, const uint32_t* old) {
  const unsigned select = sdwa.dst_sel;
  const unsigned shift = select < 4 ? 8 * select : 16 * (select - 4);
  const uint32_t field = (select < 4 ? 0xFFu : 0xFFFFu) << shift;
  const uint32_t top = select < 4 ? 0x80u : 0x8000u;
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint32_t value = wave.result[0][lane];
    uint32_t placed = value << shift & field;
    if (sdwa.dst_unused == 1 && (value & top))
      placed |= ~uint32_t{0} << shift & ~field;  // sign-extend upward
    if (sdwa.dst_unused == 2) placed |= old[lane] & ~field;
    wave.result[0][lane] = placed;
  }
}

}  // namespace

void write_lanes(Wave& wave, uint32_t dst, unsigned rows, uint64_t mask) {
  uint32_t* to = destination(wave, dst);
  for (unsigned row = 0; row < rows; ++row, to += kLanes) {
    const uint32_t* from = wave.result[row];
    for (int lane = 0; lane < kLanes; ++lane) to[lane] = (mask >> lane & 1) ? from[lane] : to[lane];
  }
}

void finish_result(Wave& wave, const Step& step) {
  const StepDetail& detail = wave.group->program->detail(step);
  uint64_t mask = wave.exec();
  if (step.finish) {
    const Instruction& instruction = wave.group->program->instruction(step);
    const uint32_t* old = destination(wave, step.dst);
    if (step.finish & (kClamp | kOutputScale)) scale_and_clamp(wave, instruction, detail);
    if (step.finish & kHalf) {
      const bool high = instruction.op_sel & 8;
      for (int lane = 0; lane < kLanes; ++lane) {
        const uint32_t value = wave.result[0][lane] & 0xFFFF;
        wave.result[0][lane] = high ? (old[lane] & 0xFFFF) | value << 16 : (old[lane] & 0xFFFF0000) | value;
      }
    }
    if (step.finish & kSdwa) place_sdwa(wave, instruction.sdwa, old);
    if (step.finish & kDpp) mask &= wave.lane_mask;
  }
  write_lanes(wave, step.dst, detail.result_bits == 64 ? 2 : detail.result_bits == 128 ? 4 : 1, mask);
}

namespace {

// Instructions whose results the integer clamp leaves as they are: comparisons, and what saturates or selects
// anyway.
void accept_idle_clamps(HandlerTable& table) {
  for (size_t i = 1; i < static_cast<size_t>(Op::kCount); ++i) {
    const std::string_view name = op_info(static_cast<Op>(i)).name;
    if (name.substr(0, 5) == "v_cmp") table.saturating[i] = table.plain[i];
  }
  for (const Op op : {
           Op::V_CVT_I32_F64,        Op::V_CVT_U32_F32,        Op::V_CVT_I32_F32,
           Op::V_CVT_RPI_I32_F32,    Op::V_CVT_FLR_I32_F32,    Op::V_CVT_U32_F64,
           Op::V_CVT_U16_F16,        Op::V_CVT_I16_F16,        Op::V_FREXP_EXP_I32_F64,
           Op::V_FREXP_EXP_I32_F32,  Op::V_FREXP_EXP_I16_F16,  Op::V_MIN3_I16,
           Op::V_MIN3_U16,           Op::V_MAX3_I16,           Op::V_MAX3_U16,
           Op::V_MED3_I16,           Op::V_MED3_U16,           Op::V_CVT_PKNORM_I16_F32,
           Op::V_CVT_PKNORM_U16_F32, Op::V_CVT_PKNORM_I16_F16, Op::V_CVT_PKNORM_U16_F16,
           Op::V_CVT_NORM_I16_F16,   Op::V_CVT_NORM_U16_F16,
       })
    table.saturating[static_cast<size_t>(op)] = table[op];
}

}  // namespace

void install_vector(HandlerTable& table) {
  install_vector_float(table);
  install_vector_integer(table);
  install_vector_convert(table);
  install_vector_compare(table);
  install_vector_packed(table);
  install_vector_small_float(table);
  install_vector_transcendental(table);
  accept_idle_clamps(table);
}

}  // namespace gfx942
