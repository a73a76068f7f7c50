// What a HIP function of the simulator fails with: a HIP error code and a full sentence.
#pragma once

#include <stdexcept>
#include <string>

// The declarations are what the library exports; everything else is hidden.
#pragma GCC visibility push(default)
#include "../hip_abi.hpp"
#pragma GCC visibility pop

namespace gfx942 {

struct HipError : std::runtime_error {
  HipError(hipError_t code, const std::string& message) : std::runtime_error(message), code(code) {}
  hipError_t code;
};

// 0x-prefixed hexadecimal, for messages.
std::string hex(uint64_t number);

}  // namespace gfx942
