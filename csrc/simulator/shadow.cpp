#include "shadow.hpp"

#include <algorithm>
#include <string>
#include <string_view>

#include "unwritten.hpp"

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
int first_lane(uint64_t mask) {
  return __builtin_ctzll(mask);
}

uint64_t bit(int lane) {
  return uint64_t{1} << lane;
}

bool is_swap(const Issued& now, Access kind) {
  return kind == Access::kAtomic && now.traits.swaps;
}

}  // namespace

void WaveShadow::report(const Wave& wave, const Step& step, const std::string& what, const char* reaches,
                        int lane) const {
  std::string reason = what + (lane >= 0 ? " of lane " + std::to_string(lane) : "") +
                       " was never written and reaches " + reaches;
  if (unwritten_load_)
    reason += "; the wave read byte " + hexadecimal(unwritten_byte_) +
              " of memory that nothing has written: " + describe(wave, *unwritten_load_);
  report_finding(wave, step, "uninitialised", reason);
}

void WaveShadow::reset(unsigned scalars, size_t scratch_bytes) {
  vector_.fill(0);
  vector_[0] = kAll;
  scalar_.fill(0);
  for (unsigned s = 0; s < scalars; ++s) scalar_[s] = ~0u;
  for (unsigned s : {kFlatScratch, kFlatScratch + 1, kExec, kExec + 1}) scalar_[s] = ~0u;
  scc_ = false;
  scratch_.assign(scratch_bytes, false);
  unwritten_load_ = nullptr;
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

void WaveShadow::define_lane(const Operand& operand, unsigned row, int lane, bool defined) {
  uint64_t& lanes = vector_[(vector_index(operand) + row) & 511];
  lanes = defined ? lanes | bit(lane) : lanes & ~bit(lane);
}

// Lanes in which a register of a source is defined.
uint64_t WaveShadow::lanes_of(const Operand& operand, unsigned row) const {
  if (is_vector(operand)) return row < operand.dwords ? vector_[(vector_index(operand) + row) & 511] : kAll;
  return scalar_defined(operand) ? kAll : 0;
}

void WaveShadow::check(Wave& wave, const Issued& now, const Accesses& accesses) const {
  const Step& step = now.step;
  const Instruction& instruction = now.instruction;
  const InstructionTraits& traits = now.traits;
  const auto demand_scalars = [&](const char* reaches) {
    for (unsigned s = 0; s < kScalarRegisters; ++s)
      if (traits.scalar_reads[s] && scalar_[s] != ~0u) report(wave, step, name_scalar(s), reaches);
  };
  const auto demand_lanes = [&](const Operand& operand, unsigned rows, uint64_t lanes, const char* reaches) {
    if (!is_vector(operand)) return;
    for (unsigned row = 0; row < rows; ++row) {
      const unsigned r = (vector_index(operand) + row) & 511;
      if (const uint64_t missing = lanes & ~vector_[r])
        report(wave, step, vector_name(r), reaches, first_lane(missing));
    }
  };

  if (traits.access != Access::kNone) {
    demand_scalars("an address");
    if (instruction.encoding != Encoding::kSmem)
      demand_lanes(instruction.src[0], instruction.src[0].dwords, wave.exec(), "an address");
    // Only memory: what goes into LDS and private segments is followed there.
    if (accesses.memory_kind != Access::kStore && accesses.memory_kind != Access::kAtomic) return;
    const Operand& stored = instruction.src[2];
    for (const LaneRange& range : accesses.memory) {
      const unsigned rows = range.bytes < 4                    ? 1
                            : traits.access == Access::kAtomic ? stored.dwords
                                                               : range.bytes / 4;
      demand_lanes(stored, rows, bit(range.lane), "a store");
      const uint64_t end = range.address + range.bytes;
      if (accesses.memory_kind != Access::kAtomic || is_swap(now, Access::kAtomic)) continue;
      const uint64_t byte = UnwrittenMemory::instance().find(range.address, range.bytes);
      if (byte < end) report(wave, step, "byte " + hexadecimal(byte) + " of memory", "an atomic", range.lane);
    }
    return;
  }
  switch (traits.shape) {
  case Shape::kBranch:
    if (traits.reads_scc && !scc_) report(wave, step, "SCC", "a branch");
    return demand_scalars("a branch");
  case Shape::kJump: return demand_scalars("a branch");
  case Shape::kPermute:
  case Shape::kBackwardPermute: return demand_lanes(instruction.src[0], 1, wave.exec(), "a lane number");
  case Shape::kCompareExec:
    for (const Operand& source : instruction.src)
      demand_lanes(source, is_vector(source) ? source.dwords : 0, wave.exec(), "EXEC");
    return demand_scalars("EXEC");
  default: break;
  }
  if (!(traits.is & kScalarAlu) || (!traits.scalar_writes[kExec] && !traits.scalar_writes[kExec + 1])) return;
  const Operand &a = instruction.src[0], &b = instruction.src[1];
  const std::string_view name = op_info(instruction.op).name;
  if (traits.shape == Shape::kBitwise && b.kind != Operand::Kind::kNone) {
    const uint64_t missing = ~((scalar_bits(a) & scalar_bits(b)) | decided_bits(wave, instruction));
    const Operand& undefined = missing & ~scalar_bits(a) ? a : b;
    if (missing) report(wave, step, name_scalar(undefined.index), "EXEC", first_lane(missing));
  } else if (name.substr(0, 5) == "s_and" || traits.shape == Shape::kMove) {
    // s_and_saveexec needs its mask only where EXEC is 1.
    const uint64_t live = traits.shape == Shape::kMove ? kAll : wave.exec();
    for (const Operand& source : instruction.src)
      if (source.kind == Operand::Kind::kScalar && (live & ~scalar_bits(source)))
        report(wave, step, name_scalar(source.index), "EXEC", first_lane(live & ~scalar_bits(source)));
  } else {
    demand_scalars("EXEC");
  }
}

uint64_t WaveShadow::source_lanes(const Issued& now, unsigned i, unsigned result_row) const {
  const Instruction& instruction = now.instruction;
  const Operand& source = instruction.src[i];
  if (source.kind == Operand::Kind::kScalar && source.dwords == 2 && i == 2 &&
      now.traits.flow == Flow::kWhole)
    return scalar_bits(source);  // a lane mask
  if (!is_vector(source)) return lanes_of(source, 0);
  const auto every = [&] {
    uint64_t lanes = kAll;
    for (unsigned row = 0; row < source.dwords; ++row) lanes &= lanes_of(source, row);
    return lanes;
  };
  const unsigned low = instruction.op_sel >> i & 1, high = instruction.op_sel_hi >> i & 1;
  switch (now.traits.flow) {
  case Flow::kEach: return lanes_of(source, result_row);
  case Flow::kUpwards: return result_row == 0 ? lanes_of(source, 0) : every();
  case Flow::kDownwards: return result_row == 0 || source.dwords < 2 ? every() : lanes_of(source, 1);
  case Flow::kPacked: return lanes_of(source, result_row == 0 ? low : high);
  case Flow::kPackedMove: return i == result_row ? lanes_of(source, low) : kAll;
  default: return every();
  }
}

// Lanes that a DPP source moves out of an undefined lane are undefined, and some are not written at all.
uint64_t WaveShadow::moved_by_dpp(const Wave& wave, const Dpp& dpp, uint64_t lanes, uint64_t& written) const {
  const uint64_t exec = wave.exec();
  uint64_t moved = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    const int from = dpp_source(dpp.ctrl, lane);
    const bool valid = from >= 0 && (exec >> from & 1);
    const bool enabled = (dpp.row_mask >> (lane >> 4) & 1) && (dpp.bank_mask >> (lane >> 2 & 3) & 1);
    if (!valid || (lanes >> from & 1)) moved |= bit(lane);  // an invalid source reads 0
    if (!enabled || (!valid && !dpp.bound_ctrl)) written &= ~bit(lane);
  }
  return moved;
}

