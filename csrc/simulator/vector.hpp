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

// float64 arithmetic runs under MODE's own fields for it.
class DoublePrecisionMode {
 public:
  explicit DoublePrecisionMode(const Wave& wave)
      : restore_(wave.host_mode), active_(wave.host_mode != wave.host_mode_f64) {
#if defined(__x86_64__)
    if (active_) _mm_setcsr(wave.host_mode_f64);
#endif
  }
  ~DoublePrecisionMode() {
#if defined(__x86_64__)
    if (active_) _mm_setcsr(restore_);
#endif
  }
  DoublePrecisionMode(const DoublePrecisionMode&) = delete;

 private:
  uint32_t restore_;
  bool active_;
};

void install_vector_float(HandlerTable& table);
void install_vector_integer(HandlerTable& table);
void install_vector_convert(HandlerTable& table);
void install_vector_compare(HandlerTable& table);
void install_vector_packed(HandlerTable& table);
void install_vector_transcendental(HandlerTable& table);

}  // namespace gfx942
