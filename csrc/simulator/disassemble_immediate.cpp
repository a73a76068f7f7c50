#include "disassemble_immediate.hpp"

#include <cstdio>

#include <iterator>

#include "decoder.hpp"

namespace gfx942 {
namespace {

std::string hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

const char* float_name(uint64_t value, const OperandType& type) {
  static const char* const kNames[] = {"0.5", "-0.5", "1.0", "-1.0", "2.0", "-2.0", "4.0", "-4.0"};
  for (uint32_t code = 240; code <= 248; ++code) {
    if (inline_constant(code, type) != value) continue;
    if (code < 248) return kNames[code - 240];
    return type.bits == 64 ? "0.15915494309189532" : "0.15915494";
  }
  return nullptr;
}

std::string immediate16(int32_t value) {
  const uint32_t raw = uint32_t(value) & 0xFFFF;
  return raw <= 64 ? std::to_string(raw) : hex(raw);
}

std::string wait_text(unsigned immediate) {
  const unsigned vm = bits(immediate, 0, 4) | bits(immediate, 14, 2) << 4, exp = bits(immediate, 4, 3),
                 lgkm = bits(immediate, 8, 4);
  const bool all = vm == 63 && exp == 7 && lgkm == 15;
  std::string text;
  auto counter = [&](const char* name, unsigned value, unsigned maximum) {
    if (value == maximum && !all) return;
    if (!text.empty()) text += " ";
    text += std::string(name) + "(" + std::to_string(value) + ")";
  };
  counter("vmcnt", vm, 63);
  counter("expcnt", exp, 7);
  counter("lgkmcnt", lgkm, 15);
  return text;
}

std::string hardware_register_text(unsigned immediate) {
  static const char* const kNames[] = {nullptr,
                                       "HW_REG_MODE",
                                       "HW_REG_STATUS",
                                       "HW_REG_TRAPSTS",
                                       "HW_REG_HW_ID",
                                       "HW_REG_GPR_ALLOC",
                                       "HW_REG_LDS_ALLOC",
                                       "HW_REG_IB_STS",
                                       nullptr,
                                       nullptr,
                                       nullptr,
                                       nullptr,
                                       nullptr,
                                       nullptr,
                                       nullptr,
                                       "HW_REG_SH_MEM_BASES",
                                       "HW_REG_TBA_LO",
                                       "HW_REG_TBA_HI",
                                       "HW_REG_TMA_LO",
                                       "HW_REG_TMA_HI",
                                       "HW_REG_XCC_ID",
                                       "HW_REG_SQ_PERF_SNAPSHOT_DATA",
                                       "HW_REG_SQ_PERF_SNAPSHOT_DATA1",
                                       "HW_REG_SQ_PERF_SNAPSHOT_PC_LO",
                                       "HW_REG_SQ_PERF_SNAPSHOT_PC_HI"};
  const unsigned id = bits(immediate, 0, 6), offset = bits(immediate, 6, 5),
                 size = bits(immediate, 11, 5) + 1;
  std::string text = "hwreg(";
  if (id < std::size(kNames) && kNames[id])
    text += kNames[id];
  else
    text += std::to_string(id);
  if (offset != 0 || size != 32) text += ", " + std::to_string(offset) + ", " + std::to_string(size);
  return text + ")";
}

std::string message_text(unsigned immediate) {
  const unsigned id = immediate & 0xF, operation = immediate >> 4 & 7, stream = immediate >> 8 & 3;
  const char* name = nullptr;
  const char* operation_name = nullptr;
  bool with_stream = false;
  switch (id) {
  case 1: name = "MSG_INTERRUPT"; break;
  case 2:
  case 3: {
    name = id == 2 ? "MSG_GS" : "MSG_GS_DONE";
    static const char* const kGs[] = {"GS_OP_NOP", "GS_OP_CUT", "GS_OP_EMIT", "GS_OP_EMIT_CUT"};
    if (operation < 4) operation_name = kGs[operation];
    with_stream = operation != 0;
    break;
  }
  case 4: name = "MSG_SAVEWAVE"; break;
  case 5: name = "MSG_STALL_WAVE_GEN"; break;
  case 6: name = "MSG_HALT_WAVES"; break;
  case 7: name = "MSG_ORDERED_PS_DONE"; break;
  case 8: name = "MSG_EARLY_PRIM_DEALLOC"; break;
  case 9: name = "MSG_GS_ALLOC_REQ"; break;
  case 10: name = "MSG_GET_DOORBELL"; break;
  case 15: {
    name = "MSG_SYSMSG";
    static const char* const kSystem[] = {nullptr, "SYSMSG_OP_ECC_ERR_INTERRUPT", "SYSMSG_OP_REG_RD", nullptr,
                                          "SYSMSG_OP_TTRACE_PC"};
    if (operation < 5) operation_name = kSystem[operation];
    break;
  }
  default: break;
  }
  const bool has_operation = id == 2 || id == 3 || id == 15;
  const bool valid = name && (has_operation ? operation_name != nullptr : operation == 0) &&
                     !(id == 2 && operation == 0) && (with_stream || stream == 0);
  if (valid) {
    std::string text = std::string("sendmsg(") + name;
    if (has_operation) text += std::string(", ") + operation_name;
    if (with_stream) text += ", " + std::to_string(stream);
    return text + ")";
  }
  if (immediate != (id | operation << 4 | stream << 8)) return std::to_string(immediate);
  return "sendmsg(" + std::to_string(id) + ", " + std::to_string(operation) + ", " + std::to_string(stream) +
         ")";
}

}  // namespace

std::string signed_hex(int64_t value) {
  return value < 0 ? "-" + hex(uint64_t(-value)) : hex(uint64_t(value));
}

// LLVM writes a value that an inline constant can express in that notation, however it was encoded; literals
// of 64-bit operands excepted.
std::string constant_text(const Operand& operand, const OperandType& type) {
  const uint64_t value = operand.value;
  const bool is_float = type.kind == OperandType::Kind::kFloat, is_literal = operand.index == kLiteralCode;
  if (type.kind == OperandType::Kind::kImmediate) return hex(value);  // K of v_fmamk and its relatives
  if (type.bits == 64) {
    if (is_literal && !is_float) return uint32_t(value) <= 64 ? std::to_string(value) : hex(uint32_t(value));
    const char* name = float_name(value, type);
    if (name) return name;
    return is_literal && value ? hex(value >> 32) : std::to_string(int64_t(value));
  }
  const bool half = type.bits == 16 && type.count == 1;
  const int32_t integer = half && is_float ? int16_t(value) : int32_t(value);
  if (integer >= -16 && integer <= 64) return std::to_string(integer);
  const bool as_float16 = half && is_float;
  const OperandType single{OperandType::Kind::kFloat, 32, 1, 1};
  const char* name = float_name(as_float16 ? value & 0xFFFF : value, half && !is_float ? single : type);
  if (name) return name;
  return hex(half ? value & 0xFFFF : uint32_t(value));
}

std::string gpr_index_text(unsigned mode) {
  static const char* const kNames[] = {"SRC0", "SRC1", "SRC2", "DST"};
  if (mode > 15) return hex(mode);
  std::string text = "gpr_idx(";
  for (unsigned i = 0; i < 4; ++i) {
    if (!(mode >> i & 1)) continue;
    if (text.back() != '(') text += ",";
    text += kNames[i];
  }
  return text + ")";
}

std::string program_control_text(const Instruction& instruction) {
  const unsigned immediate = unsigned(instruction.offset) & 0xFFFF;
  switch (instruction.op) {
  case Op::S_WAITCNT: return wait_text(immediate);
  case Op::S_SENDMSG:
  case Op::S_SENDMSGHALT: return message_text(immediate);
  case Op::S_SET_GPR_IDX_MODE: return gpr_index_text(immediate);
  case Op::S_ENDPGM: return immediate ? std::to_string(immediate) : "";
  case Op::S_BRANCH:
  case Op::S_CBRANCH_SCC0:
  case Op::S_CBRANCH_SCC1:
  case Op::S_CBRANCH_VCCZ:
  case Op::S_CBRANCH_VCCNZ:
  case Op::S_CBRANCH_EXECZ:
  case Op::S_CBRANCH_EXECNZ:
  case Op::S_CBRANCH_CDBGSYS:
  case Op::S_CBRANCH_CDBGUSER:
  case Op::S_CBRANCH_CDBGSYS_OR_USER:
  case Op::S_CBRANCH_CDBGSYS_AND_USER: return std::to_string(instruction.offset);
  case Op::S_NOP:
  case Op::S_SETKILL:
  case Op::S_SETHALT:
  case Op::S_SLEEP:
  case Op::S_SETPRIO:
  case Op::S_TRAP:
  case Op::S_INCPERFLEVEL:
  case Op::S_DECPERFLEVEL: return immediate16(instruction.offset);
  default: return "";
  }
}

std::string scalar_immediate_text(const Instruction& instruction) {
  const unsigned immediate = unsigned(instruction.offset) & 0xFFFF;
  switch (instruction.op) {
  case Op::S_GETREG_B32:
  case Op::S_SETREG_B32:
  case Op::S_SETREG_IMM32_B32: return hardware_register_text(immediate);
  case Op::S_CALL_B64:
  case Op::S_CBRANCH_I_FORK: return std::to_string(instruction.offset);
  default: return hex(immediate);
  }
}

std::string swizzle_text(unsigned pattern) {
  if ((pattern & 0xFF00) == 0x8000) {
    char text[40];
    std::snprintf(text, sizeof text, "swizzle(QUAD_PERM,%u,%u,%u,%u)", pattern & 3, pattern >> 2 & 3,
                  pattern >> 4 & 3, pattern >> 6 & 3);
    return text;
  }
  if (pattern & 0x8000) return std::to_string(pattern);
  const unsigned and_mask = pattern & 31, or_mask = pattern >> 5 & 31, xor_mask = pattern >> 10 & 31;
  auto power_of_two = [](unsigned value) { return value != 0 && (value & (value - 1)) == 0; };
  if (and_mask == 31 && or_mask == 0 && power_of_two(xor_mask))
    return "swizzle(SWAP," + std::to_string(xor_mask) + ")";
  if (and_mask == 31 && or_mask == 0 && xor_mask != 0 && power_of_two(xor_mask + 1))
    return "swizzle(REVERSE," + std::to_string(xor_mask + 1) + ")";
  const unsigned group = 32 - and_mask;
  if (group > 1 && power_of_two(group) && or_mask < group && xor_mask == 0)
    return "swizzle(BROADCAST," + std::to_string(group) + "," + std::to_string(or_mask) + ")";
  std::string text = "swizzle(BITMASK_PERM,\"";
  for (unsigned bit = 16; bit != 0; bit >>= 1) {
    const bool from0 = (or_mask ^ xor_mask) & bit, from1 = ((and_mask | or_mask) ^ xor_mask) & bit;
    text += from0 == from1 ? (from0 ? '1' : '0') : (from0 ? 'i' : 'p');
  }
  return text + "\")";
}

std::string buffer_format_text(unsigned format) {
  static const char* const kElements[] = {"INVALID",     "8",          "16",          "8_8",
                                          "32",          "16_16",      "10_11_11",    "11_11_10",
                                          "10_10_10_2",  "2_10_10_10", "8_8_8_8",     "32_32",
                                          "16_16_16_16", "32_32_32",   "32_32_32_32", "RESERVED_15"};
  static const char* const kNumbers[] = {"UNORM", "SNORM", "USCALED",    "SSCALED",
                                         "UINT",  "SINT",  "RESERVED_6", "FLOAT"};
  const unsigned elements = format & 15, number = format >> 4 & 7;
  if (elements == 1 && number == 0) return "";
  std::string text = "[";
  if (elements != 1) text += std::string("BUF_DATA_FORMAT_") + kElements[elements];
  if (elements != 1 && number != 0) text += ",";
  if (number != 0) text += std::string("BUF_NUM_FORMAT_") + kNumbers[number];
  return text + "]";
}

}  // namespace gfx942
