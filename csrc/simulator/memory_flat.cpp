// Flat, global and scratch instructions.
#include "memory.hpp"

namespace gfx942 {

namespace {

enum class Segment { kFlat, kGlobal, kScratch };

struct FlatAddresses {
  uint64_t address[kLanes];  // scratch: byte offset in the lane's private segment

  FlatAddresses(Wave& wave, const Instruction& instruction, Segment segment) {
    const auto offset = static_cast<uint64_t>(static_cast<int64_t>(instruction.offset));
    const Operand &vector = instruction.src[0], &scalar = instruction.src[1];
    if (segment == Segment::kScratch) {
      const uint32_t uniform =
          static_cast<uint32_t>(offset) + (is_present(scalar) ? scalar_value(wave, scalar) : 0);
      const uint32_t* row = is_present(vector) ? rows(wave, vector) : nullptr;
      for (int lane = 0; lane < kLanes; ++lane)
        address[lane] = static_cast<uint32_t>(uniform + (row ? row[lane] : 0));
      return;
    }
    const uint32_t* row = rows(wave, vector);
    if (segment == Segment::kGlobal && is_present(scalar)) {
      const uint64_t uniform = wave.scalar64(scalar.index) + offset;
      for (int lane = 0; lane < kLanes; ++lane) address[lane] = uniform + row[lane];
    } else {
      for (int lane = 0; lane < kLanes; ++lane)
        address[lane] = (row[lane] | static_cast<uint64_t>(row[kLanes + lane]) << 32) + offset;
    }
  }
};

// Host memory behind one lane's address.
template <Segment kSegment, bool kStore>
uint8_t* resolve(Wave& wave, const Step& step, uint64_t address, unsigned bytes, int lane) {
  Workgroup& group = *wave.group;
  constexpr uint64_t kHigh = 0xFFFFFFFF00000000;
  bool scratch = kSegment == Segment::kScratch;
  if constexpr (kSegment == Segment::kFlat) {
    if ((address & kHigh) == kSharedAperture) {
      const auto offset = static_cast<uint32_t>(address);
      if (offset + uint64_t{bytes} > group.lds_bytes)
        fault(wave, step, SimulatorError::Kind::kBadAddress,
              "flat access to LDS address " + hexadecimal(offset) + " by lane " + std::to_string(lane) +
                  ": the workgroup has " + std::to_string(group.lds_bytes) + " bytes");
      if (wave.checks.lds_transfers) check_lds_access(wave, step, offset, offset + bytes, lane);
      return group.lds.data() + offset;
    }
    scratch = (address & kHigh) == kPrivateAperture;
  }
  if (scratch) {
    const auto offset = static_cast<uint32_t>(address);
    if (offset + uint64_t{bytes} > group.scratch_bytes)
      fault(wave, step, SimulatorError::Kind::kBadAddress,
            "scratch address " + hexadecimal(offset) + " (" + std::to_string(bytes) + " bytes) by lane " +
                std::to_string(lane) + ": the private segment has " + std::to_string(group.scratch_bytes) +
                " bytes");
    return wave.scratch + static_cast<uint64_t>(lane) * group.scratch_bytes + offset;
  }
  if (kStore)
    require_writable(wave, step, address, bytes, lane);
  else
    require_readable(wave, step, address, bytes, lane);
  (kStore ? group.bytes_stored : group.bytes_loaded) += bytes;
  return reinterpret_cast<uint8_t*>(address);
}

template <Segment kSegment, Width kWidth, Place kPlace = Place::kWhole>
void flat_load(Wave& wave, const Step& step) {
  const Instruction& instruction = wave.group->program->instruction(step);
  const FlatAddresses addresses(wave, instruction, kSegment);
  uint32_t* to = rows(wave, instruction.dst);
  const uint64_t exec = wave.exec();
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(exec >> lane & 1)) continue;
    const uint8_t* from =
        resolve<kSegment, false>(wave, step, addresses.address[lane], bytes_of(kWidth), lane);
    load_element<kWidth, kPlace>(to, lane, from);
  }
}

