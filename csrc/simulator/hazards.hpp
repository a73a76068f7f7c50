// Wait states that two instructions need between them, beyond those of matrix results (checks.hpp): the rules
// of LLVM's GCNHazardRecognizer for gfx940.
#pragma once

#include <array>
#include <cstdint>

#include "program.hpp"

namespace gfx942 {

struct StateRequirement {
  unsigned states = 0;  // 0: none
  const char* reason = "";
};

// The most that any rule of this table asks for.
constexpr unsigned kMostHazardStates = 5;

// What `consumer` needs when it follows `producer`.
StateRequirement required_states(const Program& program, const Step& producer, const Step& consumer);
// As above, matrix rules included.
StateRequirement required_states_with_matrix(const Program& program, const Step& producer,
                                             const Step& consumer);
constexpr unsigned kMostMatrixStates = 19;

// The latest instructions of one wave that may make a later one wait.
class HazardHistory {
 public:
  void reset() { count_ = 0; }
  // Throws when `step` comes too early; then records it.
  void check_and_record(const struct Wave& wave, const Step& step);

 private:
  struct Entry {
    const Step* step;
    uint64_t time;
  };
  std::array<Entry, 8> entries_;
  unsigned count_ = 0;
};

}  // namespace gfx942
