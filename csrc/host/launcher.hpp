// The launches of one call: its stream and what errors say.
#pragma once

#include "host/forward.hpp"
#include "host/hip.hpp"

namespace liteattention_rocm {

struct Launcher {
  const HipLibrary& hip;
  hipStream_t stream;

  // Arguments go by value. Throws HipError with the launch's text.
  template <typename Arguments>
  void operator()(hipFunction_t function, const char* kernel, const Launch& launch, int threads,
                  Arguments& arguments) const {
    size_t bytes = sizeof arguments;
    void* extra[] = {HIP_LAUNCH_PARAM_BUFFER_POINTER, &arguments, HIP_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     HIP_LAUNCH_PARAM_END};
    if (const hipError_t error =
            hip.module_launch_kernel(function, launch.grid[0], launch.grid[1], launch.grid[2], threads, 1, 1,
                                     0, stream, nullptr, extra))
      hip.fail(error, launch_text(kernel, launch));
  }
};

}  // namespace liteattention_rocm
