// What every exported HIP function does around its body.
#pragma once

#include <new>

#include "hip_error.hpp"
#include "machine.hpp"
#include "statistics.hpp"

namespace gfx942 {

// Remembers this thread's failure for hipGetLastError and gfx942sim_last_error; returns `code`.
hipError_t record_failure(const char* function, hipError_t code, const char* message) noexcept;

const char* last_failure_message() noexcept;

// Throws HipError(hipErrorInvalidHandle) unless it is the default stream or one that was created here.
void check_stream(hipStream_t stream);

[[noreturn]] inline void refuse_value(const std::string& message) {
  throw HipError(hipErrorInvalidValue, message);
}

template <typename T>
void require_pointer(const T* pointer, const char* name) {
  if (!pointer) refuse_value(std::string(name) + " is null");
}

// Runs `body`, which throws on failure, and turns what it throws into a HIP error.
template <typename Body>
hipError_t guarded(const char* function, Body&& body) noexcept {
  try {
    body();
    return hipSuccess;
  } catch (const HipError& error) {
    return record_failure(function, error.code, error.what());
  } catch (const SimulatorError& error) {
    return record_failure(function, hipErrorInvalidImage, error.what());
  } catch (const std::invalid_argument& error) {
    return record_failure(function, hipErrorInvalidValue, error.what());
  } catch (const std::bad_alloc&) {
    return record_failure(function, hipErrorOutOfMemory, "host memory is exhausted");
  } catch (const std::exception& error) {
    return record_failure(function, hipErrorUnknown, error.what());
  }
}

}  // namespace gfx942

#define HIP_CALL(...)                                                                                        \
  static gfx942::CallCounter call_counter(__func__);                                                         \
  call_counter.count();                                                                                      \
  return gfx942::guarded(__func__, [&]() __VA_ARGS__)
