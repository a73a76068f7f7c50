// Address checks, element widths and atomic operations, shared by buffer, flat and LDS instructions.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "program.hpp"
#include "registers.hpp"

namespace gfx942 {

[[noreturn]] void bad_address(const Wave& wave, const Step& step, uint64_t address, uint64_t bytes, int lane,
                              bool store);
// The slow side of the checks below: finds the region and remembers it in the workgroup.
void find_region(Wave& wave, const Step& step, uint64_t address, uint64_t bytes, int lane, bool store);

// Throws kBadAddress unless [address, address + bytes) lies within a region; lane -1 is a scalar access.
inline void require_readable(Wave& wave, const Step& step, uint64_t address, uint64_t bytes, int lane) {
  const Region* region = wave.group->region;
  if (address < region->begin || address > region->end - bytes || region->end - region->begin < bytes)
    find_region(wave, step, address, bytes, lane, false);
}
inline void require_writable(Wave& wave, const Step& step, uint64_t address, uint64_t bytes, int lane) {
  const Region* region = wave.group->region;
  if (address < region->begin || address > region->end - bytes || region->end - region->begin < bytes ||
      !region->writable)
    find_region(wave, step, address, bytes, lane, true);
}

// As require_writable, and the address is a multiple of the size.
void require_atomic(Wave& wave, const Step& step, uint64_t address, unsigned bytes, int lane);

inline bool is_present(const Operand& operand) {
  return operand.kind != Operand::Kind::kNone && operand.kind != Operand::Kind::kOff;
}
// Rows of a vector-register operand (VGPR or AGPR).
inline uint32_t* rows(Wave& wave, const Operand& operand) {
  return wave.vector[operand.kind == Operand::Kind::kAccumulator ? 256 + operand.index : operand.index];
}
// A scalar address or offset operand: an SGPR, M0 or an inline constant.
inline uint32_t scalar_value(const Wave& wave, const Operand& operand) {
  return operand.kind == Operand::Kind::kScalar ? wave.scalar[operand.index]
                                                : static_cast<uint32_t>(operand.value);
}

// One lane's element in memory and how it sits in a register.
enum class Width { kU8, kI8, kU16, kI16, kDword, kDword2, kDword3, kDword4 };
enum class Place { kWhole, kLowHalf, kHighHalf };  // of the register (d16 forms)

constexpr unsigned bytes_of(Width width) {
  switch (width) {
  case Width::kU8:
  case Width::kI8: return 1;
  case Width::kU16:
  case Width::kI16: return 2;
  case Width::kDword: return 4;
  case Width::kDword2: return 8;
  case Width::kDword3: return 12;
  case Width::kDword4: return 16;
  }
  return 0;
}
constexpr unsigned dwords_of(Width width) {
  return (bytes_of(width) + 3) / 4;
}

template <Width kWidth, Place kPlace>
inline void load_element(uint32_t* to, int lane, const uint8_t* from) {
  if constexpr (bytes_of(kWidth) >= 4) {
    for (unsigned i = 0; i < dwords_of(kWidth); ++i) std::memcpy(to + i * kLanes + lane, from + 4 * i, 4);
  } else {
    uint32_t value;
    if constexpr (kWidth == Width::kU8)
      value = *from;
    else if constexpr (kWidth == Width::kI8)
      value = static_cast<uint32_t>(static_cast<int8_t>(*from));
    else {
      uint16_t half;
      std::memcpy(&half, from, 2);
      value = kWidth == Width::kU16 ? half : static_cast<uint32_t>(static_cast<int16_t>(half));
    }
    if constexpr (kPlace == Place::kWhole)
      to[lane] = value;
    else if constexpr (kPlace == Place::kLowHalf)
      to[lane] = (to[lane] & 0xFFFF0000u) | (value & 0xFFFF);
    else
      to[lane] = (to[lane] & 0xFFFFu) | value << 16;
  }
}

template <Width kWidth, Place kPlace>
inline void store_element(const uint32_t* from, int lane, uint8_t* to) {
  if constexpr (bytes_of(kWidth) >= 4) {
    for (unsigned i = 0; i < dwords_of(kWidth); ++i) std::memcpy(to + 4 * i, from + i * kLanes + lane, 4);
  } else {
    const uint32_t value = kPlace == Place::kHighHalf ? from[lane] >> 16 : from[lane];
    std::memcpy(to, &value, bytes_of(kWidth));
  }
}

// Read-modify-write operations: f(memory, operand) is what memory becomes.
namespace atomic {

template <class T>
struct Swap {
  T operator()(T, T operand) const { return operand; }
};
template <class T>
struct Add {
  T operator()(T memory, T operand) const { return static_cast<T>(memory + operand); }
};
template <class T>
struct Subtract {
  T operator()(T memory, T operand) const { return static_cast<T>(memory - operand); }
};
template <class T>
struct SubtractReversed {
  T operator()(T memory, T operand) const { return static_cast<T>(operand - memory); }
};
template <class T>
struct Minimum {
  T operator()(T memory, T operand) const { return operand < memory ? operand : memory; }
};
template <class T>
struct Maximum {
  T operator()(T memory, T operand) const { return operand > memory ? operand : memory; }
};
template <class T>
struct And {
  T operator()(T memory, T operand) const { return memory & operand; }
};
template <class T>
struct Or {
  T operator()(T memory, T operand) const { return memory | operand; }
};
template <class T>
struct Xor {
  T operator()(T memory, T operand) const { return memory ^ operand; }
};
// Wrapping counters.
template <class T>
struct Increment {
  T operator()(T memory, T operand) const { return memory >= operand ? T{0} : static_cast<T>(memory + 1); }
};
template <class T>
struct Decrement {
  T operator()(T memory, T operand) const {
    return memory == 0 || memory > operand ? operand : static_cast<T>(memory - 1);
  }
};
// Pairs of float16 and bf16, rounded to nearest even.
struct AddHalfPair {
  uint32_t operator()(uint32_t memory, uint32_t operand) const;
};
struct AddBrainPair {
  uint32_t operator()(uint32_t memory, uint32_t operand) const;
};

template <class T>
struct Bits {
  using type = uint32_t;
};
template <>
struct Bits<uint64_t> {
  using type = uint64_t;
};
template <>
struct Bits<int64_t> {
  using type = uint64_t;
};
template <>
struct Bits<double> {
  using type = uint64_t;
};

template <class T>
T from_rows(const uint32_t* row, int lane) {
  uint64_t bits = row[lane];
  if (sizeof(T) == 8) bits |= static_cast<uint64_t>(row[kLanes + lane]) << 32;
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
template <class T>
void to_rows(uint32_t* row, int lane, T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  row[lane] = static_cast<uint32_t>(bits);
  if (sizeof(T) == 8) row[kLanes + lane] = static_cast<uint32_t>(bits >> 32);
}

// Applies F to memory that other host threads may be updating; returns what was there.
template <class F, class T>
T update(uint8_t* memory, T operand) {
  using U = typename Bits<T>::type;
  U* location = reinterpret_cast<U*>(memory);
  U old = __atomic_load_n(location, __ATOMIC_RELAXED);
  for (;;) {
    T value;
    std::memcpy(&value, &old, sizeof(T));
    const T replaced = F{}(value, operand);
    U bits;
    std::memcpy(&bits, &replaced, sizeof(T));
    if (__atomic_compare_exchange_n(location, &old, bits, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
      return value;
  }
}
template <class T>
T compare_swap(uint8_t* memory, T compare, T replacement) {
  T old = compare;
  __atomic_compare_exchange_n(reinterpret_cast<T*>(memory), &old, replacement, false, __ATOMIC_SEQ_CST,
                              __ATOMIC_SEQ_CST);
  return old;
}

}  // namespace atomic

}  // namespace gfx942
