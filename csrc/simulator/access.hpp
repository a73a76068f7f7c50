// Which bytes of LDS and memory an instruction is about to touch, lane by lane.
#pragma once

#include <cstdint>
#include <vector>

#include "registers.hpp"
#include "traits.hpp"

namespace gfx942 {

struct LaneRange {
  uint64_t address;  // of memory, or a byte offset in LDS or in the wave's private segments
  uint32_t bytes;
  int16_t lane;  // -1: a scalar access
};

struct Accesses {
  std::vector<LaneRange> memory, lds, scratch;
  Access memory_kind = Access::kNone, lds_kind = Access::kNone, scratch_kind = Access::kNone;
  // Buffer instructions: the resource.
  bool buffer = false;
  uint64_t buffer_base = 0, buffer_bytes = 0;

  void clear();
};

// Fills `out` from the wave's registers as they are before the instruction. Lanes that a buffer's bound
// refuses are left out.
void find_accesses(const Wave& wave, const Step& step, Accesses& out);

}  // namespace gfx942
