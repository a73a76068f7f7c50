#include "traits.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "instruction_table.hpp"
#include "registers.hpp"

namespace gfx942 {

namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}
bool starts(std::string_view text, std::string_view part) {
  return text.substr(0, part.size()) == part;
}

bool is_scalar_alu(Encoding encoding) {
  return encoding == Encoding::kSop1 || encoding == Encoding::kSop2 || encoding == Encoding::kSopc ||
         encoding == Encoding::kSopk;
}
bool is_vector_alu(Encoding encoding) {
  switch (encoding) {
  case Encoding::kVop1:
  case Encoding::kVop2:
  case Encoding::kVopc:
  case Encoding::kVop3:
  case Encoding::kVop3b:
  case Encoding::kVop3p: return true;
  default: return false;
  }
}
bool is_vector_memory(Encoding encoding) {
  switch (encoding) {
  case Encoding::kMubuf:
  case Encoding::kMtbuf:
  case Encoding::kFlat:
  case Encoding::kGlobal:
  case Encoding::kScratch: return true;
  default: return false;
  }
}

bool leaves_scc(std::string_view name) {
  for (const char* prefix :
       {"s_mov",    "s_cmov", "s_cselect",      "s_mul",     "s_bfm",      "s_pack",   "s_brev", "s_ff",
        "s_flbit",  "s_sext", "s_bitset",       "s_getpc",   "s_setpc",    "s_swappc", "s_rfe",  "s_getreg",
        "s_setreg", "s_call", "s_bitreplicate", "s_set_gpr", "s_setvskip", "s_cbranch"})
    if (starts(name, prefix)) return true;
  return false;
}

// Bytes of an element in memory, from the mnemonic of a narrow access, else `wide`.
unsigned element_bytes(std::string_view name, unsigned wide) {
  for (const char* byte : {"byte", "_u8", "_i8", "_b8"})
    if (contains(name, byte)) return 1;
  for (const char* half : {"short", "read_u16", "read_i16", "write_b16"})
    if (contains(name, half)) return 2;
  return wide;
}

void describe_access(const Instruction& instruction, std::string_view name, InstructionTraits& traits) {
  const InstructionRow& row = instruction_row(instruction.op);
  if (instruction.encoding == Encoding::kSmem) {
    if (!contains(name, "load")) return;
    traits.access = Access::kLoad;
    traits.element_bytes = static_cast<uint8_t>(4 * row.dst.dwords);
    return;
  }
  if (instruction.encoding == Encoding::kDs) {
    if (contains(name, "permute") || contains(name, "swizzle") || contains(name, "gws") || name == "ds_nop" ||
        contains(name, "append") || contains(name, "consume"))
      return;
    traits.lds = true;
    traits.access = starts(name, "ds_read")    ? Access::kLoad
                    : starts(name, "ds_write") ? Access::kStore
                                               : Access::kAtomic;
    const unsigned dwords = traits.access == Access::kLoad ? row.dst.dwords : instruction.src[1].dwords;
    unsigned bytes = element_bytes(name, 4 * dwords);
    if (contains(name, "read2") || contains(name, "write2") || contains(name, "xchg2")) {
      if (traits.access == Access::kLoad) bytes /= 2;
      traits.pair_unit = static_cast<uint16_t>(contains(name, "st64") ? 64 * bytes : bytes);
    }
    traits.element_bytes = static_cast<uint8_t>(bytes);
    return;
  }
  if (!is_vector_memory(instruction.encoding)) return;
  if (contains(name, "atomic"))
    traits.access = Access::kAtomic;
  else if (contains(name, "store"))
    traits.access = Access::kStore;
  else if (contains(name, "load"))
    traits.access = Access::kLoad;
  else
    return;
  const unsigned dwords = instruction.lds                  ? 1
                          : traits.access == Access::kLoad ? row.dst.dwords
                          : contains(name, "cmpswap")      ? row.src[0].dwords / 2u
                                                           : row.src[0].dwords;
  traits.element_bytes = static_cast<uint8_t>(element_bytes(name, 4 * dwords));
  traits.scope = instruction.sc1 || traits.access == Access::kAtomic ? Scope::kDevice
                 : instruction.sc0                                   ? Scope::kWorkgroup
                                                                     : Scope::kWave;
}

