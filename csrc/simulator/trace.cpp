#include "trace.hpp"

#include <algorithm>
#include <string_view>

#include "memory.hpp"
#include "program.hpp"
#include "registers.hpp"

namespace gfx942 {

namespace {

constexpr unsigned kLdsBanks = 32, kLdsBytesPerClock = 128;
constexpr unsigned kVectorRegistersPerLane = 512, kMaxWavesPerSimd = 8, kSimds = 4, kLdsBytes = 65536;
// Stand-in addresses of private segments, apart from everything else.
constexpr uint64_t kScratchBase = uint64_t{1} << 56;

// Bytes that one lane moves, from the mnemonic's suffix.
unsigned element_bytes(std::string_view name) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (has("dwordx4") || has("b128")) return 16;
  if (has("dwordx3") || has("b96")) return 12;
  if (has("dwordx2") || has("b64") || has("u64") || has("i64") || has("f64") || has("_x2")) return 8;
  if (has("byte") || has("_u8") || has("_i8") || has("_b8")) return 1;
  if (has("short") || has("_u16") || has("_i16") || has("_b16")) return 2;
  return 4;
}

bool is_store(std::string_view name) {
  return name.find("store") != std::string_view::npos || name.find("atomic") != std::string_view::npos;
}

void record_lds(WorkgroupTrace& trace, const Wave& wave, const Instruction& instruction) {
  const std::string_view name = op_info(instruction.op).name;
  MemoryAccess access;
  const unsigned bytes = element_bytes(name);
  const uint64_t active = wave.exec();
  const auto lanes = static_cast<unsigned>(__builtin_popcountll(active));
  const bool pair =
      name.find("read2") != std::string_view::npos || name.find("write2") != std::string_view::npos;
  const bool write = name.find("write") != std::string_view::npos;
  access.bytes = lanes * bytes * (pair ? 2 : 1);
  access.lds_cycles =
      static_cast<uint16_t>((kLanes * bytes * (pair ? 2 : 1) + kLdsBytesPerClock - 1) / kLdsBytesPerClock);
  if (name.find("permute") != std::string_view::npos || name.find("swizzle") != std::string_view::npos) {
    access.path = MemoryAccess::Path::kCrossLane;
  } else if (is_present(instruction.src[0])) {
    const uint32_t* base = wave.vector[instruction.src[0].index];
    const unsigned unit = name.find("st64") != std::string_view::npos ? 64 * bytes : bytes;
    for (unsigned half = 0; half < (pair ? 2u : 1u); ++half) {
      const uint32_t immediate = static_cast<uint32_t>(instruction.offset) & 0xFFFF;
      const uint32_t offset = !pair  ? immediate
                              : half ? instruction.offset1 * unit
                                     : (immediate & 0xFF) * unit;
      uint32_t address[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) address[lane] = base[lane] + offset;
      access.lds_conflict_cycles = static_cast<uint16_t>(access.lds_conflict_cycles +
                                                         lds_conflict_cycles(address, active, bytes, write));
    }
  }
  trace.accesses.push_back(access);
}

// Byte address of each lane, and the lanes that reach memory.
struct LaneAddresses {
  uint64_t address[kLanes];
  uint64_t lanes;
};

LaneAddresses buffer_addresses(const Wave& wave, const Instruction& instruction, unsigned bytes) {
  LaneAddresses out;
  out.lanes = wave.exec();
  const uint32_t* words = wave.scalar + instruction.src[1].index;
  const uint64_t base = words[0] | static_cast<uint64_t>(words[1] & 0xFFFF) << 32;
  const uint32_t stride = words[1] >> 16 & 0x3FFF;
  const uint32_t uniform = static_cast<uint32_t>(instruction.offset) + scalar_value(wave, instruction.src[3]);
  const uint32_t* first = is_present(instruction.src[0]) ? wave.vector[instruction.src[0].index] : nullptr;
  for (int lane = 0; lane < kLanes; ++lane) {
    uint32_t offset = uniform;
    bool inside = true;
    if (instruction.idxen && first) {
      offset += first[lane] * stride + (instruction.offen ? first[kLanes + lane] : 0);
      if (stride) inside = first[lane] < words[2];
    } else if (instruction.offen && first) {
      offset += first[lane];
    }
    if (!(instruction.idxen && stride)) inside = offset + uint64_t{bytes} <= words[2];
    if (!inside) out.lanes &= ~(uint64_t{1} << lane);
    out.address[lane] = base + offset;
  }
  return out;
}

LaneAddresses flat_addresses(const Wave& wave, const Instruction& instruction) {
  LaneAddresses out;
  out.lanes = wave.exec();
  const auto offset = static_cast<uint64_t>(static_cast<int64_t>(instruction.offset));
  const Operand &vector = instruction.src[0], &scalar = instruction.src[1];
  const uint32_t* row = is_present(vector) ? wave.vector[vector.index] : nullptr;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (instruction.encoding == Encoding::kScratch) {
      // Private segments are interleaved by dword, so that lanes at one offset share lines.
      const uint64_t within =
          offset + (is_present(scalar) ? scalar_value(wave, scalar) : 0) + (row ? row[lane] : 0);
      out.address[lane] =
          kScratchBase + (uint64_t{wave.index} << 24) + within * kLanes + 4 * static_cast<unsigned>(lane);
    } else if (is_present(scalar) && row) {
      out.address[lane] = wave.scalar64(scalar.index) + offset + row[lane];
    } else if (row) {
      out.address[lane] = (row[lane] | static_cast<uint64_t>(row[kLanes + lane]) << 32) + offset;
    } else {
      out.address[lane] = offset;
    }
  }
  return out;
}

