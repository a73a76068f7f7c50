#include "access.hpp"

#include "memory.hpp"

namespace gfx942 {

namespace {

const uint32_t* lane_row(const Wave& wave, const Operand& operand) {
  return wave.vector[(operand.kind == Operand::Kind::kAccumulator ? 256 : 0) + operand.index];
}

void find_lds(const Wave& wave, const Instruction& instruction, const InstructionTraits& traits,
              Accesses& out) {
  out.lds_kind = traits.access;
  const bool addressed = instruction.src[0].kind == Operand::Kind::kVector;
  const uint32_t* address = addressed ? lane_row(wave, instruction.src[0]) : nullptr;
  const uint64_t exec = wave.exec();
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(exec >> lane & 1)) continue;
    const uint32_t first =
        address ? address[lane] : (wave.scalar[kM0] & 0xFFFF) + 4 * static_cast<uint32_t>(lane);
    if (traits.pair_unit) {
      const uint32_t unit = traits.pair_unit;
      out.lds.push_back({first + (static_cast<uint32_t>(instruction.offset) & 0xFF) * unit,
                         traits.element_bytes, static_cast<int16_t>(lane)});
      out.lds.push_back(
          {first + instruction.offset1 * unit, traits.element_bytes, static_cast<int16_t>(lane)});
    } else {
      out.lds.push_back({first + (static_cast<uint32_t>(instruction.offset) & 0xFFFF), traits.element_bytes,
                         static_cast<int16_t>(lane)});
    }
  }
}

// Where a transfer into LDS puts the dword of each active lane.
void find_lds_transfer(const Wave& wave, const Instruction& instruction, Accesses& out) {
  out.lds_kind = Access::kStore;
  const uint32_t first = (wave.scalar[kM0] & 0xFFFF) + static_cast<uint32_t>(instruction.offset);
  for (int lane = 0; lane < kLanes; ++lane)
    if (wave.exec() >> lane & 1)
      out.lds.push_back({first + uint64_t{4} * static_cast<unsigned>(lane), 4, static_cast<int16_t>(lane)});
}

void find_buffer(const Wave& wave, const Instruction& instruction, const InstructionTraits& traits,
                 Accesses& out) {
  const uint32_t* words = wave.scalar + instruction.src[1].index;
  const uint64_t base = words[0] | static_cast<uint64_t>(words[1] & 0xFFFF) << 32;
  const uint32_t stride = words[1] >> 16 & 0x3FFF, records = words[2];
  const bool structured = instruction.idxen && stride != 0;
  out.buffer = true;
  out.buffer_base = base;
  out.buffer_bytes = structured ? uint64_t{records} * stride : records;
  const uint32_t uniform = static_cast<uint32_t>(instruction.offset) + scalar_value(wave, instruction.src[3]);
  const uint32_t* first = is_present(instruction.src[0]) ? lane_row(wave, instruction.src[0]) : nullptr;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(wave.exec() >> lane & 1)) continue;
    uint32_t offset = uniform;
    uint64_t limit = records;
    if (instruction.idxen) {
      offset += first[lane] * stride + (instruction.offen ? first[kLanes + lane] : 0);
      if (structured && first[lane] >= records) continue;
      if (structured) limit = uint64_t{1} << 48;
    } else if (instruction.offen) {
      offset += first[lane];
    }
    // Dwords beyond the bound are refused one by one; narrow and atomic elements whole.
    const unsigned unit =
        traits.access == Access::kAtomic || traits.element_bytes < 4 ? traits.element_bytes : 4;
    unsigned bytes = 0;
    while (bytes < traits.element_bytes && offset + uint64_t{bytes} + unit <= limit) bytes += unit;
    if (bytes) out.memory.push_back({base + offset, bytes, static_cast<int16_t>(lane)});
  }
}

