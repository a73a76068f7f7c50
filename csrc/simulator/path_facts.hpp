// What the branches of a path tell about scalar registers: which of them are zero, and which hold the same
// value. A later branch on the same condition then has one way only.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include "program.hpp"
#include "traits.hpp"

namespace gfx942 {

class PathFacts {
 public:
  // Whether a conditional branch is taken, where that is known.
  std::optional<bool> taken(const Instruction& branch) const;
  // Behind the branch, on the way that `taken` names.
  void learn(const Instruction& branch, bool taken);
  // Behind any other instruction.
  void pass(const Instruction& instruction, const InstructionTraits& traits);
  bool operator<(const PathFacts& other) const {
    return zero_ != other.zero_ ? zero_ < other.zero_ : equal_ < other.equal_;
  }

 private:
  void forget(unsigned first, unsigned count);
  void set(unsigned condition, bool is_zero);
  std::optional<bool> is_zero(unsigned condition) const;

  // A condition is the first register of a pair, or SCC.
  std::set<std::pair<unsigned, bool>> zero_;       // and whether it is zero
  std::set<std::pair<unsigned, unsigned>> equal_;  // pairs with the same value, both ways round
};

}  // namespace gfx942
