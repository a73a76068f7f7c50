// Set-up of a workgroup's registers and LDS, and the interpreter loop over its waves.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "observation.hpp"
#include "program.hpp"
#include "registers.hpp"
#include "relative.hpp"
#include "trace.hpp"

namespace gfx942 {

namespace {

// Instructions that a wave executes before the next one gets its turn, so that waves that wait for each other
// in a loop make progress.
constexpr int kQuantum = 20000;
// Private segment of kernels whose stack size the compiler could not bound.
constexpr uint64_t kDynamicStackBytes = 16384;

// kernel_code_properties
constexpr uint32_t kUsesDynamicStack = 1u << 11;

unsigned field(uint32_t word, unsigned first, unsigned bits) {
  return word >> first & ((1u << bits) - 1);
}

template <class T>
void fill(T* words, size_t count) {
  std::fill(words, words + count, kPoison);
}

}  // namespace

std::string hexadecimal(uint64_t value) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

std::string describe(const Wave& wave, const Step& step) {
  const Instruction& instruction = wave.group->program->instruction(step);
  const std::string text = instruction.op == Op::kInvalid ? "(not an instruction)" : disassemble(instruction);
  return "\"" + text + "\" at " + hexadecimal(instruction.address - wave.group->launch->kernel->load_bias);
}

void fault(const Wave& wave, const Step& step, SimulatorError::Kind kind, const std::string& reason) {
  const Workgroup& group = *wave.group;
  throw SimulatorError(kind, "kernel " + group.launch->kernel->name + ", workgroup (" +
                                 std::to_string(group.id[0]) + ", " + std::to_string(group.id[1]) + ", " +
                                 std::to_string(group.id[2]) + "), wave " + std::to_string(wave.index) +
                                 ", " + describe(wave, step) + ": " + reason);
}

void run_unimplemented(Wave& wave, const Step& step) {
  fault(wave, step, SimulatorError::Kind::kUnsupported, "this instruction is not implemented");
}
void run_undecodable(Wave& wave, const Step& step) {
  fault(wave, step, SimulatorError::Kind::kUnknownInstruction, wave.group->program->undecodable(step));
}
void run_off_the_end(Wave& wave, const Step& step) {
  fault(wave, step, SimulatorError::Kind::kBadAddress, "execution ran past the end of the code");
}

uint32_t host_floating_point_mode(unsigned round, unsigned denormals) {
  // MXCSR: all exceptions masked; rounding nearest, up, down, zero in MODE's order is 0, 2, 1, 3 in x86's.
  constexpr uint32_t kRound[4] = {0u << 13, 2u << 13, 1u << 13, 3u << 13};
  uint32_t mode = 0x1F80 | kRound[round & 3];
  if (!(denormals & 1)) mode |= 0x40;    // inputs: denormals are zero
  if (!(denormals & 2)) mode |= 0x8000;  // outputs: flush to zero
  return mode;
}

void apply_mode(Wave& wave) {
  wave.host_mode = host_floating_point_mode(wave.mode.round_f32(), wave.mode.denormals_f32());
  wave.host_mode_f64 = host_floating_point_mode(wave.mode.round_f16_f64(), wave.mode.denormals_f16_f64());
#if defined(__x86_64__)
  _mm_setcsr(wave.host_mode);
#endif
}

struct Machine::State {
  Workgroup group;
  std::vector<Wave*> waves;
  std::vector<uint8_t> scratch;
  std::unique_ptr<GroupObservation> observation;