template <Segment kSegment, Width kWidth, Place kPlace = Place::kWhole>
void flat_store(Wave& wave, const Step& step) {
  const Instruction& instruction = wave.group->program->instruction(step);
  const FlatAddresses addresses(wave, instruction, kSegment);
  const uint32_t* from = rows(wave, instruction.src[2]);
  const uint64_t exec = wave.exec();
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(exec >> lane & 1)) continue;
    uint8_t* to = resolve<kSegment, true>(wave, step, addresses.address[lane], bytes_of(kWidth), lane);
    store_element<kWidth, kPlace>(from, lane, to);
  }
}

// LDS address of each lane: M0 + inst_offset + 4 * lane.
template <Segment kSegment, Width kWidth>
void load_into_lds(Wave& wave, const Step& step) {
  const Instruction& instruction = wave.group->program->instruction(step);
  const FlatAddresses addresses(wave, instruction, kSegment);
  const uint32_t first = (wave.scalar[kM0] & 0xFFFF) + static_cast<uint32_t>(instruction.offset);
  const uint64_t exec = wave.exec();
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(exec >> lane & 1)) continue;
    const uint64_t place = first + uint64_t{4} * static_cast<unsigned>(lane);
    if (place + 4 > wave.group->lds_bytes)
      fault(wave, step, SimulatorError::Kind::kBadAddress,
            "transfer to LDS address " + hexadecimal(place) + " by lane " + std::to_string(lane) +
                ": the workgroup has " + std::to_string(wave.group->lds_bytes) + " bytes");
    const uint8_t* from =
        resolve<kSegment, false>(wave, step, addresses.address[lane], bytes_of(kWidth), lane);
    uint32_t value[1];
    load_element<kWidth, Place::kWhole>(value, 0, from);
    std::memcpy(wave.group->lds.data() + place, value, 4);
  }
  mark_lds_transfer(wave, first);
}

template <Segment kSegment>
uint8_t* resolve_atomic(Wave& wave, const Step& step, uint64_t address, unsigned bytes, int lane) {
  uint8_t* memory = resolve<kSegment, true>(wave, step, address, bytes, lane);
  if (reinterpret_cast<uint64_t>(memory) % bytes) require_atomic(wave, step, address, bytes, lane);
  return memory;
}

// Lane by lane update(memory, lane), which returns what was there.
template <Segment kSegment, class T, class Update>
void update_lanes(Wave& wave, const Step& step, Update update) {
  const Instruction& instruction = wave.group->program->instruction(step);
  const FlatAddresses addresses(wave, instruction, kSegment);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(wave.exec() >> lane & 1)) continue;
    const T old =
        update(resolve_atomic<kSegment>(wave, step, addresses.address[lane], sizeof(T), lane), lane);
    if (instruction.sc0) atomic::to_rows(rows(wave, instruction.dst), lane, old);
  }
}

template <Segment kSegment, class T, class F>
void flat_atomic(Wave& wave, const Step& step) {
  const uint32_t* operand = rows(wave, wave.group->program->instruction(step).src[2]);
  update_lanes<kSegment, T>(wave, step, [&](uint8_t* memory, int lane) {
    return atomic::update<F>(memory, atomic::from_rows<T>(operand, lane));
  });
}

template <Segment kSegment, class T>
void flat_compare_swap(Wave& wave, const Step& step) {
  const uint32_t* operand = rows(wave, wave.group->program->instruction(step).src[2]);
  update_lanes<kSegment, T>(wave, step, [&](uint8_t* memory, int lane) {
    const T replacement = atomic::from_rows<T>(operand, lane);
    const T compare = atomic::from_rows<T>(operand + sizeof(T) / 4 * kLanes, lane);
    return atomic::compare_swap(memory, compare, replacement);
  });
}

