// Running a kernel: validation, dispatch over host threads, progress, interruption, the first failure.
#pragma once

#include <memory>

#include "kernel_arguments.hpp"

namespace gfx942 {

// Runs every workgroup and returns when all have ended. Throws HipError. Safe to call from several threads
// at once: launches share the worker threads.
// When workgroups fail, the one with the lowest index (x fastest) is reported, whatever the thread count.
void launch_kernel(const Function& function, const LaunchRequest& request);

// `callback` is called about every 100 ms by the thread that launches; nonzero ends the launch. nullptr:
// none.
void set_interrupt_callback(int (*callback)());

}  // namespace gfx942
