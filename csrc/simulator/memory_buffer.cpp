// Untyped buffer instructions (MUBUF): raw and structured, loads into registers and into LDS, stores,
// atomics.
#include "memory.hpp"

namespace gfx942 {

namespace {

struct BufferResource {
  uint64_t base;
  uint32_t stride, records;

  BufferResource(const Wave& wave, const Step& step, const Instruction& instruction) {
    const uint32_t* words = wave.scalar + instruction.src[1].index;
    base = words[0] | static_cast<uint64_t>(words[1] & 0xFFFF) << 32;
    stride = words[1] >> 16 & 0x3FFF;
    records = words[2];
    if (words[1] >> 31)
      fault(wave, step, SimulatorError::Kind::kUnsupported, "swizzled buffers are not modelled");
    if (words[3] >> 23 & 1)
      fault(wave, step, SimulatorError::Kind::kUnsupported,
            "buffers that add the thread id are not modelled");
  }
};

// Byte offsets from the resource's base, before the bounds check. The bound of a raw access is num_records
// bytes on voffset + inst_offset + soffset; that of a structured one (a stride, and an index) num_records
// elements on the index.
struct BufferAddresses {
  uint64_t base, limit;      // a byte [offset, ...) is in range below `limit`
  uint64_t lanes;            // active lanes whose index is in range
  uint32_t lowest, highest;  // offsets among `lanes`
  alignas(64) uint32_t offset[kLanes];

  BufferAddresses(Wave& wave, const Step& step, const Instruction& instruction) {
    const BufferResource resource(wave, step, instruction);
    base = resource.base;
    limit = resource.records;
    lanes = wave.exec();
    const uint32_t uniform =
        static_cast<uint32_t>(instruction.offset) + scalar_value(wave, instruction.src[3]);
    const uint32_t* first = is_present(instruction.src[0]) ? rows(wave, instruction.src[0]) : nullptr;
    const bool structured = instruction.idxen && resource.stride != 0;
    if (instruction.idxen) {
      const uint32_t* within = instruction.offen ? first + kLanes : nullptr;
      for (int lane = 0; lane < kLanes; ++lane) {
        offset[lane] = first[lane] * resource.stride + (within ? within[lane] : 0) + uniform;
        if (structured && first[lane] >= resource.records) lanes &= ~(uint64_t{1} << lane);
      }
      if (structured) limit = uint64_t{1} << 48;
    } else if (instruction.offen) {
      for (int lane = 0; lane < kLanes; ++lane) offset[lane] = first[lane] + uniform;
    } else {
      for (uint32_t& value : offset) value = uniform;
    }
    lowest = ~0u;
    highest = 0;
    if (lanes == ~uint64_t{0}) {
      for (int lane = 0; lane < kLanes; ++lane) {
        lowest = offset[lane] < lowest ? offset[lane] : lowest;
        highest = offset[lane] > highest ? offset[lane] : highest;
      }
    }
  }

