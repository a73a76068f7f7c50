// The rows of instructions.def in a form that the decoder and the disassembler can look up.
#pragma once

#include <array>
#include <cstdint>

#include "instruction.hpp"

namespace gfx942 {

// What the table says about one operand.
struct OperandType {
  enum class Kind : uint8_t {
    kAbsent,
    kFloat,
    kSigned,
    kBits,         // unsigned or untyped
    kLaneMask,     // VCC, or an SGPR pair
    kScalar,       // always an SGPR
    kAccumulator,  // always an AGPR
    kLane,         // lane number of v_readlane and v_writelane
    kMixed,        // f32 or f16, chosen by op_sel_hi
    kAddress,      // LDS address
    kImmediate,
    kLds,  // memory to or from LDS
  };
  Kind kind = Kind::kAbsent;
  uint8_t bits = 0;   // of one element
  uint8_t count = 1;  // elements
  uint8_t dwords = 0;
  bool present() const { return kind != Kind::kAbsent; }
};

struct Form {
  enum class Variant : uint8_t { kNone, kPlain, kSdwa, kDpp };
  Variant variant = Variant::kNone;
  Encoding encoding = Encoding::kSopp;
  uint16_t opcode = 0;
  const char* modifiers = "";
};

struct InstructionRow {
  const char* operands;
  std::array<Form, 4> forms;
  // Parsed from `operands`.
  OperandType dst, sdst;
  std::array<OperandType, 3> src;
  uint8_t sources;
  bool sdwa, dpp;                      // variants of the VOP1, VOP2 or VOPC form
  bool neg, omod, clamp, op_sel;       // modifiers of the VOP3 form
  bool has_short_form, has_vop3_form;  // VOP1, VOP2 or VOPC; VOP3
};

const InstructionRow& instruction_row(Op op);

// Op::kInvalid where the encoding has no such opcode. VOP3 and VOP3B share one opcode space, and so do VOP3P
// and MFMA; `encoding` is corrected to the row's.
Op find_op(Encoding& encoding, uint32_t opcode);

// Properties that follow from the mnemonic.
bool accumulates(Op op);        // the old destination is an addend: v_fmac and its like
bool reads_destination(Op op);  // the result depends on the old destination in every form
bool is_matrix_sparse(Op op);   // v_smfmac_*
bool is_small_float_conversion(
    Op op);  // v_cvt_f32_fp8 and its relatives, whose SDWA form selects only the source

}  // namespace gfx942