void list_scalars(const Instruction& instruction, std::string_view name, InstructionTraits& traits) {
  const auto mark = [](std::bitset<kScalarRegisters>& set, unsigned first, unsigned count) {
    for (unsigned s = first; s < first + count && s < kScalarRegisters; ++s) set.set(s);
  };
  const auto operand = [&](std::bitset<kScalarRegisters>& set, const Operand& which) {
    if (which.kind == Operand::Kind::kScalar) mark(set, which.index, which.dwords);
    if (&set == &traits.scalar_reads) {
      if (which.kind == Operand::Kind::kVccz) mark(set, kVcc, 2);
      if (which.kind == Operand::Kind::kExecz) mark(set, kExec, 2);
      if (which.kind == Operand::Kind::kScc) traits.reads_scc = true;
    }
  };
  operand(traits.scalar_writes, instruction.dst);
  operand(traits.scalar_writes, instruction.sdst);
  for (const Operand& source : instruction.src) operand(traits.scalar_reads, source);

  const bool scalar = is_scalar_alu(instruction.encoding);
  if (starts(name, "s_cmov") || starts(name, "s_bitset") || name == "s_addk_i32" || name == "s_mulk_i32")
    operand(traits.scalar_reads, instruction.dst);
  if (contains(name, "saveexec") || contains(name, "wrexec")) {
    mark(traits.scalar_reads, kExec, 2);
    mark(traits.scalar_writes, kExec, 2);
  }
  if (starts(name, "v_cmpx")) mark(traits.scalar_writes, kExec, 2);
  if (starts(name, "v_div_fmas")) mark(traits.scalar_reads, kVcc, 2);
  if (name == "s_cbranch_vccz" || name == "s_cbranch_vccnz") mark(traits.scalar_reads, kVcc, 2);
  if (name == "s_cbranch_execz" || name == "s_cbranch_execnz") mark(traits.scalar_reads, kExec, 2);
  if (starts(name, "s_cbranch_scc") || starts(name, "s_cselect") || starts(name, "s_cmov") ||
      starts(name, "s_addc") || starts(name, "s_subb"))
    traits.reads_scc = true;
  traits.writes_scc = scalar && !leaves_scc(name);
  if (starts(name, "s_movrel") || instruction.lds || starts(name, "s_sendmsg") || contains(name, "addtid") ||
      contains(name, "gws") || instruction.gds || name == "s_ttracedata")
    mark(traits.scalar_reads, kM0, 1);
}

Shape shape_of(std::string_view name) {
  if (name == "v_readfirstlane_b32") return Shape::kReadFirstLane;
  if (name == "v_readlane_b32") return Shape::kReadLane;
  if (name == "v_writelane_b32") return Shape::kWriteLane;
  if (name == "v_swap_b32") return Shape::kSwap;
  if (name == "v_cndmask_b32") return Shape::kSelect;
  if (starts(name, "v_div_fmas")) return Shape::kDivFmas;
  if (starts(name, "v_cmpx")) return Shape::kCompareExec;
  if (name == "ds_permute_b32") return Shape::kPermute;
  if (name == "ds_bpermute_b32") return Shape::kBackwardPermute;
  if (name == "ds_swizzle_b32") return Shape::kSwizzle;
  if (starts(name, "s_cbranch")) return Shape::kBranch;
  if (name == "s_setpc_b64" || name == "s_swappc_b64") return Shape::kJump;
  if (contains(name, "saveexec")) return Shape::kSaveExec;
  if (starts(name, "s_mov")) return Shape::kMove;
  if (starts(name, "s_cselect")) return Shape::kScalarSelect;
  for (const char* prefix :
       {"s_and_", "s_or_", "s_xor_", "s_andn2_", "s_orn2_", "s_nand_", "s_nor_", "s_xnor_", "s_not_"})
    if (starts(name, prefix)) return Shape::kBitwise;
  return Shape::kPlain;
}

Flow flow_of(std::string_view name) {
  for (const char* upwards : {"v_mad_u64_u32", "v_mad_i64_i32", "v_lshl_add_u64", "v_lshlrev_b64"})
    if (name == upwards) return Flow::kUpwards;
  for (const char* downwards : {"v_lshrrev_b64", "v_ashrrev_i64"})
    if (name == downwards) return Flow::kDownwards;
  if (name == "v_mov_b64") return Flow::kEach;
  if (name == "v_pk_mov_b32") return Flow::kPackedMove;
  if (starts(name, "v_pk_") && contains(name, "_f32")) return Flow::kPacked;
  return Flow::kWhole;
}

}  // namespace

