// Recording launches for the clock: which workgroups the calling thread's next launches execute and trace.
#pragma once

#include <cstdint>
#include <memory>
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
};

// The recording that the calling thread has begun and not ended, or nullptr.
Recording* current_recording();

// Executes the recording's workgroups of a launch on the calling thread. Throws SimulatorError, and HipError
// when the grid lacks one of them.
void record_launch_trace(Recording& recording, const Function& function, const Launch& launch);

}  // namespace gfx942