#define TRANSFERS(PREFIX, SEGMENT)                                                                           \
  table[Op::PREFIX##_LOAD_UBYTE] = flat_load<SEGMENT, Width::kU8>;                                           \
  table[Op::PREFIX##_LOAD_SBYTE] = flat_load<SEGMENT, Width::kI8>;                                           \
  table[Op::PREFIX##_LOAD_USHORT] = flat_load<SEGMENT, Width::kU16>;                                         \
  table[Op::PREFIX##_LOAD_SSHORT] = flat_load<SEGMENT, Width::kI16>;                                         \
  table[Op::PREFIX##_LOAD_DWORD] = flat_load<SEGMENT, Width::kDword>;                                        \
  table[Op::PREFIX##_LOAD_DWORDX2] = flat_load<SEGMENT, Width::kDword2>;                                     \
  table[Op::PREFIX##_LOAD_DWORDX3] = flat_load<SEGMENT, Width::kDword3>;                                     \
  table[Op::PREFIX##_LOAD_DWORDX4] = flat_load<SEGMENT, Width::kDword4>;                                     \
  table[Op::PREFIX##_LOAD_UBYTE_D16] = flat_load<SEGMENT, Width::kU8, Place::kLowHalf>;                      \
  table[Op::PREFIX##_LOAD_UBYTE_D16_HI] = flat_load<SEGMENT, Width::kU8, Place::kHighHalf>;                  \
  table[Op::PREFIX##_LOAD_SBYTE_D16] = flat_load<SEGMENT, Width::kI8, Place::kLowHalf>;                      \
  table[Op::PREFIX##_LOAD_SBYTE_D16_HI] = flat_load<SEGMENT, Width::kI8, Place::kHighHalf>;                  \
  table[Op::PREFIX##_LOAD_SHORT_D16] = flat_load<SEGMENT, Width::kU16, Place::kLowHalf>;                     \
  table[Op::PREFIX##_LOAD_SHORT_D16_HI] = flat_load<SEGMENT, Width::kU16, Place::kHighHalf>;                 \
  table[Op::PREFIX##_STORE_BYTE] = flat_store<SEGMENT, Width::kU8>;                                          \
  table[Op::PREFIX##_STORE_BYTE_D16_HI] = flat_store<SEGMENT, Width::kU8, Place::kHighHalf>;                 \
  table[Op::PREFIX##_STORE_SHORT] = flat_store<SEGMENT, Width::kU16>;                                        \
  table[Op::PREFIX##_STORE_SHORT_D16_HI] = flat_store<SEGMENT, Width::kU16, Place::kHighHalf>;               \
  table[Op::PREFIX##_STORE_DWORD] = flat_store<SEGMENT, Width::kDword>;                                      \
  table[Op::PREFIX##_STORE_DWORDX2] = flat_store<SEGMENT, Width::kDword2>;                                   \
  table[Op::PREFIX##_STORE_DWORDX3] = flat_store<SEGMENT, Width::kDword3>;                                   \
  table[Op::PREFIX##_STORE_DWORDX4] = flat_store<SEGMENT, Width::kDword4>;

#define LDS_TRANSFERS(PREFIX, SEGMENT)                                                                       \
  table[Op::PREFIX##_LOAD_LDS_UBYTE] = load_into_lds<SEGMENT, Width::kU8>;                                   \
  table[Op::PREFIX##_LOAD_LDS_SBYTE] = load_into_lds<SEGMENT, Width::kI8>;                                   \
  table[Op::PREFIX##_LOAD_LDS_USHORT] = load_into_lds<SEGMENT, Width::kU16>;                                 \
  table[Op::PREFIX##_LOAD_LDS_SSHORT] = load_into_lds<SEGMENT, Width::kI16>;                                 \
  table[Op::PREFIX##_LOAD_LDS_DWORD] = load_into_lds<SEGMENT, Width::kDword>;

#define ATOMIC(PREFIX, SEGMENT, NAME, TYPE, FUNCTION)                                                        \
  table[Op::PREFIX##_ATOMIC_##NAME] = flat_atomic<SEGMENT, TYPE, atomic::FUNCTION>;
#define ATOMIC_INTEGER(PREFIX, SEGMENT, NAME, TYPE32, TYPE64, FUNCTION)                                      \
  ATOMIC(PREFIX, SEGMENT, NAME, TYPE32, FUNCTION<TYPE32>)                                                    \
  ATOMIC(PREFIX, SEGMENT, NAME##_X2, TYPE64, FUNCTION<TYPE64>)
#define ATOMICS(PREFIX, SEGMENT)                                                                             \
  ATOMIC_INTEGER(PREFIX, SEGMENT, SWAP, uint32_t, uint64_t, Swap)                                            \
  ATOMIC_INTEGER(PREFIX, SEGMENT, ADD, uint32_t, uint64_t, Add)                                              \
  ATOMIC_INTEGER(PREFIX, SEGMENT, SUB, uint32_t, uint64_t, Subtract)                                         \
  ATOMIC_INTEGER(PREFIX, SEGMENT, SMIN, int32_t, int64_t, Minimum)                                           \
  ATOMIC_INTEGER(PREFIX, SEGMENT, UMIN, uint32_t, uint64_t, Minimum)                                         \
  ATOMIC_INTEGER(PREFIX, SEGMENT, SMAX, int32_t, int64_t, Maximum)                                           \
  ATOMIC_INTEGER(PREFIX, SEGMENT, UMAX, uint32_t, uint64_t, Maximum)                                         \
  ATOMIC_INTEGER(PREFIX, SEGMENT, AND, uint32_t, uint64_t, And)                                              \
  ATOMIC_INTEGER(PREFIX, SEGMENT, OR, uint32_t, uint64_t, Or)                                                \
  ATOMIC_INTEGER(PREFIX, SEGMENT, XOR, uint32_t, uint64_t, Xor)                                              \
  ATOMIC_INTEGER(PREFIX, SEGMENT, INC, uint32_t, uint64_t, Increment)                                        \
  ATOMIC_INTEGER(PREFIX, SEGMENT, DEC, uint32_t, uint64_t, Decrement)                                        \
  ATOMIC(PREFIX, SEGMENT, ADD_F32, float, Add<float>)                                                        \
  ATOMIC(PREFIX, SEGMENT, PK_ADD_F16, uint32_t, AddHalfPair)                                                 \
  ATOMIC(PREFIX, SEGMENT, PK_ADD_BF16, uint32_t, AddBrainPair)                                               \
  ATOMIC(PREFIX, SEGMENT, ADD_F64, double, Add<double>)                                                      \
  ATOMIC(PREFIX, SEGMENT, MIN_F64, double, Minimum<double>)                                                  \
  ATOMIC(PREFIX, SEGMENT, MAX_F64, double, Maximum<double>)                                                  \
  table[Op::PREFIX##_ATOMIC_CMPSWAP] = flat_compare_swap<SEGMENT, uint32_t>;                                 \
  table[Op::PREFIX##_ATOMIC_CMPSWAP_X2] = flat_compare_swap<SEGMENT, uint64_t>;

}  // namespace

void install_flat(HandlerTable& table) {
  TRANSFERS(FLAT, Segment::kFlat)
  TRANSFERS(GLOBAL, Segment::kGlobal)
  TRANSFERS(SCRATCH, Segment::kScratch)
  LDS_TRANSFERS(GLOBAL, Segment::kGlobal)
  LDS_TRANSFERS(SCRATCH, Segment::kScratch)
  ATOMICS(FLAT, Segment::kFlat)
  ATOMICS(GLOBAL, Segment::kGlobal)
}

}  // namespace gfx942
