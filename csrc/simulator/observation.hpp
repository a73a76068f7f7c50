// Execution under observation: the interpreter loop that carries the checks which look at every access and
// every register, applies a mutation, and can deliver loads as late as the program's waits allow.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "races.hpp"
#include "shadow.hpp"

namespace gfx942 {

struct LaunchObservation {
  explicit LaunchObservation(const Launch& launch);
  ~LaunchObservation();

  const Kernel& kernel;
  const Step* mutated = nullptr;
  MemoryRaces memory_races;
  std::vector<std::atomic<uint8_t>> executed;  // per instruction
  // What the descriptor allocates.
  int vgprs = 0, agprs = 0, sgprs = 0;
};

// An access between its issue and the wait that covers it.
struct InFlight {
  uint64_t serial = 0;
  const Step* step = nullptr;
  Accesses accesses;
  // Unless delivery is early: the contents of registers and of LDS that are still to appear.
  bool withheld = false;
  struct Row {
    uint32_t* to;
    uint64_t lanes;
    std::array<uint32_t, kLanes> contents;
  };
  std::vector<Row> rows;
  std::vector<std::pair<uint32_t*, uint32_t>> scalars;
  std::vector<std::pair<uint32_t, uint8_t>> lds;
};

struct WaveObservation {
  WaveShadow shadow;
  std::vector<InFlight> in_flight;
  uint32_t epoch = 0;  // barriers passed
  WriteBack write_back;
  bool at_barrier = false;          // the next instruction is the first of a new epoch
  Accesses accesses;                // of the instruction that executes
  std::vector<uint8_t> lds_before;  // what it will overwrite
  uint64_t steps = 0;
  // Random delivery.
  uint64_t random = 0;
  unsigned rarely = 0;    // one in 2^rarely instructions lets something appear
  unsigned withheld = 0;  // of in_flight
};

struct GroupObservation {
  GroupShadow shadow;
  LdsRaces lds_races;
  Acquires acquires;
  uint32_t first_epoch = 1;  // of the workgroup; later than any of the one before
  uint64_t random = 0;       // which wave takes its turn, and for how long
  std::vector<WaveObservation> waves;
};

void observe_group(GroupObservation& observation, const Workgroup& group, size_t wave_count);
// `scalars`: how many SGPRs the launch has initialised.
void observe_wave(GroupObservation& observation, Wave& wave, unsigned scalars);
// splitmix64 (Steele, Lea, Flood 2014).
uint64_t next_random(uint64_t& state);
// Executes about `quantum` instructions, until the wave ends or arrives at a barrier.
void run_wave_observed(Wave& wave, int quantum);

}  // namespace gfx942