void WaveShadow::vector_alu(const Wave& wave, const Issued& now) {
  const Instruction& instruction = now.instruction;
  const InstructionTraits& traits = now.traits;
  const uint64_t exec = wave.exec();
  const Operand &first = instruction.src[0], &second = instruction.src[1];
  const auto selected_lane = [&] {
    return static_cast<int>((second.kind == Operand::Kind::kScalar ? wave.scalar[second.index]
                                                                   : static_cast<uint32_t>(second.value)) &
                            63);
  };
  switch (traits.shape) {
  case Shape::kReadFirstLane:
  case Shape::kReadLane: {
    const int lane = traits.shape == Shape::kReadLane ? selected_lane() : exec ? first_lane(exec) : 0;
    return define_scalar(instruction.dst, lanes_of(first, 0) >> lane & 1 ? kAll : 0);
  }
  case Shape::kWriteLane:
    // Compilers keep lane masks here that are written for some lanes only.
    return define_lane(instruction.dst, 0, selected_lane(),
                       first.kind != Operand::Kind::kScalar || scalar_[first.index & 127]);
  case Shape::kSwap: {
    uint64_t &a = vector_[vector_index(instruction.dst)], &b = vector_[vector_index(first)];
    const uint64_t was = a;
    a = (a & ~exec) | (b & exec);
    b = (b & ~exec) | (was & exec);
    return;
  }
  default: break;
  }

  uint64_t written = exec, whole = kAll;
  const bool into_vector = is_vector(instruction.dst);
  const unsigned rows = into_vector ? instruction.dst.dwords : 1;
  std::array<uint64_t, 16> defined;
  for (unsigned row = 0; row < rows && row < defined.size(); ++row) {
    defined[row] = kAll;
    for (unsigned i = 0; i < 3; ++i) {
      if (instruction.src[i].kind == Operand::Kind::kNone) continue;
      uint64_t lanes = source_lanes(now, i, row);
      if (i == 0 && instruction.dpp.active) lanes = moved_by_dpp(wave, instruction.dpp, lanes, written);
      if (traits.shape == Shape::kSelect && i < 2 && instruction.src[2].kind == Operand::Kind::kScalar) {
        const uint64_t mask = wave.scalar64(instruction.src[2].index);
        lanes |= i == 0 ? mask : ~mask;  // not chosen
      }
      defined[row] &= lanes;
    }
    if (traits.accumulates && into_vector) defined[row] &= lanes_of(instruction.dst, row);
    if (traits.shape == Shape::kDivFmas)
      defined[row] &= scalar_[kVcc] | static_cast<uint64_t>(scalar_[kVcc + 1]) << 32;
    whole &= defined[row];
  }
  for (unsigned row = 0; into_vector && row < rows && row < defined.size(); ++row) {
    uint64_t& lanes = vector_[(vector_index(instruction.dst) + row) & 511];
    lanes = (lanes & ~written) | (defined[row] & written);
  }
  // A lane mask: inactive lanes read 0.
  define_scalar(instruction.dst, whole | ~exec);
  define_scalar(instruction.sdst, whole | ~exec);
}

