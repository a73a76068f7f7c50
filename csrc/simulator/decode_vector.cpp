// VOP1, VOP2, VOPC with their SDWA and DPP variants, VOP3, VOP3P and MFMA.
#include "decoder.hpp"

namespace gfx942 {
namespace {

constexpr uint32_t kSdwaCode = 249, kDppCode = 250;

bool is_float(const OperandType& type) {
  return type.kind == OperandType::Kind::kFloat;
}

bool valid_dpp_control(uint32_t control) {
  if (control <= 0xFF) return true;                                       // quad_perm
  if (control >= 0x101 && control <= 0x12F) return (control & 0xF) != 0;  // row_shl, row_shr, row_ror
  if (control == 0x130 || control == 0x134 || control == 0x138 || control == 0x13C) return true;  // wave_*
  return (control >= 0x140 && control <= 0x143) || (control >= 0x150 && control <= 0x15F);
}

Operand vcc() {
  Operand operand;
  operand.kind = Operand::Kind::kScalar;
  operand.index = kVccCode;
  operand.dwords = 2;
  return operand;
}

}  // namespace

bool Decoder::short_vector(uint32_t word) {
  const uint32_t src0 = bits(word, 0, 9), vsrc1 = bits(word, 9, 8), vdst = bits(word, 17, 8);
  Encoding encoding = Encoding::kVop2;
  uint32_t opcode = bits(word, 25, 6);
  const char* name = "VOP2";
  if (opcode == 0x3F) {
    encoding = Encoding::kVop1, opcode = vsrc1, name = "VOP1";
  } else if (opcode == 0x3E) {
    encoding = Encoding::kVopc, opcode = vdst, name = "VOPC";
  }
  if (!find(encoding, opcode, name)) return false;

  const InstructionRow& row = *row_;
  if (encoding == Encoding::kVopc)
    out_.dst = vcc();
  else if (!row.dst.present()) {
    if (vdst != 0 || src0 != 0) return fail("reserved operand fields are set");
    return true;
  } else if (row.dst.kind == OperandType::Kind::kScalar) {
    if (!scalar_register(vdst, 1, out_.dst)) return false;
  } else if (!vector_register(vdst, row.dst.dwords, row.dst.kind == OperandType::Kind::kAccumulator,
                              out_.dst)) {
    return false;
  }
  if (row.sdst.present()) out_.sdst = vcc();

  const bool has_source1 = row.sources >= 2;
  if (src0 == kSdwaCode) {
    if (!row.sdwa) return fail(std::string(op_info(out_.op).name) + " has no SDWA form");
    if (!second_word() || !sdwa(words_[1], has_source1, vsrc1)) return false;
  } else if (src0 == kDppCode) {
    if (!row.dpp) return fail(std::string(op_info(out_.op).name) + " has no DPP form");
    if (!second_word() || !dpp(words_[1], has_source1, vsrc1)) return false;
  } else {
    const bool vector_only = out_.op == Op::V_READFIRSTLANE_B32 || out_.op == Op::V_SWAP_B32;
    const bool accumulator = row.src[0].kind == OperandType::Kind::kAccumulator;
    if (vector_only || accumulator ? !vector_source(src0, row.src[0], accumulator, out_.src[0])
                                   : !source(src0, row.src[0], true, out_.src[0]))
      return false;
    unsigned next = 1;
    for (unsigned i = 1; i < row.sources; ++i) {
      const OperandType& type = row.src[i];
      if (type.kind == OperandType::Kind::kLaneMask) continue;
      if (type.kind == OperandType::Kind::kImmediate) {
        if (!literal(type, out_.src[i])) return false;
      } else if (next++ == 1 && !vector_register(vsrc1, type.dwords, false, out_.src[i])) {
        return false;
      }
    }
  }
  for (unsigned i = 0; i < row.sources; ++i)
    if (row.src[i].kind == OperandType::Kind::kLaneMask) out_.src[i] = vcc();
  note_vector_operands();
  return true;
}

bool Decoder::sdwa(uint32_t word, bool has_source1, uint32_t source1) {
  Sdwa& sdwa = out_.sdwa;
  sdwa.active = true;
  if (out_.encoding == Encoding::kVopc) {
    if (bits(word, 15, 1) && !scalar_register(bits(word, 8, 7), 2, out_.dst)) return false;
    if (!bits(word, 15, 1) && bits(word, 8, 7)) return fail("reserved bits of SDWA are set");
  } else {
    sdwa.dst_sel = uint8_t(bits(word, 8, 3));
    sdwa.dst_unused = uint8_t(bits(word, 11, 2));
    out_.clamp = bits(word, 13, 1);
    out_.omod = uint8_t(bits(word, 14, 2));
    if (sdwa.dst_sel > 6 || sdwa.dst_unused > 2) return fail("reserved destination selection of SDWA");
    if (out_.omod && !(row_->omod && is_float(row_->dst)))
      return fail("SDWA output modifier on an instruction that has none");
  }
  sdwa.src0_sel = uint8_t(bits(word, 16, 3));
  sdwa.src0_sext = bits(word, 19, 1);
  out_.neg = uint8_t(bits(word, 20, 1));
  out_.abs = uint8_t(bits(word, 21, 1));
  if (sdwa.src0_sel > 6 || bits(word, 22, 1)) return fail("reserved source bits of SDWA are set");

  auto register_source = [&](uint32_t code, bool scalar, const OperandType& type, Operand& operand) {
    return scalar ? source(code, type, false, operand) : vector_register(code, type.dwords, false, operand);
  };
  if (!register_source(bits(word, 0, 8), bits(word, 23, 1), row_->src[0], out_.src[0])) return false;
  if (!has_source1)
    return sdwa_modifiers() && (bits(word, 24, 8) == 0 || fail("reserved source bits of SDWA are set"));
  sdwa.src1_sel = uint8_t(bits(word, 24, 3));
  sdwa.src1_sext = bits(word, 27, 1);
  out_.neg |= uint8_t(bits(word, 28, 1) << 1);
  out_.abs |= uint8_t(bits(word, 29, 1) << 1);
  if (sdwa.src1_sel > 6 || bits(word, 30, 1)) return fail("reserved source bits of SDWA are set");
  return sdwa_modifiers() && register_source(source1, bits(word, 31, 1), row_->src[1], out_.src[1]);
}

bool Decoder::sdwa_modifiers() {
  const Sdwa& sdwa = out_.sdwa;
  for (unsigned i = 0; i < 2; ++i) {
    if (((out_.neg | out_.abs) >> i & 1) && !source_allowed(i))
      return fail("SDWA floating-point modifier on an integer source");
    if ((i == 0 ? sdwa.src0_sext : sdwa.src1_sext) && source_allowed(i))
      return fail("SDWA sign extension of a floating-point source");
  }
  const bool whole = sdwa.dst_sel == 6 && sdwa.dst_unused == 0 && !out_.clamp && !sdwa.src0_sext;
  if (is_small_float_conversion(out_.op) && !whole)
    return fail("SDWA modifier on a conversion that has none");
  return true;
}

bool Decoder::dpp(uint32_t word, bool has_source1, uint32_t source1) {
  Dpp& dpp = out_.dpp;
  dpp.active = true;
  dpp.ctrl = uint16_t(bits(word, 8, 9));
  dpp.bound_ctrl = bits(word, 19, 1);
  dpp.bank_mask = uint8_t(bits(word, 24, 4));
  dpp.row_mask = uint8_t(bits(word, 28, 4));
  out_.neg = uint8_t(bits(word, 20, 1) | bits(word, 22, 1) << 1);
  out_.abs = uint8_t(bits(word, 21, 1) | bits(word, 23, 1) << 1);
  if (bits(word, 17, 2)) return fail("reserved bits of DPP are set");
  if (!valid_dpp_control(dpp.ctrl)) return fail("reserved DPP control " + std::to_string(dpp.ctrl));
  for (unsigned i = 0; i < 2; ++i)
    if (((out_.neg | out_.abs) >> i & 1) && !source_allowed(i))
      return fail("DPP modifier on an integer source");
  const bool wide = row_->dst.dwords > 1 || row_->src[0].dwords > 1;
  if (wide && (dpp.ctrl < 0x150 || dpp.ctrl > 0x15F)) return fail("64-bit DPP supports only row_newbcast");
  if (!vector_register(bits(word, 0, 8), row_->src[0].dwords, false, out_.src[0])) return false;
  if (!has_source1) return bits(word, 22, 2) == 0 || fail("reserved source bits of DPP are set");
  return vector_register(source1, row_->src[1].dwords, false, out_.src[1]);
}

// Whether source i has floating-point modifiers.
bool Decoder::source_allowed(unsigned i) {
  if (i >= row_->sources) return false;
  return is_float(row_->src[i]) || (out_.op == Op::V_CNDMASK_B32 && i < 2);
}

bool Decoder::vop3() {
  if (!second_word()) return false;
  const uint32_t word = words_[0], next = words_[1];
  if (!find(Encoding::kVop3, bits(word, 16, 10), "VOP3")) return false;
  const InstructionRow& row = *row_;
  const uint32_t vdst = bits(word, 0, 8);
  const bool with_sdst = out_.encoding == Encoding::kVop3b;

  if (!row.dst.present()) {
    if (vdst != 0) return fail("reserved destination field of VOP3");
  } else if (row.dst.kind == OperandType::Kind::kLaneMask || row.dst.kind == OperandType::Kind::kScalar) {
    if (!scalar_register(vdst, row.dst.dwords, out_.dst)) return false;
  } else if (!vector_register(vdst, row.dst.dwords, false, out_.dst)) {
    return false;
  }
  if (with_sdst) {
    if (!scalar_register(bits(word, 8, 7), 2, out_.sdst)) return false;
  } else {
    out_.abs = uint8_t(bits(word, 8, 3));
    out_.op_sel = uint8_t(bits(word, 11, 4));
  }
  out_.clamp = bits(word, 15, 1);
  out_.omod = uint8_t(bits(next, 27, 2));
  out_.neg = uint8_t(bits(next, 29, 3));

  for (unsigned i = 0; i < 3; ++i)
    if (((out_.neg | out_.abs) >> i & 1) && !(row.neg && source_allowed(i)))
      return fail("VOP3 negates source " + std::to_string(i) + " of an instruction that cannot");
  if (out_.clamp && !row.clamp) return fail("VOP3 clamp on an instruction that has none");
  if (out_.omod && !row.omod) return fail("VOP3 output modifier on an instruction that has none");
  const bool byte_select = out_.op == Op::V_CVT_SR_FP8_F32 || out_.op == Op::V_CVT_SR_BF8_F32;
  const uint32_t op_sel_mask = !row.op_sel ? 0 : row.sources == 3 || byte_select ? 0xF : 0xB;
  if (out_.op_sel & ~op_sel_mask) return fail("VOP3 op_sel on an instruction that has none");

  for (unsigned i = 0; i < 3; ++i) {
    const uint32_t code = bits(next, 9 * i, 9);
    const OperandType& type = row.src[i];
    if (i >= row.sources) {
      if (code != 0) return fail("reserved source field " + std::to_string(i) + " of VOP3");
      continue;
    }
    if ((out_.op == Op::V_READLANE_B32 && i == 0) || (out_.op == Op::V_MQSAD_U32_U8 && i == 2)) {
      if (!vector_source(code, type, false, out_.src[i])) return false;
      continue;
    }
    const bool scalar_only = type.kind == OperandType::Kind::kScalar ||
                             type.kind == OperandType::Kind::kLane ||
                             type.kind == OperandType::Kind::kLaneMask;
    if (scalar_only && code >= 256) return fail("source " + std::to_string(i) + " must be scalar");
    if (!source(code, type, false, out_.src[i])) return false;
    if (type.kind == OperandType::Kind::kLaneMask && out_.src[i].kind != Operand::Kind::kScalar)
      return fail("the lane mask of VOP3 must be an SGPR pair");
  }
  note_vector_operands();
  return true;
}

bool Decoder::vop3p() {
  if (!second_word()) return false;
  const uint32_t word = words_[0], next = words_[1];
  if (!find(Encoding::kVop3p, bits(word, 16, 7), "VOP3P")) return false;
  if (out_.encoding == Encoding::kMfma) return matrix();
  if (out_.op == Op::V_ACCVGPR_READ_B32 || out_.op == Op::V_ACCVGPR_WRITE_B32) return accumulator_move();
  const InstructionRow& row = *row_;
  if (!vector_register(bits(word, 0, 8), row.dst.dwords, false, out_.dst)) return false;
  out_.neg_hi = uint8_t(bits(word, 8, 3));
  out_.op_sel = uint8_t(bits(word, 11, 3));
  out_.op_sel_hi = uint8_t(bits(next, 27, 2) | bits(word, 14, 1) << 2);
  out_.clamp = bits(word, 15, 1);
  out_.neg = uint8_t(bits(next, 29, 3));
  const uint32_t used = (1u << row.sources) - 1;
  if ((out_.neg | out_.neg_hi | out_.op_sel) & ~used)
    return fail("VOP3P modifier of a source that is absent");
  const bool mixed = row.src[0].kind == OperandType::Kind::kMixed;
  if (mixed) {  // the neg_hi field holds abs
    out_.abs = out_.neg_hi;
    out_.neg_hi = 0;
  }
  for (unsigned i = 0; i < 3; ++i) {
    const uint32_t code = bits(next, 9 * i, 9);
    if (i >= row.sources) {
      if (code != 0) return fail("reserved source field " + std::to_string(i) + " of VOP3P");
      continue;
    }
    OperandType type = row.src[i];
    if (mixed) type = {OperandType::Kind::kFloat, uint8_t((out_.op_sel_hi >> i & 1) ? 16 : 32), 1, 1};
    if (!source(code, type, false, out_.src[i])) return false;
  }
  note_vector_operands();
  return true;
}

bool Decoder::accumulator_move() {
  const uint32_t word = words_[0], next = words_[1];
  const bool read = out_.op == Op::V_ACCVGPR_READ_B32;
  if (bits(word, 8, 6) || bits(word, 15, 1) || bits(next, 9, 18) || bits(next, 29, 3))
    return fail("reserved bits of v_accvgpr_* are set");
  out_.op_sel_hi = 1;  // what the assembler implies
  const uint32_t code = bits(next, 0, 9);
  if (!vector_register(bits(word, 0, 8), 1, !read, out_.dst)) return false;
  if (read ? !vector_source(code, row_->src[0], true, out_.src[0])
           : !source(code, row_->src[0], false, out_.src[0]))
    return false;
  note_vector_operands();
  return true;
}

bool Decoder::matrix() {
  const uint32_t word = words_[0], next = words_[1];
  const InstructionRow& row = *row_;
  const bool accumulate_in_agpr = bits(word, 15, 1);
  out_.cbsz = uint8_t(bits(word, 8, 3));
  out_.abid = uint8_t(bits(word, 11, 4));
  out_.blgp = uint8_t(bits(next, 29, 3));
  const bool sparse = is_matrix_sparse(out_.op);
  if (sparse && out_.blgp) return fail("blgp on a sparse matrix instruction");
  if (!vector_register(bits(word, 0, 8), row.dst.dwords, accumulate_in_agpr, out_.dst)) return false;
  for (unsigned i = 0; i < 2; ++i)
    if (!vector_source(bits(next, 9 * i, 9), row.src[i], bits(next, 27 + i, 1), out_.src[i])) return false;
  const uint32_t code = bits(next, 18, 9);
  if (sparse        ? !vector_source(code, row.src[2], false, out_.src[2])
      : code >= 256 ? !vector_source(code, row.src[2], accumulate_in_agpr, out_.src[2])
                    : !source(code, row.src[2], false, out_.src[2]))
    return false;
  if (out_.src[2].kind == Operand::Kind::kScalar)
    return fail("operand C of a matrix instruction is a scalar register");
  note_vector_operands();
  return true;
}

}  // namespace gfx942
