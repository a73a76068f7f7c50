// LDS instructions (DS) and the cross-lane moves that share their encoding.
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "memory.hpp"

namespace gfx942 {

int swizzle_source(uint32_t pattern, int lane) {
  if (pattern >= 0xE000) return -1;  // FFT order
  if (pattern >= 0xC000) {           // rotation within 32 lanes
    const int keep = static_cast<int>(pattern & 31), amount = static_cast<int>(pattern >> 5 & 31);
    const int moved = pattern & 0x400 ? (lane & 31) - amount : (lane & 31) + amount;
    return (lane & 32) | (((lane & keep) | (moved & ~keep)) & 31);
  }
  if (pattern & 0x8000) return (lane & ~3) | static_cast<int>(pattern >> 2 * (lane & 3) & 3);
  const int in_group =
      (((lane & 31) & static_cast<int>(pattern & 31)) | static_cast<int>(pattern >> 5 & 31)) ^
      static_cast<int>(pattern >> 10 & 31);
  return (lane & 32) | in_group;
}

namespace {

// Byte address of each lane's element, its bounds checked for active lanes.
struct LdsAddresses {
  uint32_t first[kLanes];

  LdsAddresses(Wave& wave, const Step& step, const Instruction& instruction, uint32_t offset,
               unsigned bytes) {
    if (instruction.gds)
      fault(wave, step, SimulatorError::Kind::kUnsupported, "global data share is not modelled");
    const uint32_t* address = rows(wave, instruction.src[0]);
    uint32_t lowest = ~0u, highest = 0;
    const uint64_t exec = wave.exec();
    if (exec == ~uint64_t{0}) {
      for (int lane = 0; lane < kLanes; ++lane) {
        first[lane] = address[lane] + offset;
        lowest = first[lane] < lowest ? first[lane] : lowest;
        highest = first[lane] > highest ? first[lane] : highest;
      }
    } else {
      for (int lane = 0; lane < kLanes; ++lane) {
        first[lane] = address[lane] + offset;
        if (!(exec >> lane & 1)) continue;
        lowest = first[lane] < lowest ? first[lane] : lowest;
        highest = first[lane] > highest ? first[lane] : highest;
      }
      if (exec == 0) return;
    }
    const uint64_t size = wave.group->lds_bytes;
    if (highest + uint64_t{bytes} > size || highest > 0x7FFFFFFF) out_of_bounds(wave, step, bytes);
    if (wave.checks.lds_transfers) {
      // The box around all lanes first: it seldom meets a transfer.
      if (lds_transfer_pending(wave, lowest, highest + bytes)) {
        for (int lane = 0; lane < kLanes; ++lane)
          if (exec >> lane & 1) check_lds_access(wave, step, first[lane], first[lane] + bytes, lane);
      }
    }
  }

