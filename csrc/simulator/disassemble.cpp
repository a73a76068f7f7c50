// Instruction text in LLVM's syntax for gfx942.
#include <cstdio>
#include <cstring>

#include "disassemble_immediate.hpp"
#include "instruction_table.hpp"

namespace gfx942 {
namespace {

using Kind = Operand::Kind;

std::string register_group(const char* prefix, unsigned first, unsigned dwords) {
  if (dwords == 1) return prefix + std::to_string(first);
  return std::string(prefix) + "[" + std::to_string(first) + ":" + std::to_string(first + dwords - 1) + "]";
}

std::string scalar_text(unsigned code, unsigned dwords) {
  if (code < 102) return register_group("s", code, dwords);
  if (code >= 108 && code < 124) return register_group("ttmp", code - 108, dwords);
  if (code == 124) return "m0";
  const char* name = code < 104 ? "flat_scratch" : code < 106 ? "xnack_mask" : code < 108 ? "vcc" : "exec";
  if (dwords == 2) return name;
  return std::string(name) + (code % 2 ? "_hi" : "_lo");
}

std::string operand_text(const Operand& operand, const OperandType& type) {
  switch (operand.kind) {
  case Kind::kNone: return "";
  case Kind::kScalar: return scalar_text(operand.index, operand.dwords);
  case Kind::kVector: return register_group("v", operand.index, operand.dwords);
  case Kind::kAccumulator: return register_group("a", operand.index, operand.dwords);
  case Kind::kConstant: return constant_text(operand, type);
  case Kind::kScc: return "src_scc";
  case Kind::kVccz: return "src_vccz";
  case Kind::kExecz: return "src_execz";
  case Kind::kAperture: {
    static const char* const kNames[] = {"src_shared_base", "src_shared_limit", "src_private_base",
                                         "src_private_limit"};
    return kNames[operand.index - 235];
  }
  case Kind::kLdsDirect: return "src_lds_direct";
  case Kind::kOff: return "off";
  }
  return "";
}

class Text {
 public:
  explicit Text(const Instruction& instruction)
      : in_(instruction), row_(instruction_row(instruction.op)), text_(op_info(instruction.op).name) {}
  std::string build();

 private:
  void operand(const std::string& operand) {
    text_ += first_ ? " " : ", ";
    text_ += operand;
    first_ = false;
  }
  void operand(const Operand& value, const OperandType& type) {
    if (value.kind != Kind::kNone) operand(operand_text(value, type));
  }
  void word(const std::string& word) { text_ += " " + word; }
  void number(const char* name, unsigned value) {
    if (value) word(name + std::to_string(value));
  }
  // name:[b0,b1,...]
  void bit_list(const char* name, unsigned bits, unsigned count);

  void scalar();
  void scalar_memory();
  void vector();
  void vector_source(unsigned i);
  void sdwa();
  void dpp();
  void matrix();
  void lds();
  void buffer();
  void flat();
  void cache_bits();

