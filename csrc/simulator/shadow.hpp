// Which contents of registers, LDS, private segments and memory have been written: shadow state, carried
// through arithmetic, that tells when something never written reaches a store, an address, a branch or EXEC.
//
// A lane of a vector register, a bit of an SGPR and a byte of LDS or memory are either defined or not. A
// result is defined where all its operands are; an instruction that writes a part of a register defines the
// whole.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "access.hpp"

namespace gfx942 {

struct GroupShadow {
  std::vector<bool> lds;  // per byte

  void reset(size_t lds_bytes) { lds.assign(lds_bytes, false); }
};

class WaveShadow {
 public:
  // As a launch leaves a wave: `scalars` SGPRs, flat_scratch, EXEC and v0 are written; nothing of its private
  // segments is.
  void reset(unsigned scalars, size_t scratch_bytes);
  // Before the instruction executes: throws when it would store, address, branch or set EXEC by something
  // never written.
  void check(Wave& wave, const Issued& now, const Accesses& accesses) const;
  // Before the instruction executes: what its results will be.
  void propagate(Wave& wave, const Issued& now, const Accesses& accesses, GroupShadow& group);

 private:
  uint64_t lanes_of(const Operand& operand, unsigned row) const;
  bool scalar_defined(const Operand& operand) const;
  uint64_t scalar_bits(const Operand& operand) const;
  void define_scalar(const Operand& operand, uint64_t bits);
  void define_lane(const Operand& operand, unsigned row, int lane, bool defined);
  // Lanes in which what a register of the result takes from a source is defined.
  uint64_t source_lanes(const Issued& now, unsigned source, unsigned result_row) const;
  uint64_t moved_by_dpp(const Wave& wave, const Dpp& dpp, uint64_t lanes, uint64_t& written) const;
  void vector_alu(const Wave& wave, const Issued& now);
  void matrix(const Instruction& instruction);
  uint64_t decided_bits(const Wave& wave, const Instruction& instruction) const;
  void scalar_alu(const Wave& wave, const Issued& now);
  // Accesses to bytes of LDS or of private segments.
  void followed_access(const Issued& now, const std::vector<LaneRange>& ranges, Access kind,
                       std::vector<bool>& bytes);
  void memory_access(const Wave& wave, const Issued& now, const Accesses& accesses);
  void lds_transfer(const Accesses& accesses, GroupShadow& group);
  uint64_t permuted_lanes(const Wave& wave, const Issued& now) const;
  void report(const Wave& wave, const Step& step, const std::string& what, const char* reaches,
              int lane = -1) const;

  std::array<uint64_t, 512> vector_{};  // defined lanes
  std::array<uint32_t, 128> scalar_{};  // defined bits
  bool scc_ = false;
  std::vector<bool> scratch_;             // defined bytes, lane after lane
  const Step* unwritten_load_ = nullptr;  // the latest that met unwritten memory
  uint64_t unwritten_byte_ = 0;
};

}  // namespace gfx942
