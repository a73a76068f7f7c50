#include "observation.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>

#include "relative.hpp"

namespace gfx942 {

namespace {

// A mutant may lose its way out of a loop.
constexpr uint64_t kMutantSteps = 4'000'000;

std::mutex executed_mutex;
std::set<uint64_t> executed_instructions;
std::mutex findings_mutex;
std::map<std::tuple<std::string, uint64_t, std::string>, Finding> found;

unsigned field(uint32_t word, unsigned first, unsigned bits) {
  return word >> first & ((1u << bits) - 1);
}

void check_resources(const Wave& wave, const Issued& now, const LaunchObservation& launch) {
  const InstructionTraits& traits = now.traits;
  const auto refuse = [&](const std::string& used, int count, const char* kind) {
    report_finding(wave, now.step, "resources",
                   "uses " + used + ", but the kernel descriptor allocates " + std::to_string(count) + " " +
                       kind);
  };
  if (traits.highest_vgpr >= launch.vgprs)
    refuse(name_vector(wave, static_cast<unsigned>(traits.highest_vgpr)), launch.vgprs, "VGPRs");
  if (traits.highest_agpr >= launch.agprs)
    refuse(name_vector(wave, 256u + static_cast<unsigned>(traits.highest_agpr)), launch.agprs, "AGPRs");
  if (traits.highest_sgpr >= launch.sgprs)
    refuse("s" + std::to_string(traits.highest_sgpr), launch.sgprs, "SGPRs");
}

void check_extent(const Wave& wave, const Step& step, const Accesses& accesses) {
  if (!accesses.buffer || !accesses.buffer_bytes ||
      (wave.exec() == 0 && wave.group->program->traits(step).element_bytes == 0))
    return;
  const AddressSpace& memory = *wave.group->launch->memory;
  if (memory.find(accesses.buffer_base, accesses.buffer_bytes)) return;
  const Region* begins = memory.find(accesses.buffer_base, 1);
  const Instruction& instruction = wave.group->program->instruction(step);
  const unsigned resource = instruction.src[instruction.encoding == Encoding::kSmem ? 0 : 1].index;
  std::string reason = "the buffer in s[" + std::to_string(resource) + ":" + std::to_string(resource + 3) +
                       "], [" + hexadecimal(accesses.buffer_base) + ", " +
                       hexadecimal(accesses.buffer_base + accesses.buffer_bytes) +
                       ") reaches outside registered memory";
  if (begins)
    reason += ": byte " + std::to_string(begins->end - accesses.buffer_base) + " of its " +
              std::to_string(accesses.buffer_bytes) + " is the first beyond \"" + begins->label + "\"";
  report_finding(wave, step, "bounds", reason);
}

uint32_t epoch_of(const Wave& wave) {
  return wave.group->observation->first_epoch + wave.observation->epoch;
}

void record_races(Wave& wave, const Step& step, const Accesses& accesses, uint64_t serial) {
  GroupObservation& group = *wave.group->observation;
  const uint32_t epoch = epoch_of(wave);
  if (accesses.lds_kind != Access::kNone)
    group.lds_races.access(wave, step, accesses.lds, accesses.lds_kind, epoch);
  if (accesses.memory_kind != Access::kNone && !accesses.memory.empty())
    wave.group->launch->observation->memory_races.access(wave, step, accesses.memory, accesses.memory_kind,
                                                         epoch, serial);
}

// What a memory instruction that is about to execute tells other workgroups.
void send_messages(Wave& wave, const Issued& now, const Accesses& accesses) {
  const Instruction& instruction = now.instruction;
  if (instruction.op == Op::BUFFER_WBL2 && instruction.sc1)
    wave.observation->write_back = {wave.checks.serial + 1, epoch_of(wave)};
  if (instruction.op == Op::BUFFER_INV && instruction.sc1) invalidate_caches(wave, epoch_of(wave));
  if (now.traits.scope != Scope::kDevice || accesses.memory_kind == Access::kNone ||
      accesses.memory_kind == Access::kLoad)
    return;
  wave.group->launch->observation->memory_races.send(wave, now.traits, accesses.memory, epoch_of(wave));
}

// What one that has executed has learnt from them.
void receive_messages(Wave& wave, const Issued& now, const Accesses& accesses) {
  const bool returns = accesses.memory_kind == Access::kLoad ||
                       (accesses.memory_kind == Access::kAtomic && now.instruction.sc0);
  if (now.traits.scope != Scope::kDevice || !returns) return;
  wave.group->launch->observation->memory_races.receive(wave, accesses.memory, epoch_of(wave),
                                                        wave.checks.serial + 1);
}

// Takes the contents of a load back out of its destination until the covering wait.
void withhold(Wave& wave, const Step& step, InFlight& entry) {
  const Program& program = *wave.group->program;
  const Instruction& instruction = program.instruction(step);
  const uint64_t exec = wave.exec();
  if (instruction.encoding == Encoding::kSmem && instruction.dst.kind == Operand::Kind::kScalar) {
    for (unsigned s = instruction.dst.index;
         s < instruction.dst.index + unsigned{instruction.dst.dwords} && s < 128; ++s) {
      entry.scalars.emplace_back(&wave.scalar[s], wave.scalar[s]);
      wave.scalar[s] = kPoison;
    }
    return;
  }
  for (unsigned i = 0; i < instruction.write_count; ++i) {
    const VectorRange& range = instruction.writes[i];
    for (unsigned r = range.first; r < range.first + unsigned{range.count}; ++r) {
      InFlight::Row& row = entry.rows.emplace_back();
      row.to = wave.vector[r & 511];
      row.lanes = exec;
      std::memcpy(row.contents.data(), row.to, sizeof row.contents);
      for (int lane = 0; lane < kLanes; ++lane)
        if (exec >> lane & 1) row.to[lane] = kPoison;
    }
  }
}

void withhold_lds(Wave& wave, const std::vector<uint8_t>& before, InFlight& entry) {
  std::vector<uint8_t>& lds = wave.group->lds;
  size_t at = 0;
  for (const LaneRange& range : entry.accesses.lds) {
    for (uint64_t byte = range.address; byte < range.address + range.bytes && byte < lds.size(); ++byte) {
      entry.lds.emplace_back(static_cast<uint32_t>(byte), lds[byte]);
      lds[byte] = before[at++];
    }
  }
}

void deliver(Wave& wave, InFlight& entry) {
  if (!entry.withheld) return;
  entry.withheld = false;
  --wave.observation->withheld;
  for (const InFlight::Row& row : entry.rows)
    for (int lane = 0; lane < kLanes; ++lane)
      if (row.lanes >> lane & 1) row.to[lane] = row.contents[static_cast<size_t>(lane)];
  for (const auto& [to, contents] : entry.scalars) *to = contents;
  for (const auto& [byte, contents] : entry.lds) wave.group->lds[byte] = contents;
}

// Loads into registers appear in the order of their issue, as do LDS accesses; anything else whenever it
// likes.
enum class Queue { kVectorLoad, kLds, kNone };
Queue queue_of(const Wave& wave, const InFlight& entry) {
  switch (static_cast<Effect>(entry.step->effect)) {
  case Effect::kVectorMemory:
    return wave.group->program->instruction(*entry.step).lds ? Queue::kNone : Queue::kVectorLoad;
  case Effect::kLds: return Queue::kLds;
  default: return Queue::kNone;
  }
}

// Lets one of the loads that may have returned appear, chosen at random.
void deliver_some(Wave& wave) {
  WaveObservation& own = *wave.observation;
  if (!own.withheld || (next_random(own.random) & ((1u << own.rarely) - 1))) return;
  InFlight* chosen = nullptr;
  unsigned eligible = 0;
  bool blocked[2] = {};
  for (InFlight& entry : own.in_flight) {
    if (!entry.withheld) continue;
    const Queue queue = queue_of(wave, entry);
    if (queue != Queue::kNone) {
      bool& behind = blocked[static_cast<size_t>(queue)];
      if (behind) continue;
      behind = true;
    }
    if (next_random(own.random) % ++eligible == 0) chosen = &entry;
  }
  if (chosen) deliver(wave, *chosen);
}

// Forgets what the waits so far have covered.
void retire(Wave& wave) {
  std::vector<InFlight>& in_flight = wave.observation->in_flight;
  wave.observation->rarely = static_cast<unsigned>(next_random(wave.observation->random) % 7);
  size_t kept = 0;
  for (InFlight& entry : in_flight) {
    if (wave.checks.is_outstanding(entry.serial)) {
      if (&in_flight[kept] != &entry) in_flight[kept] = std::move(entry);
      ++kept;
    } else {
      deliver(wave, entry);
    }
  }
  in_flight.resize(kept);
}

void mutate_wait(Wave& wave, const Step& step, const Mutation& mutation) {
  const auto bits = static_cast<uint32_t>(step.src[1]);
  int64_t vmcnt = (bits & 0xF) | (bits >> 14 & 3) << 4, lgkmcnt = bits >> 8 & 0xF;
  if (mutation.kind == Mutation::Kind::kVmcnt)
    vmcnt = std::min<int64_t>(vmcnt + mutation.amount, kMaxVmcnt);
  else
    lgkmcnt = std::min<int64_t>(lgkmcnt + mutation.amount, kMaxLgkmcnt);
  wait_for(wave, static_cast<unsigned>(vmcnt), static_cast<unsigned>(lgkmcnt));
}

void execute(Wave& wave, const Step& step, bool mutated) {
  const Mutation& mutation = wave.group->launch->mutation;
  if (!mutated) return step.run(wave, step);
  switch (mutation.kind) {
  case Mutation::Kind::kVmcnt:
  case Mutation::Kind::kLgkmcnt: return mutate_wait(wave, step, mutation);
  case Mutation::Kind::kM0:
    step.run(wave, step);
    wave.scalar[kM0] += static_cast<uint32_t>(mutation.amount);
    return;
  case Mutation::Kind::kExec:
    step.run(wave, step);
    if (mutation.amount > 0)
      wave.set_exec(~uint64_t{0});
    else if (wave.exec())
      wave.set_exec(wave.exec() & ~(uint64_t{1} << (63 - __builtin_clzll(wave.exec()))));
    return;
  default: return step.run(wave, step);
  }
}

// The mutated resource is what the checks see as well.
class MutatedRecords {
 public:
  MutatedRecords(Wave& wave, const Step& step, bool active) {
    const Mutation& mutation = wave.group->launch->mutation;
    if (!active || mutation.kind != Mutation::Kind::kRecords) return;
    const Instruction& instruction = wave.group->program->instruction(step);
    place_ = &wave.scalar[((instruction.encoding == Encoding::kSmem ? instruction.src[0] : instruction.src[1])
                               .index +
                           2u) &
                          127];
    was_ = *place_;
    *place_ += static_cast<uint32_t>(mutation.amount);
  }
  ~MutatedRecords() {
    if (place_) *place_ = was_;
  }
  MutatedRecords(const MutatedRecords&) = delete;
  MutatedRecords& operator=(const MutatedRecords&) = delete;