void WaveShadow::matrix(const Instruction& instruction) {
  uint64_t inputs = kAll;
  for (unsigned i = 0; i < 2; ++i)
    for (unsigned row = 0; row < instruction.src[i].dwords; ++row)
      inputs &= lanes_of(instruction.src[i], row);
  // Every element of the result depends on a row and a column that are spread over lanes.
  const bool whole = inputs == kAll;
  for (unsigned row = 0; row < instruction.dst.dwords; ++row) {
    const uint64_t addend = is_vector(instruction.src[2]) ? lanes_of(instruction.src[2], row) : kAll;
    vector_[(vector_index(instruction.dst) + row) & 511] = whole ? addend : 0;
  }
}

// Bits of a result that one operand decides alone: a 0 of an AND, a 1 of an OR.
uint64_t WaveShadow::decided_bits(const Wave& wave, const Instruction& instruction) const {
  const std::string_view name = op_info(instruction.op).name;
  const Operand &a = instruction.src[0], &b = instruction.src[1];
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
  const Operand &a = instruction.src[0], &b = instruction.src[1];

  uint64_t bits = kAll;
  switch (traits.shape) {
  case Shape::kBitwise:
  case Shape::kMove:
  case Shape::kSaveExec:
    bits = scalar_bits(a);
    if (b.kind != Operand::Kind::kNone) {
      bits &= scalar_bits(b);
      if (traits.shape == Shape::kBitwise) bits |= decided_bits(wave, instruction);
    }
    break;
  case Shape::kScalarSelect: bits = scc_ && scalar_defined(wave.scc ? a : b) ? kAll : 0; break;
  default: {
    bool all = !traits.reads_scc || scc_;
    for (const Operand& source : instruction.src) all &= scalar_defined(source);
    for (unsigned s = 0; s < kScalarRegisters; ++s) all &= !traits.scalar_reads[s] || scalar_[s] == ~0u;
    bits = all ? kAll : 0;
  }
  }
  define_scalar(instruction.dst, traits.shape == Shape::kSaveExec ? kAll : bits);  // the old EXEC
  if (traits.writes_scc) scc_ = bits == kAll;
  scalar_[kExec] = scalar_[kExec + 1] = ~0u;  // checked where it is set
}

