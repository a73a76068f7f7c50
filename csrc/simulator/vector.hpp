// What the element-wise vector kernels share across files.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cmath>
#include <cstdint>
#include <limits>

#include "program.hpp"
#include "registers.hpp"

namespace gfx942 {

// Applies step.finish to wave.result and writes the lanes of EXEC.
void finish_result(Wave& wave, const Step& step);
// Writes `rows` rows of wave.result to vector registers from `dst` on, in the lanes of `mask`.
void write_lanes(Wave& wave, uint32_t dst, unsigned rows, uint64_t mask);

// Runs the host under another MXCSR value than wave.host_mode.
class HostMode {
 public:
  HostMode(const Wave& wave, uint32_t mode) : restore_(wave.host_mode), active_(wave.host_mode != mode) {
#if defined(__x86_64__)
    if (active_) _mm_setcsr(mode);
#endif
  }
  ~HostMode() {
#if defined(__x86_64__)
    if (active_) _mm_setcsr(restore_);
#endif
  }
  HostMode(const HostMode&) = delete;

 private:
  uint32_t restore_;
  bool active_;
};
// float64 arithmetic has fields of its own in MODE.
struct DoublePrecisionMode : HostMode {
  explicit DoublePrecisionMode(const Wave& wave) : HostMode(wave, wave.host_mode_f64) {}
};
// The matrix core keeps subnormals and rounds to nearest even whatever MODE says.
struct MatrixMode : HostMode {
  explicit MatrixMode(const Wave& wave) : HostMode(wave, host_floating_point_mode(0, 3)) {}
};

void install_vector_float(HandlerTable& table);
void install_vector_integer(HandlerTable& table);
void install_vector_convert(HandlerTable& table);
void install_vector_compare(HandlerTable& table);
void install_vector_packed(HandlerTable& table);
void install_vector_small_float(HandlerTable& table);
void install_vector_transcendental(HandlerTable& table);

}  // namespace gfx942
