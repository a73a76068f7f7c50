#include "hazards.hpp"

#include <string>

#include "registers.hpp"
#include "traits.hpp"

namespace gfx942 {

namespace {

// What has to be common to producer and consumer for a rule to apply.
enum class Through {
  kNothing,
  kResult,     // a vector register that the one writes and the other reads
  kResultAny,  // ... reads or writes
  kStoreData,  // a vector register that the one stores and the other writes
  kScalar,     // an SGPR or VCC that the one writes and the other reads
  kLane,       // the same, as the lane number
  kVcc,
  kSameMode,  // a hardware register
};

struct Rule {
  uint32_t producer, consumer, consumer_not;  // Trait bits
  Through through;
  unsigned states;
  const char* reason;
};

constexpr Rule kRules[] = {
    {kWritesScalar, kVectorMemoryOp | kReadsScalar, 0, Through::kScalar, 5,
     "vector memory reads an SGPR that a VALU instruction wrote"},
    {kWritesVector, kDppOp, 0, Through::kResult, 2, "a DPP source was written by a VALU instruction"},
    {kWritesExec, kDppOp, 0, Through::kNothing, 5, "DPP follows a VALU write of EXEC"},
    {kWritesScalar, kLaneSelect, 0, Through::kLane, 4, "the lane number was written by a VALU instruction"},
    {kWritesScalar, kDivFmas, 0, Through::kVcc, 4, "v_div_fmas reads a VCC that a VALU instruction wrote"},
    {kSetsMode, kGetsMode, 0, Through::kSameMode, 2, "s_getreg follows s_setreg of the same register"},
    {kSetsMode, kSetsMode, 0, Through::kSameMode, 2, "s_setreg follows s_setreg of the same register"},
    {kTranscendentalOp, kVectorAlu, kTranscendentalOp, Through::kResult, 1,
     "a VALU instruction reads the result of a transcendental one"},
    {kPartialResult, kVectorAlu, 0, Through::kResult, 1,
     "a VALU instruction reads a result placed in part of a register"},
    {kWritesScalar, kVectorAlu | kReadsScalar, 0, Through::kScalar, 2,
     "a VALU instruction reads an SGPR or VCC that another wrote"},
    {kWritesVector, kReadsLane, 0, Through::kResult, 1, "the lane read was written by a VALU instruction"},
    {kWritesExec, kReadsLane, 0, Through::kNothing, 4, "a lane is read after a VALU write of EXEC"},
    {kWritesExec, kWriteLane, 0, Through::kNothing, 4, "a lane is written after a VALU write of EXEC"},
    {kWideStore, kWritesVector, 0, Through::kStoreData, 2,
     "a VALU instruction overwrites the data of a wide store"},
    {kWritesM0, kUsesM0, 0, Through::kNothing, 1, "M0 was written by the instruction before"},
    {kWritesExec, kMatrixOp, 0, Through::kNothing, 4, "a matrix instruction follows a VALU write of EXEC"},
    {kWritesVector, kMatrixOp, 0, Through::kResult, 2,
     "a matrix instruction reads what a VALU instruction wrote"},
    {kDotOp, kVectorAlu, 0, Through::kResultAny, 3, "a VALU instruction touches the result of a dot product"},
    {kDoubleMatrix, kFma64, 0, Through::kNothing, 2, "a float64 FMA follows a float64 matrix instruction"},
};

constexpr uint32_t all_producers() {
  uint32_t bits = 0;
  for (const Rule& rule : kRules) bits |= rule.producer;
  return bits;
}

bool applies(const Rule& rule, const Instruction& before, const InstructionTraits& made,
             const Instruction& now, const InstructionTraits& used) {
  switch (rule.through) {
  case Through::kNothing: return true;
  case Through::kResult: return (made.vector_writes & used.vector_reads).any();
  case Through::kResultAny:
    // A dot product may add to the result of its own kind.
    if (before.op == now.op) {
      for (unsigned i = 0; i < 2; ++i) {
        const Operand& source = now.src[i];
        if (source.kind == Operand::Kind::kVector && made.vector_writes[source.index]) return true;
      }
      return false;
    }
    return (made.vector_writes & (used.vector_reads | used.vector_writes)).any();
  case Through::kStoreData: {
    const Operand& stored = before.src[2];
    const unsigned first = (stored.kind == Operand::Kind::kAccumulator ? 256u : 0u) + stored.index;
    for (unsigned r = first; r < first + stored.dwords; ++r)
      if (used.vector_writes[r & 511]) return true;
    return false;
  }
  case Through::kScalar: {
    std::bitset<kScalarRegisters> common = made.scalar_writes & used.scalar_reads;
    common.reset(kExec).reset(kExec + 1);
    return common.any();
  }
  case Through::kLane: {
    const Operand& lane = now.src[1];
    return lane.kind == Operand::Kind::kScalar && made.scalar_writes[lane.index];
  }
  case Through::kVcc: return made.scalar_writes[kVcc] || made.scalar_writes[kVcc + 1];
  case Through::kSameMode: return (before.offset & 63) == (now.offset & 63);
  }
  return false;
}

}  // namespace

StateRequirement required_states(const Program& program, const Step& producer, const Step& consumer) {
  const InstructionTraits &made = program.traits(producer), &used = program.traits(consumer);
  StateRequirement needed;
  for (const Rule& rule : kRules) {
    if ((made.is & rule.producer) != rule.producer || (used.is & rule.consumer) != rule.consumer ||
        (used.is & rule.consumer_not) || rule.states <= needed.states)
      continue;
    if (applies(rule, program.instruction(producer), made, program.instruction(consumer), used))
      needed = {rule.states, rule.reason};
  }
  return needed;
}

StateRequirement required_states_with_matrix(const Program& program, const Step& producer,
                                             const Step& consumer) {
  StateRequirement needed = required_states(program, producer, consumer);
  if (program.traits(producer).is & kMatrixOp) {
    const unsigned states = matrix_requirement(program, producer, consumer);
    if (states > needed.states) needed = {states, "touches registers of a matrix instruction"};
  }
  return needed;
}

void HazardHistory::check_and_record(const Wave& wave, const Step& step) {
  const Program& program = *wave.group->program;
  unsigned kept = 0;
  for (unsigned i = 0; i < count_; ++i) {
    const uint64_t elapsed = wave.time - entries_[i].time - 1;  // wait states between the two
    if (elapsed >= kMostHazardStates) continue;
    entries_[kept++] = entries_[i];
    const StateRequirement needed = required_states(program, *entries_[i].step, step);
    if (elapsed < needed.states)
      report_finding(wave, step, "wait_states",
                     std::string(needed.reason) + " " + std::to_string(elapsed) +
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
