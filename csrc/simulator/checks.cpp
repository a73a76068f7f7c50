#include "checks.hpp"

#include <string>

#include "program.hpp"
#include "registers.hpp"

namespace gfx942 {

namespace {

struct Range {
  unsigned first = 0, count = 0;  // vector registers, accumulators from 256
  bool overlaps(const Range& other) const {
    return first < other.first + other.count && other.first < first + count;
  }
};

Range range_of(const Operand& operand) {
  if (operand.kind == Operand::Kind::kVector) return {operand.index, operand.dwords};
  if (operand.kind == Operand::Kind::kAccumulator) return {256u + operand.index, operand.dwords};
  return {};
}

std::string register_name(unsigned vector) {
  return vector < 256 ? "v" + std::to_string(vector) : "a" + std::to_string(vector - 256);
}

uint64_t coarse(const Range& range) {
  uint64_t mask = 0;
  for (unsigned r = range.first; r < range.first + range.count; ++r) mask |= uint64_t{1} << r / 8;
  return mask;
}

const Instruction& instruction_of(const Wave& wave, const Step* step) {
  return wave.group->program->instruction(*step);
}

// Where a memory instruction's result will arrive.
Range vector_result(const Instruction& instruction) { return range_of(instruction.dst); }

void rebuild_watch(Wave& wave) {
  WaveChecks& checks = wave.checks;
  checks.watch = 0;
  checks.scalar_watch = 0;
  checks.lds_transfers = 0;
  for (int i = 0; i < checks.vector_memory_count; ++i) {
    const Outstanding& load = checks.vector_memory[static_cast<size_t>(i)];
    checks.watch |= coarse(vector_result(instruction_of(wave, load.step)));
    checks.lds_transfers += load.lds_end != load.lds_begin;
  }
  for (int i = 0; i < checks.lgkm_count; ++i) {
    const Instruction& instruction = instruction_of(wave, checks.lgkm[static_cast<size_t>(i)].step);
    checks.watch |= coarse(vector_result(instruction));
    if (instruction.dst.kind == Operand::Kind::kScalar)
      for (unsigned s = instruction.dst.index; s < instruction.dst.index + unsigned{instruction.dst.dwords}; ++s)
        checks.scalar_watch |= 1u << (s & 127) / 4;
  }
  for (int i = 0; i < checks.matrix_count; ++i) {
    const Instruction& instruction = instruction_of(wave, checks.matrix[static_cast<size_t>(i)].step);
    checks.watch |= coarse(range_of(instruction.dst)) | coarse(range_of(instruction.src[2]));
  }
}

bool touches(const std::array<uint64_t, 8>& mask, const Range& range, unsigned& which) {
  for (unsigned r = range.first; r < range.first + range.count; ++r) {
    if (!(mask[r / 64] >> r % 64 & 1)) continue;
    which = r;
    return true;
  }
  return false;
}

[[noreturn]] void pending(const Wave& wave, const Step& step, const std::string& name, const Step& load,
                          const char* counter) {
  fault(wave, step, SimulatorError::Kind::kCheck,
        "touches " + name + " before an s_waitcnt " + counter + " covers the load into it: " + describe(wave, load));
}

void check_pending(Wave& wave, const Step& step) {
  const WaveChecks& checks = wave.checks;
  const StepDetail& detail = wave.group->program->detail(step);
  unsigned which = 0;
  for (int i = 0; i < checks.vector_memory_count; ++i) {
    const Step& load = *checks.vector_memory[static_cast<size_t>(i)].step;
    if (touches(detail.vector_mask, vector_result(instruction_of(wave, &load)), which))
      pending(wave, step, register_name(which), load, "vmcnt");
  }
  for (int i = 0; i < checks.lgkm_count; ++i) {
    const Step& load = *checks.lgkm[static_cast<size_t>(i)].step;
    const Instruction& instruction = instruction_of(wave, &load);
    if (touches(detail.vector_mask, vector_result(instruction), which))
      pending(wave, step, register_name(which), load, "lgkmcnt");
    if (instruction.dst.kind != Operand::Kind::kScalar) continue;
    for (unsigned s = instruction.dst.index; s < instruction.dst.index + unsigned{instruction.dst.dwords}; ++s)
      if (detail.scalar_mask[s / 64 & 1] >> s % 64 & 1) pending(wave, step, "s" + std::to_string(s), load, "lgkmcnt");
  }
}

// Wait states that LLVM's GCNHazardRecognizer puts, for gfx940 (checkMAIHazards90A, checkMAIVALUHazards), between
// an MFMA of `passes` passes and an instruction that touches its registers.
unsigned states_after_result(const StepDetail& producer) { return producer.passes + (producer.xdl ? 3u : 2u); }
unsigned states_after_accumulator_read(unsigned passes) { return passes - 1; }  // VALU overwriting operand C

struct Requirement {
  unsigned states = 0;
  const char* what = "";
};

Requirement requirement(const Wave& wave, const Step& step, const Step& producer) {
  const Program& program = *wave.group->program;
  const Instruction &before = program.instruction(producer), &now = program.instruction(step);
  const StepDetail &made = program.detail(producer), &detail = program.detail(step);
  const Range result = range_of(before.dst), accumulator = range_of(before.src[2]);
  Requirement needed;
  const auto demand = [&needed](unsigned states, const char* what) {
    if (states > needed.states) needed = {states, what};
  };
  if (now.encoding == Encoding::kMfma) {
    if (range_of(now.src[0]).overlaps(result)) demand(states_after_result(made), "reads as operand A");
    if (range_of(now.src[1]).overlaps(result)) demand(states_after_result(made), "reads as operand B");
    const Range c = range_of(now.src[2]);
    if (c.count && c.overlaps(result)) {
      if (c.first == result.first && c.count == result.count) {
        if (made.passes == 2) demand(2, "reads as operand C");
      } else if (made.xdl || !detail.xdl) {
        demand(made.passes + (made.xdl ? 1u : 0u), "reads as an overlapping operand C");
      }
    }
    return needed;
  }
  const StepDetail& touched = detail;
  unsigned which = 0;
  if (touches(touched.vector_mask, result, which)) demand(states_after_result(made), "touches");
  if (made.xdl && accumulator.count) {
    for (unsigned i = 0; i < now.write_count; ++i) {
      const Range written{now.writes[i].first, now.writes[i].count};
      // Only arithmetic: LLVM's rule is about VALU writes.
      if (written.overlaps(accumulator) && detail.effect == Effect::kNone)
        demand(states_after_accumulator_read(made.passes), "overwrites operand C of");
    }
  }
  return needed;
}

void check_matrix(Wave& wave, const Step& step) {
  WaveChecks& checks = wave.checks;
  const Program& program = *wave.group->program;
  bool expired = false;
  for (int i = 0; i < checks.matrix_count;) {
    const MatrixInFlight& entry = checks.matrix[static_cast<size_t>(i)];
    const uint64_t elapsed = wave.time - entry.issued - 1;  // wait states between the two
    if (elapsed >= states_after_result(program.detail(*entry.step))) {
      checks.matrix[static_cast<size_t>(i)] = checks.matrix[static_cast<size_t>(--checks.matrix_count)];
      expired = true;
      continue;
    }
    const Requirement needed = requirement(wave, step, *entry.step);
    if (elapsed < needed.states)
      fault(wave, step, SimulatorError::Kind::kCheck,
            std::string(needed.what) + " the result of a matrix instruction after " + std::to_string(elapsed) +
                " wait states; it takes " + std::to_string(needed.states) + ": " + describe(wave, *entry.step));
    ++i;
  }
  if (expired) rebuild_watch(wave);
}

void push(Wave& wave, std::array<Outstanding, kMaxVmcnt + 1>& queue, int& count, const Outstanding& entry) {
  if (count == kMaxVmcnt) wait_for(wave, kMaxVmcnt - 1, kMaxLgkmcnt);
  queue[static_cast<size_t>(count++)] = entry;
}

}  // namespace

void WaveChecks::reset(bool check_waits, bool check_wait_states) {
  waits = check_waits;
  wait_states = check_wait_states;
  watch = 0;
  scalar_watch = 0;
  lds_transfers = 0;
  vector_memory_count = lgkm_count = matrix_count = 0;
  lds_begin = lds_end = 0;
}

void check_step(Wave& wave, const Step& step) {
  if (wave.checks.matrix_count) check_matrix(wave, step);
  if (wave.checks.vector_memory_count | wave.checks.lgkm_count) check_pending(wave, step);
}

void track_step(Wave& wave, const Step& step) {
  WaveChecks& checks = wave.checks;
  const auto effect = static_cast<Effect>(step.effect);
  const Instruction& instruction = wave.group->program->instruction(step);
  if (effect == Effect::kMatrix) {
    if (!checks.wait_states) return;
    // The same instruction chained onto its own result replaces the older entry.
    int place = checks.matrix_count;
    for (int i = 0; i < checks.matrix_count; ++i) {
      const Instruction& other = instruction_of(wave, checks.matrix[static_cast<size_t>(i)].step);
      if (other.op == instruction.op && other.dst.kind == instruction.dst.kind && other.dst.index == instruction.dst.index &&
          instruction.src[2].index == instruction.dst.index && other.src[2].index == other.dst.index)
        place = i;
    }
    if (place == static_cast<int>(checks.matrix.size())) {
      for (int i = 1; i < checks.matrix_count; ++i) checks.matrix[static_cast<size_t>(i - 1)] = checks.matrix[static_cast<size_t>(i)];
      --place;
      --checks.matrix_count;
    }
    checks.matrix[static_cast<size_t>(place)] = {&step, wave.time};
    if (place == checks.matrix_count) ++checks.matrix_count;
    checks.watch |= coarse(range_of(instruction.dst)) | coarse(range_of(instruction.src[2]));
    return;
  }
  if (!checks.waits) return;
  Outstanding entry;
  entry.step = &step;
  entry.flat = effect == Effect::kFlat;
  entry.out_of_order = entry.flat || effect == Effect::kScalarMemory;
  entry.lds_begin = checks.lds_begin;
  entry.lds_end = checks.lds_end;
  checks.lds_begin = checks.lds_end = 0;
  if (effect == Effect::kVectorMemory || effect == Effect::kFlat)
    push(wave, checks.vector_memory, checks.vector_memory_count, entry);
  if (effect != Effect::kVectorMemory) {
    // Scalar loads may return in any order, so a full counter only says that one of them has.
    if (checks.lgkm_count == static_cast<int>(checks.lgkm.size())) {
      fault(wave, step, SimulatorError::Kind::kUnsupported,
            "more than " + std::to_string(checks.lgkm.size()) + " LDS, scalar and flat accesses outstanding");
    }
    checks.lgkm[static_cast<size_t>(checks.lgkm_count++)] = entry;
  }
  rebuild_watch(wave);
}

void wait_for(Wave& wave, unsigned vmcnt, unsigned lgkmcnt) {
  WaveChecks& checks = wave.checks;
  if (!checks.waits) return;
  const auto retain = [](auto& queue, int& count, unsigned limit) {
    int kept = 0;
    int in_order_left = 0;
    for (int i = 0; i < count; ++i) in_order_left += !queue[static_cast<size_t>(i)].out_of_order;
    for (int i = 0; i < count; ++i) {
      const Outstanding entry = queue[static_cast<size_t>(i)];
      bool outstanding;
      if (entry.out_of_order) {
        outstanding = limit != 0;
      } else {
        outstanding = in_order_left <= static_cast<int>(limit);  // among the youngest `limit`
        --in_order_left;
      }
      if (outstanding) queue[static_cast<size_t>(kept++)] = entry;
    }
    const bool changed = kept != count;
    count = kept;
    return changed;
  };
  const bool vector_changed = retain(checks.vector_memory, checks.vector_memory_count, vmcnt);
  const bool lgkm_changed = retain(checks.lgkm, checks.lgkm_count, lgkmcnt);
  if (vector_changed || lgkm_changed) rebuild_watch(wave);
}

void mark_lds_transfer(Wave& wave, uint32_t begin, uint32_t end) {
  wave.checks.lds_begin = begin;
  wave.checks.lds_end = end;
}

bool lds_transfer_pending(const Wave& wave, uint32_t begin, uint32_t end) {
  for (int i = 0; i < wave.checks.vector_memory_count; ++i) {
    const Outstanding& load = wave.checks.vector_memory[static_cast<size_t>(i)];
    if (load.lds_begin < end && begin < load.lds_end) return true;
  }
  return false;
}

void check_lds_access(Wave& wave, const Step& step, uint32_t begin, uint32_t end) {
  for (int i = 0; i < wave.checks.vector_memory_count; ++i) {
    const Outstanding& load = wave.checks.vector_memory[static_cast<size_t>(i)];
    if (load.lds_begin < end && begin < load.lds_end)
      fault(wave, step, SimulatorError::Kind::kCheck,
            "touches LDS byte " + std::to_string(begin > load.lds_begin ? begin : load.lds_begin) +
                " before an s_waitcnt vmcnt covers the transfer into it: " + describe(wave, *load.step));
  }
}

}  // namespace gfx942
