// State of one wave and of the workgroup it belongs to.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "checks.hpp"
#include "machine.hpp"
#include "program.hpp"

namespace gfx942 {

struct Workgroup;

// Indices in the scalar register file.
constexpr unsigned kFlatScratch = 102, kVcc = 106, kTrapTemporaries = 108, kM0 = 124, kExec = 126;

// Flat addresses at or above these, within 4 GiB, are LDS and the lane's private segment.
constexpr uint64_t kSharedAperture = 0x0100000000000000, kPrivateAperture = 0x0200000000000000;

// What registers and LDS hold before anything is written to them: a signalling-NaN-free pattern that is
// NaN as float32 and as its upper bf16 half, so that a use of it shows up in results.
constexpr uint32_t kPoison = 0x7FC0DEAD;

// Fields of the MODE hardware register.
struct Mode {
  uint32_t bits = 0;
  unsigned round_f32() const { return bits & 3; }
  unsigned round_f16_f64() const { return bits >> 2 & 3; }
  unsigned denormals_f32() const { return bits >> 4 & 3; }
  unsigned denormals_f16_f64() const { return bits >> 6 & 3; }
  bool dx10_clamp() const { return bits >> 8 & 1; }
  bool ieee() const { return bits >> 9 & 1; }
  bool small_overflow_clamps() const { return bits >> 23 & 1; }  // FP16_OVFL
};

// kIndexing: running between s_set_gpr_idx_on and s_set_gpr_idx_off.
enum class WaveStatus : uint8_t { kRunning, kIndexing, kAtBarrier, kEnded };

struct alignas(64) Wave {
  uint32_t vector[512][kLanes];    // VGPRs, then AGPRs
  uint32_t operand[3][2][kLanes];  // sources after broadcast, modifiers, SDWA or DPP
  uint32_t result[4][kLanes];      // a result on its way through output modifiers and EXEC
  union {
    uint32_t scalar[128];
    uint64_t scalar_pair[64];
  };
  uint64_t special[4];  // scalar sources that are no register: SCC, VCCZ, EXECZ, apertures
  const Step* next;     // the instruction after the one that executes
  uint32_t scc;
  Mode mode;
  uint32_t host_mode;      // MXCSR value for float32 arithmetic under `mode`
  uint32_t host_mode_f64;  // and for float16 and float64
  uint64_t time;           // wait states since the wave began
  uint64_t lane_mask;      // lanes that a DPP operand lets the result reach
  WaveStatus status;
  uint32_t index;  // in the workgroup
  uint32_t trap_status;
  Workgroup* group;
  std::array<uint64_t, 10> executed;  // instructions by category
  uint8_t* scratch;                   // private segments, lane after lane
  WaveChecks checks;
  struct WaveObservation* observation;  // null: not observed

  uint64_t exec() const { return scalar_pair[kExec / 2]; }
  uint64_t vcc() const { return scalar_pair[kVcc / 2]; }
  void set_exec(uint64_t mask) { scalar_pair[kExec / 2] = mask; }
  uint64_t scalar64(unsigned index) const {
    uint64_t value;
    std::memcpy(&value, scalar + index, 8);
    return value;
  }
};

// Byte offsets within a Wave, as pre-decoded operands use them.
constexpr uint32_t vector_offset(unsigned index) {
  return index * kLanes * 4;
}
constexpr uint32_t operand_offset(unsigned slot) {
  return static_cast<uint32_t>(offsetof(Wave, operand)) + slot * 2 * kLanes * 4;
}
constexpr uint32_t scalar_offset(unsigned index) {
  return static_cast<uint32_t>(offsetof(Wave, scalar)) + index * 4;
}
constexpr uint32_t special_offset(unsigned slot) {
  return static_cast<uint32_t>(offsetof(Wave, special)) + slot * 8;
}

// A pre-decoded source is an offset within the Wave, or the address of a constant plus kConstantSource. The
// sum with this base wraps to the address. (An address alone says nothing: where an executable is not
// position-independent, the heap lies below 2^32.)
inline const uint32_t* source(const Wave& wave, uint64_t operand) {
  const uint64_t base = operand >> 63 ? kConstantSource : reinterpret_cast<uint64_t>(&wave);
  return reinterpret_cast<const uint32_t*>(base + operand);
}
inline uint32_t* destination(Wave& wave, uint32_t offset) {
  return reinterpret_cast<uint32_t*>(reinterpret_cast<char*>(&wave) + offset);
}
inline uint64_t source64(const Wave& wave, uint64_t operand) {
  uint64_t value;
  std::memcpy(&value, source(wave, operand), 8);
  return value;
}
inline void write64(Wave& wave, uint32_t offset, uint64_t value) {
  std::memcpy(destination(wave, offset), &value, 8);
}

struct Workgroup {
  const Launch* launch = nullptr;
  const Program* program = nullptr;
  std::array<uint32_t, 3> id{};
  std::vector<uint8_t> lds;  // allocated bytes, rounded up to a dword
  uint64_t lds_bytes = 0;
  uint64_t scratch_bytes = 0;      // private segment of one lane
  const Region* region = nullptr;  // the region of the latest access
  uint64_t bytes_loaded = 0, bytes_stored = 0;
  uint64_t realtime = 0;
  struct GroupObservation* observation = nullptr;  // null: not observed
};

// The host's MXCSR value for a rounding and a denormal field of MODE.
uint32_t host_floating_point_mode(unsigned round, unsigned denormals);
// Recomputes what depends on wave.mode and applies it to the executing thread.
void apply_mode(Wave& wave);

// Ends the launch. `reason` is completed with kernel, workgroup, wave, instruction and its address.
[[noreturn]] void fault(const Wave& wave, const Step& step, SimulatorError::Kind kind,
                        const std::string& reason);
// "v_add_f32_e32 v1, v2, v3 at 0x1a40"
std::string describe(const Wave& wave, const Step& step);
std::string hexadecimal(uint64_t value);

}  // namespace gfx942