  [[noreturn]] void out_of_bounds(Wave& wave, const Step& step, unsigned bytes) const {
    for (int lane = 0; lane < kLanes; ++lane) {
      if (!(wave.exec() >> lane & 1) || first[lane] + uint64_t{bytes} <= wave.group->lds_bytes) continue;
      fault(wave, step, SimulatorError::Kind::kBadAddress,
            "LDS address " + hexadecimal(first[lane]) + " (" + std::to_string(bytes) + " bytes) by lane " +
                std::to_string(lane) + ": the workgroup has " + std::to_string(wave.group->lds_bytes) +
                " bytes");
    }
    fault(wave, step, SimulatorError::Kind::kBadAddress, "LDS address out of bounds");
  }
};

uint32_t immediate_offset(const Instruction& instruction) {
  return static_cast<uint32_t>(instruction.offset) & 0xFFFF;
}

// All lanes' elements of two or four dwords to their register rows, four lanes at a time.
template <Width kWidth>
void read_all_lanes(uint32_t* to, const uint8_t* lds, const uint32_t* first) {
#if defined(__SSE2__)
  if constexpr (kWidth == Width::kDword4) {
    for (int lane = 0; lane < kLanes; lane += 4) {
      const auto load = [&](int i) {
        return _mm_loadu_ps(reinterpret_cast<const float*>(lds + first[lane + i]));
      };
      __m128 r0 = load(0), r1 = load(1), r2 = load(2), r3 = load(3);
      _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
      float* row = reinterpret_cast<float*>(to) + lane;
      _mm_storeu_ps(row, r0);
      _mm_storeu_ps(row + kLanes, r1);
      _mm_storeu_ps(row + 2 * kLanes, r2);
      _mm_storeu_ps(row + 3 * kLanes, r3);
    }
    return;
  }
  if constexpr (kWidth == Width::kDword2) {
    for (int lane = 0; lane < kLanes; lane += 4) {
      const auto load = [&](int i) {
        const __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(lds + first[lane + i]));
        const __m128i high = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(lds + first[lane + i + 1]));
        return _mm_castsi128_ps(_mm_unpacklo_epi64(low, high));
      };
      const __m128 r0 = load(0), r1 = load(2);
      float* row = reinterpret_cast<float*>(to) + lane;
      _mm_storeu_ps(row, _mm_shuffle_ps(r0, r1, 0x88));
      _mm_storeu_ps(row + kLanes, _mm_shuffle_ps(r0, r1, 0xDD));
    }
    return;
  }
#endif
  for (int lane = 0; lane < kLanes; ++lane) load_element<kWidth, Place::kWhole>(to, lane, lds + first[lane]);
}

template <Width kWidth, Place kPlace = Place::kWhole>
void lds_read(Wave& wave, const Step& step) {
  const Instruction& instruction = wave.group->program->instruction(step);
  const LdsAddresses addresses(wave, step, instruction, immediate_offset(instruction), bytes_of(kWidth));
  const uint8_t* lds = wave.group->lds.data();
  uint32_t* to = rows(wave, instruction.dst);
  const uint64_t exec = wave.exec();
  if (exec == ~uint64_t{0}) {
    if constexpr (kPlace == Place::kWhole) return read_all_lanes<kWidth>(to, lds, addresses.first);
    for (int lane = 0; lane < kLanes; ++lane)
      load_element<kWidth, kPlace>(to, lane, lds + addresses.first[lane]);
  } else {
    for (int lane = 0; lane < kLanes; ++lane)
      if (exec >> lane & 1) load_element<kWidth, kPlace>(to, lane, lds + addresses.first[lane]);
  }
}

template <Width kWidth, Place kPlace = Place::kWhole>
void lds_write(Wave& wave, const Step& step) {
  const Instruction& instruction = wave.group->program->instruction(step);
  const LdsAddresses addresses(wave, step, instruction, immediate_offset(instruction), bytes_of(kWidth));
  uint8_t* lds = wave.group->lds.data();
  const uint32_t* from = rows(wave, instruction.src[1]);
  const uint64_t exec = wave.exec();
  for (int lane = 0; lane < kLanes; ++lane)
    if (exec >> lane & 1) store_element<kWidth, kPlace>(from, lane, lds + addresses.first[lane]);
}

// Two elements a lane, at offsets in units of kUnit bytes.
template <Width kWidth, unsigned kUnit>
void lds_read_pair(Wave& wave, const Step& step) {
  const Instruction& instruction = wave.group->program->instruction(step);
  constexpr unsigned kBytes = bytes_of(kWidth);
  const uint32_t offset0 = (static_cast<uint32_t>(instruction.offset) & 0xFF) * kUnit;
  const LdsAddresses first(wave, step, instruction, offset0, kBytes);
  const LdsAddresses second(wave, step, instruction, instruction.offset1 * kUnit, kBytes);
  const uint8_t* lds = wave.group->lds.data();
  uint32_t* to = rows(wave, instruction.dst);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(wave.exec() >> lane & 1)) continue;
    load_element<kWidth, Place::kWhole>(to, lane, lds + first.first[lane]);
    load_element<kWidth, Place::kWhole>(to + dwords_of(kWidth) * kLanes, lane, lds + second.first[lane]);
  }
}

