// The HIP runtime functions that a launch needs, resolved at run time from whichever library provides them.
#pragma once

#include <stdexcept>
#include <string>

#include "hip_abi.hpp"

namespace liteattention_rocm {

// A HIP function that failed. The message carries the error's name and, from the simulator, its diagnostic.
struct HipError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Function table of one HIP library. Immutable once opened, and never closed: launches may be in flight.
struct HipLibrary {
  std::string path;
  void* handle = nullptr;  // dlopen's, equal for equal libraries

  decltype(&::hipInit) init = nullptr;
  decltype(&::hipGetDevice) get_device = nullptr;
  decltype(&::hipSetDevice) set_device = nullptr;
  decltype(&::hipDeviceGetAttribute) device_get_attribute = nullptr;
  decltype(&::hipModuleLoadData) module_load_data = nullptr;
  decltype(&::hipModuleUnload) module_unload = nullptr;
  decltype(&::hipModuleGetFunction) module_get_function = nullptr;
  decltype(&::hipModuleLaunchKernel) module_launch_kernel = nullptr;
  decltype(&::hipStreamIsCapturing) stream_is_capturing = nullptr;
  decltype(&::hipGetErrorName) get_error_name = nullptr;
  decltype(&::hipGetErrorString) get_error_string = nullptr;
  decltype(&::hipGetLastError) get_last_error = nullptr;

  // Null in any library but the simulator.
  decltype(&::gfx942sim_last_error) simulator_last_error = nullptr;
  decltype(&::gfx942sim_set_interrupt_callback) simulator_set_interrupt_callback = nullptr;
  decltype(&::gfx942sim_register_memory) simulator_register_memory = nullptr;
  decltype(&::gfx942sim_unregister_memory) simulator_unregister_memory = nullptr;

  // Throws HipError unless `error` is hipSuccess, and takes the error out of the runtime's own record so that
  // nobody else reports it as theirs. `what` names the function and its object.
  void check(hipError_t error, const char* what) const {
    if (error != hipSuccess) fail(error, what);
  }
  [[noreturn]] void fail(hipError_t error, const std::string& what) const;
};

// Opens the library at `path`; "" is ROCm's: the copy that torch is linked with, else the first copy loaded
// in this process, else libamdhip64.so, .so.7, .so.6 by the loader's rules. Throws std::runtime_error naming
// the library or the function that is missing.
HipLibrary open_hip_library(const std::string& path);

// Makes `device` current for a scope and puts back what was current, errors included.
class CurrentDevice {
 public:
  CurrentDevice(const HipLibrary& hip, int device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  const HipLibrary& hip_;
  int previous_ = 0;
  bool changed_ = false;
};

// Lets simulated launches touch `bytes` bytes at `address` for a scope. Nothing for other libraries, and for
// 0 bytes.
class SimulatedAccess {
 public:
  SimulatedAccess(const HipLibrary& hip, uint64_t address, uint64_t bytes, const char* label, bool writable);
  ~SimulatedAccess();
  SimulatedAccess(const SimulatedAccess&) = delete;
  SimulatedAccess& operator=(const SimulatedAccess&) = delete;

 private:
  const HipLibrary& hip_;
  const void* registered_ = nullptr;
};

}  // namespace liteattention_rocm
