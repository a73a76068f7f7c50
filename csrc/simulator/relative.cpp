#include "relative.hpp"

#include <string>

#include "instruction_table.hpp"
#include "registers.hpp"

namespace gfx942 {

namespace {

bool is_movable(Encoding encoding) {
  return encoding == Encoding::kVop1 || encoding == Encoding::kVop2 || encoding == Encoding::kVopc ||
         encoding == Encoding::kVop3;
}

void list(Instruction& instruction, const Operand& operand, bool written) {
  if (operand.kind != Operand::Kind::kVector) return;
  const VectorRange range{operand.index, operand.dwords};
  if (written)
    instruction.writes[instruction.write_count++] = range;
  else
    instruction.reads[instruction.read_count++] = range;
}

}  // namespace

RelativeStep relative_step(const Wave& wave, const Step& step) {
  const Program& program = *wave.group->program;
  RelativeStep moved{step, program.instruction(step), program.detail(step)};
  Instruction& instruction = moved.instruction;
  if (!is_movable(instruction.encoding)) return moved;
  if (step.prepare & 0x70)
    fault(wave, step, SimulatorError::Kind::kUnsupported, "relative vector registers with operand modifiers");
  const uint32_t index = wave.scalar[kM0] & 0xFF, operands = wave.scalar[kM0] >> 12 & 0xF;
  const auto move = [&](Operand& operand) {
    if (operand.index + index + operand.dwords > 256)
      fault(wave, step, SimulatorError::Kind::kBadAddress,
            "relative vector register " + std::to_string(operand.index + index) + " does not exist");
    operand.index = static_cast<uint16_t>(operand.index + index);
    return vector_offset(index);
  };
  for (unsigned i = 0; i < 3; ++i)
    if (instruction.src[i].kind == Operand::Kind::kVector && (operands >> i & 1))
      moved.step.src[i] += move(instruction.src[i]);
  if (instruction.dst.kind == Operand::Kind::kVector && (operands & 8))
    moved.step.dst += move(instruction.dst);

  instruction.read_count = instruction.write_count = 0;
  for (unsigned i = 0; i < 3; ++i) list(instruction, instruction.src[i], false);
  if (accumulates(instruction.op)) list(instruction, instruction.dst, false);
  list(instruction, instruction.dst, true);
  moved.step.watch = 0;
  moved.step.scalar_watch = 0;
  moved.detail.vector_mask = {};
  moved.detail.scalar_mask = {};
  Program::watch_registers(instruction, moved.step, moved.detail);
  return moved;
}

}  // namespace gfx942
