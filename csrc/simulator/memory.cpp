#include "memory.hpp"

#include <cmath>

namespace gfx942 {

void bad_address(const Wave& wave, const Step& step, uint64_t address, uint64_t bytes, int lane, bool store) {
  const Region* near = nullptr;
  for (const Region& region : wave.group->launch->memory->regions()) {
    if (address + bytes > region.begin && address < region.end) near = &region;
  }
  std::string reason = store ? "store to " : "load from ";
  reason += hexadecimal(address) + " (" + std::to_string(bytes) + " bytes)";
  if (lane >= 0) reason += " by lane " + std::to_string(lane);
  if (!near)
    reason += ": no registered memory there";
  else if (store && !near->writable && address >= near->begin && address + bytes <= near->end)
    reason += ": \"" + near->label + "\" is read-only";
  else
    reason += ": only partly inside \"" + near->label + "\" [" + hexadecimal(near->begin) + ", " +
              hexadecimal(near->end) + ")";
  fault(wave, step, SimulatorError::Kind::kBadAddress, reason);
}

void find_region(Wave& wave, const Step& step, uint64_t address, uint64_t bytes, int lane, bool store) {
  const Region* region = wave.group->launch->memory->find(address, bytes);
  if (!region || (store && !region->writable)) bad_address(wave, step, address, bytes, lane, store);
  wave.group->region = region;
}

void require_atomic(Wave& wave, const Step& step, uint64_t address, unsigned bytes, int lane) {
  if (address % bytes)
    fault(wave, step, SimulatorError::Kind::kBadAddress,
          "atomic operation on " + hexadecimal(address) + " by lane " + std::to_string(lane) +
              ", which is no multiple of " + std::to_string(bytes));
  require_writable(wave, step, address, bytes, lane);
}

namespace atomic {

namespace {

float half_value(uint32_t half) {
  const uint32_t magnitude = half & 0x7FFF;
  float value;
  if (magnitude >= 0x7C00)
    value = magnitude > 0x7C00 ? std::nanf("") : HUGE_VALF;
  else if (magnitude < 0x400)
    value = std::ldexp(static_cast<float>(magnitude), -24);
  else
    value =
        std::ldexp(static_cast<float>((magnitude & 0x3FF) | 0x400), static_cast<int>(magnitude >> 10) - 25);
  return half & 0x8000 ? -value : value;
}
uint32_t round_half(float value) {
  const uint32_t sign = std::signbit(value) ? 0x8000 : 0;
  const float magnitude = std::fabs(value);
  if (value != value) return 0x7E00;
  if (magnitude >= 65520.0f) return sign | 0x7C00;
  if (magnitude < 0x1p-14f) return sign | static_cast<uint32_t>(std::nearbyint(magnitude * 0x1p24f));
  const int exponent = std::ilogb(magnitude);
  const auto significand = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  return sign | ((static_cast<uint32_t>(exponent + 14) << 10) + significand);
}
float brain_value(uint32_t half) {
  const uint32_t bits = half << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
uint32_t round_brain(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (value != value) return bits >> 16 | 0x40;
  return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

}  // namespace

uint32_t AddHalfPair::operator()(uint32_t memory, uint32_t operand) const {
  return round_half(half_value(memory & 0xFFFF) + half_value(operand & 0xFFFF)) |
         round_half(half_value(memory >> 16) + half_value(operand >> 16)) << 16;
}
uint32_t AddBrainPair::operator()(uint32_t memory, uint32_t operand) const {
  return round_brain(brain_value(memory & 0xFFFF) + brain_value(operand & 0xFFFF)) |
         round_brain(brain_value(memory >> 16) + brain_value(operand >> 16)) << 16;
}

}  // namespace atomic
}  // namespace gfx942