uint64_t WaveShadow::permuted_lanes(const Wave& wave, const Issued& now) const {
  const Instruction& instruction = now.instruction;
  const uint64_t exec = wave.exec();
  const auto offset = static_cast<uint32_t>(instruction.offset) & 0xFFFF;
  const uint64_t sources = lanes_of(instruction.src[now.traits.shape == Shape::kSwizzle ? 0 : 1], 0);
  uint64_t defined = now.traits.shape == Shape::kPermute ? kAll : 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(exec >> lane & 1)) continue;
    if (now.traits.shape == Shape::kSwizzle) {
      const int from = swizzle_source(offset, lane);
      if (from < 0 || !(exec >> from & 1) || (sources >> from & 1)) defined |= bit(lane);
      continue;
    }
    const uint32_t other = (wave.vector[vector_index(instruction.src[0])][lane] + offset) / 4 & 63;
    if (now.traits.shape == Shape::kPermute) {
      if (!(sources >> lane & 1)) defined &= ~(uint64_t{1} << other);
    } else if (!(exec >> other & 1) || (sources >> other & 1)) {
      defined |= bit(lane);
    }
  }
  return defined;
}

void WaveShadow::followed_access(const Issued& now, const std::vector<LaneRange>& ranges, Access kind,
                                 std::vector<bool>& bytes) {
  const Instruction& instruction = now.instruction;
  const InstructionTraits& traits = now.traits;
  const unsigned rows = (traits.element_bytes + 3u) / 4;
  const unsigned row_bytes = traits.element_bytes < 4 ? traits.element_bytes : 4;
  const auto is_defined = [&](uint64_t first) {
    for (uint64_t byte = first; byte < first + row_bytes; ++byte)
      if (byte < bytes.size() && !bytes[byte]) return false;
    return true;
  };
  for (size_t i = 0; i < ranges.size(); ++i) {
    const LaneRange& range = ranges[i];
    const unsigned element = traits.pair_unit ? static_cast<unsigned>(i & 1) : 0;
    const Operand& stored =
        instruction.encoding == Encoding::kDs ? instruction.src[1 + element] : instruction.src[2];
    for (unsigned row = 0; row < rows; ++row) {
      const uint64_t first = range.address + 4 * row;
      const bool before = is_defined(first);
      bool after = lanes_of(stored, row) >> range.lane & 1;
      if (kind == Access::kAtomic && !traits.swaps) after = after && before;
      if (kind != Access::kStore && is_vector(instruction.dst))
        define_lane(instruction.dst, element * rows + row, range.lane, before);
      for (uint64_t byte = first; kind != Access::kLoad && byte < first + row_bytes; ++byte)
        if (byte < bytes.size()) bytes[byte] = after;
    }
  }
}

