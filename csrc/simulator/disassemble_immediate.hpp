// Text of immediates that have a notation of their own.
#pragma once

#include <string>

#include "instruction_table.hpp"

namespace gfx942 {

std::string signed_hex(int64_t value);                                       // -0x10
std::string constant_text(const Operand& operand, const OperandType& type);  // inline constant or literal
std::string program_control_text(const Instruction& instruction);            // SOPP
std::string scalar_immediate_text(const Instruction& instruction);           // SOPK
std::string gpr_index_text(unsigned mode);                                   // gpr_idx(SRC0,DST)
std::string swizzle_text(unsigned pattern);                                  // ds_swizzle_b32
std::string buffer_format_text(unsigned format);                             // MTBUF; empty for the default

}  // namespace gfx942