  // All lanes are active and in range, and one writable or readable region holds all they touch.
  bool uniform_region(const Wave& wave, unsigned bytes, bool store) const {
    const Region* region = wave.group->region;
    return lanes == ~uint64_t{0} && highest + uint64_t{bytes} <= limit && base + lowest >= region->begin &&
           base + highest + bytes <= region->end && (!store || region->writable);
  }
  bool in_range(int lane, unsigned first_byte, unsigned bytes) const {
    return offset[lane] + uint64_t{first_byte} + bytes <= limit;
  }
  uint8_t* pointer(int lane) const { return reinterpret_cast<uint8_t*>(base + offset[lane]); }
};

// Each lane's LDS address in a transfer into LDS: M0 + inst_offset + 4 * lane.
uint32_t lds_transfer_base(Wave& wave, const Step& step, const Instruction& instruction) {
  const uint32_t first = (wave.scalar[kM0] & 0xFFFF) + static_cast<uint32_t>(instruction.offset);
  mark_lds_transfer(wave, first);
  if (wave.checks.lds_end > wave.group->lds_bytes)
    fault(wave, step, SimulatorError::Kind::kBadAddress,
          "transfer to LDS bytes [" + std::to_string(wave.checks.lds_begin) + ", " +
              std::to_string(wave.checks.lds_end) + "): the workgroup has " +
              std::to_string(wave.group->lds_bytes));
  return first;
}

template <Width kWidth, Place kPlace>
void load_lane(Wave& wave, const Step& step, const BufferAddresses& addresses, uint32_t* to, int lane) {
  if constexpr (bytes_of(kWidth) >= 4) {
    for (unsigned i = 0; i < dwords_of(kWidth); ++i) {
      uint32_t value = 0;
      if (addresses.in_range(lane, 4 * i, 4)) {
        const uint64_t address = addresses.base + addresses.offset[lane] + 4 * i;
        require_readable(wave, step, address, 4, lane);
        std::memcpy(&value, reinterpret_cast<const void*>(address), 4);
        wave.group->bytes_loaded += 4;
      }
      to[i * kLanes + lane] = value;
    }
  } else {
    static constexpr uint8_t kZero[4] = {};
    const uint8_t* from = kZero;
    if (addresses.in_range(lane, 0, bytes_of(kWidth))) {
      from = addresses.pointer(lane);
      require_readable(wave, step, reinterpret_cast<uint64_t>(from), bytes_of(kWidth), lane);
      wave.group->bytes_loaded += bytes_of(kWidth);
    }
    load_element<kWidth, kPlace>(to, lane, from);
  }
}

template <Width kWidth, Place kPlace>
void load_all(Wave& wave, const Step& step, const BufferAddresses& addresses, uint32_t* to) {
  if (addresses.uniform_region(wave, bytes_of(kWidth), false)) {
    for (int lane = 0; lane < kLanes; ++lane) load_element<kWidth, kPlace>(to, lane, addresses.pointer(lane));
    wave.group->bytes_loaded += bytes_of(kWidth) * kLanes;
    return;
  }
  const uint64_t exec = wave.exec();
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(exec >> lane & 1)) continue;
    if (addresses.lanes >> lane & 1)
      load_lane<kWidth, kPlace>(wave, step, addresses, to, lane);
    else {
      static constexpr uint8_t kZero[16] = {};
      load_element<kWidth, kPlace>(to, lane, kZero);
    }
  }
}

template <Width kWidth, Place kPlace = Place::kWhole>
void buffer_load(Wave& wave, const Step& step) {
  const Instruction& instruction = wave.group->program->instruction(step);
  const BufferAddresses addresses(wave, step, instruction);
  if (!instruction.lds) return load_all<kWidth, kPlace>(wave, step, addresses, rows(wave, instruction.dst));
  if constexpr (dwords_of(kWidth) == 1 && kPlace == Place::kWhole) {
    const uint32_t first = lds_transfer_base(wave, step, instruction);
    uint8_t* lds = wave.group->lds.data() + first;
    load_all<kWidth, kPlace>(wave, step, addresses, wave.result[0]);
    const uint64_t exec = wave.exec();
    if (exec == ~uint64_t{0}) {
      std::memcpy(lds, wave.result[0], 4 * kLanes);
    } else {
      for (int lane = 0; lane < kLanes; ++lane)
        if (exec >> lane & 1) std::memcpy(lds + 4 * lane, wave.result[0] + lane, 4);
    }
  } else {
    fault(wave, step, SimulatorError::Kind::kUnsupported, "transfers into LDS are one dword a lane");
  }
}