void find_flat(const Wave& wave, const Instruction& instruction, const InstructionTraits& traits,
               Accesses& out) {
  const uint32_t* row = lane_row(wave, instruction.src[0]);
  const Operand& scalar = instruction.src[1];
  const bool based = instruction.encoding == Encoding::kGlobal && is_present(scalar);
  const uint64_t uniform = static_cast<uint64_t>(static_cast<int64_t>(instruction.offset)) +
                           (based ? wave.scalar64(scalar.index) : 0);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(wave.exec() >> lane & 1)) continue;
    const uint64_t address =
        uniform + row[lane] + (based ? 0 : static_cast<uint64_t>(row[kLanes + lane]) << 32);
    const uint64_t high = address >> 32 << 32;
    if (instruction.encoding == Encoding::kFlat && high == kPrivateAperture) {
      out.scratch_kind = traits.access;
      out.scratch.push_back({static_cast<unsigned>(lane) * wave.group->scratch_bytes + (address & 0xFFFFFFFF),
                             traits.element_bytes, static_cast<int16_t>(lane)});
    } else if (instruction.encoding == Encoding::kFlat && high == kSharedAperture) {
      out.lds_kind = traits.access;
      out.lds.push_back({address - kSharedAperture, traits.element_bytes, static_cast<int16_t>(lane)});
    } else {
      out.memory.push_back({address, traits.element_bytes, static_cast<int16_t>(lane)});
    }
  }
}

void find_scratch(const Wave& wave, const Instruction& instruction, const InstructionTraits& traits,
                  Accesses& out) {
  const Operand &vector = instruction.src[0], &scalar = instruction.src[1];
  const uint32_t* row = is_present(vector) ? lane_row(wave, vector) : nullptr;
  const uint32_t uniform =
      static_cast<uint32_t>(instruction.offset) + (is_present(scalar) ? scalar_value(wave, scalar) : 0);
  out.memory_kind = Access::kNone;
  out.scratch_kind = traits.access;
  for (int lane = 0; lane < kLanes; ++lane)
    if (wave.exec() >> lane & 1)
      out.scratch.push_back({static_cast<unsigned>(lane) * wave.group->scratch_bytes +
                                 static_cast<uint32_t>(uniform + (row ? row[lane] : 0)),
                             traits.element_bytes, static_cast<int16_t>(lane)});
}

void find_scalar(const Wave& wave, const Step& step, const Instruction& instruction,
                 const InstructionTraits& traits, Accesses& out) {
  uint64_t offset = static_cast<uint64_t>(static_cast<int64_t>(instruction.offset));
  if (instruction.src[1].kind == Operand::Kind::kScalar) offset += wave.scalar[instruction.src[1].index];
  const bool buffer = instruction.src[0].dwords == 4;
  if (!buffer) {
    const uint64_t address = (source64(wave, step.src[0]) + offset) & ~uint64_t{3};
    out.memory.push_back({address, traits.element_bytes, -1});
    return;
  }
  const uint32_t* words = wave.scalar + instruction.src[0].index;
  const uint32_t stride = words[1] >> 16 & 0x3FFF;
  out.buffer = true;
  out.buffer_base = (words[0] | static_cast<uint64_t>(words[1] & 0xFFFF) << 32) & ~uint64_t{3};
  out.buffer_bytes = stride ? uint64_t{words[2]} * stride : words[2];
  offset &= ~uint64_t{3};
  for (unsigned byte = 0; byte < traits.element_bytes; byte += 4)
    if (offset + byte + 4 <= out.buffer_bytes) out.memory.push_back({out.buffer_base + offset + byte, 4, -1});
}

}  // namespace

void Accesses::clear() {
  memory.clear();
  lds.clear();
  scratch.clear();
  memory_kind = lds_kind = scratch_kind = Access::kNone;
  buffer = false;
}

void find_accesses(const Wave& wave, const Step& step, Accesses& out) {
  out.clear();
  const Instruction& instruction = wave.group->program->instruction(step);
  const InstructionTraits& traits = wave.group->program->traits(step);
  if (traits.access == Access::kNone) return;
  if (traits.lds) return find_lds(wave, instruction, traits, out);
  out.memory_kind = traits.access;
  if (instruction.lds) find_lds_transfer(wave, instruction, out);
  switch (instruction.encoding) {
  case Encoding::kMubuf: return find_buffer(wave, instruction, traits, out);
  case Encoding::kFlat:
  case Encoding::kGlobal: return find_flat(wave, instruction, traits, out);
  case Encoding::kScratch: return find_scratch(wave, instruction, traits, out);
  case Encoding::kSmem: return find_scalar(wave, step, instruction, traits, out);
  default: return;
  }
}

}  // namespace gfx942
