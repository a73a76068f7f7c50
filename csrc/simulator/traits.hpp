// What an instruction reads, writes and is, as the checks under observation and the static proofs need it.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <string>
#include <vector>

#include "program.hpp"

namespace gfx942 {

constexpr unsigned kVectorRegisters = 512, kScalarRegisters = 128;

// Properties that hazards.hpp matches producers and consumers by.
enum Trait : uint32_t {
  kVectorAlu = 1u << 0,  // VALU, matrix instructions excluded
  kMatrixOp = 1u << 1,
  kTranscendentalOp = 1u << 2,
  kScalarAlu = 1u << 3,
  kVectorMemoryOp = 1u << 4,  // buffer, flat, global, scratch
  kWritesVector = 1u << 5,    // VALU result in vector registers
  kWritesScalar = 1u << 6,    // VALU result in SGPRs or VCC
  kWritesExec = 1u << 7,      // by VALU
  kReadsScalar = 1u << 8,
  kDppOp = 1u << 9,
  kReadsLane = 1u << 10,   // v_readlane, v_readfirstlane
  kLaneSelect = 1u << 11,  // v_readlane, v_writelane
  kWritesM0 = 1u << 12,    // by SALU
  kUsesM0 = 1u << 13,      // as transfers into LDS, s_movrel and messages do
  kSetsMode = 1u << 14,    // s_setreg
  kGetsMode = 1u << 15,    // s_getreg
  kWideStore = 1u << 16,   // of more than 64 bits a lane, without an SGPR as offset
  kDivFmas = 1u << 17,
  kDotOp = 1u << 18,
  kPartialResult = 1u << 19,  // SDWA or op_sel place the result in a part of the register
  kReadsVector = 1u << 20,
  kDoubleMatrix = 1u << 21,
  kFma64 = 1u << 22,
  kWriteLane = 1u << 23,
  kLdsOp = 1u << 24,
  kLdsTransfer = 1u << 25,  // from memory into LDS
  kReadsMask = 1u << 26,    // its third source is a lane mask
};

// How memory is accessed.
enum class Access : uint8_t { kNone, kLoad, kStore, kAtomic };

// Whose accesses an access agrees with, by its bits sc0 and sc1. Read-modify-writes bypass the caches of a CU
// and count as the device's.
enum class Scope : uint8_t { kWave, kWorkgroup, kDevice };

// What the shadow state of a result needs to know beyond operands.
enum class Shape : uint8_t {
  kPlain,
  kReadFirstLane,
  kReadLane,
  kWriteLane,
  kSwap,
  kSelect,       // v_cndmask: one source or the other by a lane mask
  kDivFmas,      // also by VCC
  kCompareExec,  // v_cmpx
  kPermute,
  kBackwardPermute,
  kSwizzle,
  kBranch,  // conditional
  kJump,    // to an address in registers
  kBitwise,
  kMove,
  kSaveExec,
  kScalarSelect,
};

// Which registers of its sources each register of a result depends on.
enum class Flow : uint8_t {
  kWhole,       // all on all
  kEach,        // each on its own
  kUpwards,     // as sums and products of 64 bits do: the lower on the lower ones, the upper on all
  kDownwards,   // as shifts to the right: the upper on the upper ones, the lower on all
  kPacked,      // each on the one that op_sel or op_sel_hi names
  kPackedMove,  // the lower on src0's, the upper on src1's, as op_sel says
};

struct InstructionTraits {
  uint32_t is = 0;  // Trait bits
  Shape shape = Shape::kPlain;
  Flow flow = Flow::kWhole;
  bool swaps = false;        // an atomic whose stored value does not depend on the old one
  bool compares = false;     // a compare-and-swap
  bool accumulates = false;  // the old destination is an addend
  std::bitset<kVectorRegisters> vector_reads, vector_writes;
  std::bitset<kScalarRegisters> scalar_reads, scalar_writes;  // EXEC as the implicit mask is not listed
  bool reads_scc = false, writes_scc = false;

  Access access = Access::kNone;
  bool lds = false;  // DS access to LDS
  Scope scope = Scope::kWave;
  uint8_t element_bytes = 0;  // a lane's, or a scalar load's
  uint16_t pair_unit = 0;     // ds_*2: bytes that its two offsets count in

  int16_t highest_vgpr = -1, highest_agpr = -1, highest_sgpr = -1;
};

InstructionTraits traits_of(const Instruction& instruction);
// "s8", "vcc_lo", "m0", ...
std::string name_scalar(unsigned scalar);

// An instruction as it issues, with the registers that it really touches.
struct Issued {
  const Step& step;
  const Instruction& instruction;
  const InstructionTraits& traits;
};

}  // namespace gfx942
