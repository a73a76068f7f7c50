#include "clock.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "checks.hpp"
#include "memory.hpp"
#include "program.hpp"

namespace gfx942 {

namespace {

constexpr unsigned kSimds = 4, kClocksPerSlot = 4;
constexpr unsigned kSleepClocks = 64;  // per unit of s_sleep, ISA
constexpr uint64_t kNever = ~uint64_t{0};

enum class Port : uint8_t { kVector, kMatrix, kMemory, kScalar, kNone };

// What the clock needs to know of an instruction, decoded once.
struct Shape {
  Port port = Port::kNone;
  Category category = Category::kScalar;
  unsigned hold = 1;    // slots of its port
  unsigned passes = 0;  // MFMA
  unsigned source_bytes = 0;
  bool packed = false, branch = false, straddles = false, flat = false;
  int vmcnt = -1, lgkmcnt = -1;  // s_waitcnt: limits
  unsigned idle = 0;             // slots that s_nop and s_sleep take
  VectorRange accumulator_in, accumulator_out;
};

bool is_double_rate(std::string_view name) {
  return name.find("_f64") != std::string_view::npos || name.find("mul_lo_u32") != std::string_view::npos ||
         name.find("mul_hi_") != std::string_view::npos || name.find("mad_u64") != std::string_view::npos;
}

Shape shape_of(const Program& program, uint32_t index, const ClockParameters& parameters) {
  const Instruction& instruction = program.instructions()[index];
  Shape shape;
  if (instruction.op == Op::kInvalid) return shape;
  const std::string_view name = op_info(instruction.op).name;
  shape.category = op_info(instruction.op).category;
  const auto fetch = static_cast<uint64_t>(parameters.fetch_bytes);
  shape.straddles =
      fetch && instruction.address / fetch != (instruction.address + instruction.size - 1) / fetch;
  switch (shape.category) {
  case Category::kVector:
    shape.port = Port::kVector;
    shape.packed = name.rfind("v_pk_", 0) == 0 && name.find("_f32") != std::string_view::npos;
    if (is_double_rate(name)) shape.hold = static_cast<unsigned>(parameters.double_rate_slots);
    break;
  case Category::kTranscendental:
    shape.port = Port::kVector;
    shape.hold = static_cast<unsigned>(parameters.transcendental_slots);
    break;
  case Category::kMatrix:
    shape.port = Port::kMatrix;
    shape.passes = matrix_passes(instruction.op);
    for (unsigned i = 0; i < 2; ++i)
      shape.source_bytes = std::max(shape.source_bytes, 4u * instruction.src[i].dwords);
    for (const Operand* operand : {&instruction.src[2], &instruction.dst}) {
      VectorRange& range = operand == &instruction.dst ? shape.accumulator_out : shape.accumulator_in;
      if (operand->kind != Operand::Kind::kVector && operand->kind != Operand::Kind::kAccumulator) continue;
      range.first =
          static_cast<uint16_t>(operand->index + (operand->kind == Operand::Kind::kAccumulator ? 256 : 0));
      range.count = operand->dwords;
    }
    break;
  case Category::kLds:
  case Category::kVectorMemory:
    shape.port = Port::kMemory;
    shape.flat = instruction.encoding == Encoding::kFlat;
    break;
  case Category::kScalar:
  case Category::kScalarMemory: shape.port = Port::kScalar; break;
  case Category::kControl:
    shape.branch = name.find("branch") != std::string_view::npos ||
                   name.find("pc_b64") != std::string_view::npos ||
                   name.find("s_call") != std::string_view::npos;
    if (shape.branch) shape.port = Port::kScalar;
    if (instruction.op == Op::S_NOP) shape.idle = static_cast<unsigned>(instruction.offset & 0xF);
    if (instruction.op == Op::S_SLEEP)
      shape.idle = static_cast<unsigned>(instruction.offset & 0x7F) * kSleepClocks / kClocksPerSlot;
    break;
  case Category::kWait:
    if (instruction.op == Op::S_NOP) shape.idle = static_cast<unsigned>(instruction.offset & 0xF);
    if (instruction.op == Op::S_WAITCNT) {
      const auto bits = static_cast<uint32_t>(instruction.offset);
      shape.vmcnt = static_cast<int>((bits & 0xF) | (bits >> 14 & 3) << 4);
      shape.lgkmcnt = static_cast<int>(bits >> 8 & 0xF);
    }
    break;
  case Category::kBarrier: break;
  }
  return shape;
}

bool overlaps(const VectorRange& a, const VectorRange& b) {
  return a.count && b.count && a.first < b.first + b.count && b.first < a.first + a.count;
}

// The vector L1 of a CU: least recently used within a set. `ready` is when a line's fill arrives.
class VectorCache {
 public:
  VectorCache(unsigned bytes, unsigned ways)
      : ways_(ways), sets_(std::max(1u, bytes / kCacheLineBytes / ways)) {
    entries_.resize(static_cast<size_t>(sets_) * ways_);
  }
  struct Entry {
    uint64_t line = kNever, used = 0, ready = 0;
  };
  Entry* find(uint64_t line) {
    Entry* set = &entries_[line % sets_ * ways_];
    for (unsigned i = 0; i < ways_; ++i)
      if (set[i].line == line) return &set[i];
    return nullptr;
  }
  Entry& replace(uint64_t line) {
    Entry* set = &entries_[line % sets_ * ways_];
    Entry* oldest = set;
    for (unsigned i = 1; i < ways_; ++i)
      if (set[i].used < oldest->used) oldest = &set[i];
    oldest->line = line;
    return *oldest;
  }

