// A code segment, decoded once into steps that the interpreter loop runs.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "machine.hpp"

namespace gfx942 {

constexpr int kLanes = 64;
constexpr uint64_t kConstantSource = uint64_t{1} << 63;  // see source()

struct Wave;
struct Step;
using Handler = void (*)(Wave&, const Step&);

// Wait states of a branch. LLVM counts one, but a wave issues nothing until its branch is resolved and, where
// it is taken, until the target is fetched; AITER's kernels rely on it for MFMA results that are used right
// behind one.
constexpr uint8_t kBranchStates = 5, kTakenBranchStates = 8;

// What a step leaves outstanding, for the checks.
enum class Effect : uint8_t { kNone, kVectorMemory, kFlat, kLds, kScalarMemory, kMatrix };

// Output treatment that keeps a vector result from going straight to its registers.
enum Finish : uint8_t { kClamp = 1, kOutputScale = 2, kSdwa = 4, kDpp = 8, kHalf = 16 };

// One pre-decoded instruction, a cache line.
struct alignas(64) Step {
  Handler run = nullptr;
  std::array<uint64_t, 4> src{};  // see source(); branches: src[0] is the target Step
  uint64_t watch = 0;         // bit r/8 for every vector register r read or written (accumulators from 256)
  uint32_t scalar_watch = 0;  // bit s/4 for every scalar register s
  uint32_t dst = 0;           // byte offset within the Wave
  uint32_t index = 0;         // in Program::instructions()
  uint8_t category : 4;
  uint8_t effect : 3;     // Effect
  uint8_t hazardous : 1;  // close to another step; see close_pairs()
  uint8_t wait_states;
  uint8_t prepare;  // bit i: broadcast scalar source i; bit 3: one of them is 64 bits wide;
                    // bit 4+i: source i has modifiers; bit 7: a source is no register (SCC, aperture...)
  uint8_t finish;   // Finish bits
  Step() : category(0), effect(0), hazardous(0), wait_states(1), prepare(0), finish(0) {}
};
static_assert(sizeof(Step) == 64, "a step is one cache line");

// A run of vector registers; accumulators are numbered from 256.
struct RegisterRange {
  uint16_t first = 0, count = 0;
  bool overlaps(const RegisterRange& other) const {
    return first < other.first + other.count && other.first < first + count;
  }
  bool operator==(const RegisterRange& other) const { return first == other.first && count == other.count; }
};

// Facts about a step that only the slower paths need.
struct StepDetail {
  RegisterRange result;         // vector registers of dst
  RegisterRange a, b, c;        // operands of an MFMA
  RegisterRange scalar_result;  // scalar registers of dst
  uint64_t result_watch = 0;    // Step::watch of the registers to guard until the result has arrived
  uint32_t scalar_result_watch = 0;
  std::array<uint8_t, 4> source_bits{};  // width of an element: 16, 32, 64
  std::array<bool, 4> packed{};          // two elements per source
  uint8_t result_bits = 32;
  bool result_float = false, result_packed = false;
  bool keeps_high_half = false;  // a 16-bit result leaves the register's other half alone
  Effect effect = Effect::kNone;
  uint8_t passes = 0;  // MFMA
  uint8_t ready = 0;   // wait states until nothing about an MFMA is a hazard any more
  bool xdl = false;    // MFMA that is neither float32 nor float64 in its inputs
  bool float64 = false;
  std::array<uint64_t, 8> vector_mask{};
  std::array<uint64_t, 2> scalar_mask{};
};

struct InstructionTraits;

class Program {
 public:
  Program(const uint8_t* code, uint64_t bytes, uint64_t base_address);

  // The step of the instruction at `address`, or nullptr when no instruction begins there.
  const Step* at(uint64_t address) const;
  const std::vector<Instruction>& instructions() const { return instructions_; }
  const Instruction& instruction(const Step& step) const { return instructions_[step.index]; }
  const StepDetail& detail(const Step& step) const { return details_[step.index]; }
  // What the checks under observation need to know about an instruction, computed at the first call.
  const InstructionTraits& traits(const Step& step) const;
  const std::string& undecodable(const Step& step) const { return undecodable_.at(step.index); }
  // Fills Step::watch, scalar_watch and what follows from the operands in the detail.
  static void watch_registers(const Instruction& instruction, Step& step, StepDetail& detail);

 private:
  void prepare_step(uint32_t index);
  void prepare_vector(const Instruction& instruction, Step& step, StepDetail& detail);
  uint64_t vector_source(const Operand& operand, unsigned slot, Step& step);
  uint64_t scalar_source(const Operand& operand);
  uint64_t constant_row(uint64_t value);

  uint64_t base_, bytes_;
  std::vector<Instruction> instructions_;
  std::vector<Step> steps_;  // in program order, then one that reports running off the end
  std::vector<StepDetail> details_;
  std::vector<int32_t> step_at_;  // per dword of the segment, -1 inside an instruction
  std::unordered_map<uint32_t, std::string> undecodable_;
  struct alignas(64) ConstantRow {
    uint32_t lanes[2][kLanes];
    uint32_t value[2];
  };
  std::deque<ConstantRow> constants_;
  std::unordered_map<uint64_t, uint64_t> constant_address_;
  mutable std::once_flag traits_once_;
  mutable std::shared_ptr<const std::vector<InstructionTraits>> traits_;
};

// The lane that `lane` reads under a DPP control, or -1.
int dpp_source(unsigned control, int lane);
// The lane that `lane` reads under a ds_swizzle pattern, or -1 when the pattern is not modelled.
int swizzle_source(uint32_t pattern, int lane);

// How a mnemonic executes; empty when it is not implemented.
struct HandlerTable {
  std::array<Handler, static_cast<size_t>(Op::kCount)> plain{};
  std::array<Handler, static_cast<size_t>(Op::kCount)> saturating{};  // integer arithmetic with clamp
  Handler& operator[](Op op) { return plain[static_cast<size_t>(op)]; }
  Handler operator[](Op op) const { return plain[static_cast<size_t>(op)]; }
};
const HandlerTable& handlers();

// Broadcasts scalar sources and applies source modifiers, as step.prepare asks, into Wave::operand.
void prepare_sources(Wave& wave, const Step& step);

// Passes of the matrix core that an MFMA takes, and whether its inputs are neither float32 nor float64.
uint8_t matrix_passes(Op op);
bool is_xdl(Op op);
// What a matrix instruction's results are with MatrixArithmetic::kExact: "core", as the matrix core's model
// has them; "fused", a chain of fused multiply-adds, k ascending; "integer", exact modulo 2^32.
const char* exact_arithmetic(Op op);

// Each part of the executor adds its mnemonics.
void install_scalar(HandlerTable& table);
void install_scalar_memory(HandlerTable& table);
void install_control(HandlerTable& table);
void install_vector(HandlerTable& table);
void install_vector_lane(HandlerTable& table);
void install_matrix(HandlerTable& table);
void install_matrix_blocks(HandlerTable& table);
void install_lds(HandlerTable& table);
void install_buffer(HandlerTable& table);
void install_flat(HandlerTable& table);

// Operand types in the instruction table's notation, e.g. "f32 f32 f32".
const char* operand_types(Op op);

[[noreturn]] void run_unimplemented(Wave& wave, const Step& step);
[[noreturn]] void run_undecodable(Wave& wave, const Step& step);
[[noreturn]] void run_off_the_end(Wave& wave, const Step& step);

}  // namespace gfx942
