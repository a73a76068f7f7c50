#include "shadow.hpp"

#include <string>
#include <string_view>

namespace gfx942 {

namespace {

constexpr uint64_t kAll = ~uint64_t{0};

unsigned vector_index(const Operand& operand) {
  return ((operand.kind == Operand::Kind::kAccumulator ? 256u : 0u) + operand.index) & 511;
}
bool is_vector(const Operand& operand) {
  return operand.kind == Operand::Kind::kVector || operand.kind == Operand::Kind::kAccumulator;
}
std::string vector_name(unsigned r) {
  return r < 256 ? "v" + std::to_string(r) : "a" + std::to_string(r - 256);
}
std::string scalar_name(unsigned s) {
  switch (s) {
  case kVcc: return "vcc_lo";
  case kVcc + 1: return "vcc_hi";
  case kM0: return "m0";
  case kExec: return "exec_lo";
  case kExec + 1: return "exec_hi";
  default: return "s" + std::to_string(s);
  }
}

void report(const Wave& wave, const Step& step, const std::string& what, const char* reaches, int lane = -1) {
  report_finding(wave, step, "uninitialised",
                 what + (lane >= 0 ? " of lane " + std::to_string(lane) : "") +
                     " was never written and reaches " + reaches);
}

int first_lane(uint64_t mask) {
  return __builtin_ctzll(mask);
}

std::string_view name_of(const Instruction& instruction) {
  return op_info(instruction.op).name;
}

bool is_bitwise(std::string_view name) {
  if (name.find("saveexec") != std::string_view::npos) return false;
  for (const char* prefix :
       {"s_and_", "s_or_", "s_xor_", "s_andn2_", "s_orn2_", "s_nand_", "s_nor_", "s_xnor_", "s_not_"})
    if (name.substr(0, std::string_view(prefix).size()) == prefix) return true;
  return false;
}

}  // namespace

void WaveShadow::reset(unsigned scalars) {
  vector_.fill(0);
  vector_[0] = kAll;
  scalar_.fill(0);
  for (unsigned s = 0; s < scalars; ++s) scalar_[s] = ~0u;
  for (unsigned s : {kFlatScratch, kFlatScratch + 1, kExec, kExec + 1}) scalar_[s] = ~0u;
  scc_ = false;
}

bool WaveShadow::scalar_defined(const Operand& operand) const {
  switch (operand.kind) {
  case Operand::Kind::kScalar:
    for (unsigned s = operand.index; s < operand.index + unsigned{operand.dwords} && s < 128; ++s)
      if (scalar_[s] != ~0u) return false;
    return true;
  case Operand::Kind::kScc: return scc_;
  case Operand::Kind::kVccz: return scalar_[kVcc] == ~0u && scalar_[kVcc + 1] == ~0u;
  default: return true;
  }
}

uint64_t WaveShadow::scalar_bits(const Operand& operand) const {
  if (operand.kind != Operand::Kind::kScalar) return scalar_defined(operand) ? kAll : 0;
  const uint64_t low = scalar_[operand.index & 127];
  return operand.dwords < 2 ? low | low << 32
                            : low | static_cast<uint64_t>(scalar_[(operand.index + 1) & 127]) << 32;
}

void WaveShadow::define_scalar(const Operand& operand, uint64_t bits) {
  if (operand.kind != Operand::Kind::kScalar) return;
  for (unsigned i = 0; i < operand.dwords && operand.index + i < 128; ++i)
    scalar_[operand.index + i] = static_cast<uint32_t>(i & 1 ? bits >> 32 : bits);
}

// Lanes in which a source is defined, without DPP.
uint64_t WaveShadow::lanes_of(const Wave&, const Operand& operand, unsigned row) const {
  if (is_vector(operand)) return row < operand.dwords ? vector_[(vector_index(operand) + row) & 511] : kAll;
  return scalar_defined(operand) ? kAll : 0;
}

void WaveShadow::check(Wave& wave, const Issued& now, const Accesses& accesses) const {
  const Step& step = now.step;
  const Instruction& instruction = now.instruction;
  const InstructionTraits& traits = now.traits;
  const std::string_view name = name_of(instruction);
  const auto demand_scalars = [&](const char* reaches) {
    for (unsigned s = 0; s < kScalarRegisters; ++s)
      if (traits.scalar_reads[s] && scalar_[s] != ~0u) report(wave, step, scalar_name(s), reaches);
  };
  const auto demand_lanes = [&](const Operand& operand, unsigned rows, uint64_t lanes, const char* reaches) {
    if (!is_vector(operand)) return;
    for (unsigned row = 0; row < rows; ++row) {
      const unsigned r = (vector_index(operand) + row) & 511;
      if (const uint64_t missing = lanes & ~vector_[r])
        report(wave, step, vector_name(r), reaches, first_lane(missing));
    }
  };

  if (instruction.encoding == Encoding::kSopp || name == "s_call_b64") {
    if (name.substr(0, 9) != "s_cbranch") return;
    if (traits.reads_scc && !scc_) report(wave, step, "SCC", "a branch");
    demand_scalars("a branch");
    return;
  }
  if (name == "s_setpc_b64" || name == "s_swappc_b64") return demand_scalars("a branch");
  if (traits.access != Access::kNone) {
    demand_scalars("an address");
    if (traits.lds || instruction.encoding != Encoding::kSmem)
      demand_lanes(instruction.src[0], instruction.src[0].dwords, wave.exec(), "an address");
    // Only memory: what goes into LDS is followed there.
    if (accesses.memory_kind == Access::kStore || accesses.memory_kind == Access::kAtomic) {
      const Operand& stored = instruction.src[2];
      for (const LaneRange& range : accesses.memory) {
        const unsigned rows = range.bytes < 4                    ? 1
                              : traits.access == Access::kAtomic ? stored.dwords
                                                                 : range.bytes / 4;
        demand_lanes(stored, rows, uint64_t{1} << range.lane, "a store");
      }
    }
    return;
  }
  if (name == "ds_bpermute_b32" || name == "ds_permute_b32")
    demand_lanes(instruction.src[0], 1, wave.exec(), "a lane number");
  if (instruction.encoding == Encoding::kSop1 || instruction.encoding == Encoding::kSop2) {
    if (!traits.scalar_writes[kExec] && !traits.scalar_writes[kExec + 1]) return;
    const Operand &a = instruction.src[0], &b = instruction.src[1];
    if (is_bitwise(name) && b.kind != Operand::Kind::kNone) {
      const uint64_t missing = ~((scalar_bits(a) & scalar_bits(b)) | decided_bits(wave, name, a, b));
      const Operand& undefined = missing & ~scalar_bits(a) ? a : b;
      if (missing) report(wave, step, scalar_name(undefined.index), "EXEC", first_lane(missing));
    } else if (name.substr(0, 5) == "s_and" || name.substr(0, 5) == "s_mov") {
      // s_and_saveexec needs its mask only where EXEC is 1.
      const uint64_t live = name.substr(0, 5) == "s_and" ? wave.exec() : kAll;
      for (const Operand& source : instruction.src)
        if (source.kind == Operand::Kind::kScalar && (live & ~scalar_bits(source)))
          report(wave, step, scalar_name(source.index), "EXEC", first_lane(live & ~scalar_bits(source)));
    } else {
      demand_scalars("EXEC");
    }
  } else if (name.substr(0, 6) == "v_cmpx") {
    for (const Operand& source : instruction.src)
      demand_lanes(source, is_vector(source) ? source.dwords : 0, wave.exec(), "EXEC");
    demand_scalars("EXEC");
  }
}

void WaveShadow::vector_alu(Wave& wave, const Issued& now) {
  const Instruction& instruction = now.instruction;
  const InstructionTraits& traits = now.traits;
  const std::string_view name = name_of(instruction);
  const uint64_t exec = wave.exec();
  const Operand& first = instruction.src[0];

  if (name == "v_readfirstlane_b32" || name == "v_readlane_b32") {
    int lane = exec ? first_lane(exec) : 0;
    if (name == "v_readlane_b32") {
      const Operand& select = instruction.src[1];
      lane = static_cast<int>((select.kind == Operand::Kind::kScalar ? wave.scalar[select.index]
                                                                     : static_cast<uint32_t>(select.value)) &
                              63);
    }
    return define_scalar(instruction.dst, lanes_of(wave, first, 0) >> lane & 1 ? kAll : 0);
  }
  if (name == "v_writelane_b32") {
    const Operand& select = instruction.src[1];
    const unsigned lane = (select.kind == Operand::Kind::kScalar ? wave.scalar[select.index]
                                                                 : static_cast<uint32_t>(select.value)) &
                          63;
    // Compilers keep lane masks here that are written for some lanes only.
    const bool written = first.kind != Operand::Kind::kScalar || scalar_[first.index & 127];
    uint64_t& lanes = vector_[vector_index(instruction.dst)];
    lanes = (lanes & ~(uint64_t{1} << lane)) | static_cast<uint64_t>(written) << lane;
    return;
  }
  if (name == "v_swap_b32") {
    uint64_t &a = vector_[vector_index(instruction.dst)], &b = vector_[vector_index(first)];
    const uint64_t was = a;
    a = (a & ~exec) | (b & exec);
    b = (b & ~exec) | (was & exec);
    return;
  }

  uint64_t defined = kAll, written = exec;
  for (unsigned i = 0; i < instruction.src.size(); ++i) {
    const Operand& source = instruction.src[i];
    if (source.kind == Operand::Kind::kNone) continue;
    uint64_t lanes = kAll;
    if (is_vector(source)) {
      for (unsigned row = 0; row < source.dwords; ++row) lanes &= lanes_of(wave, source, row);
    } else if (source.kind == Operand::Kind::kScalar && source.dwords == 2 && i == 2) {
      lanes = scalar_bits(source);  // a lane mask
    } else {
      lanes = lanes_of(wave, source, 0);
    }
    if (i == 0 && instruction.dpp.active) {
      const Dpp& dpp = instruction.dpp;
      uint64_t moved = 0;
      for (int lane = 0; lane < kLanes; ++lane) {
        const int from = dpp_source(dpp.ctrl, lane);
        const bool valid = from >= 0 && (exec >> from & 1);
        const bool enabled = (dpp.row_mask >> (lane >> 4) & 1) && (dpp.bank_mask >> (lane >> 2 & 3) & 1);
        if (!valid || (lanes >> from & 1)) moved |= uint64_t{1} << lane;  // an invalid source reads 0
        if (!enabled || (!valid && !dpp.bound_ctrl)) written &= ~(uint64_t{1} << lane);
      }
      lanes = moved;
    }
    if (name == "v_cndmask_b32" && i < 2 && instruction.src[2].kind == Operand::Kind::kScalar) {
      const uint64_t mask = wave.scalar64(instruction.src[2].index);
      lanes |= i == 0 ? mask : ~mask;  // not chosen
    }
    defined &= lanes;
  }
  if (accumulates(instruction.op) && is_vector(instruction.dst))
    for (unsigned row = 0; row < instruction.dst.dwords; ++row)
      defined &= lanes_of(wave, instruction.dst, row);
  if (traits.scalar_reads[kVcc] && name.substr(0, 10) == "v_div_fmas")
    defined &= scalar_[kVcc] | static_cast<uint64_t>(scalar_[kVcc + 1]) << 32;

  for (unsigned r = 0; r < kVectorRegisters; ++r)
    if (traits.vector_writes[r]) vector_[r] = (vector_[r] & ~written) | (defined & written);
  // A lane mask: inactive lanes read 0.
  define_scalar(instruction.dst, defined | ~exec);
  define_scalar(instruction.sdst, defined | ~exec);
}

void WaveShadow::matrix(const Wave& wave, const Instruction& instruction) {
  uint64_t inputs = kAll, addend = kAll;
  for (unsigned i = 0; i < 2; ++i)
    for (unsigned row = 0; row < instruction.src[i].dwords; ++row)
      inputs &= lanes_of(wave, instruction.src[i], row);
  // Every element of the result depends on a row and a column that are spread over lanes.
  const bool whole = inputs == kAll;
  for (unsigned row = 0; row < instruction.dst.dwords; ++row) {
    addend = is_vector(instruction.src[2]) ? lanes_of(wave, instruction.src[2], row) : kAll;
    vector_[(vector_index(instruction.dst) + row) & 511] = whole ? addend : 0;
  }
}

// Bits of a result that one operand decides alone: a 0 of an AND, a 1 of an OR.
uint64_t WaveShadow::decided_bits(const Wave& wave, std::string_view name, const Operand& a,
                                  const Operand& b) const {
  const auto value = [&wave](const Operand& operand) -> uint64_t {
    if (operand.kind != Operand::Kind::kScalar) return operand.value;
    return operand.dwords == 2 ? wave.scalar64(operand.index) : wave.scalar[operand.index] * 0x100000001ull;
  };
  const auto is = [&name](const char* prefix) {
    return name.substr(0, std::string_view(prefix).size()) == prefix;
  };
  const uint64_t known_a = scalar_bits(a), known_b = scalar_bits(b);
  const uint64_t zero_a = known_a & ~value(a), one_a = known_a & value(a);
  const uint64_t zero_b = known_b & ~value(b), one_b = known_b & value(b);
  if (is("s_and_") || is("s_nand_")) return zero_a | zero_b;
  if (is("s_or_") || is("s_nor_")) return one_a | one_b;
  if (is("s_andn2_")) return zero_a | one_b;
  if (is("s_orn2_")) return one_a | zero_b;
  return 0;
}

void WaveShadow::scalar_alu(const Wave& wave, const Issued& now) {
  const Instruction& instruction = now.instruction;
  const InstructionTraits& traits = now.traits;
  const std::string_view name = name_of(instruction);
  const Operand &a = instruction.src[0], &b = instruction.src[1];

  uint64_t bits = kAll;
  if (is_bitwise(name) || name.substr(0, 5) == "s_mov" || name.find("saveexec") != std::string_view::npos) {
    bits = scalar_bits(a);
    if (b.kind != Operand::Kind::kNone) {
      bits &= scalar_bits(b);
      if (name.find("saveexec") == std::string_view::npos) bits |= decided_bits(wave, name, a, b);
    }
  } else if (name.substr(0, 9) == "s_cselect") {
    const Operand& chosen = wave.scc ? a : b;
    bits = scc_ && scalar_defined(chosen) ? kAll : 0;
  } else {
    bool all = !traits.reads_scc || scc_;
    for (const Operand& source : instruction.src) all &= scalar_defined(source);
    for (unsigned s = 0; s < kScalarRegisters; ++s) all &= !traits.scalar_reads[s] || scalar_[s] == ~0u;
    bits = all ? kAll : 0;
  }
  if (name.find("saveexec") != std::string_view::npos)
    define_scalar(instruction.dst, kAll);  // the old EXEC
  else
    define_scalar(instruction.dst, bits);
  if (traits.writes_scc) scc_ = bits == kAll;
  scalar_[kExec] = scalar_[kExec + 1] = ~0u;  // checked where it is set
}

uint64_t WaveShadow::moved_lanes(const Wave& wave, const Instruction& instruction) const {
  const uint64_t exec = wave.exec();
  const std::string_view name = name_of(instruction);
  const auto offset = static_cast<uint32_t>(instruction.offset) & 0xFFFF;
  uint64_t defined = name == "ds_permute_b32" ? kAll : 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(exec >> lane & 1)) continue;
    if (name == "ds_swizzle_b32") {
      const int from = swizzle_source(offset, lane);
      if (from < 0 || !(exec >> from & 1) || (lanes_of(wave, instruction.src[0], 0) >> from & 1))
        defined |= uint64_t{1} << lane;
      continue;
    }
    const uint32_t other = (wave.vector[vector_index(instruction.src[0])][lane] + offset) / 4 & 63;
    const uint64_t sources = lanes_of(wave, instruction.src[1], 0);
    if (name == "ds_permute_b32") {
      if (!(sources >> lane & 1)) defined &= ~(uint64_t{1} << other);
    } else if (!(exec >> other & 1) || (sources >> other & 1)) {
      defined |= uint64_t{1} << lane;
    }
  }
  return defined;
}

