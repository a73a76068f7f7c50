// Branches, waits and other program control (SOPP, s_setpc and its like), and scalar loads (SMEM).
#include <cstring>

#include "memory.hpp"
#include "program.hpp"
#include "registers.hpp"
#include "trace.hpp"

namespace gfx942 {

namespace {

void go_to(Wave& wave, const Step& step, const Step* target) {
  if (!target) fault(wave, step, SimulatorError::Kind::kBadAddress, "branch to where no instruction begins");
  wave.next = target;
  wave.time += kTakenBranchStates - kBranchStates;
}
const Step* direct_target(const Step& step) {
  return reinterpret_cast<const Step*>(step.src[0]);
}
void go_to_address(Wave& wave, const Step& step, uint64_t address) {
  const Step* target = wave.group->program->at(address);
  if (!target)
    fault(wave, step, SimulatorError::Kind::kBadAddress,
          "jump to " + hexadecimal(address) + ", where no instruction of this code object begins");
  wave.next = target;
  wave.time += kTakenBranchStates - 1;
}

void branch(Wave& wave, const Step& step) {
  go_to(wave, step, direct_target(step));
}
template <bool kWanted>
void branch_scc(Wave& wave, const Step& step) {
  if ((wave.scc != 0) == kWanted) go_to(wave, step, direct_target(step));
}
template <bool kWanted>
void branch_vccz(Wave& wave, const Step& step) {
  if ((wave.vcc() == 0) == kWanted) go_to(wave, step, direct_target(step));
}
template <bool kWanted>
void branch_execz(Wave& wave, const Step& step) {
  if ((wave.exec() == 0) == kWanted) go_to(wave, step, direct_target(step));
}

uint64_t address_after(const Wave& wave, const Step& step) {
  const Instruction& instruction = wave.group->program->instruction(step);
  return instruction.address + instruction.size;
}
void call(Wave& wave, const Step& step) {
  write64(wave, step.dst, address_after(wave, step));
  go_to(wave, step, direct_target(step));
}
void set_program_counter(Wave& wave, const Step& step) {
  go_to_address(wave, step, source64(wave, step.src[0]));
}
void swap_program_counter(Wave& wave, const Step& step) {
  const uint64_t target = source64(wave, step.src[0]);
  write64(wave, step.dst, address_after(wave, step));
  go_to_address(wave, step, target);
}

void end_program(Wave& wave, const Step&) {
  wave.status = WaveStatus::kEnded;
}
void barrier(Wave& wave, const Step&) {
  wave.status = WaveStatus::kAtBarrier;
}
void no_operation(Wave&, const Step&) {}

void wait_counters(Wave& wave, const Step& step) {
  const auto bits = static_cast<uint32_t>(step.src[1]);
  wait_for(wave, (bits & 0xF) | (bits >> 14 & 3) << 4, bits >> 8 & 0xF);
}

void trap(Wave& wave, const Step& step) {
  fault(wave, step, SimulatorError::Kind::kUnsupported,
        "trap " + std::to_string(step.src[1] & 0xFF) + " (2 is __builtin_trap or a failed assertion)");
}
void halt(Wave& wave, const Step& step) {
  if (step.src[1] & 1) fault(wave, step, SimulatorError::Kind::kUnsupported, "the wave halts itself");
}

constexpr unsigned kMessageInterrupt = 1, kMessageReleaseVectorRegisters = 3;
void send_message(Wave& wave, const Step& step) {
  const unsigned message = step.src[1] & 0xF;
  if (message == kMessageReleaseVectorRegisters) return;
  fault(wave, step, SimulatorError::Kind::kUnsupported,
        message == kMessageInterrupt ? "interrupts to the host are not modelled"
                                     : "message " + std::to_string(message) + " is not modelled");
}

// Relative vector registers: M0 holds the index in bits 7:0 and which operands it moves in bits 15:12.
void set_index_mode(Wave& wave, unsigned operands) {
  wave.scalar[kM0] = (wave.scalar[kM0] & ~0xF000u) | operands << 12;
}
void set_index(Wave& wave, const Step& step) {
  wave.scalar[kM0] = (wave.scalar[kM0] & ~0xFFu) | (*source(wave, step.src[0]) & 0xFF);
}
void start_indexing(Wave& wave, const Step& step) {
  const Instruction& instruction = wave.group->program->instruction(step);
  set_index(wave, step);
  set_index_mode(wave, static_cast<unsigned>(instruction.offset) & 0xF);
  wave.status = WaveStatus::kIndexing;
}
void change_index_mode(Wave& wave, const Step& step) {
  set_index_mode(wave, static_cast<unsigned>(step.src[1]) & 0xF);
}
void stop_indexing(Wave& wave, const Step&) {
  wave.status = WaveStatus::kRunning;
}

// The constant address of a scalar load. Bits 1 and 0 are ignored.
uint64_t scalar_address(const Wave& wave, const Step& step, const Instruction& instruction, uint64_t base) {
  uint64_t address = base + static_cast<uint64_t>(static_cast<int64_t>(instruction.offset));
  if (instruction.src[1].kind != Operand::Kind::kNone) address += *source(wave, step.src[1]);
  return address & ~uint64_t{3};
}

template <unsigned kDwords>
void scalar_load(Wave& wave, const Step& step) {
  const Instruction& instruction = wave.group->program->instruction(step);
  const uint64_t address = scalar_address(wave, step, instruction, source64(wave, step.src[0]));
  require_readable(wave, step, address, kDwords * 4, -1);
  std::memcpy(destination(wave, step.dst), reinterpret_cast<const void*>(address), kDwords * 4);
}

// The buffer form: dwords beyond num_records read 0.
template <unsigned kDwords>
void scalar_buffer_load(Wave& wave, const Step& step) {
  const Instruction& instruction = wave.group->program->instruction(step);
  const uint32_t* resource = source(wave, step.src[0]);
  const uint64_t base = resource[0] | static_cast<uint64_t>(resource[1] & 0xFFFF) << 32;
  const uint32_t stride = resource[1] >> 16 & 0x3FFF;
  const uint64_t extent = stride ? uint64_t{resource[2]} * stride : resource[2];
  const uint64_t offset = scalar_address(wave, step, instruction, 0);
  uint32_t values[kDwords] = {};
  for (unsigned i = 0; i < kDwords; ++i) {
    if (offset + 4 * i + 4 > extent) continue;
    const uint64_t address = (base & ~uint64_t{3}) + offset + 4 * i;
    require_readable(wave, step, address, 4, -1);
    std::memcpy(values + i, reinterpret_cast<const void*>(address), 4);
  }
  std::memcpy(destination(wave, step.dst), values, sizeof values);
}

template <bool kReference>
void read_time(Wave& wave, const Step& step) {
  TimeStamps* stamps = wave.group->launch->stamps;
  write64(wave, step.dst, stamps ? next_stamp(*stamps, wave, kReference) : wave.time);
}

}  // namespace

void install_control(HandlerTable& table) {
  table[Op::S_NOP] = no_operation;
  table[Op::S_SLEEP] = no_operation;
  table[Op::S_SETPRIO] = no_operation;
  table[Op::S_WAKEUP] = no_operation;
  table[Op::S_ICACHE_INV] = no_operation;
  table[Op::S_INCPERFLEVEL] = no_operation;
  table[Op::S_DECPERFLEVEL] = no_operation;
  table[Op::S_TTRACEDATA] = no_operation;
  table[Op::S_ENDPGM] = end_program;
  table[Op::S_ENDPGM_SAVED] = end_program;
  table[Op::S_BARRIER] = barrier;
  table[Op::S_WAITCNT] = wait_counters;
  table[Op::S_BRANCH] = branch;
  table[Op::S_CBRANCH_SCC0] = branch_scc<false>;
  table[Op::S_CBRANCH_SCC1] = branch_scc<true>;
  table[Op::S_CBRANCH_VCCZ] = branch_vccz<true>;
  table[Op::S_CBRANCH_VCCNZ] = branch_vccz<false>;
  table[Op::S_CBRANCH_EXECZ] = branch_execz<true>;
  table[Op::S_CBRANCH_EXECNZ] = branch_execz<false>;
  // No debugger is ever attached.
  table[Op::S_CBRANCH_CDBGSYS] = no_operation;
  table[Op::S_CBRANCH_CDBGUSER] = no_operation;
  table[Op::S_CBRANCH_CDBGSYS_OR_USER] = no_operation;
  table[Op::S_CBRANCH_CDBGSYS_AND_USER] = no_operation;
  table[Op::S_CALL_B64] = call;
  table[Op::S_SETPC_B64] = set_program_counter;
  table[Op::S_SWAPPC_B64] = swap_program_counter;
  table[Op::S_TRAP] = trap;
  table[Op::S_SETHALT] = halt;
  table[Op::S_SENDMSG] = send_message;
  table[Op::S_SET_GPR_IDX_ON] = start_indexing;
  table[Op::S_SET_GPR_IDX_IDX] = set_index;
  table[Op::S_SET_GPR_IDX_MODE] = change_index_mode;
  table[Op::S_SET_GPR_IDX_OFF] = stop_indexing;
}

void install_scalar_memory(HandlerTable& table) {
  table[Op::S_LOAD_DWORD] = scalar_load<1>;
  table[Op::S_LOAD_DWORDX2] = scalar_load<2>;
  table[Op::S_LOAD_DWORDX4] = scalar_load<4>;
  table[Op::S_LOAD_DWORDX8] = scalar_load<8>;
  table[Op::S_LOAD_DWORDX16] = scalar_load<16>;
  table[Op::S_BUFFER_LOAD_DWORD] = scalar_buffer_load<1>;
  table[Op::S_BUFFER_LOAD_DWORDX2] = scalar_buffer_load<2>;
  table[Op::S_BUFFER_LOAD_DWORDX4] = scalar_buffer_load<4>;
  table[Op::S_BUFFER_LOAD_DWORDX8] = scalar_buffer_load<8>;
  table[Op::S_BUFFER_LOAD_DWORDX16] = scalar_buffer_load<16>;
  table[Op::S_MEMTIME] = read_time<false>;
  table[Op::S_MEMREALTIME] = read_time<true>;
  // Caches are not modelled: every access goes to memory.
  table[Op::S_DCACHE_INV] = no_operation;
  table[Op::S_DCACHE_WB] = no_operation;
  table[Op::S_DCACHE_INV_VOL] = no_operation;
  table[Op::S_DCACHE_WB_VOL] = no_operation;
  table[Op::S_ATC_PROBE] = no_operation;  // translates an address ahead of its use
  table[Op::S_ATC_PROBE_BUFFER] = no_operation;
}

}  // namespace gfx942
