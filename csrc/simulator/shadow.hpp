// Which register and LDS contents have been written: shadow state, carried through arithmetic, that tells
// when something never written reaches a store, an address, a branch or EXEC.
//
// A lane of a vector register, a bit of an SGPR and a byte of LDS are either defined or not. A result is
// defined where all its operands are; an instruction that writes a part of a register defines the whole.
// Memory counts as defined.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <string_view>
#include <vector>

#include "access.hpp"

namespace gfx942 {

struct GroupShadow {
  std::vector<bool> lds;  // per byte

  void reset(size_t lds_bytes) { lds.assign(lds_bytes, false); }
};

class WaveShadow {
 public:
  // As a launch leaves a wave: `scalars` SGPRs, flat_scratch, EXEC and v0 are written.
  void reset(unsigned scalars);
  // Before the instruction executes: throws when it would store, address, branch or set EXEC by something never
  // written.
  void check(Wave& wave, const Issued& now, const Accesses& accesses) const;
  // Before the instruction executes: what its results will be.
  void propagate(Wave& wave, const Issued& now, const Accesses& accesses, GroupShadow& group);

 private:
  uint64_t lanes_of(const Wave& wave, const Operand& operand, unsigned row) const;
  bool scalar_defined(const Operand& operand) const;
  uint64_t scalar_bits(const Operand& operand) const;
  void define_scalar(const Operand& operand, uint64_t bits);
  void vector_alu(Wave& wave, const Issued& now);
  void matrix(const Wave& wave, const Instruction& instruction);
  uint64_t decided_bits(const Wave& wave, std::string_view name, const Operand& a, const Operand& b) const;
  void scalar_alu(const Wave& wave, const Issued& now);
  void lds_access(const Wave& wave, const Issued& now, const Accesses& accesses, GroupShadow& group);
  uint64_t moved_lanes(const Wave& wave, const Instruction& instruction) const;

  std::array<uint64_t, 512> vector_{};  // defined lanes
  std::array<uint32_t, 128> scalar_{};  // defined bits
  bool scc_ = false;
};

}  // namespace gfx942