// Line numbers count from the region that an address lies in, so that a trace does not depend on where the
// host's allocator put it; regions are far apart and begin at a line, as device allocations do.
class LineNumbers {
 public:
  explicit LineNumbers(const AddressSpace& memory) : memory_(memory) {}
  uint64_t operator()(uint64_t address) {
    if (!region_ || address < region_->begin || address >= region_->end) region_ = memory_.find(address, 1);
    if (!region_) return address / kCacheLineBytes;
    const auto index = static_cast<uint64_t>(region_ - memory_.regions().data());
    return ((index + 1) << kRegionBits) + (address - region_->begin) / kCacheLineBytes;
  }

 private:
  static constexpr unsigned kRegionBits = 42;
  const AddressSpace& memory_;
  const Region* region_ = nullptr;
};

void record_vector_memory(WorkgroupTrace& trace, const Wave& wave, const Instruction& instruction) {
  const std::string_view name = op_info(instruction.op).name;
  const unsigned bytes = element_bytes(name);
  const bool buffer = instruction.encoding == Encoding::kMubuf || instruction.encoding == Encoding::kMtbuf;
  MemoryAccess access;
  access.path = is_store(name)                                       ? MemoryAccess::Path::kStore
                : instruction.lds || name.find("_lds_") != name.npos ? MemoryAccess::Path::kLoadToLds
                                                                     : MemoryAccess::Path::kLoad;
  access.first_line = static_cast<uint32_t>(trace.lines.size());
  const bool moves = name.find("load") != name.npos || is_store(name);  // not buffer_inv and its like
  if (moves) {
    const LaneAddresses lanes =
        buffer ? buffer_addresses(wave, instruction, bytes) : flat_addresses(wave, instruction);
    access.bytes = static_cast<uint32_t>(__builtin_popcountll(lanes.lanes)) * bytes;
    LineNumbers line_of(*wave.group->launch->memory);
    for (int lane = 0; lane < kLanes; ++lane) {
      if (!(lanes.lanes >> lane & 1)) continue;
      const uint64_t first = line_of(lanes.address[lane]), last = line_of(lanes.address[lane] + bytes - 1);
      for (uint64_t line = first; line <= last; ++line) {
        if (std::find(trace.lines.begin() + access.first_line, trace.lines.end(), line) == trace.lines.end())
          trace.lines.push_back(line);
      }
    }
  }
  access.line_count = static_cast<uint32_t>(trace.lines.size()) - access.first_line;
  if (access.path == MemoryAccess::Path::kLoadToLds)
    access.lds_cycles = static_cast<uint16_t>((access.bytes + kLdsBytesPerClock - 1) / kLdsBytesPerClock);
  trace.accesses.push_back(access);
}