  ~State() {
    for (Wave* wave : waves) {
      wave->~Wave();
      ::operator delete(wave, std::align_val_t{alignof(Wave)});
    }
  }
  void reserve_waves(size_t count) {
    while (waves.size() < count) {
      void* memory = ::operator new(sizeof(Wave), std::align_val_t{alignof(Wave)});
      waves.push_back(new (memory) Wave);
      fill(&waves.back()->vector[0][0], 512 * kLanes);
    }
  }
  void set_up(const Launch& launch, std::array<uint32_t, 3> id, size_t wave_count);
  void set_up_wave(const Launch& launch, Wave& wave, uint32_t index, uint32_t work_items);
  void run(const Launch& launch, size_t wave_count);
};

namespace {

// Returns how many SGPRs the launch initialised.
unsigned set_up_scalars(const Launch& launch, const Workgroup& group, Wave& wave) {
  const KernelDescriptor& descriptor = launch.kernel->descriptor;
  const uint32_t properties = descriptor.kernel_code_properties, rsrc2 = descriptor.compute_pgm_rsrc2;
  unsigned next = 0;
  const auto put = [&wave, &next](uint64_t value, unsigned dwords) {
    for (unsigned i = 0; i < dwords && next < 102; ++i)
      wave.scalar[next++] = static_cast<uint32_t>(value >> 32 * i);
  };
  if (properties & 1) {  // private segment buffer: a resource over the lane's private segments
    put(reinterpret_cast<uint64_t>(wave.scratch), 2);
    put(0x00F0000000000000ull | (group.scratch_bytes * kLanes & 0xFFFFFFFF), 2);
  }
  if (properties & 2) put(launch.dispatch_packet_address, 2);
  if (properties & 4) put(launch.implicit_queue_address, 2);
  if (properties & 8) put(launch.kernarg_address, 2);
  if (properties & 16) put(0, 2);  // dispatch id
  if (properties & 32) put(kPrivateAperture, 2);
  if (properties & 64) put(group.scratch_bytes, 1);
  const unsigned preload = descriptor.kernarg_preload & 0x7F,
                 preload_offset = descriptor.kernarg_preload >> 7 & 0x1FF;
  for (unsigned i = 0; i < preload; ++i) {
    uint32_t value;
    std::memcpy(&value, reinterpret_cast<const uint8_t*>(launch.kernarg_address) + 4 * (preload_offset + i),
                4);
    put(value, 1);
  }
  next = std::max(next, field(rsrc2, 1, 5));  // USER_SGPR_COUNT
  for (unsigned axis = 0; axis < 3; ++axis)
    if (rsrc2 >> (7 + axis) & 1) put(group.id[axis], 1);
  if (rsrc2 >> 10 & 1) put(0, 1);  // workgroup info
  return next;
}

}  // namespace

void Machine::State::set_up_wave(const Launch& launch, Wave& wave, uint32_t index, uint32_t work_items) {
  const KernelDescriptor& descriptor = launch.kernel->descriptor;
  const uint32_t rsrc1 = descriptor.compute_pgm_rsrc1;
  // The allocation: VGPRs up to the accumulators' offset, then accumulators.
  const uint32_t allocated = std::min<uint32_t>((field(rsrc1, 0, 6) + 1) * 8, 512);
  const uint32_t vectors = std::min((field(descriptor.compute_pgm_rsrc3, 0, 6) + 1) * 4, allocated);
  fill(&wave.vector[0][0], size_t{std::min(vectors, 256u)} * kLanes);
  fill(&wave.vector[256][0], size_t{std::min(allocated - vectors, 256u)} * kLanes);
  fill(wave.scalar, 128);
  wave.index = index;
  wave.group = &group;
  wave.observation = nullptr;
  wave.scratch = scratch.data() + index * group.scratch_bytes * kLanes;
  wave.scc = 0;
  wave.time = 0;
  wave.lane_mask = ~uint64_t{0};
  wave.trap_status = 0;
  wave.status = WaveStatus::kRunning;
  wave.executed.fill(0);
  wave.checks.reset(launch.checks.waits, launch.checks.wait_states);
  wave.mode.bits = field(rsrc1, 12, 8) | field(rsrc1, 21, 1) << 8 | field(rsrc1, 23, 1) << 9;

  const uint32_t first = index * kLanes, active = std::min<uint32_t>(kLanes, work_items - first);
  wave.set_exec(active == kLanes ? ~uint64_t{0} : (uint64_t{1} << active) - 1);
  // The packed work-item id: x, y << 10, z << 20.
  for (uint32_t lane = 0; lane < active; ++lane) {
    const uint32_t item = first + lane;
    const uint32_t x = item % launch.block[0], y = item / launch.block[0] % launch.block[1],
                   z = item / launch.block[0] / launch.block[1];
    wave.vector[0][lane] = x | y << 10 | z << 20;
  }
  // The base of the wave's private segment, as the hardware initialises it; scratch instructions add it
  // themselves.
  wave.scalar[kFlatScratch] = static_cast<uint32_t>(kPrivateAperture);
  wave.scalar[kFlatScratch + 1] = static_cast<uint32_t>(kPrivateAperture >> 32);
  const unsigned scalars = set_up_scalars(launch, group, wave);
  if (launch.observation) observe_wave(*observation, wave, scalars);

  // Hardware that preloads kernel arguments enters behind the 256 bytes that load them for hardware that
  // doesn't.
  const uint64_t entry = launch.kernel->entry + (descriptor.kernarg_preload & 0x7F ? 256 : 0);
  wave.next = group.program->at(entry);
  if (!wave.next)
    throw SimulatorError(SimulatorError::Kind::kBadCodeObject,
                         "kernel " + launch.kernel->name + ": no instruction begins at its entry " +
                             hexadecimal(entry - launch.kernel->load_bias));
}

void Machine::State::set_up(const Launch& launch, std::array<uint32_t, 3> id, size_t wave_count) {
  static const Region kNowhere{~uint64_t{0}, ~uint64_t{0}, false, ""};
  const KernelDescriptor& descriptor = launch.kernel->descriptor;
  group.launch = &launch;
  group.program = launch.kernel->program.get();
  group.id = id;
  group.lds_bytes = uint64_t{descriptor.group_segment_fixed_size} + launch.dynamic_lds;
  group.lds.resize((group.lds_bytes + 64) / 4 * 4);
  for (size_t i = 0; i < group.lds.size(); i += 4) std::memcpy(&group.lds[i], &kPoison, 4);
  group.scratch_bytes = (descriptor.private_segment_fixed_size + 15) / 16 * 16;
  if (descriptor.kernel_code_properties & kUsesDynamicStack) group.scratch_bytes += kDynamicStackBytes;
  const size_t scratch_bytes = group.scratch_bytes * kLanes * wave_count;
  if (scratch.size() < scratch_bytes) scratch.resize(scratch_bytes);
  for (size_t i = 0; i + 4 <= scratch_bytes; i += 4) std::memcpy(&scratch[i], &kPoison, 4);
  group.region = launch.memory->regions().empty() ? &kNowhere : &launch.memory->regions().front();
  group.bytes_loaded = group.bytes_stored = 0;
  group.observation = nullptr;
  if (launch.observation) {
    if (!observation) observation = std::make_unique<GroupObservation>();
    group.observation = observation.get();
    observe_group(*observation, group, wave_count);
  }

  const uint32_t work_items = launch.block[0] * launch.block[1] * launch.block[2];
  reserve_waves(wave_count);
  for (size_t i = 0; i < wave_count; ++i)
    set_up_wave(launch, *waves[i], static_cast<uint32_t>(i), work_items);
}

namespace {

template <bool kChecked, bool kTraced>
inline void execute(Wave& wave, const Step& step, const RelativeStep* relative = nullptr) {
  wave.next = &step + 1;
  if (kTraced) record_step(*wave.group->launch->trace, wave, step);
  const Step& as = relative ? relative->step : step;
  if (kChecked) {
    if (step.hazardous && wave.checks.wait_states)
      wave.checks.hazards.check_and_record(wave, step, Rules::kUncontested);
    if ((as.watch & wave.checks.watch) | (as.scalar_watch & wave.checks.scalar_watch)) {
      if (relative)
        check_registers(wave, as, relative->detail, relative->instruction);
      else
        check_step(wave, step);
    }
  }
  ++wave.executed[step.category];
  as.run(wave, as);
  if (kChecked) {
    if (step.effect) track_step(wave, step);
  }
  wave.time += step.wait_states;
}

template <bool kChecked, bool kTraced = false>
void run_wave(Wave& wave) {
  for (int left = kQuantum; left > 0; --left) {
    const Step& step = *wave.next;
    execute<kChecked, kTraced>(wave, step);
    while (wave.status != WaveStatus::kRunning) {
      if (wave.status != WaveStatus::kIndexing) return;
      const RelativeStep relative = relative_step(wave, *wave.next);
      execute<kChecked, kTraced>(wave, *wave.next, &relative);
    }
  }
}

// The thread's floating-point state, given back when a workgroup ends.
class HostFloatingPoint {
 public:
#if defined(__x86_64__)
  HostFloatingPoint() : saved_(_mm_getcsr()) {}
  ~HostFloatingPoint() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#endif
};

}  // namespace

void Machine::State::run(const Launch& launch, size_t wave_count) {
  const HostFloatingPoint host;
  const bool checked = launch.checks.waits || launch.checks.wait_states;
  const bool shuffled = launch.observation && launch.delivery == Delivery::kRandom;
  for (;;) {
    size_t ended = 0, waiting = 0;
    const size_t first = shuffled ? next_random(observation->random) % wave_count : 0;
    for (size_t turn = 0; turn < wave_count; ++turn) {
      Wave& wave = *waves[(first + turn) % wave_count];
      if (wave.status == WaveStatus::kRunning) {
        if (launch.stop && launch.stop->load(std::memory_order_relaxed))
          throw SimulatorError(SimulatorError::Kind::kInterrupted,
                               "kernel " + launch.kernel->name + ": interrupted");
        apply_mode(wave);
        if (launch.observation)
          run_wave_observed(wave, shuffled ? 1 << next_random(observation->random) % 9 : kQuantum);
        else if (launch.trace)
          run_wave<true, true>(wave);
        else if (checked)
          run_wave<true>(wave);
        else
          run_wave<false>(wave);
      }
      ended += wave.status == WaveStatus::kEnded;
      waiting += wave.status == WaveStatus::kAtBarrier;
    }
    if (ended == wave_count) return;
    // Waves that have ended do not count at a barrier.
    if (ended + waiting < wave_count) continue;
    for (size_t i = 0; i < wave_count; ++i)
      if (waves[i]->status == WaveStatus::kAtBarrier) waves[i]->status = WaveStatus::kRunning;
  }
}

Machine::Machine() : state_(std::make_unique<State>()) {}
Machine::~Machine() = default;

void Machine::run_workgroup(const Launch& launch, uint32_t x, uint32_t y, uint32_t z, Counters& counters) {
  const uint32_t work_items = launch.block[0] * launch.block[1] * launch.block[2];
  const size_t wave_count = (work_items + kLanes - 1) / kLanes;
  state_->set_up(launch, {x, y, z}, wave_count);
  if (launch.trace) {
    launch.trace->id = {x, y, z};
    launch.trace->waves.resize(wave_count);
  }
  state_->run(launch, wave_count);
  for (size_t i = 0; i < wave_count; ++i) {
    for (size_t category = 0; category < counters.by_category.size(); ++category) {
      counters.by_category[category] += state_->waves[i]->executed[category];
      counters.instructions += state_->waves[i]->executed[category];
    }
  }
  counters.workgroups += 1;
  counters.waves += wave_count;
  counters.bytes_loaded += state_->group.bytes_loaded;
  counters.bytes_stored += state_->group.bytes_stored;
}

Counters& Counters::operator+=(const Counters& other) {
  instructions += other.instructions;
  for (size_t i = 0; i < by_category.size(); ++i) by_category[i] += other.by_category[i];
  workgroups += other.workgroups;
  waves += other.waves;
  bytes_loaded += other.bytes_loaded;
  bytes_stored += other.bytes_stored;
  return *this;
}

}  // namespace gfx942