  const Instruction& in_;
  const InstructionRow& row_;
  std::string text_;
  bool first_ = true;
};

void Text::bit_list(const char* name, unsigned bits, unsigned count) {
  std::string list = std::string(name) + ":[";
  for (unsigned i = 0; i < count; ++i) {
    if (i) list += ",";
    list += (bits >> i & 1) ? "1" : "0";
  }
  word(list + "]");
}

void Text::scalar() {
  if (in_.encoding == Encoding::kSopp) {
    const std::string immediate = program_control_text(in_);
    if (!immediate.empty()) operand(immediate);
    return;
  }
  if (in_.encoding == Encoding::kSopk) {
    const std::string immediate = scalar_immediate_text(in_);
    if (in_.op == Op::S_SETREG_B32 || in_.op == Op::S_SETREG_IMM32_B32) operand(immediate);
    operand(in_.dst, row_.dst);
    operand(in_.src[0], {OperandType::Kind::kBits, 32, 1, 1});
    if (in_.op != Op::S_SETREG_B32 && in_.op != Op::S_SETREG_IMM32_B32) operand(immediate);
    return;
  }
  operand(in_.dst, row_.dst);
  operand(in_.src[0], row_.src[0]);
  operand(in_.src[1], row_.src[1]);
  if (in_.op == Op::S_SET_GPR_IDX_ON) operand(gpr_index_text(unsigned(in_.offset)));
}

void Text::scalar_memory() {
  if (row_.dst.kind == OperandType::Kind::kImmediate)
    operand(in_.offset1 <= 64 ? std::to_string(in_.offset1) : signed_hex(in_.offset1));
  else
    operand(in_.dst, row_.dst);
  if (in_.src[0].kind != Kind::kNone) {
    operand(in_.src[0], row_.src[0]);
    const OperandType one{OperandType::Kind::kScalar, 32, 1, 1};
    if (in_.src[1].kind != Kind::kNone) {
      operand(in_.src[1], one);
      if (in_.offen) word("offset:" + signed_hex(in_.offset));
    } else {
      operand(signed_hex(in_.offset));
    }
  }
  if (in_.sc0) word("glc");
}

void Text::vector_source(unsigned i) {
  OperandType type = row_.src[i];
  if (type.kind == OperandType::Kind::kMixed)
    type = {OperandType::Kind::kFloat, uint8_t((in_.op_sel_hi >> i & 1) ? 16 : 32), 1, 1};
  std::string source = operand_text(in_.src[i], type);
  const bool sext = in_.sdwa.active && ((i == 0 && in_.sdwa.src0_sext) || (i == 1 && in_.sdwa.src1_sext));
  if (sext) source = "sext(" + source + ")";
  // VOP3P prints its modifiers as lists behind the operands, except where it has neg and abs.
  if (in_.encoding != Encoding::kVop3p || row_.src[0].kind == OperandType::Kind::kMixed) {
    if (in_.abs >> i & 1) source = "|" + source + "|";
    if (in_.neg >> i & 1) {
      const bool bare_constant = in_.src[i].kind == Kind::kConstant && !(in_.abs >> i & 1);
      source = bare_constant ? "neg(" + source + ")" : "-" + source;
    }
  }
  operand(source);
}

void Text::sdwa() {
  static const char* const kSelect[] = {"BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1", "DWORD"};
  static const char* const kUnused[] = {"UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE"};
  if (in_.encoding != Encoding::kVopc && !is_small_float_conversion(in_.op)) {
    word(std::string("dst_sel:") + kSelect[in_.sdwa.dst_sel]);
    word(std::string("dst_unused:") + kUnused[in_.sdwa.dst_unused]);
  }
  word(std::string("src0_sel:") + kSelect[in_.sdwa.src0_sel]);
  if (row_.sources >= 2) word(std::string("src1_sel:") + kSelect[in_.sdwa.src1_sel]);
}

void Text::dpp() {
  const unsigned control = in_.dpp.ctrl, amount = control & 0xF;
  char text[48];
  if (control <= 0xFF) {
    std::snprintf(text, sizeof text, "quad_perm:[%u,%u,%u,%u]", control & 3, control >> 2 & 3,
                  control >> 4 & 3, control >> 6 & 3);
  } else {
    static const char* const kRow[] = {nullptr, "row_shl:", "row_shr:", "row_ror:"};
    const unsigned group = control >> 4 & 0xF;
    if (group == 1 - 1)
      std::snprintf(text, sizeof text, "%s%u", kRow[1], amount);
    else if (group <= 2)
      std::snprintf(text, sizeof text, "%s%u", kRow[group + 1], amount);
    else if (group == 3)
      std::snprintf(text, sizeof text, "%s",
                    amount == 0   ? "wave_shl:1"
                    : amount == 4 ? "wave_rol:1"
                    : amount == 8 ? "wave_shr:1"
                                  : "wave_ror:1");
    else if (group == 4)
      std::snprintf(text, sizeof text, "%s",
                    amount == 0   ? "row_mirror"
                    : amount == 1 ? "row_half_mirror"
                    : amount == 2 ? "row_bcast:15"
                                  : "row_bcast:31");
    else
      std::snprintf(text, sizeof text, "row_newbcast:%u", amount);
  }
  word(text);
  std::snprintf(text, sizeof text, "row_mask:0x%x bank_mask:0x%x", in_.dpp.row_mask, in_.dpp.bank_mask);
  word(text);
  if (in_.dpp.bound_ctrl) word("bound_ctrl:1");
}

void Text::vector() {
  const bool vop3 = in_.encoding == Encoding::kVop3 || in_.encoding == Encoding::kVop3b;
  const bool short_form =
      in_.encoding == Encoding::kVop1 || in_.encoding == Encoding::kVop2 || in_.encoding == Encoding::kVopc;
  if (row_.dst.present()) {
    if (in_.sdwa.active)
      text_ += "_sdwa";
    else if (in_.dpp.active)
      text_ += "_dpp";
    else if (short_form && (row_.has_vop3_form || in_.op == Op::V_PK_FMAC_F16))
      text_ += "_e32";
    else if (vop3 && row_.has_short_form)
      text_ += "_e64";
  }
  operand(in_.dst, row_.dst);
  operand(in_.sdst, row_.sdst);
  for (unsigned i = 0; i < row_.sources; ++i) vector_source(i);

  if (in_.encoding == Encoding::kVop3p) {
    const unsigned all = (1u << row_.sources) - 1;
    const bool mixed = row_.src[0].kind == OperandType::Kind::kMixed;
    if (in_.op_sel & all) bit_list("op_sel", in_.op_sel, row_.sources);
    if ((in_.op_sel_hi & all) != (mixed ? 0 : all)) bit_list("op_sel_hi", in_.op_sel_hi, row_.sources);
    if (!mixed && in_.neg) bit_list("neg_lo", in_.neg, row_.sources);
    if (!mixed && in_.neg_hi) bit_list("neg_hi", in_.neg_hi, row_.sources);
  } else if (in_.op_sel) {
    const bool all_bits =
        row_.sources == 3 || in_.op == Op::V_CVT_SR_FP8_F32 || in_.op == Op::V_CVT_SR_BF8_F32;
    if (all_bits)
      bit_list("op_sel", in_.op_sel, 4);
    else if (row_.sources == 2)
      bit_list("op_sel", (in_.op_sel & 3u) | (in_.op_sel >> 1 & 4u), 3);
    else
      bit_list("op_sel", (in_.op_sel & 1u) | (in_.op_sel >> 2 & 2u), 2);
  }
  if (in_.clamp) word("clamp");
  static const char* const kOmod[] = {"", "mul:2", "mul:4", "div:2"};
  if (in_.omod) word(kOmod[in_.omod]);
  if (in_.sdwa.active) sdwa();
  if (in_.dpp.active) dpp();
}

void Text::matrix() {
  operand(in_.dst, row_.dst);
  for (unsigned i = 0; i < 3; ++i) operand(in_.src[i], row_.src[i]);
  number("cbsz:", in_.cbsz);
  number("abid:", in_.abid);
  if (row_.dst.bits == 64) {
    if (in_.blgp) bit_list("neg", in_.blgp, 3);
  } else {
    number("blgp:", in_.blgp);
  }
}

void Text::lds() {
  operand(in_.dst, row_.dst);
  for (unsigned i = 0; i < 3; ++i) operand(in_.src[i], row_.src[i]);
  if (in_.op == Op::DS_SWIZZLE_B32) {
    if (in_.offset) word("offset:" + swizzle_text(unsigned(in_.offset)));
  } else if (std::strstr(op_info(in_.op).name, "read2") || std::strstr(op_info(in_.op).name, "write2") ||
             std::strstr(op_info(in_.op).name, "wrxchg2")) {
    number("offset0:", unsigned(in_.offset));
    number("offset1:", in_.offset1);
  } else {
    number("offset:", unsigned(in_.offset));
  }
  if (in_.gds) word("gds");
}

void Text::cache_bits() {
  if (in_.sc0) word("sc0");
  if (in_.nt) word("nt");
  if (in_.sc1) word("sc1");
}

void Text::buffer() {
  if (row_.dst.present() || row_.sources) {
    const OperandType one{OperandType::Kind::kBits, 32, 1, 1};
    if (!in_.lds) operand(in_.src[2].kind == Kind::kNone ? in_.dst : in_.src[2], one);
    operand(in_.src[0], one);
    operand(in_.src[1], one);
    operand(in_.src[3], one);
  }
  if (in_.encoding == Encoding::kMtbuf) {
    const std::string format = buffer_format_text(in_.offset1);
    if (!format.empty()) word("format:" + format);
  }
  if (in_.idxen) word("idxen");
  if (in_.offen) word("offen");
  number("offset:", unsigned(in_.offset));
  cache_bits();
  if (in_.lds) word("lds");
}

void Text::flat() {
  const OperandType one{OperandType::Kind::kBits, 32, 1, 1};
  operand(in_.dst, one);
  operand(in_.src[0], one);
  operand(in_.src[2], one);
  operand(in_.src[1], one);
  if (in_.offset) word("offset:" + std::to_string(in_.offset));
  cache_bits();
}

std::string Text::build() {
  switch (in_.encoding) {
  case Encoding::kSop1:
  case Encoding::kSop2:
  case Encoding::kSopc:
  case Encoding::kSopk:
  case Encoding::kSopp: scalar(); break;
  case Encoding::kSmem: scalar_memory(); break;
  case Encoding::kMfma: matrix(); break;
  case Encoding::kDs: lds(); break;
  case Encoding::kMubuf:
  case Encoding::kMtbuf: buffer(); break;
  case Encoding::kFlat:
  case Encoding::kGlobal:
  case Encoding::kScratch: flat(); break;
  default: vector(); break;
  }
  return text_;
}

}  // namespace

std::string disassemble(const Instruction& instruction) {
  if (instruction.op == Op::kInvalid) return "<invalid>";
  return Text(instruction).build();
}

}  // namespace gfx942