 private:
  unsigned ways_, sets_;
  std::vector<Entry> entries_;
};

struct ClockWave {
  const WorkgroupTrace* trace = nullptr;
  const std::vector<TraceEvent>* events = nullptr;
  uint32_t group = 0, index = 0;
  size_t next = 0;
  uint64_t ready = 0;       // first slot in which its next instruction may issue
  Stall why = Stall::kNop;  // what it waits for until then
  int priority = 0;
  uint64_t last_issue = 0;
  bool straddled = false, ended = false, at_barrier = false;
  std::vector<uint64_t> vector_memory, lgkm;  // clocks at which outstanding accesses return
  uint64_t vector_memory_returns = 0;         // of the latest: loads return in order
  VectorRange accumulator;
  uint64_t accumulator_ready = 0;
  uint64_t timeline_from = 0;
};

struct Simd {
  uint64_t vector_free = 0, matrix_free = 0, memory_free = 0, scalar_free = 0;  // slots
  uint64_t packed_free = 0, vector_after_matrix = 0;
  std::vector<ClockWave*> waves;
};

class Clock {
 public:
  Clock(const LaunchTrace& trace, const ClockParameters& parameters);
  ClockResult run();

 private:
  void start_waves();
  void step_simd(Simd& simd, uint64_t slot, unsigned number);
  Stall blocked(Simd& simd, ClockWave& wave, const Shape& shape, uint64_t slot, uint64_t now);
  void issue(Simd& simd, ClockWave& wave, const Shape& shape, uint64_t slot, uint64_t now);
  void issue_lds(ClockWave& wave, const MemoryAccess& access, uint64_t now);
  void issue_vector_memory(ClockWave& wave, const Shape& shape, const MemoryAccess& access, uint64_t now);
  void release_barrier(uint32_t group, uint64_t slot);
  void note(ClockWave& wave, uint32_t instruction, uint64_t slot, Stall stall);
  uint64_t fetch_line(uint64_t line, uint64_t now);