 private:
  uint32_t* place_ = nullptr;
  uint32_t was_ = 0;
};

}  // namespace

LaunchObservation::LaunchObservation(const Launch& launch)
    : kernel(*launch.kernel), executed(launch.kernel->program->instructions().size()) {
  const KernelDescriptor& descriptor = kernel.descriptor;
  // Granules of 8 registers for both files together, of 4 for where the AGPRs begin, of 16 SGPRs.
  const int registers = static_cast<int>(field(descriptor.compute_pgm_rsrc1, 0, 6) + 1) * 8;
  vgprs = std::min(registers, static_cast<int>(field(descriptor.compute_pgm_rsrc3, 0, 6) + 1) * 4);
  agprs = registers - vgprs;
  sgprs = static_cast<int>(field(descriptor.compute_pgm_rsrc1, 6, 4) / 2 + 1) * 16;
  if (launch.mutation.kind != Mutation::Kind::kNone)
    mutated = kernel.program->at(launch.mutation.address + kernel.load_bias);
}

LaunchObservation::~LaunchObservation() {
  const std::lock_guard lock(executed_mutex);
  for (size_t i = 0; i < executed.size(); ++i)
    if (executed[i].load(std::memory_order_relaxed))
      executed_instructions.insert(kernel.program->instructions()[i].address - kernel.load_bias);
}

std::shared_ptr<LaunchObservation> observe(const Launch& launch) {
  if (!launch.checks.observe() && launch.mutation.kind == Mutation::Kind::kNone &&
      launch.delivery == Delivery::kEarly)
    return nullptr;
  return std::make_shared<LaunchObservation>(launch);
}

void report_finding(const Wave& wave, const Step& step, const char* check, const std::string& reason) {
  const Launch& launch = *wave.group->launch;
  if (!launch.observation || !launch.collect_findings)
    fault(wave, step, SimulatorError::Kind::kCheck, reason);
  try {
    fault(wave, step, SimulatorError::Kind::kCheck, reason);
  } catch (const SimulatorError& error) {
    const uint64_t address = wave.group->program->instruction(step).address - launch.kernel->load_bias;
    list_finding(launch, address, check, error.what());
  }
}

void list_finding(const Launch& launch, uint64_t address, const char* check, const std::string& message) {
  if (!launch.observation || !launch.collect_findings) return;
  const std::lock_guard lock(findings_mutex);
  Finding& finding = found[{launch.kernel->name, address, check}];
  if (finding.occurrences++) return;
  finding.check = check;
  finding.kernel = launch.kernel->name;
  finding.address = address;
  finding.message = message;
}

std::vector<Finding> findings() {
  const std::lock_guard lock(findings_mutex);
  std::vector<Finding> listed;
  for (const auto& [key, finding] : found) listed.push_back(finding);
  return listed;
}

void forget_findings() {
  const std::lock_guard lock(findings_mutex);
  found.clear();
}

std::vector<uint64_t> executed_addresses() {
  const std::lock_guard lock(executed_mutex);
  return {executed_instructions.begin(), executed_instructions.end()};
}

void forget_executed_addresses() {
  const std::lock_guard lock(executed_mutex);
  executed_instructions.clear();
}

void observe_group(GroupObservation& observation, const Workgroup& group, size_t wave_count) {
  for (const WaveObservation& wave : observation.waves)
    observation.first_epoch = std::max(observation.first_epoch, observation.first_epoch + wave.epoch);
  ++observation.first_epoch;
  observation.shadow.reset(group.lds_bytes);
  observation.lds_races.resize(group.lds_bytes);
  observation.acquires.clear();
  observation.waves.resize(wave_count);
  const auto& id = group.id;
  observation.random = group.launch->delivery_seed ^ uint64_t{id[0]} << 40 ^ uint64_t { id[1] } << 24 ^
                       uint64_t { id[2] } << 8;
  next_random(observation.random);
}

uint64_t next_random(uint64_t& state) {
  uint64_t mixed = state += 0x9E3779B97F4A7C15;
  mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9;
  mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB;
  return mixed ^ mixed >> 31;
}

void observe_wave(GroupObservation& observation, Wave& wave, unsigned scalars) {
  WaveObservation& own = observation.waves[wave.index];
  wave.observation = &own;
  own.shadow.reset(scalars, wave.group->scratch_bytes * kLanes);
  own.in_flight.clear();
  own.epoch = 0;
  own.steps = 0;
  own.at_barrier = false;
  own.write_back = {};
  own.withheld = own.rarely = 0;
  own.random = observation.random + wave.index;
  // Waits are followed whatever is reported: races and late delivery rest on them.
  const bool report = wave.checks.waits;
  wave.checks.waits = true;
  wave.checks.report_waits = report;
}

namespace {

// Bytes of LDS that a transfer is about to write, as they are.
void save_lds(const Wave& wave, const Accesses& accesses, std::vector<uint8_t>& before) {
  before.clear();
  for (const LaneRange& range : accesses.lds)
    for (uint64_t byte = range.address; byte < range.address + range.bytes && byte < wave.group->lds.size();
         ++byte)
      before.push_back(wave.group->lds[byte]);
}

bool is_lds_transfer(const Accesses& accesses) {
  return accesses.lds_kind == Access::kStore && accesses.memory_kind != Access::kNone;
}

void observe_step(Wave& wave, const Issued& now, const Step& run, const StepDetail& detail) {
  WaveObservation& own = *wave.observation;
  const Launch& launch = *wave.group->launch;
  LaunchObservation& shared = *launch.observation;
  const Checks& checks = launch.checks;
  const Step& step = now.step;
  const bool mutated = &step == shared.mutated;
  if ((run.watch & wave.checks.watch) | (run.scalar_watch & wave.checks.scalar_watch))
    check_registers(wave, run, detail, now.instruction);
  if (checks.resources) check_resources(wave, now, shared);
  if (checks.wait_states) wave.checks.hazards.check_and_record(wave, step, Rules::kAll);
  const MutatedRecords records(wave, step, mutated);
  find_accesses(wave, step, own.accesses);
  if (checks.uninitialised) own.shadow.check(wave, now, own.accesses);
  if (checks.bounds) check_extent(wave, step, own.accesses);
  if (checks.uninitialised) own.shadow.propagate(wave, now, own.accesses, wave.group->observation->shadow);
  const auto effect = static_cast<Effect>(step.effect);
  const bool memory = effect != Effect::kNone && effect != Effect::kMatrix;
  const bool withheld = memory && launch.delivery != Delivery::kEarly;
  const bool transfer = is_lds_transfer(own.accesses);
  if (withheld && transfer) save_lds(wave, own.accesses, own.lds_before);
  std::unique_lock<std::mutex> order;
  if (checks.races && now.traits.scope == Scope::kDevice && own.accesses.memory_kind != Access::kNone)
    order = shared.memory_races.order();
  if (checks.races && memory) send_messages(wave, now, own.accesses);
  ++wave.executed[step.category];
  execute(wave, run, mutated);
  if (checks.races) {
    record_races(wave, step, own.accesses, wave.checks.serial + 1);
    receive_messages(wave, now, own.accesses);
  }
  if (order) order.unlock();
  if (effect != Effect::kNone) track_step(wave, step);
  if (memory) {
    InFlight& entry = own.in_flight.emplace_back();
    entry.serial = wave.checks.serial;
    entry.step = &step;
    entry.accesses = own.accesses;
    if (withheld) {
      entry.withheld = true;
      ++own.withheld;
      if (transfer)
        withhold_lds(wave, own.lds_before, entry);
      else
        withhold(wave, step, entry);
    }
    if (own.in_flight.size() > 48) retire(wave);  // a full counter has made the oldest return
  } else if (step.category == static_cast<uint8_t>(Category::kWait)) {
    retire(wave);
  }
  wave.time += step.wait_states;
}

}  // namespace

void run_wave_observed(Wave& wave, int quantum) {
  WaveObservation& own = *wave.observation;
  const Launch& launch = *wave.group->launch;
  LaunchObservation& shared = *launch.observation;
  const Program& program = *wave.group->program;
  if (own.at_barrier) {
    own.at_barrier = false;
    ++own.epoch;
    if (launch.checks.races)
      for (const InFlight& entry : own.in_flight)
        record_races(wave, *entry.step, entry.accesses, entry.serial);
  }
  for (; quantum > 0 || wave.status == WaveStatus::kIndexing; --quantum) {
    const Step& step = *wave.next;
    wave.next = &step + 1;
    shared.executed[step.index].store(1, std::memory_order_relaxed);
    if (shared.mutated && ++own.steps > kMutantSteps)
      fault(wave, step, SimulatorError::Kind::kCheck,
            "the mutant runs away: " + std::to_string(kMutantSteps) + " instructions of one wave");
    if (&step == shared.mutated && launch.mutation.kind == Mutation::Kind::kSkip) continue;
    if (launch.delivery == Delivery::kRandom) deliver_some(wave);
    if (wave.status == WaveStatus::kIndexing) {
      const RelativeStep relative = relative_step(wave, step);
      const InstructionTraits traits = traits_of(relative.instruction);
      observe_step(wave, {step, relative.instruction, traits}, relative.step, relative.detail);
    } else {
      observe_step(wave, {step, program.instruction(step), program.traits(step)}, step, program.detail(step));
    }
    if (wave.status == WaveStatus::kAtBarrier) own.at_barrier = true;
    if (wave.status != WaveStatus::kRunning && wave.status != WaveStatus::kIndexing) return;
  }
}

}  // namespace gfx942