void WaveShadow::lds_access(const Wave& wave, const Issued& now, const Accesses& accesses,
                            GroupShadow& group) {
  const Instruction& instruction = now.instruction;
  const InstructionTraits& traits = now.traits;
  const unsigned rows = (traits.element_bytes + 3u) / 4;
  const auto is_defined = [&](uint64_t first, uint64_t bytes) {
    for (uint64_t byte = first; byte < first + bytes; ++byte)
      if (byte < group.lds.size() && !group.lds[byte]) return false;
    return true;
  };
  for (size_t i = 0; i < accesses.lds.size(); ++i) {
    const LaneRange& range = accesses.lds[i];
    const uint64_t lane = uint64_t{1} << range.lane;
    const unsigned element = traits.pair_unit ? static_cast<unsigned>(i & 1) : 0;
    const unsigned row_bytes = traits.element_bytes < 4 ? traits.element_bytes : 4;
    if (is_vector(instruction.dst) && accesses.lds_kind != Access::kStore) {
      for (unsigned row = 0; row < rows; ++row) {
        uint64_t& lanes = vector_[(vector_index(instruction.dst) + element * rows + row) & 511];
        lanes = is_defined(range.address + 4 * row, row_bytes) ? lanes | lane : lanes & ~lane;
      }
    }
    if (accesses.lds_kind == Access::kLoad) continue;
    const Operand& stored =
        instruction.encoding == Encoding::kDs ? instruction.src[1 + element] : instruction.src[2];
    for (unsigned row = 0; row < rows; ++row) {
      bool defined = instruction.lds || (lanes_of(wave, stored, row) & lane);
      if (accesses.lds_kind == Access::kAtomic)
        defined = defined && is_defined(range.address + 4 * row, row_bytes);
      for (unsigned byte = 0; byte < row_bytes; ++byte)
        if (range.address + 4 * row + byte < group.lds.size())
          group.lds[range.address + 4 * row + byte] = defined;
    }
  }
}