  const LaunchTrace& trace_;
  const ClockParameters& parameters_;
  std::vector<Shape> shapes_;
  std::deque<ClockWave> waves_;
  std::array<Simd, kSimds> simds_;
  std::vector<uint64_t> group_start_;
  VectorCache cache_;
  uint64_t lds_free_ = 0, l1_free_ = 0, l2_free_ = 0;  // clocks
  uint64_t first_touches_ = 0;
  std::vector<uint64_t> touched_;
  ClockResult result_;
};

Clock::Clock(const LaunchTrace& trace, const ClockParameters& parameters)
    : trace_(trace), parameters_(parameters),
      cache_(static_cast<unsigned>(parameters.l1_bytes), static_cast<unsigned>(parameters.l1_ways)) {
  const size_t count = trace.program->instructions().size();
  for (uint32_t i = 0; i < count; ++i) shapes_.push_back(shape_of(*trace.program, i, parameters));
  result_.issues.resize(count);
  result_.stalls.resize(count);
  start_waves();
}

void Clock::start_waves() {
  unsigned placed = 0;
  const auto wanted = static_cast<size_t>(parameters_.residents);
  const size_t residents = wanted ? std::min(wanted, trace_.workgroups.size()) : trace_.workgroups.size();
  for (uint32_t g = 0; g < residents; ++g) {
    const WorkgroupTrace& group = trace_.workgroups[g];
    const auto start = static_cast<uint64_t>(g * parameters_.dispatch_interval / kClocksPerSlot);
    group_start_.push_back(start);
    result_.stamps.emplace_back(group.waves.size());
    for (uint32_t w = 0; w < group.waves.size(); ++w) {
      ClockWave& wave = waves_.emplace_back();
      wave.trace = &group;
      wave.events = &group.waves[w];
      wave.group = g;
      wave.index = w;
      wave.ready = start;
      wave.ended = wave.events->empty();
      simds_[placed++ % kSimds].waves.push_back(&wave);
    }
  }
  result_.workgroup_clocks.resize(residents);
}

// Entries that have returned by `now` leave; true when at most `limit` are left.
bool drained(std::vector<uint64_t>& outstanding, uint64_t now, int limit) {
  outstanding.erase(
      std::remove_if(outstanding.begin(), outstanding.end(), [now](uint64_t at) { return at <= now; }),
      outstanding.end());
  return static_cast<int>(outstanding.size()) <= limit;
}

Stall Clock::blocked(Simd& simd, ClockWave& wave, const Shape& shape, uint64_t slot, uint64_t now) {
  switch (shape.port) {
  case Port::kVector:
    if (simd.vector_free > slot) return Stall::kVectorPort;
    if (simd.vector_after_matrix > slot || (shape.packed && simd.packed_free > slot))
      return Stall::kVectorPort;
    return Stall::kIssued;
  case Port::kMatrix:
    if (wave.accumulator_ready > slot && overlaps(shape.accumulator_in, wave.accumulator))
      return Stall::kDependency;
    if (simd.matrix_free > slot) return Stall::kMatrixBusy;
    if (simd.vector_free > slot) return Stall::kVectorPort;
    return Stall::kIssued;
  case Port::kMemory: {
    const bool lds = shape.category == Category::kLds;
    if (!lds && !drained(wave.vector_memory, now, kMaxVmcnt - 1)) return Stall::kQueue;
    if ((lds || shape.flat) && !drained(wave.lgkm, now, kMaxLgkmcnt - 1)) return Stall::kQueue;
    return simd.memory_free > slot ? Stall::kMemoryPort : Stall::kIssued;
  }
  case Port::kScalar:
    if (shape.category == Category::kScalarMemory && !drained(wave.lgkm, now, kMaxLgkmcnt - 1))
      return Stall::kQueue;
    return simd.scalar_free > slot ? Stall::kScalarPort : Stall::kIssued;
  case Port::kNone: break;
  }
  if (shape.vmcnt >= 0) {
    if (!drained(wave.vector_memory, now, shape.vmcnt)) return Stall::kVectorMemoryWait;
    if (!drained(wave.lgkm, now, shape.lgkmcnt)) return Stall::kLdsWait;
  }
  return Stall::kIssued;
}

void Clock::issue_lds(ClockWave& wave, const MemoryAccess& access, uint64_t now) {
  // The trace counts clocks at 128 bytes each.
  const double per_clock = parameters_.lds_bytes_per_clock;
  const auto service =
      static_cast<uint64_t>(std::ceil((access.lds_cycles + access.lds_conflict_cycles) * 128.0 / per_clock));
  const uint64_t begin = std::max(now, lds_free_);
  lds_free_ = begin + service;
  wave.lgkm.push_back(lds_free_ + static_cast<uint64_t>(parameters_.lds_latency));
  result_.lds_clocks += service;
  result_.lds_conflict_clocks += access.lds_conflict_cycles;
}

// Clock at which a line that the L1 lacks arrives.
uint64_t Clock::fetch_line(uint64_t line, uint64_t now) {
  const double per_clock = parameters_.l2_bytes_per_clock;
  l2_free_ = std::max(now, l2_free_) + static_cast<uint64_t>(std::ceil(kCacheLineBytes / per_clock));
  double latency = parameters_.l2_latency;
  const auto interval = static_cast<uint64_t>(parameters_.l2_miss_interval);
  if (interval) {
    const auto place = std::lower_bound(touched_.begin(), touched_.end(), line);
    if (place == touched_.end() || *place != line) {
      touched_.insert(place, line);
      if (first_touches_++ % interval == 0) {
        latency = parameters_.hbm_latency;
        ++result_.hbm_lines;
      }
    }
  }
  return l2_free_ + static_cast<uint64_t>(latency);
}

void Clock::issue_vector_memory(ClockWave& wave, const Shape& shape, const MemoryAccess& access,
                                uint64_t now) {
  const auto transfer = static_cast<uint64_t>(std::ceil(access.bytes / parameters_.l1_bytes_per_clock));
  const uint64_t service = std::max<uint64_t>(transfer, access.line_count);
  const uint64_t begin = std::max(now, l1_free_);
  l1_free_ = begin + service;
  result_.l1_clocks += service;
  ++result_.l1_accesses;
  result_.l1_lines += access.line_count;
  const bool store = access.path == MemoryAccess::Path::kStore;
  ++(store ? result_.stores : result_.loads);
  if (shape.flat) ++result_.flat;
  uint64_t done = l1_free_ + static_cast<uint64_t>(store ? parameters_.l2_latency : parameters_.l1_latency);
  if (store) result_.stored_lines += access.line_count;
  for (uint32_t i = 0; i < access.line_count; ++i) {
    const uint64_t line = wave.trace->lines[access.first_line + i];
    VectorCache::Entry* entry = cache_.find(line);
    if (store) {
      if (entry) entry->line = kNever;  // written through, not kept
      continue;
    }
    if (entry) {
      ++result_.l1_hits;
      done = std::max(done, entry->ready);
    } else {
      ++result_.l1_misses;
      entry = &cache_.replace(line);
      entry->ready = fetch_line(line, begin);
      done = std::max(done, entry->ready);
    }
    entry->used = begin;
  }
  if (access.path == MemoryAccess::Path::kLoadToLds) {
    const auto service_lds =
        static_cast<uint64_t>(std::ceil(access.lds_cycles * 128.0 / parameters_.lds_bytes_per_clock));
    lds_free_ = std::max(lds_free_, now) + service_lds;
    result_.lds_clocks += service_lds;
    done += service_lds;
  }
  done = wave.vector_memory_returns = std::max(done, wave.vector_memory_returns);
  wave.vector_memory.push_back(done);
  if (shape.flat) wave.lgkm.push_back(done);
}

void Clock::release_barrier(uint32_t group, uint64_t slot) {
  for (const ClockWave& wave : waves_)
    if (wave.group == group && !wave.ended && !wave.at_barrier) return;
  for (ClockWave& wave : waves_) {
    if (wave.group != group || wave.ended) continue;
    wave.at_barrier = false;
    wave.ready = slot + static_cast<uint64_t>(parameters_.barrier_slots);
    wave.why = Stall::kBarrier;
  }
}

void Clock::note(ClockWave& wave, uint32_t instruction, uint64_t slot, Stall stall) {
  const uint64_t begin = wave.timeline_from * kClocksPerSlot, end = (slot + 1) * kClocksPerSlot;
  wave.timeline_from = slot + 1;
  if (wave.group || begin >= parameters_.timeline_end || end <= parameters_.timeline_begin) return;
  result_.timeline.push_back({wave.index, instruction, begin, end, stall, true});
}

void Clock::issue(Simd& simd, ClockWave& wave, const Shape& shape, uint64_t slot, uint64_t now) {
  const TraceEvent& event = (*wave.events)[wave.next];
  const Instruction& instruction = trace_.program->instructions()[event.instruction];
  ++result_.issues[event.instruction];
  ++result_.by_category[static_cast<size_t>(shape.category)];
  note(wave, event.instruction, slot, wave.why);
  ++wave.next;
  wave.straddled = false;
  wave.ready = slot + 1 + shape.idle;
  wave.why = shape.idle ? Stall::kNop : Stall::kDependency;
  wave.last_issue = slot;
  switch (shape.port) {
  case Port::kVector:
    simd.vector_free = slot + shape.hold;
    wave.ready = slot + shape.hold;
    if (shape.hold > 1) wave.why = Stall::kVectorPort;
    result_.vector_slots += shape.hold;
    break;
  case Port::kMatrix:
    simd.vector_free = slot + 1;
    simd.matrix_free = slot + shape.passes;
    simd.vector_after_matrix =
        slot + static_cast<uint64_t>(parameters_.valu_after_matrix_slots + shape.source_bytes / 16.0);
    simd.packed_free = slot + shape.passes + static_cast<uint64_t>(parameters_.packed_after_matrix_slots);
    wave.ready += static_cast<uint64_t>(parameters_.matrix_bubble_slots);
    wave.accumulator = shape.accumulator_out;
    wave.accumulator_ready = slot + shape.passes + static_cast<uint64_t>(parameters_.accumulator_slots);
    result_.matrix_slots += shape.passes;
    result_.vector_slots += 1;
    ++result_.matrix_by_shape[instruction.op == Op::V_MFMA_F32_16X16X16_BF16  ? 0
                              : instruction.op == Op::V_MFMA_F32_32X32X8_BF16 ? 1
                                                                              : 2];
    break;
  case Port::kMemory:
    simd.memory_free = slot + 1;
    if (shape.category == Category::kLds)
      issue_lds(wave, wave.trace->accesses[event.access], now);
    else
      issue_vector_memory(wave, shape, wave.trace->accesses[event.access], now);
    break;
  case Port::kScalar:
    simd.scalar_free = slot + 1;
    if (instruction.op == Op::S_MEMTIME || instruction.op == Op::S_MEMREALTIME)
      result_.stamps[wave.group][wave.index].push_back(now);
    if (shape.category == Category::kScalarMemory)
      wave.lgkm.push_back(now + static_cast<uint64_t>(parameters_.scalar_memory_latency));
    if (shape.branch && wave.next < wave.events->size()) {
      ++result_.branches;
      const bool taken = (*wave.events)[wave.next].instruction != event.instruction + 1;
      wave.ready = slot + static_cast<uint64_t>(taken ? parameters_.branch_taken_slots
                                                      : parameters_.branch_not_taken_slots);
      wave.why = Stall::kBranch;
    }
    break;
  case Port::kNone:
    if (instruction.op == Op::S_SETPRIO) wave.priority = instruction.offset & 3;
    break;
  }
  if (wave.next == wave.events->size()) {
    wave.ended = true;
    result_.workgroup_clocks[wave.group] = (slot + 1 - group_start_[wave.group]) * kClocksPerSlot;
    release_barrier(wave.group, slot);
  } else if (shape.category == Category::kBarrier) {
    wave.at_barrier = true;
    release_barrier(wave.group, slot);
  }
}

void Clock::step_simd(Simd& simd, uint64_t slot, unsigned number) {
  const uint64_t now = slot * kClocksPerSlot + number;
  // Priority first, then the wave that has waited longest.
  std::stable_sort(simd.waves.begin(), simd.waves.end(), [](const ClockWave* a, const ClockWave* b) {
    if (a->priority != b->priority) return a->priority > b->priority;
    return a->last_issue < b->last_issue;
  });
  for (ClockWave* wave : simd.waves) {
    if (wave->ended || group_start_[wave->group] > slot) continue;
    const TraceEvent& event = (*wave->events)[wave->next];
    const Shape& shape = shapes_[event.instruction];
    Stall stall;
    if (wave->at_barrier) {
      stall = Stall::kBarrier;
    } else if (wave->ready > slot) {
      stall = wave->why;
    } else if (shape.straddles && !wave->straddled) {
      wave->straddled = true;
      wave->ready = slot + static_cast<uint64_t>(parameters_.fetch_straddle_slots);
      stall = wave->why = Stall::kFetch;
      if (wave->ready == slot) stall = blocked(simd, *wave, shape, slot, now);
    } else {
      stall = blocked(simd, *wave, shape, slot, now);
    }
    // A stall belongs to the instruction that waits, one behind a barrier or a branch to the barrier or
    // branch.
    const bool behind = stall == Stall::kBarrier || stall == Stall::kBranch || stall == Stall::kNop;
    const uint32_t blamed =
        behind && wave->next ? (*wave->events)[wave->next - 1].instruction : event.instruction;
    if (stall != Stall::kIssued) {
      wave->why = stall;
      ++result_.stalls[blamed][static_cast<size_t>(stall)];
    } else {
      issue(simd, *wave, shape, slot, now);
    }
  }
}

ClockResult Clock::run() {
  for (uint64_t slot = 0;; ++slot) {
    bool alive = false;
    for (const ClockWave& wave : waves_) alive |= !wave.ended;
    if (!alive) {
      result_.clocks = slot * kClocksPerSlot;
      return std::move(result_);
    }
    for (unsigned s = 0; s < kSimds; ++s) step_simd(simds_[s], slot, s);
  }
}

}  // namespace

const char* stall_name(Stall stall) {
  constexpr const char* kNames[] = {
      "issued",      "vector_memory_wait", "lds_wait", "barrier", "matrix_busy", "vector_port", "memory_port",
      "scalar_port", "dependency",         "nop",      "branch",  "fetch",       "counter_full"};
  static_assert(std::size(kNames) == static_cast<size_t>(Stall::kCount));
  return kNames[static_cast<size_t>(stall)];
}

ClockParameters ClockParameters::parse(const std::string& text) {
  ClockParameters parameters;
  struct Field {
    std::string_view name;
    double* value;
    bool optional, seen;
  };
  std::vector<Field> fields = {
#define FIELD(name) {#name, &parameters.name, false, false},
      CLOCK_PARAMETERS(FIELD)
#undef FIELD
          {"timeline_begin", &parameters.timeline_begin, true, false},
      {"timeline_end", &parameters.timeline_end, true, false},
      {"residents", &parameters.residents, true, false}};
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find('=');
    if (equals == std::string::npos)
      throw std::invalid_argument("clock parameter '" + line + "' is not name=value");
    const std::string name = line.substr(0, equals), digits = line.substr(equals + 1);
    const auto field =
        std::find_if(fields.begin(), fields.end(), [&](const Field& f) { return f.name == name; });
    if (field == fields.end()) throw std::invalid_argument("there is no clock parameter '" + name + "'");
    std::istringstream number(digits);
    number.imbue(std::locale::classic());
    double value;
    if (!(number >> value) || !number.eof() || !(value >= 0))
      throw std::invalid_argument("clock parameter " + name + " is '" + digits +
                                  "', allowed: a number from 0");
    *field->value = value;
    field->seen = true;
  }
  for (const Field& field : fields)
    if (!field.seen && !field.optional)
      throw std::invalid_argument("clock parameter " + std::string(field.name) + " is missing");
  for (const double* divisor : {&parameters.lds_bytes_per_clock, &parameters.l1_bytes_per_clock,
                                &parameters.l2_bytes_per_clock, &parameters.l1_ways})
    if (*divisor == 0) throw std::invalid_argument("a bandwidth or the L1's ways are 0");
  return parameters;
}

ClockResult run_clock(const LaunchTrace& trace, const ClockParameters& parameters) {
  return Clock(trace, parameters).run();
}

}  // namespace gfx942
