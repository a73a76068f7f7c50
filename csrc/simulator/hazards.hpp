// Wait states that two instructions need between them, beyond those of matrix results (checks.hpp): the rules
// of LLVM's GCNHazardRecognizer for gfx940.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "program.hpp"

namespace gfx942 {

struct StateRequirement {
  unsigned states = 0;  // 0: none
  const char* reason = "";
  // The register that the two have in common, where the rule is about one.
  int vector = -1, scalar = -1;
};

// The most that any rule of this table asks for.
constexpr unsigned kMostHazardStates = 5;

// Kernels that AMD ships for the device break a few of LLVM's rules: those are contested.
enum class Rules : uint8_t { kAll, kUncontested };

// What `consumer` needs when it follows `producer`.
StateRequirement required_states(const Program& program, const Step& producer, const Step& consumer,
                                 Rules rules);
// As above, by all rules and those of matrix results.
StateRequirement required_states_with_matrix(const Program& program, const Step& producer,
                                             const Step& consumer);
constexpr unsigned kMostMatrixStates = 19;

// The steps of a program, in its order, that lie closer to one another than an uncontested rule allows. Only
// these have to be watched in launches that are not observed.
std::vector<uint32_t> close_pairs(const Program& program, const std::vector<Step>& steps);

// The latest instructions of one wave that may make a later one wait.
class HazardHistory {
 public:
  void reset() { count_ = 0; }
  // Throws when `step` comes too early; then records it.
  void check_and_record(const struct Wave& wave, const Step& step, Rules rules);

 private:
  struct Entry {
    const Step* step;
    uint64_t time;
  };
  std::array<Entry, 8> entries_;
  unsigned count_ = 0;
};

}  // namespace gfx942
