#include "checks.hpp"

#include <algorithm>
#include <string>

#include "program.hpp"
#include "registers.hpp"

namespace gfx942 {

namespace {

std::string register_name(unsigned vector) {
  return vector < 256 ? "v" + std::to_string(vector) : "a" + std::to_string(vector - 256);
}

std::string first_lane(const Wave& wave) {
  return wave.exec() ? "lane " + std::to_string(__builtin_ctzll(wave.exec())) : "no lane";
}

void rebuild_watch(WaveChecks& checks) {
  uint64_t watch = 0;
  uint32_t scalar_watch = 0, lds_transfers = 0;
  for (int i = 0; i < checks.vector_memory_count; ++i) {
    const Outstanding& load = checks.vector_memory[static_cast<size_t>(i)];
    watch |= load.watch;
    lds_transfers += load.lds_end != load.lds_begin;
  }
  for (int i = 0; i < checks.lgkm_count; ++i) {
    watch |= checks.lgkm[static_cast<size_t>(i)].watch;
    scalar_watch |= checks.lgkm[static_cast<size_t>(i)].scalar_watch;
  }
  for (int i = 0; i < checks.matrix_count; ++i)
    watch |= checks.matrix[static_cast<size_t>(i)].detail->result_watch;
  checks.watch = watch;
  checks.scalar_watch = scalar_watch;
  checks.lds_transfers = lds_transfers;
}

template <size_t kWords>
bool touches(const std::array<uint64_t, kWords>& mask, const RegisterRange& range, unsigned& which) {
  for (unsigned r = range.first; r < range.first + unsigned{range.count}; ++r) {
    if (!(mask[r / 64 % kWords] >> r % 64 & 1)) continue;
    which = r;
    return true;
  }
  return false;
}

void pending(const Wave& wave, const Step& step, const std::string& name, const Step& load,
             const char* counter) {
  report_finding(wave, step, "waits",
                 (name[0] == 's' ? "" : first_lane(wave) + " ") + "touches " + name +
                     " before an s_waitcnt " + counter + " covers the load into it: " + describe(wave, load));
}

bool reads(const Instruction& instruction, const RegisterRange& range) {
  for (unsigned i = 0; i < instruction.read_count; ++i)
    if (range.overlaps({instruction.reads[i].first, instruction.reads[i].count})) return true;
  return false;
}

// A vector memory load may overwrite the result of an earlier one: they return in order.
void check_pending(Wave& wave, const Step& step, const StepDetail& detail, const Instruction& instruction) {
  const WaveChecks& checks = wave.checks;
  unsigned which = 0;
  for (int i = 0; i < checks.vector_memory_count; ++i) {
    const Outstanding& load = checks.vector_memory[static_cast<size_t>(i)];
    if ((load.watch & step.watch) && touches(detail.vector_mask, load.result, which)) {
      if (detail.effect == Effect::kVectorMemory && !load.flat && !reads(instruction, load.result)) continue;
      pending(wave, step, register_name(which), *load.step, "vmcnt");
    }
  }
  for (int i = 0; i < checks.lgkm_count; ++i) {
    const Outstanding& load = checks.lgkm[static_cast<size_t>(i)];
    if ((load.watch & step.watch) && touches(detail.vector_mask, load.result, which))
      pending(wave, step, register_name(which), *load.step, "lgkmcnt");
    if ((load.scalar_watch & step.scalar_watch) && touches(detail.scalar_mask, load.scalar_result, which))
      pending(wave, step, "s" + std::to_string(which), *load.step, "lgkmcnt");
  }
}

// Wait states that LLVM's GCNHazardRecognizer puts, for gfx940 (checkMAIHazards90A, checkMAIVALUHazards),
// between an MFMA and an instruction that touches its registers.
struct Requirement {
  unsigned states = 0;
  const char* what = "";
  unsigned vector = 0;  // the first register that both touch
  void demand(unsigned at_least, const char* reason, const RegisterRange& one, const RegisterRange& other) {
    if (at_least > states) *this = {at_least, reason, std::max(one.first, other.first)};
  }
};

Requirement required_by_matrix(const StepDetail& now, const StepDetail& made) {
  const bool small = made.passes == 4;  // of the two float64 forms
  const unsigned operand_states = made.float64 ? (small ? 6u : 11u) : made.passes + (made.xdl ? 3u : 2u);
  Requirement needed;
  if (now.a.overlaps(made.result)) needed.demand(operand_states, "reads as operand A", now.a, made.result);
  if (now.b.overlaps(made.result)) needed.demand(operand_states, "reads as operand B", now.b, made.result);
  if (now.c == made.result) {
    if (made.passes == 2) needed.demand(2, "reads as operand C", now.c, made.result);
    if (made.float64 && small && now.float64 && now.passes == 4)
      needed.demand(4, "reads as operand C", now.c, made.result);
  } else if (now.c.overlaps(made.result) && (made.xdl || !now.xdl)) {
    needed.demand(made.float64 ? (small ? 4u : 9u) : made.passes + (made.xdl ? 1u : 0u),
                  "reads as an overlapping operand C", now.c, made.result);
  }
  return needed;
}

Requirement required_by_other(const Instruction& instruction, const StepDetail& now, const StepDetail& made) {
  const bool memory = now.effect != Effect::kNone, small = made.passes == 4;
  const unsigned states = made.float64 ? (small ? 6u : 11u) : made.passes + (made.xdl ? 3u : 2u);
  Requirement needed;
  for (unsigned i = 0; i < instruction.read_count; ++i) {
    const RegisterRange read{instruction.reads[i].first, instruction.reads[i].count};
    if (made.result.overlaps(read))
      needed.demand(made.float64 && memory ? (small ? 9u : 18u) : states, "touches", read, made.result);
  }
  for (unsigned i = 0; i < instruction.write_count; ++i) {
    const RegisterRange written{instruction.writes[i].first, instruction.writes[i].count};
    if (made.result.overlaps(written)) needed.demand(states, "touches", written, made.result);
    if (made.xdl && written.overlaps(made.c))
      needed.demand(made.passes - 1u, "overwrites operand C and so", written, made.c);
  }
  return needed;
}

void check_matrix(Wave& wave, const Step& step, const StepDetail& now, const Instruction& instruction) {
  WaveChecks& checks = wave.checks;
  bool expired = false;
  for (int i = 0; i < checks.matrix_count;) {
    const MatrixInFlight& entry = checks.matrix[static_cast<size_t>(i)];
    const uint64_t elapsed = wave.time - entry.issued - 1;  // wait states between the two
    if (elapsed >= entry.detail->ready) {
      checks.matrix[static_cast<size_t>(i)] = checks.matrix[static_cast<size_t>(--checks.matrix_count)];
      expired = true;
      continue;
    }
    const Requirement needed = now.effect == Effect::kMatrix
                                   ? required_by_matrix(now, *entry.detail)
                                   : required_by_other(instruction, now, *entry.detail);
    if (elapsed < needed.states)
      report_finding(wave, step, "wait_states",
                     name_vector(wave, needed.vector) + ": " + needed.what +
                         " the result of a matrix instruction after " + std::to_string(elapsed) +
                         " wait states; it takes " + std::to_string(needed.states) + ": " +
                         describe(wave, *entry.step));
    ++i;
  }
  if (expired) rebuild_watch(checks);
}

// The same instruction chained onto its own result replaces its older entry, which asks for less.
void track_matrix(Wave& wave, const Step& step) {
  WaveChecks& checks = wave.checks;
  const StepDetail& detail = wave.group->program->detail(step);
  checks.watch |= detail.result_watch;
  for (int i = 0; i < checks.matrix_count; ++i) {
    MatrixInFlight& other = checks.matrix[static_cast<size_t>(i)];
    if (other.detail->result == detail.result && other.detail->passes == detail.passes &&
        detail.c == detail.result && other.detail->xdl == detail.xdl &&
        (other.detail->c == detail.c || other.detail->c.count == 0)) {
      other = {&step, &detail, wave.time};
      return;
    }
  }
  if (checks.matrix_count == static_cast<int>(checks.matrix.size())) {
    for (int i = 1; i < checks.matrix_count; ++i)
      checks.matrix[static_cast<size_t>(i - 1)] = checks.matrix[static_cast<size_t>(i)];
    --checks.matrix_count;
  }
  checks.matrix[static_cast<size_t>(checks.matrix_count++)] = {&step, &detail, wave.time};
}

}  // namespace

void WaveChecks::reset(bool check_waits, bool check_wait_states) {
  waits = report_waits = check_waits;
  wait_states = check_wait_states;
  serial = 0;
  watch = 0;
  scalar_watch = 0;
  lds_transfers = 0;
  vector_memory_count = lgkm_count = matrix_count = 0;
  lds_begin = lds_end = 0;
  hazards.reset();
}

bool WaveChecks::is_outstanding(uint64_t wanted) const {
  for (int i = 0; i < vector_memory_count; ++i)
    if (vector_memory[static_cast<size_t>(i)].serial == wanted) return true;
  for (int i = 0; i < lgkm_count; ++i)
    if (lgkm[static_cast<size_t>(i)].serial == wanted) return true;
  return false;
}

std::string name_vector(const Wave& wave, unsigned vector) {
  return register_name(vector) + " of " + first_lane(wave);
}

uint64_t WaveChecks::completed() const {
  uint64_t first = serial + 1;
  for (int i = 0; i < vector_memory_count; ++i)
    first = std::min(first, vector_memory[static_cast<size_t>(i)].serial);
  for (int i = 0; i < lgkm_count; ++i) first = std::min(first, lgkm[static_cast<size_t>(i)].serial);
  return first - 1;
}

unsigned matrix_requirement(const Program& program, const Step& producer, const Step& consumer) {
  const StepDetail &made = program.detail(producer), &now = program.detail(consumer);
  const Requirement needed = now.effect == Effect::kMatrix
                                 ? required_by_matrix(now, made)
                                 : required_by_other(program.instruction(consumer), now, made);
  return needed.states;
}

void check_step(Wave& wave, const Step& step) {
  const Program& program = *wave.group->program;
  check_registers(wave, step, program.detail(step), program.instruction(step));
}

void check_registers(Wave& wave, const Step& step, const StepDetail& detail, const Instruction& instruction) {
  if (wave.checks.matrix_count) check_matrix(wave, step, detail, instruction);
  if (!wave.checks.report_waits) return;
  if (wave.checks.vector_memory_count | wave.checks.lgkm_count)
    check_pending(wave, step, detail, instruction);
}

static void append(std::vector<Outstanding>& queue, int& count, const Outstanding& entry) {
  if (count == static_cast<int>(queue.size())) queue.resize(2 * queue.size());
  queue[static_cast<size_t>(count++)] = entry;
}

void track_step(Wave& wave, const Step& step) {
  WaveChecks& checks = wave.checks;
  const auto effect = static_cast<Effect>(step.effect);
  if (effect == Effect::kMatrix) {
    if (checks.wait_states) track_matrix(wave, step);
    return;
  }
  if (!checks.waits) return;
  const StepDetail& detail = wave.group->program->detail(step);
  Outstanding entry;
  entry.step = &step;
  entry.result = detail.result;
  entry.scalar_result = detail.scalar_result;
  entry.watch = detail.result_watch;
  entry.scalar_watch = detail.scalar_result_watch;
  entry.serial = ++checks.serial;
  entry.flat = effect == Effect::kFlat;
  entry.out_of_order = entry.flat || effect == Effect::kScalarMemory;
  entry.lds_begin = checks.lds_begin;
  entry.lds_end = checks.lds_end;
  checks.lds_begin = checks.lds_end = 0;
  // A flat store writes no register and covers nothing: it may return before or after any other access.
  if (entry.flat && entry.watch == 0) return;
  if (effect == Effect::kVectorMemory || effect == Effect::kFlat) {
    if (checks.vector_memory_count >= kMaxVmcnt) wait_for(wave, kMaxVmcnt - 1, kMaxLgkmcnt);
    append(checks.vector_memory, checks.vector_memory_count, entry);
  }
  if (effect != Effect::kVectorMemory) {
    // A full counter lets the oldest LDS access have returned; of scalar loads, any may be the one that has.
    if (effect == Effect::kLds) wait_for(wave, kMaxVmcnt, kMaxLgkmcnt - 1);
    append(checks.lgkm, checks.lgkm_count, entry);
  }
  checks.watch |= entry.watch;
  checks.scalar_watch |= entry.scalar_watch;
  checks.lds_transfers += entry.lds_end != entry.lds_begin;
}

void wait_for(Wave& wave, unsigned vmcnt, unsigned lgkmcnt) {
  WaveChecks& checks = wave.checks;
  if (!checks.waits) return;
  const auto retain = [](auto& queue, int& count, unsigned limit) {
    if (count <= static_cast<int>(limit)) return false;
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
  if (vector_changed || lgkm_changed) rebuild_watch(checks);
}

void mark_lds_transfer(Wave& wave, uint32_t first) {
  const uint64_t exec = wave.exec();
  if (exec == 0) return;
  wave.checks.lds_begin = first + 4 * static_cast<uint32_t>(__builtin_ctzll(exec));
  wave.checks.lds_end = first + 4 * (64 - static_cast<uint32_t>(__builtin_clzll(exec)));
}

bool lds_transfer_pending(const Wave& wave, uint32_t begin, uint32_t end) {
  for (int i = 0; i < wave.checks.vector_memory_count; ++i) {
    const Outstanding& load = wave.checks.vector_memory[static_cast<size_t>(i)];
    if (load.lds_begin < end && begin < load.lds_end) return true;
  }
  return false;
}

void check_lds_access(Wave& wave, const Step& step, uint32_t begin, uint32_t end, int lane) {
  if (!wave.checks.report_waits) return;
  for (int i = 0; i < wave.checks.vector_memory_count; ++i) {
    const Outstanding& load = wave.checks.vector_memory[static_cast<size_t>(i)];
    if (load.lds_begin < end && begin < load.lds_end)
      report_finding(
          wave, step, "waits",
          "lane " + std::to_string(lane) + " touches LDS byte " +
              std::to_string(begin > load.lds_begin ? begin : load.lds_begin) +
              " before an s_waitcnt vmcnt covers the transfer into it: " + describe(wave, *load.step));
  }
}

}  // namespace gfx942
