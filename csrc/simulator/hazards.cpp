#include "hazards.hpp"

#include <string>

#include "registers.hpp"
#include "traits.hpp"

namespace gfx942 {

namespace {

// What has to be common to producer and consumer for a rule to apply.
enum class Through {
  kNothing,
  kResult,      // a vector register that the one writes and the other reads
  kResultAny,   // ... reads or writes
  kDotResult,   // the same, but a dot product may add to the result of its own kind
  kStoreData,   // a vector register that the one stores and the other writes
  kScalar,      // an SGPR, VCC or EXEC that the one writes and the other names
  kScalarMask,  // the same, as a lane mask
  kScalarData,  // the same, as anything else
  kLane,        // the same, as the lane number
  kVcc,
  kSameMode,  // a hardware register
};

struct Rule {
  uint32_t producer, producer_not, consumer, consumer_not;  // Trait bits
  Through through;
  unsigned states;
  bool contested;  // broken by kernels that AMD ships for the device
  const char* reason;
};

constexpr Rule kRules[] = {
    {kWritesScalar, 0, kVectorMemoryOp | kReadsScalar, 0, Through::kScalar, 5, false,
     "vector memory reads an SGPR that a VALU instruction wrote"},
    {kWritesExec, 0, kVectorMemoryOp, 0, Through::kNothing, 5, false,
     "vector memory follows a VALU write of EXEC"},
    {kWritesVector, 0, kDppOp, 0, Through::kResult, 2, false,
     "a DPP source was written by a VALU instruction"},
    {kWritesExec, 0, kDppOp, 0, Through::kNothing, 5, false, "DPP follows a VALU write of EXEC"},
    {kWritesScalar, 0, kLaneSelect, 0, Through::kLane, 4, false,
     "the lane number was written by a VALU instruction"},
    {kWritesScalar, 0, kDivFmas, 0, Through::kVcc, 4, false,
     "v_div_fmas reads a VCC that a VALU instruction wrote"},
    {kSetsMode, 0, kGetsMode, 0, Through::kSameMode, 2, false,
     "s_getreg follows s_setreg of the same register"},
    {kSetsMode, 0, kSetsMode, 0, Through::kSameMode, 2, false,
     "s_setreg follows s_setreg of the same register"},
    {kTranscendentalOp, 0, kVectorAlu, kTranscendentalOp, Through::kResult, 1, false,
     "a VALU instruction reads the result of a transcendental one"},
    {kPartialResult, 0, kVectorAlu, 0, Through::kResultAny, 1, false,
     "a VALU instruction touches a result placed in part of a register"},
    {kWritesScalar, 0, kVectorAlu | kReadsScalar, 0, Through::kScalarData, 2, false,
     "a VALU instruction reads an SGPR or VCC that another wrote"},
    {kWritesScalar, 0, kVectorAlu | kReadsScalar, 0, Through::kScalarMask, 2, true,
     "a VALU instruction reads a lane mask in an SGPR or VCC that another wrote"},
    {kWritesVector, 0, kReadsLane, 0, Through::kResult, 1, false,
     "the lane read was written by a VALU instruction"},
    {kWritesExec, 0, kReadsLane, 0, Through::kNothing, 4, false, "a lane is read after a VALU write of EXEC"},
    {kWritesExec, 0, kWriteLane, 0, Through::kNothing, 4, false,
     "a lane is written after a VALU write of EXEC"},
    {kWideStore, 0, kWritesVector, 0, Through::kStoreData, 2, false,
     "a VALU instruction overwrites the data of a wide store"},
    {kWritesM0, 0, kUsesM0, kLdsTransfer, Through::kNothing, 1, false,
     "M0 was written by the instruction before"},
    {kWritesM0, 0, kLdsTransfer, 0, Through::kNothing, 1, true,
     "M0 was written by the instruction before a transfer into LDS"},
    {kWritesExec, 0, kMatrixOp, 0, Through::kNothing, 4, false,
     "a matrix instruction follows a VALU write of EXEC"},
    {kWritesVector, kDotOp, kMatrixOp, 0, Through::kResult, 2, false,
     "a matrix instruction reads what a VALU instruction wrote"},
    {kDotOp, 0, kVectorAlu, 0, Through::kDotResult, 3, false,
     "a VALU instruction touches the result of a dot product"},
    {kDotOp, 0, kVectorMemoryOp, 0, Through::kResultAny, 3, false,
     "vector memory touches the result of a dot product"},
    {kDotOp, 0, kLdsOp, 0, Through::kResultAny, 3, false,
     "an LDS access touches the result of a dot product"},
    {kDoubleMatrix, 0, kFma64, 0, Through::kNothing, 2, false,
     "a float64 FMA follows a float64 matrix instruction"},
};

constexpr uint32_t all_producers() {
  uint32_t bits = 0;
  for (const Rule& rule : kRules) bits |= rule.producer;
  return bits;
}

// The SGPRs that an instruction reads as a lane mask: a selection or a carry.
std::bitset<kScalarRegisters> lane_mask(const Instruction& now, const InstructionTraits& used) {
  std::bitset<kScalarRegisters> mask;
  const Operand& third = now.src[2];
  if (used.is & kReadsMask && third.kind == Operand::Kind::kScalar)
    for (unsigned s = third.index; s < third.index + unsigned{third.dwords} && s < kScalarRegisters; ++s)
      mask.set(s);
  return mask;
}

// Whether the rule applies to the two, and by which register.
bool applies(const Rule& rule, const Instruction& before, const InstructionTraits& made,
             const Instruction& now, const InstructionTraits& used, StateRequirement& needed) {
  const auto vector = [&needed](const std::bitset<kVectorRegisters>& common) {
    if (common.any()) needed.vector = static_cast<int>(common._Find_first());
    return common.any();
  };
  const auto scalar = [&needed](const std::bitset<kScalarRegisters>& common) {
    if (common.any()) needed.scalar = static_cast<int>(common._Find_first());
    return common.any();
  };
  switch (rule.through) {
  case Through::kNothing: return true;
  case Through::kResult: return vector(made.vector_writes & used.vector_reads);
  case Through::kDotResult:
    if (before.op == now.op) {
      std::bitset<kVectorRegisters> factors;
      for (unsigned i = 0; i < 2; ++i)
        if (now.src[i].kind == Operand::Kind::kVector) factors.set(now.src[i].index);
      return vector(made.vector_writes & factors);
    }
    [[fallthrough]];
  case Through::kResultAny: return vector(made.vector_writes & (used.vector_reads | used.vector_writes));
  case Through::kStoreData: {
    const Operand& stored = before.src[2];
    const unsigned first = (stored.kind == Operand::Kind::kAccumulator ? 256u : 0u) + stored.index;
    std::bitset<kVectorRegisters> data;
    for (unsigned r = first; r < first + stored.dwords; ++r) data.set(r & 511);
    return vector(data & used.vector_writes);
  }
  case Through::kScalar: return scalar(made.scalar_writes & used.scalar_reads);
  case Through::kScalarMask: return scalar(made.scalar_writes & lane_mask(now, used));
  case Through::kScalarData: return scalar(made.scalar_writes & used.scalar_reads & ~lane_mask(now, used));
  case Through::kLane: {
    std::bitset<kScalarRegisters> lane;
    if (now.src[1].kind == Operand::Kind::kScalar) lane.set(now.src[1].index & 127);
    return scalar(made.scalar_writes & lane);
  }
  case Through::kVcc: {
    std::bitset<kScalarRegisters> vcc;
    return scalar(made.scalar_writes & vcc.set(kVcc).set(kVcc + 1));
  }
  case Through::kSameMode: return (before.offset & 63) == (now.offset & 63);
  }
  return false;
}

// "v3 of lane 0: ", "s8: " or nothing.
std::string common_register(const Wave& wave, const StateRequirement& needed) {
  if (needed.vector >= 0) return name_vector(wave, static_cast<unsigned>(needed.vector)) + ": ";
  return needed.scalar < 0 ? "" : name_scalar(static_cast<unsigned>(needed.scalar)) + ": ";
}

}  // namespace

StateRequirement required_states(const Program& program, const Step& producer, const Step& consumer,
                                 Rules rules) {
  const InstructionTraits &made = program.traits(producer), &used = program.traits(consumer);
  StateRequirement needed;
  for (const Rule& rule : kRules) {
    if ((made.is & rule.producer) != rule.producer || (made.is & rule.producer_not) ||
        (used.is & rule.consumer) != rule.consumer || (used.is & rule.consumer_not) ||
        rule.states <= needed.states || (rule.contested && rules == Rules::kUncontested))
      continue;
    StateRequirement found{rule.states, rule.reason};
    if (applies(rule, program.instruction(producer), made, program.instruction(consumer), used, found))
      needed = found;
  }
  return needed;
}

StateRequirement required_states_with_matrix(const Program& program, const Step& producer,
                                             const Step& consumer) {
  StateRequirement needed = required_states(program, producer, consumer, Rules::kAll);
  if (program.traits(producer).is & kMatrixOp) {
    const unsigned states = matrix_requirement(program, producer, consumer);
    if (states > needed.states)
      needed = StateRequirement{states, "touches registers of a matrix instruction"};
  }
  return needed;
}

std::vector<uint32_t> close_pairs(const Program& program, const std::vector<Step>& steps) {
  std::vector<uint32_t> found;
  for (size_t consumer = 1; consumer < steps.size(); ++consumer) {
    unsigned states = 0;
    for (size_t producer = consumer; producer-- > 0 && states < kMostHazardStates;) {
      const Step& before = steps[producer];
      // A branch alone takes as long as any rule asks for.
      if (before.category == static_cast<uint8_t>(Category::kControl) &&
          before.wait_states >= kMostHazardStates)
        break;
      if ((program.traits(before).is & all_producers()) &&
          required_states(program, before, steps[consumer], Rules::kUncontested).states > states) {
        found.push_back(static_cast<uint32_t>(producer));
        found.push_back(static_cast<uint32_t>(consumer));
      }
      states += before.wait_states;
    }
  }
  return found;
}

void HazardHistory::check_and_record(const Wave& wave, const Step& step, Rules rules) {
  const Program& program = *wave.group->program;
  unsigned kept = 0;
  for (unsigned i = 0; i < count_; ++i) {
    const uint64_t elapsed = wave.time - entries_[i].time - 1;  // wait states between the two
    if (elapsed >= kMostHazardStates) continue;
    entries_[kept++] = entries_[i];
    const StateRequirement needed = required_states(program, *entries_[i].step, step, rules);
    if (elapsed < needed.states)
      report_finding(wave, step, "wait_states",
                     common_register(wave, needed) + needed.reason + " " + std::to_string(elapsed) +
                         " wait states before; it takes " + std::to_string(needed.states) + ": " +
                         describe(wave, *entries_[i].step));
  }
  count_ = kept;
  if (!(program.traits(step).is & all_producers())) return;
  if (count_ == entries_.size()) {
    for (unsigned i = 1; i < count_; ++i) entries_[i - 1] = entries_[i];
    --count_;
  }
  entries_[count_++] = {&step, wave.time};
}

}  // namespace gfx942