template <Width kWidth, Place kPlace = Place::kWhole>
void buffer_store(Wave& wave, const Step& step) {
  const Instruction& instruction = wave.group->program->instruction(step);
  const BufferAddresses addresses(wave, step, instruction);
  const uint32_t* from = rows(wave, instruction.src[2]);
  if (addresses.uniform_region(wave, bytes_of(kWidth), true)) {
    for (int lane = 0; lane < kLanes; ++lane)
      store_element<kWidth, kPlace>(from, lane, addresses.pointer(lane));
    wave.group->bytes_stored += bytes_of(kWidth) * kLanes;
    return;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(addresses.lanes >> lane & 1)) continue;
    constexpr unsigned kUnit = bytes_of(kWidth) >= 4 ? 4 : bytes_of(kWidth);
    for (unsigned byte = 0; byte < bytes_of(kWidth); byte += kUnit) {
      if (!addresses.in_range(lane, byte, kUnit)) continue;
      uint8_t* to = addresses.pointer(lane) + byte;
      require_writable(wave, step, reinterpret_cast<uint64_t>(to), kUnit, lane);
      wave.group->bytes_stored += kUnit;
      if constexpr (kUnit == 4)
        std::memcpy(to, from + byte / 4 * kLanes + lane, 4);
      else
        store_element<kWidth, kPlace>(from, lane, to);
    }
  }
}

// Lane by lane update(memory, lane), which returns what was there; 0 where the buffer ends before.
template <class T, class Update>
void update_lanes(Wave& wave, const Step& step, Update update) {
  const Instruction& instruction = wave.group->program->instruction(step);
  const BufferAddresses addresses(wave, step, instruction);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(wave.exec() >> lane & 1)) continue;
    T old{};
    if ((addresses.lanes >> lane & 1) && addresses.in_range(lane, 0, sizeof(T))) {
      uint8_t* memory = addresses.pointer(lane);
      require_atomic(wave, step, reinterpret_cast<uint64_t>(memory), sizeof(T), lane);
      old = update(memory, lane);
    }
    if (instruction.sc0) atomic::to_rows(rows(wave, instruction.src[2]), lane, old);
  }
}

template <class T, class F>
void buffer_atomic(Wave& wave, const Step& step) {
  const uint32_t* operand = rows(wave, wave.group->program->instruction(step).src[2]);
  update_lanes<T>(wave, step, [&](uint8_t* memory, int lane) {
    return atomic::update<F>(memory, atomic::from_rows<T>(operand, lane));
  });
}

// The operand holds the replacement, then the value to compare with.
template <class T>
void buffer_compare_swap(Wave& wave, const Step& step) {
  const uint32_t* operand = rows(wave, wave.group->program->instruction(step).src[2]);
  update_lanes<T>(wave, step, [&](uint8_t* memory, int lane) {
    const T replacement = atomic::from_rows<T>(operand, lane);
    const T compare = atomic::from_rows<T>(operand + sizeof(T) / 4 * kLanes, lane);
    return atomic::compare_swap(memory, compare, replacement);
  });
}

// Caches are not modelled.
void no_operation(Wave&, const Step&) {}

