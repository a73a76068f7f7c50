#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "instruction_table.hpp"

namespace gfx942 {
namespace {

constexpr size_t kOps = size_t(Op::kCount);

constexpr Form plain(Encoding encoding, uint16_t opcode, const char* modifiers = "") {
  return {Form::Variant::kPlain, encoding, opcode, modifiers};
}

#define SOP1(opcode) plain(Encoding::kSop1, opcode)
#define SOP2(opcode) plain(Encoding::kSop2, opcode)
#define SOPC(opcode) plain(Encoding::kSopc, opcode)
#define SOPK(opcode) plain(Encoding::kSopk, opcode)
#define SOPP(opcode) plain(Encoding::kSopp, opcode)
#define SMEM(opcode) plain(Encoding::kSmem, opcode)
#define VOP1(opcode) plain(Encoding::kVop1, opcode)
#define VOP2(opcode) plain(Encoding::kVop2, opcode)
#define VOPC(opcode) plain(Encoding::kVopc, opcode)
#define VOP3(opcode, modifiers) plain(Encoding::kVop3, opcode, modifiers)
#define VOP3B(opcode, modifiers) plain(Encoding::kVop3b, opcode, modifiers)
#define VOP3P(opcode) plain(Encoding::kVop3p, opcode)
#define MFMA(opcode) plain(Encoding::kMfma, opcode)
#define DS(opcode) plain(Encoding::kDs, opcode)
#define MUBUF(opcode) plain(Encoding::kMubuf, opcode)
#define MTBUF(opcode) plain(Encoding::kMtbuf, opcode)
#define FLAT(opcode) plain(Encoding::kFlat, opcode)
#define GLOBAL(opcode) plain(Encoding::kGlobal, opcode)
#define SCRATCH(opcode) plain(Encoding::kScratch, opcode)
#define SDWA Form{Form::Variant::kSdwa, Encoding::kVop1, 0, ""}
#define DPP Form{Form::Variant::kDpp, Encoding::kVop1, 0, ""}

struct TableEntry {
  OpInfo info;
  const char* operands;
  std::array<Form, 4> forms;
};

const TableEntry kTable[kOps] = {
    {{"<invalid>", Category::kControl}, "", {}},
#define INSTRUCTION(name, mnemonic, category, operands, ...)                                                 \
  {{mnemonic, Category::category}, operands, {{__VA_ARGS__}}},
#include "instructions.def"
#undef INSTRUCTION
};

OperandType parse_type(std::string_view token) {
  using Kind = OperandType::Kind;
  OperandType type;
  if (token == "-") return type;
  if (token == "lds") {
    type.kind = Kind::kLds;
    return type;
  }
  if (token == "mix") return {Kind::kMixed, 32, 1, 1};
  if (token.substr(0, 2) == "bf" || token.substr(0, 2) == "fp") token.remove_prefix(1);  // bf16, bf8, fp8
  const char letter = token[0] == 'p' ? 'f' : token[0];
  token.remove_prefix(1);
  unsigned bits = 0, count = 0;
  size_t i = 0;
  for (; i < token.size() && token[i] != 'x'; ++i) bits = bits * 10 + unsigned(token[i] - '0');
  for (++i; i < token.size(); ++i) count = count * 10 + unsigned(token[i] - '0');
  type.bits = uint8_t(bits);
  type.count = uint8_t(count ? count : 1);
  type.dwords = uint8_t((bits * type.count + 31) / 32);
  switch (letter) {
  case 'f': type.kind = Kind::kFloat; break;
  case 'i': type.kind = Kind::kSigned; break;
  case 'm': type.kind = Kind::kLaneMask; break;
  case 's': type.kind = Kind::kScalar; break;
  case 'a': type.kind = Kind::kAccumulator; break;
  case 'l': type.kind = Kind::kLane; break;
  case 'k': type.kind = Kind::kImmediate; break;
  default: type.kind = Kind::kBits; break;
  }
  return type;
}

InstructionRow parse_row(const TableEntry& entry) {
  InstructionRow row{};
  row.operands = entry.operands;
  row.forms = entry.forms;
  const bool is_ds = entry.forms[0].encoding == Encoding::kDs;
  std::vector<OperandType> types;
  std::string_view rest = entry.operands;
  while (!rest.empty()) {
    const size_t space = rest.find(' ');
    const std::string_view token = rest.substr(0, space);
    OperandType type = parse_type(token);
    if (is_ds && types.size() == 1 && token == "a32") type.kind = OperandType::Kind::kAddress;
    types.push_back(type);
    rest = space == std::string_view::npos ? std::string_view() : rest.substr(space + 1);
  }
  size_t next = 0;
  if (next < types.size()) row.dst = types[next++];
  if (next < types.size() && row.dst.present() && types[next].kind == OperandType::Kind::kLaneMask)
    row.sdst = types[next++];
  for (; next < types.size(); ++next) row.src[row.sources++] = types[next];

  for (const Form& form : row.forms) {
    if (form.variant == Form::Variant::kSdwa) row.sdwa = true;
    if (form.variant == Form::Variant::kDpp) row.dpp = true;
    if (form.variant != Form::Variant::kPlain) continue;
    const Encoding e = form.encoding;
    if (e == Encoding::kVop1 || e == Encoding::kVop2 || e == Encoding::kVopc) row.has_short_form = true;
    if (e == Encoding::kVop3 || e == Encoding::kVop3b) {
      row.has_vop3_form = true;
      row.neg = std::strstr(form.modifiers, "neg");
      row.omod = std::strstr(form.modifiers, "omod");
      row.clamp = std::strstr(form.modifiers, "clamp");
      row.op_sel = std::strstr(form.modifiers, "op_sel");
    }
  }
  return row;
}

size_t opcode_space(Encoding encoding) {
  if (encoding == Encoding::kVop3b) encoding = Encoding::kVop3;
  if (encoding == Encoding::kMfma) encoding = Encoding::kVop3p;
  return size_t(encoding);
}

struct Tables {
  std::vector<InstructionRow> rows;
  struct Match {
    Op op = Op::kInvalid;
    Encoding encoding = Encoding::kSopp;
  };
  std::array<std::vector<Match>, size_t(Encoding::kScratch) + 1> by_opcode;

