// Recording launches for the clock: which workgroups the calling thread's next launches execute and trace.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "clock.hpp"
#include "kernel_arguments.hpp"

namespace gfx942 {

// A trace and the latest answer of the clock about it. One thread at a time.
struct Recording {
  std::vector<uint64_t> workgroups;  // to execute, x fastest
  LaunchTrace trace;
  std::string answer;
  // Where set, launches pass time on a device whose CUs run at `core_ghz`: kernels read it by s_memtime and
  // s_memrealtime, events are recorded at it.
  std::optional<ClockParameters> timed;
  double core_ghz = 0;
  uint64_t core_clocks = 0;  // since the recording began
  double nanoseconds() const { return static_cast<double>(core_clocks) / core_ghz; }
};

// The recording that the calling thread has begun and not ended, or nullptr.
Recording* current_recording();

// Executes the recording's workgroups of a launch on the calling thread. Throws SimulatorError, and HipError
// when the grid lacks one of them. A timed recording takes those that the grid has and one CU holds, and
// executes them twice: the clock needs to know what they do before it can say what they read.
void record_launch_trace(Recording& recording, const Function& function, const Launch& launch);

}  // namespace gfx942