template <Width kWidth, unsigned kUnit>
void lds_write_pair(Wave& wave, const Step& step) {
  const Instruction& instruction = wave.group->program->instruction(step);
  constexpr unsigned kBytes = bytes_of(kWidth);
  const uint32_t offset0 = (static_cast<uint32_t>(instruction.offset) & 0xFF) * kUnit;
  const LdsAddresses first(wave, step, instruction, offset0, kBytes);
  const LdsAddresses second(wave, step, instruction, instruction.offset1 * kUnit, kBytes);
  uint8_t* lds = wave.group->lds.data();
  const uint32_t *from0 = rows(wave, instruction.src[1]), *from1 = rows(wave, instruction.src[2]);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(wave.exec() >> lane & 1)) continue;
    store_element<kWidth, Place::kWhole>(from0, lane, lds + first.first[lane]);
    store_element<kWidth, Place::kWhole>(from1, lane, lds + second.first[lane]);
  }
}

// Lane by lane, memory becomes replacement(memory, lane).
template <class T, bool kReturns, class Replacement>
void replace(Wave& wave, const Step& step, Replacement replacement) {
  const Instruction& instruction = wave.group->program->instruction(step);
  const LdsAddresses addresses(wave, step, instruction, immediate_offset(instruction), sizeof(T));
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(wave.exec() >> lane & 1)) continue;
    uint8_t* memory = wave.group->lds.data() + addresses.first[lane];
    T old;
    std::memcpy(&old, memory, sizeof(T));
    const T replaced = replacement(old, lane);
    std::memcpy(memory, &replaced, sizeof(T));
    if (kReturns) atomic::to_rows(rows(wave, instruction.dst), lane, old);
  }
}

template <class T, class F, bool kReturns>
void lds_atomic(Wave& wave, const Step& step) {
  const uint32_t* operand = rows(wave, wave.group->program->instruction(step).src[1]);
  replace<T, kReturns>(wave, step,
                       [&](T old, int lane) { return F{}(old, atomic::from_rows<T>(operand, lane)); });
}

// f(memory, data0, data1) is what memory becomes.
template <class T, T (*kFunction)(T, T, T), bool kReturns>
void lds_atomic_two(Wave& wave, const Step& step) {
  const Instruction& instruction = wave.group->program->instruction(step);
  const uint32_t *data0 = rows(wave, instruction.src[1]), *data1 = rows(wave, instruction.src[2]);
  replace<T, kReturns>(wave, step, [&](T old, int lane) {
    return kFunction(old, atomic::from_rows<T>(data0, lane), atomic::from_rows<T>(data1, lane));
  });
}
// Float32 and float64 are compared by value.
template <class T>
T compare_store(T memory, T compare, T replacement) {
  return memory == compare ? replacement : memory;
}
template <class T>
T masked_or(T memory, T mask, T bits) {
  return (memory & ~mask) | bits;
}
uint32_t wrapped(uint32_t memory, uint32_t limit, uint32_t range) {
  return memory >= limit ? memory - limit : memory + range;
}

// Both old values are read before anything is written.
template <class T, unsigned kUnit>
void lds_exchange_pair(Wave& wave, const Step& step) {
  const Instruction& instruction = wave.group->program->instruction(step);
  const uint32_t offset0 = (static_cast<uint32_t>(instruction.offset) & 0xFF) * kUnit;
  const LdsAddresses first(wave, step, instruction, offset0, sizeof(T));
  const LdsAddresses second(wave, step, instruction, instruction.offset1 * kUnit, sizeof(T));
  uint8_t* lds = wave.group->lds.data();
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(wave.exec() >> lane & 1)) continue;
    T old0, old1;
    std::memcpy(&old0, lds + first.first[lane], sizeof(T));
    std::memcpy(&old1, lds + second.first[lane], sizeof(T));
    const T new0 = atomic::from_rows<T>(rows(wave, instruction.src[1]), lane);
    const T new1 = atomic::from_rows<T>(rows(wave, instruction.src[2]), lane);
    std::memcpy(lds + first.first[lane], &new0, sizeof(T));
    std::memcpy(lds + second.first[lane], &new1, sizeof(T));
    uint32_t* to = rows(wave, instruction.dst);
    atomic::to_rows(to, lane, old0);
    atomic::to_rows(to + sizeof(T) / 4 * kLanes, lane, old1);
  }
}

