#include "vector.hpp"

#include <cstring>

namespace gfx942 {

namespace {

float scaled(float value, unsigned omod) {
  switch (omod) {
  case 1: return value * 2;
  case 2: return value * 4;
  case 3: return value / 2;
  default: return value;
  }
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

// omod on a half is exact but for underflow, where it rounds to even as the multiplication would.
uint32_t scaled_half(uint32_t half, unsigned omod) {
  const float value = scaled(half_to_float(half), omod);
  if (value != value || omod == 0) return half;
  const float magnitude = std::fabs(value);
  uint32_t bits;
  if (magnitude >= 65520.0f) {
    bits = 0x7C00;
  } else if (magnitude < 0x1p-14f) {
    bits = static_cast<uint32_t>(std::nearbyint(magnitude * 0x1p24f));
  } else {
    const int exponent = std::ilogb(magnitude);
    bits = static_cast<uint32_t>((exponent + 15) << 10) +
           static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, 10 - exponent))) - 0x400;
  }
  return bits | (half & 0x8000);
}

void scale_and_clamp(Wave& wave, const Instruction& instruction, const StepDetail& detail) {
  const bool dx10 = wave.mode.dx10_clamp();
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
      if (instruction.omod) value = instruction.omod == 3 ? value / 2 : value * (2 * instruction.omod);
      if (instruction.clamp) value = clamped(value, dx10);
      std::memcpy(low + lane, &value, 4);
      std::memcpy(high + lane, reinterpret_cast<char*>(&value) + 4, 4);
    } else if (detail.result_bits == 32) {
      float value;
      std::memcpy(&value, low + lane, 4);
      value = scaled(value, instruction.omod);
      if (instruction.clamp) value = clamped(value, dx10);
      std::memcpy(low + lane, &value, 4);
    } else if (detail.result_packed) {
      low[lane] = clamped_half(low[lane] & 0xFFFF, dx10) | clamped_half(low[lane] >> 16, dx10) << 16;
    } else {
      uint32_t value = scaled_half(low[lane] & 0xFFFF, instruction.omod);
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

void install_vector(HandlerTable& table) {
  install_vector_float(table);
  install_vector_integer(table);
  install_vector_convert(table);
  install_vector_compare(table);
  install_vector_packed(table);
  install_vector_small_float(table);
  install_vector_transcendental(table);
}

}  // namespace gfx942
