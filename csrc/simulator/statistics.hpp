// What ran: counters per kernel name and calls per HIP function, since the start or the last reset.
#pragma once

#include <atomic>
#include <string>

#include "machine.hpp"

namespace gfx942 {

// A launch that ended, or failed after executing part of its workgroups.
void record_launch(const std::string& kernel, const Counters& counters, double seconds);

// One per HIP function, with static storage.
class CallCounter {
 public:
  explicit CallCounter(const char* function);
  void count() { calls_.fetch_add(1, std::memory_order_relaxed); }

 private:
  friend std::string statistics_json();
  friend void reset_statistics();
  const char* function_;
  std::atomic<uint64_t> calls_{0};
  CallCounter* next_;
};

std::string statistics_json();
void reset_statistics();

// `text` as a JSON string, quotes included; bytes that are not UTF-8 are replaced by U+FFFD.
std::string json_string(const std::string& text);

// The mnemonics that the decoder knows: [{"name", "encodings", "implemented"}].
std::string coverage_json();

// Kernels and instructions of a code object. Addresses are those of the ELF file.
// Throws HipError.
std::string disassemble_json(const uint8_t* code_object, uint64_t bytes);

}  // namespace gfx942