// Lane numbers times 4; reads of inactive lanes and lanes that nobody writes give 0.
void backward_permute(Wave& wave, const Step& step) {
  const Instruction& instruction = wave.group->program->instruction(step);
  const uint32_t *address = rows(wave, instruction.src[0]), *from = rows(wave, instruction.src[1]);
  const uint64_t exec = wave.exec();
  uint32_t moved[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint32_t other = (address[lane] + immediate_offset(instruction)) / 4 & 63;
    moved[lane] = (exec >> other & 1) ? from[other] : 0;
  }
  uint32_t* to = rows(wave, instruction.dst);
  for (int lane = 0; lane < kLanes; ++lane)
    if (exec >> lane & 1) to[lane] = moved[lane];
}

void forward_permute(Wave& wave, const Step& step) {
  const Instruction& instruction = wave.group->program->instruction(step);
  const uint32_t *address = rows(wave, instruction.src[0]), *from = rows(wave, instruction.src[1]);
  const uint64_t exec = wave.exec();
  uint32_t moved[kLanes] = {};
  for (int lane = 0; lane < kLanes; ++lane)
    if (exec >> lane & 1) moved[(address[lane] + immediate_offset(instruction)) / 4 & 63] = from[lane];
  uint32_t* to = rows(wave, instruction.dst);
  for (int lane = 0; lane < kLanes; ++lane)
    if (exec >> lane & 1) to[lane] = moved[lane];
}

void swizzle(Wave& wave, const Step& step) {
  const Instruction& instruction = wave.group->program->instruction(step);
  const uint32_t pattern = immediate_offset(instruction);
  const uint32_t* from = rows(wave, instruction.src[0]);
  const uint64_t exec = wave.exec();
  uint32_t moved[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    const int other = swizzle_source(pattern, lane);
    if (other < 0) fault(wave, step, SimulatorError::Kind::kUnsupported, "FFT swizzles are not modelled");
    moved[lane] = (exec >> other & 1) ? from[other] : 0;
  }
  uint32_t* to = rows(wave, instruction.dst);
  for (int lane = 0; lane < kLanes; ++lane)
    if (exec >> lane & 1) to[lane] = moved[lane];
}

void no_operation(Wave&, const Step&) {}

