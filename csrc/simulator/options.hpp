// Settings of the simulated device, from gfx942sim_set_option or the environment.
#pragma once

#include <string>

#include "machine.hpp"

namespace gfx942 {

struct Options {
  unsigned threads;  // host threads that execute workgroups
  Checks checks;
  Mutation mutation;
  Delivery delivery = Delivery::kEarly;
  uint64_t delivery_seed = 0;     // of Delivery::kRandom
  bool collect_findings = false;  // under observation a finding is listed and execution goes on
  MatrixArithmetic matrix = MatrixArithmetic::kExact;
  enum class Progress { kTerminal, kOff, kOn } progress = Progress::kTerminal;  // kTerminal: if stderr is one
  int compute_units = 304;                                                      // of an MI300X
  int xcds = 8;
  bool execute = true;  // false: launches are validated and counted, and execute nothing
};

// A copy of the current settings. The first call reads LITEATTENTION_ROCM_SIM_{THREADS, CHECK, MATRIX,
// PROGRESS, COMPUTE_UNITS, XCDS}; throws std::invalid_argument as long as one of them is malformed.
Options options();

// "none" or "KIND:ADDRESS[:AMOUNT]", KIND one of skip, vmcnt, lgkmcnt, m0, records, exec. Throws
// std::invalid_argument.
Mutation parse_mutation(const std::string& value);

// Throws std::invalid_argument that names the option, the value and what is allowed.
void set_option(const std::string& name, const std::string& value);

}  // namespace gfx942
