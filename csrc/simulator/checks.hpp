// The two hazard checks: registers touched while a load into them is outstanding (waits), and MFMA results
// touched before the matrix core has written them (wait states).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "hazards.hpp"
#include "program.hpp"

namespace gfx942 {

// Limits of the hardware counters: an instruction that would exceed one waits for the oldest to return.
constexpr int kMaxVmcnt = 63, kMaxLgkmcnt = 15;

// A memory instruction that has been issued and may not have returned.
struct Outstanding {
  const Step* step = nullptr;
  RegisterRange result, scalar_result;  // registers that it will write
  uint64_t watch = 0;                   // as Step::watch
  uint32_t scalar_watch = 0;
  bool flat = false;                    // counted by vmcnt and by lgkmcnt
  bool out_of_order = false;            // only a wait for 0 covers it
  uint32_t lds_begin = 0, lds_end = 0;  // bytes of LDS that a transfer into LDS will write
  uint64_t serial = 0;                  // counts the wave's memory instructions
};

struct MatrixInFlight {
  const Step* step = nullptr;
  const StepDetail* detail = nullptr;
  uint64_t issued = 0;  // Wave::time
};

struct WaveChecks {
  bool waits = false, wait_states = false;  // what is tracked
  bool report_waits = false;                // and whether a missing wait ends the launch
  uint64_t serial = 0;                      // of the latest memory instruction
  uint64_t watch = 0;                       // as Step::watch, of everything below
  uint32_t scalar_watch = 0;
  uint32_t lds_transfers = 0;           // transfers into LDS among `vector_memory`
  uint32_t lds_begin = 0, lds_end = 0;  // of the transfer that executes
  int vector_memory_count = 0, lgkm_count = 0, matrix_count = 0;
  // Oldest first. Both may hold more than the counters can: of accesses that return in any order, each may be
  // the one that has not.
  std::vector<Outstanding> vector_memory = std::vector<Outstanding>(kMaxVmcnt + 1);
  std::vector<Outstanding> lgkm = std::vector<Outstanding>(kMaxVmcnt + 1);
  std::array<MatrixInFlight, 24> matrix;
  HazardHistory hazards;

  void reset(bool check_waits, bool check_wait_states);
  bool is_outstanding(uint64_t serial) const;
  // Every memory instruction up to this serial number has been waited for.
  uint64_t completed() const;
};

// Ends the launch with what a check has found or, where findings are collected, lists it.
void report_finding(const Wave& wave, const Step& step, const char* check, const std::string& reason);
// Lists it where findings are collected.
void list_finding(const Launch& launch, uint64_t address, const char* check, const std::string& message);
// "v3 of lane 0", the first active lane; accumulators are numbered from 256.
std::string name_vector(const Wave& wave, unsigned vector);
// Wait states that `consumer` needs behind the matrix instruction `producer`.
unsigned matrix_requirement(const class Program& program, const Step& producer, const Step& consumer);

// Called before a step whose `watch` meets the wave's: throws when it really touches something outstanding.
void check_step(Wave& wave, const Step& step);
// The same for an instruction with other registers than the program has there.
void check_registers(Wave& wave, const Step& step, const StepDetail& detail, const Instruction& instruction);
// Called after a step with an Effect.
void track_step(Wave& wave, const Step& step);
// s_waitcnt.
void wait_for(Wave& wave, unsigned vmcnt, unsigned lgkmcnt);
// A transfer of a dword a lane into LDS from byte `first` on: notes the bytes that active lanes will write,
// for the step that track_step is about to record.
void mark_lds_transfer(Wave& wave, uint32_t first);
// Whether a transfer into LDS that this wave issued is still to write some byte of [begin, end).
bool lds_transfer_pending(const Wave& wave, uint32_t begin, uint32_t end);
// Throws when a byte of [begin, end), a lane's, is still to be written by a transfer into LDS that this wave
// issued.
void check_lds_access(Wave& wave, const Step& step, uint32_t begin, uint32_t end, int lane);

}  // namespace gfx942