void WaveShadow::memory_access(const Wave& wave, const Issued& now, const Accesses& accesses) {
  const Instruction& instruction = now.instruction;
  const Access kind = accesses.memory_kind;
  UnwrittenMemory& unwritten = UnwrittenMemory::instance();
  const bool scalar = instruction.encoding == Encoding::kSmem;
  if (kind != Access::kStore) {
    if (scalar) define_scalar(instruction.dst, kAll);
    for (unsigned i = 0; !scalar && i < instruction.write_count; ++i)
      for (unsigned r = instruction.writes[i].first;
           r < instruction.writes[i].first + unsigned{instruction.writes[i].count}; ++r)
        vector_[r & 511] |= wave.exec();
  }
  if (unwritten.empty() || accesses.memory.empty()) return;
  // The box around all lanes first: it seldom meets any.
  uint64_t low = ~uint64_t{0}, high = 0;
  for (const LaneRange& range : accesses.memory) {
    low = std::min(low, range.address);
    high = std::max(high, range.address + range.bytes);
  }
  if (unwritten.find(low, high - low) == high) return;
  const auto met_by = [&](const LaneRange& range, unsigned byte) {
    const unsigned bytes = range.bytes - byte < 4 ? range.bytes - byte : 4;
    const uint64_t met = unwritten.find(range.address + byte, bytes);
    if (met >= range.address + byte + bytes) return;
    unwritten_load_ = &now.step;
    unwritten_byte_ = met;
    if (scalar)
      scalar_[(instruction.dst.index + (range.address + byte - accesses.memory.front().address) / 4) & 127] =
          0;
    else if (is_vector(instruction.dst))
      define_lane(instruction.dst, byte / 4, range.lane, false);
  };
  for (const LaneRange& range : accesses.memory) {
    for (unsigned byte = 0; kind != Access::kStore && byte < range.bytes; byte += 4) met_by(range, byte);
    if (kind != Access::kLoad) unwritten.remove(range.address, range.bytes);
  }
}

void WaveShadow::lds_transfer(const Accesses& accesses, GroupShadow& group) {
  uint64_t undefined = 0;
  for (const LaneRange& range : accesses.memory)
    if (UnwrittenMemory::instance().find(range.address, range.bytes) < range.address + range.bytes)
      undefined |= bit(range.lane);
  for (const LaneRange& range : accesses.lds)
    for (uint64_t byte = range.address; byte < range.address + range.bytes && byte < group.lds.size(); ++byte)
      group.lds[byte] = !(undefined >> range.lane & 1);
}

void WaveShadow::propagate(Wave& wave, const Issued& now, const Accesses& accesses, GroupShadow& group) {
  const Instruction& instruction = now.instruction;
  const InstructionTraits& traits = now.traits;
  if (traits.is & kVectorAlu) return vector_alu(wave, now);
  if (traits.is & kMatrixOp) return matrix(instruction);
  if (traits.is & kScalarAlu) return scalar_alu(wave, now);
  if (instruction.encoding == Encoding::kDs && traits.access == Access::kNone && is_vector(instruction.dst)) {
    const uint64_t defined = permuted_lanes(wave, now), exec = wave.exec();
    uint64_t& lanes = vector_[vector_index(instruction.dst)];
    lanes = (lanes & ~exec) | (defined & exec);
    return;
  }
  if (instruction.encoding == Encoding::kSmem && traits.access == Access::kNone)
    return define_scalar(instruction.dst, kAll);  // a clock
  if (accesses.memory_kind != Access::kNone) memory_access(wave, now, accesses);
  if (instruction.lds) return lds_transfer(accesses, group);
  if (accesses.lds_kind != Access::kNone) followed_access(now, accesses.lds, accesses.lds_kind, group.lds);
  if (accesses.scratch_kind != Access::kNone)
    followed_access(now, accesses.scratch, accesses.scratch_kind, scratch_);
}

}  // namespace gfx942
