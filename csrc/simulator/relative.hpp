// Relative vector registers: between s_set_gpr_idx_on and s_set_gpr_idx_off, M0 moves register operands.
#pragma once

#include "program.hpp"

namespace gfx942 {

// An instruction with the registers that it really touches.
struct RelativeStep {
  Step step;
  Instruction instruction;
  StepDetail detail;
};

// `step` as M0 moves it. Throws where a register does not exist or the operand has modifiers.
RelativeStep relative_step(const Wave& wave, const Step& step);

}  // namespace gfx942
