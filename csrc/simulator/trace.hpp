// What workgroups executed, recorded for the clock: instructions in order, and what each memory access
// touched.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "machine.hpp"

namespace gfx942 {

struct Step;
struct Wave;

// One executed LDS or vector-memory instruction.
struct MemoryAccess {
  enum class Path : uint8_t {
    kLds,
    kCrossLane,  // ds_permute and its like: the LDS crossbar without its banks
    kLoad,
    kStore,
    kLoadToLds,
  };
  Path path = Path::kLds;
  uint32_t bytes = 0;                       // moved by active lanes
  uint16_t lds_cycles = 0;                  // clocks of the LDS if no two lanes met in a bank
  uint16_t lds_conflict_cycles = 0;         // clocks on top of them
  uint32_t first_line = 0, line_count = 0;  // vector memory: in WorkgroupTrace::lines
};

struct TraceEvent {
  static constexpr uint32_t kNoAccess = ~uint32_t{0};
  uint32_t instruction;  // index in Program::instructions()
  uint32_t access;       // index in WorkgroupTrace::accesses, or kNoAccess
};

constexpr unsigned kCacheLineBytes = 128;

struct WorkgroupTrace {
  std::array<uint32_t, 3> id{};
  std::vector<std::vector<TraceEvent>> waves;
  std::vector<MemoryAccess> accesses;
  std::vector<uint64_t> lines;  // distinct 128-byte lines of each access, as address / 128
};

// A launch of which some workgroups were executed and recorded.
struct LaunchTrace {
  std::string kernel;
  std::shared_ptr<const Program> program;
  uint64_t load_bias = 0;
  std::array<uint32_t, 3> grid{}, block{};
  uint32_t vgprs = 0, lds_bytes = 0;  // VGPRs: allocated per lane, accumulators included
  std::vector<WorkgroupTrace> workgroups;

  unsigned waves_per_workgroup() const;
  // Workgroups that one CU holds at a time by registers, LDS and wave slots.
  unsigned workgroups_per_cu() const;
};

// What s_memtime and s_memrealtime give to the waves of one workgroup, in the order of their execution.
struct TimeStamps {
  std::vector<std::vector<uint64_t>> waves;  // core clocks
  std::vector<size_t> next;                  // of each wave
  double reference_per_core = 0;             // ticks of the constant clock per core clock
};
uint64_t next_stamp(TimeStamps& stamps, const Wave& wave, bool reference);
// Throws SimulatorError: a wave read the clocks more or less often than when their values were not known yet.
[[noreturn]] void refuse_clock_dependence(const Launch& launch);

// Called before each step of a traced workgroup.
void record_step(WorkgroupTrace& trace, const Wave& wave, const Step& step);

// Clocks that the banks of the LDS take beyond the least that `bytes` per lane need. `address`: byte address
// of each lane's element, of lanes in `active`.
unsigned lds_conflict_cycles(const uint32_t* address, uint64_t active, unsigned bytes, bool write);

}  // namespace gfx942