#define LDS_ATOMIC(NAME, TYPE, FUNCTION) table[Op::DS_##NAME] = lds_atomic<TYPE, atomic::FUNCTION, false>;
#define LDS_ATOMIC_RETURN(NAME, TYPE, FUNCTION)                                                              \
  table[Op::DS_##NAME] = lds_atomic<TYPE, atomic::FUNCTION, true>;
#define LDS_ATOMIC_BOTH(NAME, SUFFIX, TYPE, FUNCTION)                                                        \
  LDS_ATOMIC(NAME##_##SUFFIX, TYPE, FUNCTION)                                                                \
  LDS_ATOMIC_RETURN(NAME##_RTN_##SUFFIX, TYPE, FUNCTION)

#define LDS_ATOMIC_TWO(NAME, TYPE, FUNCTION, RETURNS)                                                        \
  table[Op::DS_##NAME] = lds_atomic_two<TYPE, FUNCTION, RETURNS>;

void install_lds_atomics(HandlerTable& table) {
  LDS_ATOMIC_BOTH(ADD, U32, uint32_t, Add<uint32_t>)
  LDS_ATOMIC_BOTH(SUB, U32, uint32_t, Subtract<uint32_t>)
  LDS_ATOMIC_BOTH(RSUB, U32, uint32_t, SubtractReversed<uint32_t>)
  LDS_ATOMIC_BOTH(INC, U32, uint32_t, Increment<uint32_t>)
  LDS_ATOMIC_BOTH(DEC, U32, uint32_t, Decrement<uint32_t>)
  LDS_ATOMIC_BOTH(MIN, I32, int32_t, Minimum<int32_t>)
  LDS_ATOMIC_BOTH(MAX, I32, int32_t, Maximum<int32_t>)
  LDS_ATOMIC_BOTH(MIN, U32, uint32_t, Minimum<uint32_t>)
  LDS_ATOMIC_BOTH(MAX, U32, uint32_t, Maximum<uint32_t>)
  LDS_ATOMIC_BOTH(AND, B32, uint32_t, And<uint32_t>)
  LDS_ATOMIC_BOTH(OR, B32, uint32_t, Or<uint32_t>)
  LDS_ATOMIC_BOTH(XOR, B32, uint32_t, Xor<uint32_t>)
  LDS_ATOMIC_BOTH(MIN, F32, float, Minimum<float>)
  LDS_ATOMIC_BOTH(MAX, F32, float, Maximum<float>)
  LDS_ATOMIC_BOTH(ADD, F32, float, Add<float>)
  LDS_ATOMIC_BOTH(PK_ADD, F16, uint32_t, AddHalfPair)
  LDS_ATOMIC_BOTH(PK_ADD, BF16, uint32_t, AddBrainPair)
  LDS_ATOMIC_BOTH(ADD, U64, uint64_t, Add<uint64_t>)
  LDS_ATOMIC_BOTH(SUB, U64, uint64_t, Subtract<uint64_t>)
  LDS_ATOMIC_BOTH(RSUB, U64, uint64_t, SubtractReversed<uint64_t>)
  LDS_ATOMIC_BOTH(INC, U64, uint64_t, Increment<uint64_t>)
  LDS_ATOMIC_BOTH(DEC, U64, uint64_t, Decrement<uint64_t>)
  LDS_ATOMIC_BOTH(MIN, I64, int64_t, Minimum<int64_t>)
  LDS_ATOMIC_BOTH(MAX, I64, int64_t, Maximum<int64_t>)
  LDS_ATOMIC_BOTH(MIN, U64, uint64_t, Minimum<uint64_t>)
  LDS_ATOMIC_BOTH(MAX, U64, uint64_t, Maximum<uint64_t>)
  LDS_ATOMIC_BOTH(AND, B64, uint64_t, And<uint64_t>)
  LDS_ATOMIC_BOTH(OR, B64, uint64_t, Or<uint64_t>)
  LDS_ATOMIC_BOTH(XOR, B64, uint64_t, Xor<uint64_t>)
  LDS_ATOMIC_BOTH(MIN, F64, double, Minimum<double>)
  LDS_ATOMIC_BOTH(MAX, F64, double, Maximum<double>)
  LDS_ATOMIC_BOTH(ADD, F64, double, Add<double>)
  LDS_ATOMIC_RETURN(WRXCHG_RTN_B32, uint32_t, Swap<uint32_t>)
  LDS_ATOMIC_RETURN(WRXCHG_RTN_B64, uint64_t, Swap<uint64_t>)
  LDS_ATOMIC_TWO(MSKOR_B32, uint32_t, masked_or, false)
  LDS_ATOMIC_TWO(MSKOR_RTN_B32, uint32_t, masked_or, true)
  LDS_ATOMIC_TWO(MSKOR_B64, uint64_t, masked_or, false)
  LDS_ATOMIC_TWO(MSKOR_RTN_B64, uint64_t, masked_or, true)
  LDS_ATOMIC_TWO(WRAP_RTN_B32, uint32_t, wrapped, true)
  table[Op::DS_WRXCHG2_RTN_B32] = lds_exchange_pair<uint32_t, 4>;
  table[Op::DS_WRXCHG2ST64_RTN_B32] = lds_exchange_pair<uint32_t, 256>;
  table[Op::DS_WRXCHG2_RTN_B64] = lds_exchange_pair<uint64_t, 8>;
  table[Op::DS_WRXCHG2ST64_RTN_B64] = lds_exchange_pair<uint64_t, 512>;
  table[Op::DS_CMPST_B32] = lds_atomic_two<uint32_t, compare_store<uint32_t>, false>;
  table[Op::DS_CMPST_RTN_B32] = lds_atomic_two<uint32_t, compare_store<uint32_t>, true>;
  table[Op::DS_CMPST_B64] = lds_atomic_two<uint64_t, compare_store<uint64_t>, false>;
  table[Op::DS_CMPST_RTN_B64] = lds_atomic_two<uint64_t, compare_store<uint64_t>, true>;
  table[Op::DS_CMPST_F32] = lds_atomic_two<float, compare_store<float>, false>;
  table[Op::DS_CMPST_RTN_F32] = lds_atomic_two<float, compare_store<float>, true>;
  table[Op::DS_CMPST_F64] = lds_atomic_two<double, compare_store<double>, false>;
  table[Op::DS_CMPST_RTN_F64] = lds_atomic_two<double, compare_store<double>, true>;
}

}  // namespace

void install_lds(HandlerTable& table) {
  install_lds_atomics(table);
  table[Op::DS_NOP] = no_operation;
  table[Op::DS_READ_B32] = lds_read<Width::kDword>;
  table[Op::DS_READ_B64] = lds_read<Width::kDword2>;
  table[Op::DS_READ_B96] = lds_read<Width::kDword3>;
  table[Op::DS_READ_B128] = lds_read<Width::kDword4>;
  table[Op::DS_READ_U8] = lds_read<Width::kU8>;
  table[Op::DS_READ_I8] = lds_read<Width::kI8>;
  table[Op::DS_READ_U16] = lds_read<Width::kU16>;
  table[Op::DS_READ_I16] = lds_read<Width::kI16>;
  table[Op::DS_READ_U8_D16] = lds_read<Width::kU8, Place::kLowHalf>;
  table[Op::DS_READ_U8_D16_HI] = lds_read<Width::kU8, Place::kHighHalf>;
  table[Op::DS_READ_I8_D16] = lds_read<Width::kI8, Place::kLowHalf>;
  table[Op::DS_READ_I8_D16_HI] = lds_read<Width::kI8, Place::kHighHalf>;
  table[Op::DS_READ_U16_D16] = lds_read<Width::kU16, Place::kLowHalf>;
  table[Op::DS_READ_U16_D16_HI] = lds_read<Width::kU16, Place::kHighHalf>;
  table[Op::DS_READ2_B32] = lds_read_pair<Width::kDword, 4>;
  table[Op::DS_READ2ST64_B32] = lds_read_pair<Width::kDword, 256>;
  table[Op::DS_READ2_B64] = lds_read_pair<Width::kDword2, 8>;
  table[Op::DS_READ2ST64_B64] = lds_read_pair<Width::kDword2, 512>;
  table[Op::DS_WRITE_B8] = lds_write<Width::kU8>;
  table[Op::DS_WRITE_B16] = lds_write<Width::kU16>;
  table[Op::DS_WRITE_B8_D16_HI] = lds_write<Width::kU8, Place::kHighHalf>;
  table[Op::DS_WRITE_B16_D16_HI] = lds_write<Width::kU16, Place::kHighHalf>;
  table[Op::DS_WRITE_B32] = lds_write<Width::kDword>;
  table[Op::DS_WRITE_B64] = lds_write<Width::kDword2>;
  table[Op::DS_WRITE_B96] = lds_write<Width::kDword3>;
  table[Op::DS_WRITE_B128] = lds_write<Width::kDword4>;
  table[Op::DS_WRITE2_B32] = lds_write_pair<Width::kDword, 4>;
  table[Op::DS_WRITE2ST64_B32] = lds_write_pair<Width::kDword, 256>;
  table[Op::DS_WRITE2_B64] = lds_write_pair<Width::kDword2, 8>;
  table[Op::DS_WRITE2ST64_B64] = lds_write_pair<Width::kDword2, 512>;
  table[Op::DS_BPERMUTE_B32] = backward_permute;
  table[Op::DS_PERMUTE_B32] = forward_permute;
  table[Op::DS_SWIZZLE_B32] = swizzle;
}

}  // namespace gfx942