InstructionTraits traits_of(const Instruction& instruction) {
  InstructionTraits traits;
  if (instruction.op == Op::kInvalid) return traits;
  const std::string_view name = op_info(instruction.op).name;
  const Encoding encoding = instruction.encoding;

  const auto list = [&traits](std::bitset<kVectorRegisters>& set, const VectorRange& range) {
    for (unsigned r = range.first; r < range.first + unsigned{range.count} && r < kVectorRegisters; ++r) {
      set.set(r);
      int16_t& highest = r < 256 ? traits.highest_vgpr : traits.highest_agpr;
      highest = std::max<int16_t>(highest, static_cast<int16_t>(r & 255));
    }
  };
  for (unsigned i = 0; i < instruction.read_count; ++i) list(traits.vector_reads, instruction.reads[i]);
  for (unsigned i = 0; i < instruction.write_count; ++i) list(traits.vector_writes, instruction.writes[i]);
  list_scalars(instruction, name, traits);
  for (unsigned s = 0; s < kFlatScratch; ++s)
    if (traits.scalar_reads[s] || traits.scalar_writes[s]) traits.highest_sgpr = static_cast<int16_t>(s);
  describe_access(instruction, name, traits);
  traits.shape = shape_of(name);
  traits.flow = flow_of(name);
  traits.swaps = contains(name, "_swap") || contains(name, "_wrxchg");
  traits.compares = contains(name, "cmpswap") || contains(name, "cmpst");
  traits.accumulates = accumulates(instruction.op);

  uint32_t& is = traits.is;
  const bool matrix = encoding == Encoding::kMfma, vector = is_vector_alu(encoding),
             scalar = is_scalar_alu(encoding);
  if (matrix) is |= kMatrixOp;
  if (matrix && contains(name, "f64")) is |= kDoubleMatrix;
  if (vector) is |= kVectorAlu;
  if (scalar) is |= kScalarAlu;
  if (is_vector_memory(encoding)) is |= kVectorMemoryOp;
  if (encoding == Encoding::kDs) is |= kLdsOp;
  if (instruction.lds) is |= kLdsTransfer;
  if (vector && (traits.shape == Shape::kSelect || starts(name, "v_addc") || starts(name, "v_subb")))
    is |= kReadsMask;
  if (op_info(instruction.op).category == Category::kTranscendental) is |= kTranscendentalOp;
  if (vector && traits.vector_writes.any()) is |= kWritesVector;
  std::bitset<kScalarRegisters> plain = traits.scalar_writes;
  plain.reset(kExec).reset(kExec + 1);
  if (vector && plain.any()) is |= kWritesScalar;
  if (vector && (traits.scalar_writes[kExec] || traits.scalar_writes[kExec + 1])) is |= kWritesExec;
  if (traits.scalar_reads.any()) is |= kReadsScalar;
  if (traits.vector_reads.any()) is |= kReadsVector;
  if (instruction.dpp.active) is |= kDppOp;
  if (name == "v_readlane_b32" || name == "v_readfirstlane_b32") is |= kReadsLane;
  if (name == "v_readlane_b32" || name == "v_writelane_b32") is |= kLaneSelect;
  if (name == "v_writelane_b32") is |= kWriteLane;
  if (scalar && traits.scalar_writes[kM0]) is |= kWritesM0;
  if (traits.scalar_reads[kM0] && (!vector && !matrix) && (!scalar || starts(name, "s_movrel")))
    is |= kUsesM0;
  if (starts(name, "s_setreg")) is |= kSetsMode;
  if (starts(name, "s_getreg")) is |= kGetsMode;
  if (starts(name, "v_div_fmas")) is |= kDivFmas;
  if (starts(name, "v_dot")) is |= kDotOp;
  if (starts(name, "v_fma_f64") || starts(name, "v_fmac_f64")) is |= kFma64;
  if (traits.access != Access::kNone && traits.access != Access::kLoad && is_vector_memory(encoding) &&
      instruction.src[2].dwords > 2 &&
      !(encoding == Encoding::kMubuf && instruction.src[3].kind == Operand::Kind::kScalar))
    is |= kWideStore;
  if (vector && traits.vector_writes.any() &&
      ((instruction.sdwa.active && instruction.sdwa.dst_sel != 6) ||
       (encoding != Encoding::kVop3p && (instruction.op_sel & 8)) ||
       ((name == "v_cvt_sr_fp8_f32" || name == "v_cvt_sr_bf8_f32") && instruction.op_sel)))
    is |= kPartialResult;
  return traits;
}

std::string name_scalar(unsigned s) {
  switch (s) {
  case kVcc: return "vcc_lo";
  case kVcc + 1: return "vcc_hi";
  case kM0: return "m0";
  case kExec: return "exec_lo";
  case kExec + 1: return "exec_hi";
  default: return "s" + std::to_string(s);
  }
}

const InstructionTraits& Program::traits(const Step& step) const {
  std::call_once(traits_once_, [this] {
    auto built = std::make_shared<std::vector<InstructionTraits>>();
    built->reserve(steps_.size());
    for (size_t i = 0; i < steps_.size(); ++i)
      built->push_back(i + 1 < steps_.size() ? traits_of(instructions_[i]) : InstructionTraits{});
    traits_ = std::move(built);
  });
  return (*traits_)[step.index];
}

}  // namespace gfx942