void WaveShadow::propagate(Wave& wave, const Issued& now, const Accesses& accesses, GroupShadow& group) {
  const Instruction& instruction = now.instruction;
  const InstructionTraits& traits = now.traits;
  if (traits.is & kVectorAlu) return vector_alu(wave, now);
  if (traits.is & kMatrixOp) return matrix(wave, instruction);
  if (traits.is & kScalarAlu) return scalar_alu(wave, now);
  if (accesses.lds_kind != Access::kNone) lds_access(wave, now, accesses, group);
  if (instruction.encoding == Encoding::kDs && traits.access == Access::kNone && is_vector(instruction.dst)) {
    const uint64_t defined = moved_lanes(wave, instruction), exec = wave.exec();
    uint64_t& lanes = vector_[vector_index(instruction.dst)];
    lanes = (lanes & ~exec) | (defined & exec);
    return;
  }
  if (traits.lds || instruction.lds) return;
  if (instruction.encoding == Encoding::kSmem) return define_scalar(instruction.dst, kAll);
  if (traits.access == Access::kLoad || traits.access == Access::kAtomic) {
    for (unsigned r = 0; r < kVectorRegisters; ++r)
      if (traits.vector_writes[r]) vector_[r] |= wave.exec();
  }
}

}  // namespace gfx942
