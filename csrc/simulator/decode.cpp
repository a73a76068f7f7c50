// Decoder of gfx942 machine code: dispatch, operands and the scalar encodings. Field positions are those of
// the "AMD Instinct MI300" ISA reference, chapter "Microcode formats".
#include <cstdio>

#include "decoder.hpp"

namespace gfx942 {
namespace {

// Scalar operand codes.
constexpr uint32_t kLastSgpr = 101, kFirstTtmp = 108, kM0 = 124, kExec = 126;
constexpr uint32_t kZero = 128, kLastPositive = 192, kLastNegative = 208;
constexpr uint32_t kSharedBase = 235, kPrivateLimit = 238;
constexpr uint32_t kFirstFloat = 240, kLastFloat = 248;
constexpr uint32_t kVccz = 251, kExecz = 252, kScc = 253;

// 0.5, -0.5, 1, -1, 2, -2, 4, -4, 1 / (2 pi)
constexpr uint16_t kFloat16[] = {0x3800, 0xB800, 0x3C00, 0xBC00, 0x4000, 0xC000, 0x4400, 0xC400, 0x3118};
constexpr uint32_t kFloat32[] = {0x3F000000, 0xBF000000, 0x3F800000, 0xBF800000, 0x40000000,
                                 0xC0000000, 0x40800000, 0xC0800000, 0x3E22F983};
constexpr uint64_t kFloat64[] = {0x3FE0000000000000, 0xBFE0000000000000, 0x3FF0000000000000,
                                 0xBFF0000000000000, 0x4000000000000000, 0xC000000000000000,
                                 0x4010000000000000, 0xC010000000000000, 0x3FC45F306DC9C882};

std::string hex(uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%x", value);
  return text;
}

int32_t sign_extend(uint32_t value, unsigned bits) {
  const uint32_t sign = 1u << (bits - 1);
  return int32_t((value ^ sign) - sign);
}

// Instructions that name a register by its number, or jump to it.
bool needs_register_source(Op op) {
  switch (op) {
  case Op::S_MOVRELS_B32:
  case Op::S_MOVRELS_B64:
  case Op::S_SETPC_B64:
  case Op::S_SWAPPC_B64:
  case Op::S_RFE_B64:
  case Op::S_CBRANCH_JOIN: return true;
  default: return false;
  }
}

bool has_no_immediate(Op op) {
  switch (op) {
  case Op::S_BARRIER:
  case Op::S_WAKEUP:
  case Op::S_ICACHE_INV:
  case Op::S_TTRACEDATA:
  case Op::S_ENDPGM_SAVED:
  case Op::S_SET_GPR_IDX_OFF:
  case Op::S_ENDPGM_ORDERED_PS_DONE: return true;
  default: return false;
  }
}

}  // namespace

uint64_t inline_constant(uint32_t code, const OperandType& type) {
  if (code <= kLastNegative) {
    const int64_t value =
        code <= kLastPositive ? int64_t(code) - kZero : int64_t(kLastPositive) - int64_t(code);
    return type.bits == 64 ? uint64_t(value) : uint64_t(uint32_t(value));
  }
  const uint32_t i = code - kFirstFloat;
  if (type.bits == 64) return kFloat64[i];
  const bool packed_integers = type.count > 1 && type.kind != OperandType::Kind::kFloat;
  if (type.bits == 16 && !packed_integers) return kFloat16[i];
  return kFloat32[i];
}

bool Decoder::fail(std::string reason) {
  reason_ = std::move(reason);
  const uint64_t address = out_.address;
  out_ = Instruction{};
  out_.address = address;
  return false;
}

bool Decoder::find(Encoding encoding, uint32_t opcode, const char* name) {
  out_.op = find_op(encoding, opcode);
  if (out_.op == Op::kInvalid) return fail(std::string("unknown ") + name + " opcode " + hex(opcode));
  out_.encoding = encoding;
  row_ = &instruction_row(out_.op);
  return true;
}

bool Decoder::second_word() {
  if (available_ < 8) return fail("the code ends inside an 8-byte instruction");
  out_.size = 8;
  return true;
}

bool Decoder::literal(const OperandType& type, Operand& operand) {
  if (!second_word()) return false;
  operand.kind = Operand::Kind::kConstant;
  operand.index = kLiteralCode;
  operand.dwords = type.dwords;
  const uint32_t word = words_[1];
  if (type.bits == 64 && type.kind == OperandType::Kind::kFloat)
    operand.value = uint64_t(word) << 32;
  else if (type.bits == 64 && type.kind == OperandType::Kind::kSigned)
    operand.value = uint64_t(int64_t(int32_t(word)));
  else
    operand.value = word;
  return true;
}

bool Decoder::scalar_register(uint32_t code, unsigned dwords, Operand& operand) {
  const bool sgpr = code <= kLastSgpr, ttmp = code >= kFirstTtmp && code < kM0;
  const bool pair = (code > kLastSgpr && code < kFirstTtmp) || code >= kExec;  // flat_scratch .. vcc, exec
  if (code == 125 || code > 127)
    return fail("operand code " + std::to_string(code) + " is not a scalar register");
  const unsigned alignment = dwords >= 4 ? 4 : dwords;
  const uint32_t base = ttmp ? code - kFirstTtmp : code;
  if (base % alignment != 0)
    return fail("scalar register " + std::to_string(code) + " cannot start a group of " +
                std::to_string(dwords));
  if ((sgpr && code + dwords - 1 > kLastSgpr) || (ttmp && code + dwords > kM0) || (pair && dwords > 2) ||
      (code == kM0 && dwords > 1))
    return fail("a group of " + std::to_string(dwords) + " scalar registers cannot start at " +
                std::to_string(code));
  operand.kind = Operand::Kind::kScalar;
  operand.index = uint16_t(code);
  operand.dwords = uint8_t(dwords);
  return true;
}

bool Decoder::vector_register(uint32_t index, unsigned dwords, bool accumulator, Operand& operand) {
  if (index + dwords > 256)
    return fail("vector registers " + std::to_string(index) + ".." + std::to_string(index + dwords - 1) +
                " do not exist");
  // gfx90a and later: vector register groups start at even registers.
  if (dwords > 1 && index % 2 != 0)
    return fail("vector register " + std::to_string(index) + " cannot start a group of " +
                std::to_string(dwords));
  operand.kind = accumulator ? Operand::Kind::kAccumulator : Operand::Kind::kVector;
  operand.index = uint16_t(index);
  operand.dwords = uint8_t(dwords);
  return true;
}

bool Decoder::source(uint32_t code, const OperandType& type, bool literal_allowed, Operand& operand) {
  const unsigned dwords = type.dwords ? type.dwords : 1;
  if (code >= 256) return vector_register(code - 256, dwords, false, operand);
  if (code < kZero) return scalar_register(code, dwords, operand);
  operand.dwords = uint8_t(dwords);
  operand.index = uint16_t(code);
  if (code <= kLastNegative || (code >= kFirstFloat && code <= kLastFloat)) {
    operand.kind = Operand::Kind::kConstant;
    operand.value = inline_constant(code, type);
    return true;
  }
  if (code >= kSharedBase && code <= kPrivateLimit) {
    operand.kind = Operand::Kind::kAperture;
    return true;
  }
  switch (code) {
  case kVccz: operand.kind = Operand::Kind::kVccz; return true;
  case kExecz: operand.kind = Operand::Kind::kExecz; return true;
  case kScc: operand.kind = Operand::Kind::kScc; return true;
  case kLiteralCode:
    if (literal_allowed) return literal(type, operand);
    return fail("a literal constant is not allowed here");
  default: return fail("reserved source operand code " + std::to_string(code));
  }
}

bool Decoder::vector_source(uint32_t code, const OperandType& type, bool accumulator, Operand& operand) {
  if (code < 256) return fail("source operand code " + std::to_string(code) + " is not a vector register");
  return vector_register(code - 256, type.dwords, accumulator, operand);
}

void Decoder::reads(const Operand& operand, unsigned dwords) {
  const bool accumulator = operand.kind == Operand::Kind::kAccumulator;
  if (operand.kind != Operand::Kind::kVector && !accumulator) return;
  out_.reads[out_.read_count++] = {uint16_t(operand.index + (accumulator ? 256 : 0)),
                                   uint16_t(dwords ? dwords : operand.dwords)};
}

void Decoder::writes(const Operand& operand) {
  const bool accumulator = operand.kind == Operand::Kind::kAccumulator;
  if (operand.kind != Operand::Kind::kVector && !accumulator) return;
  out_.writes[out_.write_count++] = {uint16_t(operand.index + (accumulator ? 256 : 0)), operand.dwords};
}

void Decoder::note_vector_operands() {
  const bool partial =
      (out_.sdwa.active && out_.sdwa.dst_sel != 6 && out_.sdwa.dst_unused == 2) ||
      (out_.dpp.active && (!out_.dpp.bound_ctrl || out_.dpp.row_mask != 0xF || out_.dpp.bank_mask != 0xF)) ||
      (out_.encoding == Encoding::kVop3 && (out_.op_sel & 8) != 0);
  if (partial || reads_destination(out_.op)) reads(out_.dst);
  for (const Operand& operand : out_.src) reads(operand);
  writes(out_.dst);
  if (out_.op == Op::V_SWAP_B32) {
    reads(out_.dst);
    writes(out_.src[0]);
  }
}

bool Decoder::scalar_alu(uint32_t word) {
  const uint32_t sdst = bits(word, 16, 7);
  if (bits(word, 23, 9) == 0x17D) {  // SOP1
    if (!find(Encoding::kSop1, bits(word, 8, 8), "SOP1")) return false;
    if (row_->dst.present() ? !scalar_register(sdst, row_->dst.dwords, out_.dst) : sdst != 0)
      return row_->dst.present() ? false : fail("reserved destination field of SOP1");
    if (row_->sources == 0) return bits(word, 0, 8) == 0 || fail("reserved source field of SOP1");
    if (!source(bits(word, 0, 8), row_->src[0], true, out_.src[0])) return false;
    return out_.src[0].kind == Operand::Kind::kScalar || !needs_register_source(out_.op) ||
           fail("the source must be a scalar register");
  }
  if (bits(word, 23, 9) == 0x17E) {  // SOPC
    if (!find(Encoding::kSopc, sdst, "SOPC")) return false;
  } else {
    if (!find(Encoding::kSop2, bits(word, 23, 7), "SOP2")) return false;
    if (row_->dst.present() ? !scalar_register(sdst, row_->dst.dwords, out_.dst) : sdst != 0)
      return row_->dst.present() ? false : fail("reserved destination field of SOP2");
  }
  if (!source(bits(word, 0, 8), row_->src[0], true, out_.src[0])) return false;
  if (row_->src[1].kind == OperandType::Kind::kImmediate) {  // s_set_gpr_idx_on
    out_.offset = int32_t(bits(word, 8, 8));
    return out_.offset < 16 || fail("reserved bits of the immediate are set");
  }
  return source(bits(word, 8, 8), row_->src[1], true, out_.src[1]);
}

bool Decoder::scalar_immediate(uint32_t word) {
  if (!find(Encoding::kSopk, bits(word, 23, 5), "SOPK")) return false;
  out_.offset = sign_extend(bits(word, 0, 16), 16);
  const uint32_t code = bits(word, 16, 7);
  if (row_->dst.present()) return scalar_register(code, row_->dst.dwords, out_.dst);
  if (row_->src[0].kind == OperandType::Kind::kImmediate)
    return code == 0 ? literal(row_->src[0], out_.src[0])
                     : fail("reserved bits of s_setreg_imm32_b32 are set");
  return scalar_register(code, row_->src[0].dwords, out_.src[0]);
}

bool Decoder::program_control(uint32_t word) {
  if (!find(Encoding::kSopp, bits(word, 16, 7), "SOPP")) return false;
  if (bits(word, 0, 16) && has_no_immediate(out_.op)) return fail("reserved immediate of SOPP is set");
  out_.offset = sign_extend(bits(word, 0, 16), 16);
  return true;
}

bool Decoder::scalar_memory() {
  if (!second_word()) return false;
  const uint32_t word = words_[0], next = words_[1];
  if (!find(Encoding::kSmem, bits(word, 18, 8), "SMEM")) return false;
  const bool immediate = bits(word, 17, 1), register_offset = bits(word, 14, 1);
  out_.sc0 = bits(word, 16, 1);
  if (row_->dst.kind == OperandType::Kind::kImmediate)
    out_.offset1 = uint8_t(bits(word, 6, 7));
  else if (row_->dst.present() ? !scalar_register(bits(word, 6, 7), row_->dst.dwords, out_.dst)
                               : bits(word, 6, 7) != 0)
    return row_->dst.present() ? false : fail("reserved data field of SMEM");
  if (bits(word, 15, 1)) return fail("reserved bit 15 of SMEM is set");
  if (out_.dst.kind == Operand::Kind::kScalar && out_.dst.index >= kM0)
    return fail("SMEM data cannot be M0 or EXEC");
  if (out_.sc0 && (row_->dst.kind == OperandType::Kind::kImmediate || !row_->dst.present()))
    return fail("reserved bit 16 of SMEM is set");
  if (row_->sources == 0) {
    if (bits(word, 0, 6) || immediate || register_offset || out_.sc0 || next)
      return fail("reserved bits of an SMEM instruction without address are set");
    return true;
  }
  if (!scalar_register(bits(word, 0, 6) * 2, row_->src[0].dwords, out_.src[0])) return false;
  const OperandType one{OperandType::Kind::kScalar, 32, 1, 1};
  if (immediate) out_.offset = sign_extend(bits(next, 0, 21), 21);
  out_.offen = immediate && register_offset;
  if (register_offset) return scalar_register(bits(next, 25, 7), one.dwords, out_.src[1]);
  if (bits(next, 25, 7)) return fail("reserved offset register field of SMEM");
  if (!immediate) return scalar_register(bits(next, 0, 7), one.dwords, out_.src[1]);
  return true;
}

bool Decoder::decode() {
  if (available_ < 4) return fail("the code ends before the instruction");
  const uint32_t word = words_[0];
  if (bits(word, 31, 1) == 0) return short_vector(word);
  if (bits(word, 30, 2) == 2) {
    const uint32_t top = bits(word, 23, 9);
    if (top == 0x17F) return program_control(word);
    if (top != 0x17D && top != 0x17E && bits(word, 28, 4) == 0xB) return scalar_immediate(word);
    return scalar_alu(word);
  }
  switch (bits(word, 26, 6)) {
  case 0x30: return scalar_memory();
  case 0x34: return bits(word, 23, 9) == 0x1A7 ? vop3p() : vop3();
  case 0x36: return lds();
  case 0x37: return flat();
  case 0x38: return buffer(false);
  case 0x3A: return buffer(true);
  default: return fail("unknown encoding " + hex(word));
  }
}

bool decode(const uint32_t* words, uint64_t available, uint64_t address, Instruction& out,
            std::string& reason) {
  return Decoder(words, available, address, out, reason).decode();
}

}  // namespace gfx942
