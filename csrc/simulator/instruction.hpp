// One decoded gfx942 instruction: what the decoder produces and everything else consumes.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace gfx942 {

// One identifier per mnemonic, independent of its encoding: v_add_f32_e32, _e64, _sdwa and _dpp
// are all Op::V_ADD_F32. The name is LLVM's mnemonic in upper case without that suffix.
enum class Op : uint16_t {
  kInvalid = 0,
#define INSTRUCTION(name, ...) name,
#include "instructions.def"
#undef INSTRUCTION
  kCount
};

enum class Encoding : uint8_t {
  kSop1,
  kSop2,
  kSopc,
  kSopk,
  kSopp,
  kSmem,
  kVop1,
  kVop2,
  kVopc,
  kVop3,
  kVop3b /* VOP3 with a scalar destination */,
  kVop3p,
  kMfma,
  kDs,
  kMubuf,
  kMtbuf,
  kFlat,
  kGlobal,
  kScratch,
};

struct Operand {
  enum class Kind : uint8_t {
    kNone,
    kScalar,       // index in the scalar file: 0..101 SGPR, 102/103 flat_scratch, 104/105 xnack_mask,
                   // 106/107 VCC, 108..123 TTMP, 124 M0, 126/127 EXEC
    kVector,       // VGPR index 0..255
    kAccumulator,  // AGPR index 0..255
    kConstant,     // inline constant or literal, already expanded to the operand's type, in `value`;
                   // `index` is its source code, 255 for a literal
    kScc,
    kVccz,
    kExecz,
    kAperture,  // src_shared_base.. (index = encoding 235..238)
    kLdsDirect,
    kOff,  // address operand written as "off"
  };
  Kind kind = Kind::kNone;
  uint8_t dwords = 1;  // width of the operand in 32-bit registers
  uint16_t index = 0;
  uint64_t value = 0;
};

// How a 32-bit lane value is narrowed or moved before use (SDWA and DPP forms of VOP1/VOP2/VOPC).
struct Sdwa {
  bool active = false;
  uint8_t dst_sel = 6, dst_unused = 0, src0_sel = 6, src1_sel = 6;  // encodings of the ISA manual; 6 = DWORD
  bool src0_sext = false, src1_sext = false;
};
struct Dpp {
  bool active = false;
  uint16_t ctrl = 0;  // dpp_ctrl
  uint8_t row_mask = 0xF, bank_mask = 0xF;
  bool bound_ctrl = false;
};

// A contiguous run of vector registers; accumulators are numbered 256..511.
struct VectorRange {
  uint16_t first = 0;
  uint16_t count = 0;
};

struct Instruction {
  Op op = Op::kInvalid;
  Encoding encoding = Encoding::kSopp;
  uint8_t size = 4;  // bytes, literal and extra dword included
  uint64_t address = 0;

  // Roles follow the assembler's operand order for every encoding:
  //   VALU/SALU: dst, [sdst], src0, src1, src2.
  //   SMEM: dst = data, src0 = base, src1 = offset register if any, `offset` = immediate.
  //   DS: dst = result, src0 = address, src1 = data0, src2 = data1; offset, offset1.
  //   MUBUF: dst or src2 = data (loads write dst; stores and atomics read src2), src0 = vaddr,
  //          src1 = resource (4 SGPRs), src3 = soffset.
  //   FLAT/GLOBAL/SCRATCH: dst = result, src0 = vaddr, src1 = saddr (or kOff), src2 = data.
  //   SOPK/SOPP: simm16 in `offset` (sign-extended).
  // An implicit VCC is written out: dst of VOPC, sdst and src2 of v_addc_co_u32_e32, src2 of
  // v_cndmask_b32_e32. MTBUF: offset1 = data format, then 3 bits of number format. s_atc_probe: offset1 =
  // mode. s_set_gpr_idx_on: `offset` = mode. SMEM: `offen` = a register and an immediate offset are both
  // encoded.
  Operand dst, sdst;
  std::array<Operand, 4> src;

  uint8_t neg = 0, abs = 0;                       // bit i belongs to src i
  uint8_t op_sel = 0, op_sel_hi = 0, neg_hi = 0;  // VOP3 op_sel (bit 3: dst); VOP3P
  bool clamp = false;
  uint8_t omod = 0;
  Sdwa sdwa;
  Dpp dpp;

  int32_t offset = 0;   // immediate offset or simm16
  uint8_t offset1 = 0;  // second offset of ds_*2
  bool offen = false, idxen = false, lds = false, gds = false;
  bool sc0 = false, sc1 = false, nt = false;  // glc/scc/slc in older spellings
  uint8_t cbsz = 0, abid = 0, blgp = 0;       // MFMA modifiers

  // Vector registers read and written, implicit ones included. Scalar state is not listed.
  std::array<VectorRange, 4> reads;
  std::array<VectorRange, 2> writes;
  uint8_t read_count = 0, write_count = 0;
};

enum class Category : uint8_t {
  kScalar,
  kScalarMemory,
  kVector,
  kTranscendental,
  kMatrix,
  kLds,
  kVectorMemory,
  kControl,
  kWait,
  kBarrier
};

struct OpInfo {
  const char* name;  // mnemonic without encoding suffix
  Category category;
};
const OpInfo& op_info(Op op);

// Decodes the instruction at `words` (at most `available` bytes). Returns false when the encoding is
// unknown; `out.size` is then 4 and `reason` says what was not understood.
bool decode(const uint32_t* words, uint64_t available, uint64_t address, Instruction& out,
            std::string& reason);

// LLVM syntax, e.g. "v_add_f32_e32 v1, v2, v3". Branch targets are printed as the signed word offset.
std::string disassemble(const Instruction& instruction);

}  // namespace gfx942