// Lanes that the LDS serves together. Reads of 16 bytes pair the second quarter of each half with the first
// (ROCm's composable_kernel documentation, "LDS bank conflicts"); everything else goes in order.
unsigned phase_of(unsigned lane, unsigned bytes, bool write) {
  if (bytes == 16 || bytes == 12) {
    if (write) return lane / 8;
    const unsigned half = lane / 32, quad = lane % 32 / 4;  // quads 0..7
    constexpr unsigned kPhase[8] = {0, 1, 2, 3, 1, 0, 3, 2};
    return half * 4 + kPhase[quad];
  }
  return bytes == 8 ? lane / 16 : lane / 32;
}

}  // namespace

unsigned lds_conflict_cycles(const uint32_t* address, uint64_t active, unsigned bytes, bool write) {
  const unsigned dwords = (bytes + 3) / 4;
  const unsigned phases = bytes >= 12 ? 8 : bytes == 8 ? 4 : 2;
  unsigned extra = 0;
  for (unsigned phase = 0; phase < phases; ++phase) {
    std::array<std::vector<uint32_t>, kLdsBanks> banks;  // distinct dwords in each
    size_t most = 1;
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      if (!(active >> lane & 1) || phase_of(lane, bytes, write) != phase) continue;
      for (unsigned i = 0; i < dwords; ++i) {
        const uint32_t dword = address[lane] / 4 + i;
        std::vector<uint32_t>& bank = banks[dword % kLdsBanks];
        if (std::find(bank.begin(), bank.end(), dword) != bank.end()) continue;
        bank.push_back(dword);
        most = std::max(most, bank.size());
      }
    }
    extra += static_cast<unsigned>(most - 1);
  }
  return extra;
}

uint64_t next_stamp(TimeStamps& stamps, const Wave& wave, bool reference) {
  const std::vector<uint64_t>& clocks = stamps.waves[wave.index];
  size_t& next = stamps.next[wave.index];
  if (next == clocks.size()) refuse_clock_dependence(*wave.group->launch);
  const uint64_t clock = clocks[next++];
  return reference ? static_cast<uint64_t>(static_cast<double>(clock) * stamps.reference_per_core) : clock;
}

void refuse_clock_dependence(const Launch& launch) {
  throw SimulatorError(
      SimulatorError::Kind::kUnsupported,
      "kernel " + launch.kernel->name +
          ": what it does depends on the clocks that it reads; such a launch can't be timed");
}

unsigned LaunchTrace::waves_per_workgroup() const {
  return (block[0] * block[1] * block[2] + kLanes - 1) / kLanes;
}

unsigned LaunchTrace::workgroups_per_cu() const {
  const unsigned per_simd = std::min(kMaxWavesPerSimd, kVectorRegistersPerLane / std::max(vgprs, 1u));
  const unsigned by_waves = per_simd * kSimds / waves_per_workgroup();
  const unsigned by_lds = lds_bytes ? kLdsBytes / lds_bytes : by_waves;
  return std::max(1u, std::min(by_waves, by_lds));
}

void record_step(WorkgroupTrace& trace, const Wave& wave, const Step& step) {
  uint32_t access = TraceEvent::kNoAccess;
  switch (static_cast<Effect>(step.effect)) {
  case Effect::kLds:
    access = static_cast<uint32_t>(trace.accesses.size());
    record_lds(trace, wave, wave.group->program->instruction(step));
    break;
  case Effect::kVectorMemory:
  case Effect::kFlat:
    access = static_cast<uint32_t>(trace.accesses.size());
    record_vector_memory(trace, wave, wave.group->program->instruction(step));
    break;
  default: break;
  }
  trace.waves[wave.index].push_back({step.index, access});
}

}  // namespace gfx942
