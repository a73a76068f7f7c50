#include "program.hpp"

#include <cstring>
#include <string_view>

#include "checks.hpp"
#include "hazards.hpp"
#include "instruction_table.hpp"
#include "registers.hpp"

namespace gfx942 {

int dpp_source(unsigned control, int lane) {
  const int row = lane & ~15, in_row = lane & 15;
  const auto within_row = [&](int position) { return position < 0 || position > 15 ? -1 : row + position; };
  if (control < 0x100) return (lane & ~3) | static_cast<int>(control >> 2 * (lane & 3) & 3);
  const int amount = static_cast<int>(control & 15);
  switch (control) {
  case 0x130: return lane == 63 ? -1 : lane + 1;    // wave_shl
  case 0x134: return (lane + 1) & 63;               // wave_rol
  case 0x138: return lane - 1;                      // wave_shr
  case 0x13C: return (lane + 63) & 63;              // wave_ror
  case 0x140: return row + 15 - in_row;             // row_mirror
  case 0x141: return (lane & ~7) + 7 - (lane & 7);  // row_half_mirror
  case 0x142: return row == 0 ? -1 : row - 1;       // row_bcast15
  case 0x143: return lane < 32 ? -1 : 31;           // row_bcast31
  default: break;
  }
  if (control > 0x100 && control < 0x110) return within_row(in_row + amount);     // row_shl
  if (control > 0x110 && control < 0x120) return within_row(in_row - amount);     // row_shr
  if (control > 0x120 && control < 0x130) return row + ((in_row - amount) & 15);  // row_ror
  if (control >= 0x150 && control < 0x160) return row + amount;                   // row_newbcast
  return -1;
}

namespace {

// 16-bit instructions that leave the upper half of their destination as it was; the others clear it.
bool keeps_high_half(Op op) {
  switch (op) {
  case Op::V_FMA_F16:
  case Op::V_MAD_F16:
  case Op::V_MAD_U16:
  case Op::V_MAD_I16:
  case Op::V_DIV_FIXUP_F16:
  case Op::V_MIN3_F16:
  case Op::V_MIN3_I16:
  case Op::V_MIN3_U16:
  case Op::V_MAX3_F16:
  case Op::V_MAX3_I16:
  case Op::V_MAX3_U16:
  case Op::V_MED3_F16:
  case Op::V_MED3_I16:
  case Op::V_MED3_U16:
  case Op::V_FMA_MIXLO_F16:
  case Op::V_ADD_I16:
  case Op::V_SUB_I16: return true;
  default: return false;
  }
}

struct TypeName {
  unsigned bits = 32;
  bool is_float = false, packed = false, mask = false;
};

TypeName parse_type(std::string_view name) {
  TypeName type;
  type.is_float = name[0] == 'f';
  type.mask = name == "m64";
  const size_t digits = name.find_first_of("0123456789");
  if (digits == std::string_view::npos) return type;  // "mix"
  type.bits = static_cast<unsigned>(std::strtoul(name.data() + digits, nullptr, 10));
  const size_t times = name.find('x', digits);
  if (times != std::string_view::npos) {
    type.packed = true;
    if (type.bits == 32 && name.substr(times) == "x2") type.bits = 64;  // two rows, one per element
  }
  return type;
}

std::vector<TypeName> parse_types(std::string_view operands) {
  std::vector<TypeName> types;
  while (!operands.empty()) {
    const size_t space = operands.find(' ');
    const std::string_view name = operands.substr(0, space);
    types.push_back(parse_type(name));
    operands = space == std::string_view::npos ? std::string_view{} : operands.substr(space + 1);
  }
  return types;
}

bool is_branch(Op op) {
  switch (op) {
  case Op::S_BRANCH:
  case Op::S_CALL_B64:
  case Op::S_CBRANCH_SCC0:
  case Op::S_CBRANCH_SCC1:
  case Op::S_CBRANCH_VCCZ:
  case Op::S_CBRANCH_VCCNZ:
  case Op::S_CBRANCH_EXECZ:
  case Op::S_CBRANCH_EXECNZ: return true;
  default: return false;
  }
}

bool is_special(const Operand& operand) {
  switch (operand.kind) {
  case Operand::Kind::kScc:
  case Operand::Kind::kVccz:
  case Operand::Kind::kExecz:
  case Operand::Kind::kAperture: return true;
  default: return false;
  }
}

void refresh_special(Wave& wave, const Instruction& instruction) {
  wave.special[0] = wave.scc;
  wave.special[1] = wave.vcc() == 0;
  wave.special[2] = wave.exec() == 0;
  for (const Operand& operand : instruction.src) {
    if (operand.kind != Operand::Kind::kAperture) continue;
    constexpr uint64_t kValues[4] = {kSharedAperture, kSharedAperture | 0xFFFFFFFF, kPrivateAperture,
                                     kPrivateAperture | 0xFFFFFFFF};
    wave.special[3] = kValues[(operand.index - 235) & 3];
  }
}

void run_scalar_with_special_source(Wave& wave, const Step& step) {
  refresh_special(wave, wave.group->program->instruction(step));
  reinterpret_cast<Handler>(step.src[3])(wave, step);
}

const uint32_t* vector_row(const Wave& wave, const Operand& operand) {
  return wave.vector[operand.kind == Operand::Kind::kAccumulator ? 256 + operand.index : operand.index];
}

// Bits of an SDWA selection, moved to bit 0.
uint32_t sdwa_select(uint32_t value, unsigned select, bool sign_extend) {
  if (select < 4) {
    const uint32_t byte = value >> 8 * select & 0xFF;
    return sign_extend ? static_cast<uint32_t>(static_cast<int8_t>(byte)) : byte;
  }
  if (select < 6) {
    const uint32_t half = value >> 16 * (select - 4) & 0xFFFF;
    return sign_extend ? static_cast<uint32_t>(static_cast<int16_t>(half)) : half;
  }
  return value;
}

void apply_dpp(Wave& wave, const Instruction& instruction, uint32_t* row, unsigned rows) {
  const Dpp& dpp = instruction.dpp;
  uint64_t lanes = 0;
  const uint64_t exec = wave.exec();
  uint32_t moved[2][kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    const bool enabled = (dpp.row_mask >> (lane >> 4) & 1) && (dpp.bank_mask >> (lane >> 2 & 3) & 1);
    const int from = dpp_source(dpp.ctrl, lane);
    const bool valid = from >= 0 && (exec >> from & 1);
    for (unsigned r = 0; r < rows; ++r) moved[r][lane] = valid ? row[r * kLanes + from] : 0;
    if (enabled && (valid || dpp.bound_ctrl)) lanes |= uint64_t{1} << lane;
  }
  std::memcpy(row, moved, rows * sizeof moved[0]);
  wave.lane_mask = lanes;
}

// Applies op_sel, neg and abs of a source to its copied rows.
void apply_modifiers(const Instruction& instruction, const StepDetail& detail, unsigned i, uint32_t* row) {
  const bool neg = instruction.neg >> i & 1, abs = instruction.abs >> i & 1;
  const bool neg_hi = instruction.neg_hi >> i & 1;
  const bool select = instruction.op_sel >> i & 1, select_hi = instruction.op_sel_hi >> i & 1;
  const unsigned bits = detail.source_bits[i];
  if (instruction.encoding == Encoding::kVop3p) {
    uint32_t* high = row + kLanes;
    for (int lane = 0; lane < kLanes; ++lane) {
      if (bits == 64) {  // a pair of 32-bit elements
        const uint32_t elements[2] = {row[lane], high[lane]};
        row[lane] = elements[select] ^ (neg ? 0x80000000u : 0);
        high[lane] = elements[select_hi] ^ (neg_hi ? 0x80000000u : 0);
      } else if (detail.packed[i]) {
        const uint32_t value = row[lane];
        const uint32_t low = (value >> (select ? 16 : 0) & 0xFFFF) ^ (neg ? 0x8000u : 0);
        const uint32_t upper = (value >> (select_hi ? 16 : 0) & 0xFFFF) ^ (neg_hi ? 0x8000u : 0);
        row[lane] = low | upper << 16;
      } else if (neg) {  // the float32 addend of v_dot2_f32_f16
        row[lane] ^= 0x80000000u;
      }
    }
    return;
  }
  if (bits == 16) {
    for (int lane = 0; lane < kLanes; ++lane) {
      uint32_t value = select ? row[lane] >> 16 : row[lane];
      if (abs) value &= ~0x8000u;
      if (neg) value ^= 0x8000u;
      row[lane] = value;
    }
    return;
  }
  uint32_t* sign = bits == 64 ? row + kLanes : row;
  const uint32_t keep = abs ? 0x7FFFFFFFu : 0xFFFFFFFFu, flip = neg ? 0x80000000u : 0;
  for (int lane = 0; lane < kLanes; ++lane) sign[lane] = (sign[lane] & keep) ^ flip;
}

void prepare_one(Wave& wave, const Instruction& instruction, const StepDetail& detail, unsigned i) {
  uint32_t* row = wave.operand[i][0];
  const unsigned rows = detail.source_bits[i] == 64 ? 2 : 1;
  const Operand& operand = instruction.src[i];
  if (operand.kind == Operand::Kind::kVector || operand.kind == Operand::Kind::kAccumulator) {
    std::memcpy(row, vector_row(wave, operand), rows * kLanes * 4);
  } else if (operand.kind == Operand::Kind::kConstant) {
    for (unsigned r = 0; r < rows; ++r) {
      const uint32_t value = static_cast<uint32_t>(operand.value >> 32 * r);
      for (int lane = 0; lane < kLanes; ++lane) row[r * kLanes + lane] = value;
    }
  }
  if (i == 0 && instruction.dpp.active) apply_dpp(wave, instruction, row, rows);
  const Sdwa& sdwa = instruction.sdwa;
  if (sdwa.active && i < 2) {
    const unsigned select = i == 0 ? sdwa.src0_sel : sdwa.src1_sel;
    const bool extend = i == 0 ? sdwa.src0_sext : sdwa.src1_sext;
    for (int lane = 0; lane < kLanes; ++lane) row[lane] = sdwa_select(row[lane], select, extend);
  }
  apply_modifiers(instruction, detail, i, row);
}

}  // namespace

void prepare_sources(Wave& wave, const Step& step) {
  const unsigned prepare = step.prepare;
  if (prepare & 0x88) {
    if (prepare & 0x80) refresh_special(wave, wave.group->program->instruction(step));
    const StepDetail& detail = wave.group->program->detail(step);
    for (unsigned i = 0; i < 3; ++i) {
      if (!(prepare >> i & 1)) continue;
      const uint32_t* value = reinterpret_cast<uint32_t*>(&wave) + (step.src[3] >> 16 * i & 0xFFFF);
      const unsigned rows = detail.source_bits[i] == 64 ? 2 : 1;
      for (unsigned r = 0; r < rows; ++r) {
        for (int lane = 0; lane < kLanes; ++lane) wave.operand[i][r][lane] = value[r];
      }
    }
  } else {
    for (unsigned i = 0; i < 3; ++i) {
      if (!(prepare >> i & 1)) continue;
      const uint32_t value = reinterpret_cast<uint32_t*>(&wave)[step.src[3] >> 16 * i & 0xFFFF];
      uint32_t* row = wave.operand[i][0];
      for (int lane = 0; lane < kLanes; ++lane) row[lane] = value;
    }
  }
  if (prepare & 0x70) {
    const Instruction& instruction = wave.group->program->instruction(step);
    const StepDetail& detail = wave.group->program->detail(step);
    for (unsigned i = 0; i < 3; ++i) {
      if (prepare >> (4 + i) & 1) prepare_one(wave, instruction, detail, i);
    }
  }
}

const char* operand_types(Op op) {
  static constexpr const char* kTypes[] = {
      "",
#define INSTRUCTION(name, mnemonic, category, operands, ...) operands,
#include "instructions.def"
#undef INSTRUCTION
  };
  return kTypes[static_cast<size_t>(op)];
}

const HandlerTable& handlers() {
  static const HandlerTable table = [] {
    HandlerTable built;
    install_scalar(built);
    install_scalar_memory(built);
    install_control(built);
    install_vector(built);
    install_vector_lane(built);
    install_matrix(built);
    install_matrix_blocks(built);
    install_lds(built);
    install_buffer(built);
    install_flat(built);
    return built;
  }();
  return table;
}

bool is_implemented(Op op) {
  return handlers()[op] != nullptr;
}

bool is_executed(const uint8_t* code, uint64_t bytes) {
  const Program program(code, bytes, 0);
  const Step* step = program.at(0);
  return step && step->run != run_unimplemented && step->run != run_undecodable;
}

std::shared_ptr<const Program> make_program(const uint8_t* code, uint64_t bytes, uint64_t base_address) {
  return std::make_shared<const Program>(code, bytes, base_address);
}

Program::Program(const uint8_t* code, uint64_t bytes, uint64_t base_address)
    : base_(base_address), bytes_(bytes), step_at_(bytes / 4, -1) {
  std::vector<uint32_t> words(bytes / 4);
  std::memcpy(words.data(), code, words.size() * 4);
  for (uint64_t offset = 0; offset + 4 <= bytes;) {
    Instruction instruction;
    std::string reason;
    const auto index = static_cast<uint32_t>(instructions_.size());
    const bool known =
        decode(words.data() + offset / 4, bytes / 4 * 4 - offset, base_ + offset, instruction, reason);
    if (!known) {
      instruction.op = Op::kInvalid;
      instruction.size = 4;
      instruction.address = base_ + offset;
      undecodable_[index] = reason;
    }
    step_at_[offset / 4] = static_cast<int32_t>(index);
    instructions_.push_back(instruction);
    offset += instruction.size;
  }
  steps_.resize(instructions_.size() + 1);
  details_.resize(instructions_.size() + 1);
  for (uint32_t index = 0; index < instructions_.size(); ++index) prepare_step(index);
  steps_.back().run = run_off_the_end;
  steps_.back().index = static_cast<uint32_t>(instructions_.size());
  Instruction end;
  end.address = base_ + bytes;
  instructions_.push_back(end);
  for (const uint32_t index : close_pairs(*this, steps_)) steps_[index].hazardous = 1;
}

const Step* Program::at(uint64_t address) const {
  if (address < base_ || address >= base_ + bytes_ || address % 4) return nullptr;
  const uint64_t word = (address - base_) / 4;
  if (word >= step_at_.size() || step_at_[word] < 0) return nullptr;
  return &steps_[static_cast<size_t>(step_at_[word])];
}

uint64_t Program::constant_row(uint64_t value) {
  const auto [entry, inserted] = constant_address_.try_emplace(value);
  if (inserted) {
    ConstantRow& row = constants_.emplace_back();
    for (unsigned half = 0; half < 2; ++half) {
      row.value[half] = static_cast<uint32_t>(value >> 32 * half);
      for (uint32_t& lane : row.lanes[half]) lane = row.value[half];
    }
    entry->second = reinterpret_cast<uint64_t>(&row) + kConstantSource;
  }
  return entry->second;
}

uint64_t Program::scalar_source(const Operand& operand) {
  switch (operand.kind) {
  case Operand::Kind::kScalar: return scalar_offset(operand.index);
  case Operand::Kind::kConstant: return constant_row(operand.value) + offsetof(ConstantRow, value);
  case Operand::Kind::kScc: return special_offset(0);
  case Operand::Kind::kVccz: return special_offset(1);
  case Operand::Kind::kExecz: return special_offset(2);
  case Operand::Kind::kAperture: return special_offset(3);
  default: return constant_row(0) + offsetof(ConstantRow, value);
  }
}

uint64_t Program::vector_source(const Operand& operand, unsigned slot, Step& step) {
  switch (operand.kind) {
  case Operand::Kind::kVector: return vector_offset(operand.index);
  case Operand::Kind::kAccumulator: return vector_offset(256 + operand.index);
  case Operand::Kind::kConstant: return constant_row(operand.value);
  case Operand::Kind::kNone: return 0;
  default: break;
  }
  if (is_special(operand)) step.prepare |= 0x80;
  step.prepare |= static_cast<uint8_t>(1 << slot);
  step.src[3] |= (scalar_source(operand) / 4) << 16 * slot;
  return operand_offset(slot);
}

void Program::prepare_vector(const Instruction& instruction, Step& step, StepDetail& detail) {
  const std::vector<TypeName> types = parse_types(operand_types(instruction.op));
  if (types.empty()) return;
  const bool carry_out = types.size() > 2 && types[1].mask;
  detail.result_bits = static_cast<uint8_t>(types[0].bits);
  detail.result_float = types[0].is_float;
  detail.result_packed = types[0].packed;
  detail.keeps_high_half = keeps_high_half(instruction.op);
  const bool to_scalar = instruction.dst.kind == Operand::Kind::kScalar;
  if (to_scalar) {
    step.dst = scalar_offset(instruction.dst.index);
  } else {
    step.dst = vector_offset((instruction.dst.kind == Operand::Kind::kAccumulator ? 256 : 0) +
                             instruction.dst.index);
  }

  std::array<Operand, 4> sources = instruction.src;
  if (accumulates(instruction.op)) sources[2] = instruction.dst;
  for (unsigned i = 0; i < 3; ++i) {
    const size_t position = 1 + carry_out + i;
    const TypeName type = position < types.size() ? types[position] : types[0];
    detail.source_bits[i] = static_cast<uint8_t>(type.bits);
    detail.packed[i] = type.packed;
    if (type.mask && position < types.size()) {
      step.src[i] = scalar_source(sources[i]);
      if (is_special(sources[i])) step.prepare |= 0x80;
      continue;
    }
    step.src[i] = vector_source(sources[i], i, step);
    if (type.bits == 64 && (step.prepare >> i & 1)) step.prepare |= 8;
    if (sources[i].kind == Operand::Kind::kNone) continue;
    const uint8_t bit = static_cast<uint8_t>(1 << i);
    bool modified = ((instruction.neg | instruction.abs | instruction.neg_hi) & bit) != 0;
    const bool mixed = std::string_view(operand_types(instruction.op)).find("mix") != std::string_view::npos;
    if (mixed) modified = false;  // the handler reads these modifiers itself
    if (type.packed && instruction.encoding == Encoding::kVop3p) {
      modified |= (instruction.op_sel & bit) || !(instruction.op_sel_hi & bit);
    } else if (type.bits == 16) {
      modified |= (instruction.op_sel & bit) != 0;
    }
    if (i == 0 && instruction.dpp.active) modified = true;
    if (instruction.sdwa.active && i < 2) {
      modified |= (i == 0 ? instruction.sdwa.src0_sel : instruction.sdwa.src1_sel) != 6;
    }
    if (modified) {
      step.prepare |= static_cast<uint8_t>(0x10 << i);
      step.src[i] = operand_offset(i);
    }
  }
  if (instruction.sdst.kind == Operand::Kind::kScalar) {
    step.src[3] |= static_cast<uint64_t>(scalar_offset(instruction.sdst.index) / 4) << 48;
  }
  if (instruction.clamp) step.finish |= kClamp;
  if (instruction.omod) step.finish |= kOutputScale;
  if (instruction.sdwa.active && !to_scalar && (instruction.sdwa.dst_sel != 6)) step.finish |= kSdwa;
  if (instruction.dpp.active) step.finish |= kDpp;
  if (detail.result_bits == 16 && !detail.result_packed && !to_scalar) {
    if (detail.keeps_high_half || (instruction.op_sel & 8)) step.finish |= kHalf;
  }
}

void Program::watch_registers(const Instruction& instruction, Step& step, StepDetail& detail) {
  const auto touch_vectors = [&](const VectorRange& range) {
    for (unsigned r = range.first; r < range.first + range.count && r < 512u; ++r) {
      detail.vector_mask[r / 64] |= uint64_t{1} << r % 64;
      step.watch |= uint64_t{1} << r / 8;
    }
  };
  const auto touch_scalars = [&](unsigned first, unsigned count) {
    for (unsigned s = first; s < first + count && s < 128u; ++s) {
      detail.scalar_mask[s / 64] |= uint64_t{1} << s % 64;
      step.scalar_watch |= 1u << s / 4;
    }
  };
  for (unsigned i = 0; i < instruction.read_count; ++i) touch_vectors(instruction.reads[i]);
  for (unsigned i = 0; i < instruction.write_count; ++i) touch_vectors(instruction.writes[i]);
  const auto range_of = [](const Operand& operand) -> RegisterRange {
    if (operand.kind == Operand::Kind::kVector) return {operand.index, operand.dwords};
    if (operand.kind == Operand::Kind::kAccumulator)
      return {static_cast<uint16_t>(256 + operand.index), operand.dwords};
    return {};
  };
  detail.result = range_of(instruction.dst);
  for (unsigned r = detail.result.first; r < detail.result.first + unsigned{detail.result.count}; ++r)
    detail.result_watch |= uint64_t{1} << r / 8;
  if (instruction.dst.kind == Operand::Kind::kScalar) {
    detail.scalar_result = {instruction.dst.index, instruction.dst.dwords};
    for (unsigned s = instruction.dst.index; s < instruction.dst.index + unsigned{instruction.dst.dwords};
         ++s)
      detail.scalar_result_watch |= 1u << (s & 127) / 4;
  }
  if (instruction.encoding == Encoding::kMfma) {
    detail.a = range_of(instruction.src[0]);
    detail.b = range_of(instruction.src[1]);
    detail.c = range_of(instruction.src[2]);
    for (unsigned r = detail.c.first; r < detail.c.first + unsigned{detail.c.count}; ++r)
      detail.result_watch |= uint64_t{1} << r / 8;
  }
  const auto touch_operand = [&](const Operand& operand) {
    if (operand.kind == Operand::Kind::kScalar) touch_scalars(operand.index, operand.dwords);
  };
  touch_operand(instruction.dst);
  touch_operand(instruction.sdst);
  for (const Operand& operand : instruction.src) touch_operand(operand);
  switch (instruction.op) {
  case Op::V_DIV_FMAS_F32:
  case Op::V_DIV_FMAS_F64:
  case Op::S_CBRANCH_VCCZ:
  case Op::S_CBRANCH_VCCNZ: touch_scalars(kVcc, 2); break;
  default: break;
  }
}

void Program::prepare_step(uint32_t index) {
  const Instruction& instruction = instructions_[index];
  Step& step = steps_[index];
  StepDetail& detail = details_[index];
  step.index = index;
  if (instruction.op == Op::kInvalid) {
    step.run = run_undecodable;
    return;
  }
  const HandlerTable& table = handlers();
  step.run = table[instruction.op];
  step.category = static_cast<uint8_t>(op_info(instruction.op).category);
  if (instruction.op == Op::S_NOP) step.wait_states = static_cast<uint8_t>((instruction.offset & 0xF) + 1);
  watch_registers(instruction, step, detail);

  switch (instruction.encoding) {
  case Encoding::kVop1:
  case Encoding::kVop2:
  case Encoding::kVopc:
  case Encoding::kVop3:
  case Encoding::kVop3b:
  case Encoding::kVop3p: {
    prepare_vector(instruction, step, detail);
    if (instruction.clamp && !detail.result_float) {
      step.run = table.saturating[static_cast<size_t>(instruction.op)];
      step.finish &= static_cast<uint8_t>(~kClamp);
    }
    break;
  }
  case Encoding::kMfma: {
    step.dst = vector_offset((instruction.dst.kind == Operand::Kind::kAccumulator ? 256 : 0) +
                             instruction.dst.index);
    for (unsigned i = 0; i < 3; ++i) step.src[i] = vector_source(instruction.src[i], i, step);
    detail.passes = matrix_passes(instruction.op);
    detail.xdl = is_xdl(instruction.op);
    detail.float64 =
        instruction.op == Op::V_MFMA_F64_16X16X4_F64 || instruction.op == Op::V_MFMA_F64_4X4X4_4B_F64;
    detail.ready = static_cast<uint8_t>(detail.float64 ? 2 * detail.passes + (detail.passes == 4 ? 1 : 2)
                                                       : detail.passes + (detail.xdl ? 3 : 2));
    detail.effect = Effect::kMatrix;
    if (instruction.cbsz | instruction.abid | instruction.blgp) step.run = nullptr;  // broadcasts
    break;
  }
  case Encoding::kSop1:
  case Encoding::kSop2:
  case Encoding::kSopc:
  case Encoding::kSopk:
  case Encoding::kSmem: {
    bool special = false;
    for (unsigned i = 0; i < 3; ++i) {
      step.src[i] = scalar_source(instruction.src[i]);
      special |= is_special(instruction.src[i]);
    }
    const bool has_destination = instruction.dst.kind == Operand::Kind::kScalar;
    step.dst = has_destination ? scalar_offset(instruction.dst.index) : special_offset(0);
    if (instruction.encoding == Encoding::kSopk)
      step.src[3] = static_cast<uint64_t>(static_cast<int64_t>(instruction.offset));
    if (special && step.run) {
      step.src[3] = reinterpret_cast<uint64_t>(step.run);
      step.run = run_scalar_with_special_source;
    }
    if (instruction.encoding == Encoding::kSmem) detail.effect = Effect::kScalarMemory;
    break;
  }
  case Encoding::kSopp:
    if (is_branch(instruction.op)) step.wait_states = kBranchStates;
    step.src[1] = static_cast<uint64_t>(static_cast<int64_t>(instruction.offset));
    break;
  case Encoding::kDs: detail.effect = Effect::kLds; break;
  case Encoding::kMubuf:
  case Encoding::kMtbuf:
  case Encoding::kGlobal:
  case Encoding::kScratch: detail.effect = Effect::kVectorMemory; break;
  case Encoding::kFlat: detail.effect = Effect::kFlat; break;
  }
  step.effect = static_cast<uint8_t>(detail.effect) & 7;
  // The target of a direct branch, resolved once all steps exist in memory (steps_ never reallocates).
  const uint64_t after = instruction.address + instruction.size;
  const uint64_t target = after + 4 * static_cast<uint64_t>(static_cast<int64_t>(instruction.offset));
  if (instruction.encoding == Encoding::kSopp) step.src[0] = reinterpret_cast<uint64_t>(at(target));
  if (instruction.op == Op::S_CALL_B64) {
    step.src[0] = reinterpret_cast<uint64_t>(at(target));
    step.wait_states = kBranchStates;
  }
  if (!step.run) step.run = run_unimplemented;
}

}  // namespace gfx942
