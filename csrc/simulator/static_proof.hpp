// Proofs over a kernel's control-flow graph that a mutation changes nothing: on every path, executed or not,
// another wait covers what a deleted or weakened s_waitcnt covered, and every pair of instructions keeps the
// wait states that it needs.
#pragma once

#include <string>

#include "machine.hpp"

namespace gfx942 {

struct Proof {
  bool proven = false;
  std::string reason;  // what the proof rests on, or the first place where it fails
};

// Knows kSkip of s_waitcnt and s_nop, kVmcnt and kLgkmcnt.
Proof prove_equivalent(const Kernel& kernel, const Mutation& mutation);

// The same from a code object, as {"proven": bool, "reason": string}. Throws HipError.
std::string proof_json(const uint8_t* code_object, uint64_t bytes, const std::string& kernel,
                       const std::string& mutation);

}  // namespace gfx942
