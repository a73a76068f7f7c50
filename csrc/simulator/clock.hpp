// A model of the time that one gfx942 compute unit takes for traced workgroups. One slot is 4 clocks: the
// turn of each SIMD to issue. What the model knows is in its parameters; timing_parameters.json gives each
// one's source.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "trace.hpp"

namespace gfx942 {

struct ClockParameters {
#define CLOCK_PARAMETERS(X)                                                                                  \
  X(valu_after_matrix_slots)   /* VALU issue after an MFMA: this + source bytes / 16, in slots */            \
  X(packed_after_matrix_slots) /* packed float32: the MFMA's passes + this */                                \
  X(matrix_bubble_slots)       /* slots that a wave skips after its own MFMA */                              \
  X(accumulator_slots)         /* dependent accumulator: the MFMA's passes + this */                         \
  X(transcendental_slots)      /* of the VALU port */                                                        \
  X(double_rate_slots)         /* of the VALU port, instructions on float64 and 32-bit products */           \
  X(barrier_slots)                                                                                           \
  X(branch_taken_slots)                                                                                      \
  X(branch_not_taken_slots)                                                                                  \
  X(fetch_straddle_slots)                                                                                    \
  X(fetch_bytes) /* window that an instruction may straddle */                                               \
  X(lds_bytes_per_clock)                                                                                     \
  X(lds_latency)                                                                                             \
  X(scalar_memory_latency)                                                                                   \
  X(l1_bytes_per_clock)                                                                                      \
  X(l1_latency)                                                                                              \
  X(l1_bytes)                                                                                                \
  X(l1_ways)                                                                                                 \
  X(l2_latency)                                                                                              \
  X(l2_bytes_per_clock) /* into one CU */                                                                    \
  X(hbm_latency)                                                                                             \
  X(l2_miss_interval)  /* every n-th line that this CU fetches first comes from HBM; 0: none */              \
  X(dispatch_interval) /* clocks between the starts of workgroups on one CU */
#define DECLARE(name) double name = 0;
  CLOCK_PARAMETERS(DECLARE)
#undef DECLARE
  // Of the timeline that is kept: workgroup 0 between these clocks.
  double timeline_begin = 0, timeline_end = 0;
  double residents = 0;  // the first so many recorded workgroups run; 0: all

  // From "name=value" lines. Throws std::invalid_argument when one is missing, unknown or no number.
  static ClockParameters parse(const std::string& text);
};

// Why a wave that could not issue in a slot could not.
enum class Stall : uint8_t {
  kIssued,
  kVectorMemoryWait,  // s_waitcnt vmcnt
  kLdsWait,           // s_waitcnt lgkmcnt
  kBarrier,
  kMatrixBusy,  // the matrix pipe works on another MFMA
  kVectorPort,  // another wave has the VALU and MFMA port, or a transcendental or packed instruction holds it
  kMemoryPort,
  kScalarPort,
  kDependency,
  kNop,
  kBranch,
  kFetch,
  kQueue,  // a counter is at its limit
  kCount
};
const char* stall_name(Stall stall);

struct TimelineEntry {
  uint32_t wave, instruction;
  uint64_t begin, end;  // clocks; [begin, issue) is the stall
  Stall stall;
  bool issued;
};

struct ClockResult {
  uint64_t clocks = 0;
  std::vector<uint64_t> workgroup_clocks;  // from its start to its last wave's end
  std::vector<uint64_t> issues;            // by instruction
  std::vector<std::array<uint32_t, static_cast<size_t>(Stall::kCount)>> stalls;  // slots by instruction
  std::array<uint64_t, 10> by_category{};                                        // wave instructions
  uint64_t matrix_slots = 0, vector_slots = 0;  // busy, summed over the SIMDs
  uint64_t lds_clocks = 0, lds_conflict_clocks = 0, l1_clocks = 0;
  uint64_t l1_accesses = 0, l1_lines = 0, l1_hits = 0, l1_misses = 0, hbm_lines = 0, stored_lines = 0;
  uint64_t loads = 0, stores = 0, flat = 0, branches = 0;
  std::array<uint64_t, 3> matrix_by_shape{};  // 16x16x16, 32x32x8, others
  std::vector<TimelineEntry> timeline;
  std::vector<std::vector<std::vector<uint64_t>>> stamps;  // clocks at which [workgroup][wave] read a clock
};

ClockResult run_clock(const LaunchTrace& trace, const ClockParameters& parameters);

std::string clock_json(const LaunchTrace& trace, const ClockResult& result);
std::string trace_json(const LaunchTrace& trace);

}  // namespace gfx942
