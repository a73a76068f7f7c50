// DS, MUBUF, MTBUF, FLAT, GLOBAL and SCRATCH.
#include <cstring>

#include "decoder.hpp"

namespace gfx942 {
namespace {

constexpr uint32_t kNoSaddr = 0x7F;
const OperandType kOne{OperandType::Kind::kBits, 32, 1, 1};

Operand off() {
  Operand operand;
  operand.kind = Operand::Kind::kOff;
  return operand;
}

// The 8-bit offsets of ds_read2, ds_write2 and ds_wrxchg2 are separate; everywhere else they form 16 bits.
bool has_two_offsets(const char* name) {
  return std::strstr(name, "read2") || std::strstr(name, "write2") || std::strstr(name, "wrxchg2");
}

// Buffer loads that can put their result into LDS.
bool can_load_lds(Op op) {
  switch (op) {
  case Op::BUFFER_LOAD_UBYTE:
  case Op::BUFFER_LOAD_SBYTE:
  case Op::BUFFER_LOAD_USHORT:
  case Op::BUFFER_LOAD_SSHORT:
  case Op::BUFFER_LOAD_DWORD:
  case Op::BUFFER_LOAD_FORMAT_X: return true;
  default: return false;
  }
}

}  // namespace

bool Decoder::lds() {
  if (!second_word()) return false;
  const uint32_t word = words_[0], next = words_[1];
  if (!find(Encoding::kDs, bits(word, 17, 8), "DS")) return false;
  const InstructionRow& row = *row_;
  const char* name = op_info(out_.op).name;
  const bool accumulator = bits(word, 25, 1);
  out_.gds = bits(word, 16, 1);
  if (out_.gds != (std::strncmp(name, "ds_gws", 6) == 0))
    return fail(out_.gds ? "gfx942 has no global data share" : "ds_gws_* without the gds bit");
  if (has_two_offsets(name)) {
    out_.offset = int32_t(bits(word, 0, 8));
    out_.offset1 = uint8_t(bits(word, 8, 8));
  } else {
    out_.offset = int32_t(bits(word, 0, 16));
  }

  bool address = false;
  unsigned count = 0;  // data operands
  for (unsigned i = 0; i < row.sources; ++i) {
    const OperandType& type = row.src[i];
    if (!type.present()) continue;
    if (type.kind == OperandType::Kind::kAddress) {
      address = true;
      if (!vector_register(bits(next, 0, 8), 1, false, out_.src[0])) return false;
      continue;
    }
    if (!vector_register(bits(next, 8 + 8 * count, 8), type.dwords, accumulator, out_.src[1 + count]))
      return false;
    ++count;
  }
  if (out_.op == Op::DS_GWS_INIT || out_.op == Op::DS_GWS_SEMA_BR || out_.op == Op::DS_GWS_BARRIER) {
    // The value is in the address field of the encoding.
    if (!vector_register(bits(next, 0, 8), 1, accumulator, out_.src[1])) return false;
    address = true;
    if (bits(next, 8, 8)) return fail("reserved data field of DS");
  }
  const bool unused = (!address && bits(next, 0, 8)) || (count < 1 && bits(next, 8, 8)) ||
                      (count < 2 && bits(next, 16, 8)) || (!row.dst.present() && bits(next, 24, 8));
  if (unused) return fail("reserved register field of DS");
  if (accumulator && count == 0 && !row.dst.present() && out_.src[1].kind == Operand::Kind::kNone)
    return fail("the acc bit of a DS instruction without registers");
  if (out_.op == Op::DS_NOP && out_.offset) return fail("reserved offset of ds_nop");
  if (row.dst.present() && !vector_register(bits(next, 24, 8), row.dst.dwords, accumulator, out_.dst))
    return false;
  note_vector_operands();
  return true;
}

bool Decoder::buffer(bool typed) {
  if (!second_word()) return false;
  const uint32_t word = words_[0], next = words_[1];
  if (typed ? !find(Encoding::kMtbuf, bits(word, 15, 4), "MTBUF")
            : !find(Encoding::kMubuf, bits(word, 18, 7), "MUBUF"))
    return false;
  const InstructionRow& row = *row_;
  out_.offset = int32_t(bits(word, 0, 12));
  out_.offen = bits(word, 12, 1);
  out_.idxen = bits(word, 13, 1);
  out_.sc0 = bits(word, 14, 1);
  if (typed) {
    out_.offset1 = uint8_t(bits(word, 19, 7));  // data format, then 3 bits of number format
    out_.sc1 = bits(next, 21, 1);
    out_.nt = bits(next, 22, 1);
  } else {
    out_.sc1 = bits(word, 15, 1);
    out_.lds = bits(word, 16, 1);
    out_.nt = bits(word, 17, 1);
    if (bits(word, 25, 1) || bits(next, 21, 2)) return fail("reserved bits of MUBUF are set");
  }
  const bool accumulator = bits(next, 23, 1);

  const OperandType& data = row.sources ? row.src[0] : row.dst;
  const bool cache_control = !row.dst.present() && row.sources == 0;
  if (cache_control) {
    if (out_.offset || out_.offen || out_.idxen || out_.lds || out_.nt || next)
      return fail("reserved bits of MUBUF are set");
    return true;
  }
  if (out_.lds && !can_load_lds(out_.op)) return fail("the lds bit of MUBUF on an instruction that has none");
  const bool without_data = out_.lds;
  if (without_data) {
    if (accumulator) return fail("a transfer to LDS has no register");
  } else {
    Operand operand;
    if (!vector_register(bits(next, 8, 8), data.dwords, accumulator, operand)) return false;
    if (row.sources) out_.src[2] = operand;
    if (row.dst.present() && (row.sources == 0 || out_.sc0)) {
      out_.dst = operand;
      out_.dst.dwords = row.dst.dwords;
    }
  }
  const unsigned address_dwords = unsigned(out_.offen) + unsigned(out_.idxen);
  if (address_dwords == 0)
    out_.src[0] = off();
  else if (!vector_register(bits(next, 0, 8), address_dwords, false, out_.src[0]))
    return false;
  if (!scalar_register(bits(next, 16, 5) * 4, 4, out_.src[1])) return false;
  if (!source(bits(next, 24, 8), kOne, false, out_.src[3])) return false;
  note_vector_operands();
  return true;
}

bool Decoder::flat() {
  if (!second_word()) return false;
  const uint32_t word = words_[0], next = words_[1];
  static constexpr Encoding kSegments[] = {Encoding::kFlat, Encoding::kScratch, Encoding::kGlobal};
  const uint32_t segment = bits(word, 14, 2);
  if (segment == 3) return fail("reserved segment of FLAT");
  if (!find(kSegments[segment], bits(word, 18, 7), "FLAT, GLOBAL or SCRATCH")) return false;
  const InstructionRow& row = *row_;
  out_.sc0 = bits(word, 16, 1);
  out_.nt = bits(word, 17, 1);
  out_.sc1 = bits(word, 25, 1);
  const bool vector_offset = bits(word, 13, 1);  // scratch only
  const bool accumulator = bits(next, 23, 1);
  const uint32_t saddr = bits(next, 16, 7), vaddr = bits(next, 0, 8);
  const bool scratch = out_.encoding == Encoding::kScratch, global = out_.encoding == Encoding::kGlobal;

  out_.offset = int32_t(bits(word, 0, 13));
  if (scratch || global)
    out_.offset = (out_.offset ^ 0x1000) - 0x1000;
  else if (out_.offset > 0xFFF)
    return fail("the offset of a flat instruction has 12 bits");
  if (vector_offset && !scratch) return fail("reserved bit 13 of FLAT is set");

  // Addresses: flat 64-bit VGPR; global 64-bit VGPR, or 64-bit SGPR plus 32-bit VGPR; scratch 32-bit VGPR and
  // 32-bit SGPR, either of which may be off.
  const bool with_saddr = saddr != kNoSaddr && !(out_.encoding == Encoding::kFlat && saddr == 0);
  if (with_saddr && out_.encoding == Encoding::kFlat) return fail("a flat instruction has no scalar address");
  if (out_.encoding != Encoding::kFlat) {
    out_.src[1] = off();
    if (with_saddr && !scalar_register(saddr, scratch ? 1 : 2, out_.src[1])) return false;
  }
  if (scratch && !vector_offset) {
    out_.src[0] = off();
  } else if (!vector_register(vaddr, scratch || with_saddr ? 1 : 2, false, out_.src[0])) {
    return false;
  }

  const uint32_t vdata = bits(next, 8, 8), vdst = bits(next, 24, 8);
  const bool lds = row.dst.kind == OperandType::Kind::kLds;
  out_.lds = lds;
  const bool has_data = row.sources != 0;
  const bool has_result = row.dst.present() && !lds && (!has_data || out_.sc0);
  if (lds && accumulator) return fail("a transfer to LDS has no register");
  if (has_data && !vector_register(vdata, row.src[0].dwords, accumulator, out_.src[2])) return false;
  if (has_result && !vector_register(vdst, row.dst.dwords, accumulator, out_.dst)) return false;
  note_vector_operands();
  return true;
}

}  // namespace gfx942