  Tables() {
    rows.reserve(kOps);
    for (size_t i = 0; i < kOps; ++i) {
      rows.push_back(parse_row(kTable[i]));
      for (const Form& form : kTable[i].forms) {
        if (form.variant != Form::Variant::kPlain) continue;
        auto& matches = by_opcode[opcode_space(form.encoding)];
        if (matches.size() <= form.opcode) matches.resize(form.opcode + 1);
        matches[form.opcode] = {Op(i), form.encoding};
      }
    }
  }
};

const Tables& tables() {
  static const Tables instance;
  return instance;
}

}  // namespace

const OpInfo& op_info(Op op) {
  return kTable[op < Op::kCount ? size_t(op) : 0].info;
}

const InstructionRow& instruction_row(Op op) {
  return tables().rows[op < Op::kCount ? size_t(op) : 0];
}

Op find_op(Encoding& encoding, uint32_t opcode) {
  const auto& matches = tables().by_opcode[opcode_space(encoding)];
  if (opcode >= matches.size() || matches[opcode].op == Op::kInvalid) return Op::kInvalid;
  encoding = matches[opcode].encoding;
  return matches[opcode].op;
}

bool accumulates(Op op) {
  switch (op) {
  case Op::V_FMAC_F32:
  case Op::V_FMAC_F64:
  case Op::V_MAC_F16:
  case Op::V_PK_FMAC_F16:
  case Op::V_DOT2C_F32_F16:
  case Op::V_DOT2C_I32_I16:
  case Op::V_DOT4C_I32_I8:
  case Op::V_DOT8C_I32_I4: return true;
  default: return false;
  }
}

bool reads_destination(Op op) {
  if (accumulates(op)) return true;
  switch (op) {
  case Op::V_WRITELANE_B32:
  // The other half, or the other bytes, of the destination are preserved.
  case Op::V_FMA_MIXLO_F16:
  case Op::V_FMA_MIXHI_F16:
  case Op::V_MAD_F16:
  case Op::V_MAD_U16:
  case Op::V_MAD_I16:
  case Op::V_FMA_F16:
  case Op::V_DIV_FIXUP_F16:
  case Op::V_CVT_PK_FP8_F32:
  case Op::V_CVT_PK_BF8_F32:
  case Op::V_CVT_SR_FP8_F32:
  case Op::V_CVT_SR_BF8_F32: return true;
  default: return is_matrix_sparse(op) || std::strstr(op_info(op).name, "_d16") != nullptr;
  }
}

bool is_matrix_sparse(Op op) {
  return std::strncmp(op_info(op).name, "v_smfmac", 8) == 0;
}

bool is_small_float_conversion(Op op) {
  return op == Op::V_CVT_F32_FP8 || op == Op::V_CVT_F32_BF8 || op == Op::V_CVT_PK_F32_FP8 ||
         op == Op::V_CVT_PK_F32_BF8;
}

}  // namespace gfx942
