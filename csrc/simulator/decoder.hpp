// State of one call of decode(), shared by the parts of the decoder.
#pragma once

#include <string>

#include "instruction_table.hpp"

namespace gfx942 {

constexpr uint32_t kVccCode = 106;
constexpr uint32_t kLiteralCode = 255;

// Bits [first, first + count) of a word.
constexpr uint32_t bits(uint32_t word, unsigned first, unsigned count) {
  return (word >> first) & ((1u << count) - 1u);
}

// The value of inline constant 128..208 or 240..248 as an operand of that type reads it: integers are sign
// extended to 32 or 64 bits, floating-point constants have the width of the element. Packed operands receive
// the constant in their lowest element.
uint64_t inline_constant(uint32_t code, const OperandType& type);

class Decoder {
 public:
  Decoder(const uint32_t* words, uint64_t available, uint64_t address, Instruction& out, std::string& reason)
      : words_(words), available_(available), out_(out), reason_(reason) {
    out_ = Instruction{};
    out_.address = address;
  }
  bool decode();

 private:
  bool fail(std::string reason);
  bool find(Encoding encoding, uint32_t opcode, const char* name);
  bool second_word();  // the encoding has 8 bytes
  bool literal(const OperandType& type, Operand& operand);

  // An SGPR, VCC, TTMP, M0 or EXEC, by its 7-bit code.
  bool scalar_register(uint32_t code, unsigned dwords, Operand& operand);
  bool vector_register(uint32_t index, unsigned dwords, bool accumulator, Operand& operand);
  // A source by its 8- or 9-bit code; a literal is the word after the encoding.
  bool source(uint32_t code, const OperandType& type, bool literal_allowed, Operand& operand);
  bool vector_source(uint32_t code, const OperandType& type, bool accumulator, Operand& operand);

  void reads(const Operand& operand, unsigned dwords = 0);
  void writes(const Operand& operand);
  void note_vector_operands();  // dst is written, all sources are read

  bool scalar_alu(uint32_t word);
  bool scalar_immediate(uint32_t word);
  bool program_control(uint32_t word);
  bool scalar_memory();

  bool short_vector(uint32_t word);  // VOP1, VOP2, VOPC
  bool sdwa(uint32_t word, bool has_source1, uint32_t source1);
  bool sdwa_modifiers();
  bool dpp(uint32_t word, bool has_source1, uint32_t source1);
  bool vop3();
  bool vop3p();
  bool accumulator_move();
  bool matrix();
  bool source_allowed(unsigned i);

  bool lds();
  bool buffer(bool typed);
  bool flat();

  const uint32_t* words_;
  uint64_t available_;
  Instruction& out_;
  std::string& reason_;
  const InstructionRow* row_ = nullptr;
};

}  // namespace gfx942