#define BUFFER_ATOMIC(NAME, TYPE, FUNCTION)                                                                  \
  table[Op::BUFFER_ATOMIC_##NAME] = buffer_atomic<TYPE, atomic::FUNCTION>;
#define BUFFER_ATOMIC_INTEGER(NAME, TYPE32, TYPE64, FUNCTION)                                                \
  BUFFER_ATOMIC(NAME, TYPE32, FUNCTION<TYPE32>)                                                              \
  BUFFER_ATOMIC(NAME##_X2, TYPE64, FUNCTION<TYPE64>)

}  // namespace

void install_buffer(HandlerTable& table) {
  table[Op::BUFFER_LOAD_UBYTE] = buffer_load<Width::kU8>;
  table[Op::BUFFER_LOAD_SBYTE] = buffer_load<Width::kI8>;
  table[Op::BUFFER_LOAD_USHORT] = buffer_load<Width::kU16>;
  table[Op::BUFFER_LOAD_SSHORT] = buffer_load<Width::kI16>;
  table[Op::BUFFER_LOAD_DWORD] = buffer_load<Width::kDword>;
  table[Op::BUFFER_LOAD_DWORDX2] = buffer_load<Width::kDword2>;
  table[Op::BUFFER_LOAD_DWORDX3] = buffer_load<Width::kDword3>;
  table[Op::BUFFER_LOAD_DWORDX4] = buffer_load<Width::kDword4>;
  table[Op::BUFFER_LOAD_UBYTE_D16] = buffer_load<Width::kU8, Place::kLowHalf>;
  table[Op::BUFFER_LOAD_UBYTE_D16_HI] = buffer_load<Width::kU8, Place::kHighHalf>;
  table[Op::BUFFER_LOAD_SBYTE_D16] = buffer_load<Width::kI8, Place::kLowHalf>;
  table[Op::BUFFER_LOAD_SBYTE_D16_HI] = buffer_load<Width::kI8, Place::kHighHalf>;
  table[Op::BUFFER_LOAD_SHORT_D16] = buffer_load<Width::kU16, Place::kLowHalf>;
  table[Op::BUFFER_LOAD_SHORT_D16_HI] = buffer_load<Width::kU16, Place::kHighHalf>;
  table[Op::BUFFER_STORE_BYTE] = buffer_store<Width::kU8>;
  table[Op::BUFFER_STORE_BYTE_D16_HI] = buffer_store<Width::kU8, Place::kHighHalf>;
  table[Op::BUFFER_STORE_SHORT] = buffer_store<Width::kU16>;
  table[Op::BUFFER_STORE_SHORT_D16_HI] = buffer_store<Width::kU16, Place::kHighHalf>;
  table[Op::BUFFER_STORE_DWORD] = buffer_store<Width::kDword>;
  table[Op::BUFFER_STORE_DWORDX2] = buffer_store<Width::kDword2>;
  table[Op::BUFFER_STORE_DWORDX3] = buffer_store<Width::kDword3>;
  table[Op::BUFFER_STORE_DWORDX4] = buffer_store<Width::kDword4>;
  table[Op::BUFFER_WBL2] = no_operation;
  table[Op::BUFFER_INV] = no_operation;

  BUFFER_ATOMIC_INTEGER(SWAP, uint32_t, uint64_t, Swap)
  BUFFER_ATOMIC_INTEGER(ADD, uint32_t, uint64_t, Add)
  BUFFER_ATOMIC_INTEGER(SUB, uint32_t, uint64_t, Subtract)
  BUFFER_ATOMIC_INTEGER(SMIN, int32_t, int64_t, Minimum)
  BUFFER_ATOMIC_INTEGER(UMIN, uint32_t, uint64_t, Minimum)
  BUFFER_ATOMIC_INTEGER(SMAX, int32_t, int64_t, Maximum)
  BUFFER_ATOMIC_INTEGER(UMAX, uint32_t, uint64_t, Maximum)
  BUFFER_ATOMIC_INTEGER(AND, uint32_t, uint64_t, And)
  BUFFER_ATOMIC_INTEGER(OR, uint32_t, uint64_t, Or)
  BUFFER_ATOMIC_INTEGER(XOR, uint32_t, uint64_t, Xor)
  BUFFER_ATOMIC_INTEGER(INC, uint32_t, uint64_t, Increment)
  BUFFER_ATOMIC_INTEGER(DEC, uint32_t, uint64_t, Decrement)
  BUFFER_ATOMIC(ADD_F32, float, Add<float>)
  BUFFER_ATOMIC(PK_ADD_F16, uint32_t, AddHalfPair)
  BUFFER_ATOMIC(ADD_F64, double, Add<double>)
  BUFFER_ATOMIC(MIN_F64, double, Minimum<double>)
  BUFFER_ATOMIC(MAX_F64, double, Maximum<double>)
  table[Op::BUFFER_ATOMIC_CMPSWAP] = buffer_compare_swap<uint32_t>;
  table[Op::BUFFER_ATOMIC_CMPSWAP_X2] = buffer_compare_swap<uint64_t>;
}

}  // namespace gfx942
