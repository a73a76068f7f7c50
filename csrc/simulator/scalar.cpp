// Scalar arithmetic (SOP1, SOP2, SOPC, SOPK) and hardware registers.
#include <cstdlib>

#include "program.hpp"
#include "registers.hpp"

namespace gfx942 {

namespace {

uint32_t value32(const Wave& wave, uint64_t operand) {
  return *source(wave, operand);
}

template <class T>
T operand_value(const Wave& wave, uint64_t operand) {
  if constexpr (sizeof(T) == 8)
    return static_cast<T>(source64(wave, operand));
  else
    return static_cast<T>(value32(wave, operand));
}
template <class T>
void write_result(Wave& wave, const Step& step, T value) {
  if constexpr (sizeof(T) == 8)
    write64(wave, step.dst, static_cast<uint64_t>(value));
  else
    *destination(wave, step.dst) = static_cast<uint32_t>(value);
}

// K::apply(scc, sources...) returns the result and may set scc.
template <class K, class R, class A>
void scalar_call(R (*)(uint32_t&, A), Wave& wave, const Step& step) {
  write_result(wave, step, K::apply(wave.scc, operand_value<A>(wave, step.src[0])));
}
template <class K, class R, class A, class B>
void scalar_call(R (*)(uint32_t&, A, B), Wave& wave, const Step& step) {
  const R result =
      K::apply(wave.scc, operand_value<A>(wave, step.src[0]), operand_value<B>(wave, step.src[1]));
  write_result(wave, step, result);
}
template <class K>
void scalar_op(Wave& wave, const Step& step) {
  scalar_call<K>(&K::apply, wave, step);
}

template <class K, class A, class B>
void compare_call(bool (*)(A, B), Wave& wave, const Step& step) {
  wave.scc = K::apply(operand_value<A>(wave, step.src[0]), operand_value<B>(wave, step.src[1]));
}
template <class K>
void scalar_compare(Wave& wave, const Step& step) {
  compare_call<K>(&K::apply, wave, step);
}

// SOPK: the register is source and destination, the immediate is step.src[3].
int32_t immediate(const Step& step) {
  return static_cast<int32_t>(step.src[3]);
}

template <class K>
void compare_immediate(Wave& wave, const Step& step) {
  const uint32_t value = value32(wave, step.src[0]);
  wave.scc = K::apply(value, immediate(step));
}
template <class K>
void immediate_op(Wave& wave, const Step& step) {
  uint32_t* to = destination(wave, step.dst);
  K::apply(wave.scc, *to, immediate(step));
}

template <class K>
void save_exec(Wave& wave, const Step& step) {
  const uint64_t value = source64(wave, step.src[0]), exec = wave.exec();
  const uint64_t result = K::apply(value, exec);
  write64(wave, step.dst, exec);
  wave.set_exec(result);
  wave.scc = result != 0;
}
template <class K>
void write_exec(Wave& wave, const Step& step) {
  const uint64_t result = K::apply(source64(wave, step.src[0]), wave.exec());
  wave.set_exec(result);
  write64(wave, step.dst, result);
  wave.scc = result != 0;
}

uint64_t reverse64(uint64_t value) {
  uint64_t result = 0;
  for (int bit = 0; bit < 64; ++bit) result |= (value >> bit & 1) << (63 - bit);
  return result;
}
uint64_t whole_quads(uint64_t value) {
  uint64_t result = 0;
  for (int quad = 0; quad < 16; ++quad)
    if (value >> 4 * quad & 0xF) result |= uint64_t{0xF} << 4 * quad;
  return result;
}
uint64_t quad_mask(uint64_t value) {
  uint64_t result = 0;
  for (int quad = 0; quad < 16; ++quad)
    if (value >> 4 * quad & 0xF) result |= uint64_t{1} << quad;
  return result;
}
int32_t leading_sign_bits(int64_t value, int width) {
  const auto bits = static_cast<uint64_t>(value < 0 ? ~value : value);
  if (bits == 0) return -1;
  return __builtin_clzll(bits) - (64 - width);
}
template <class T>
T extract(T value, uint32_t control) {
  constexpr uint32_t kBits = sizeof(T) * 8;
  const uint32_t offset = control & (kBits - 1);
  uint32_t width = control >> 16 & 0x7F;
  if (width == 0) return 0;
  if (width > kBits) width = kBits;
  const T shifted = static_cast<T>(value >> offset);
  if (width + offset >= kBits) return shifted;
  return static_cast<T>(static_cast<T>(static_cast<std::make_unsigned_t<T>>(shifted) << (kBits - width)) >>
                        (kBits - width));
}

// Hardware registers of s_getreg and s_setreg.
enum HardwareRegister {
  kModeRegister = 1,
  kStatusRegister = 2,
  kTrapStatusRegister = 3,
  kHardwareId = 4,
  kGprAllocation = 5,
  kLdsAllocation = 6,
  kInstructionBufferStatus = 7,
  kXccId = 20
};

bool read_hardware_register(const Wave& wave, unsigned id, uint32_t& value) {
  switch (id) {
  case kModeRegister: value = wave.mode.bits; return true;
  case kStatusRegister:
    value = (wave.scc & 1) | (wave.exec() == 0) << 9 | (wave.vcc() == 0) << 10 | 1u << 16 /* valid */;
    return true;
  case kTrapStatusRegister: value = wave.trap_status; return true;
  case kHardwareId: value = wave.index & 0xF; return true;
  case kLdsAllocation: value = static_cast<uint32_t>((wave.group->lds_bytes + 511) / 512) << 12; return true;
  case kGprAllocation:
  case kInstructionBufferStatus:
  case kXccId: value = 0; return true;
  default: return false;
  }
}

struct RegisterField {
  unsigned id, offset, width;
  explicit RegisterField(int32_t simm16)
      : id(static_cast<unsigned>(simm16) & 63), offset(static_cast<unsigned>(simm16) >> 6 & 31),
        width((static_cast<unsigned>(simm16) >> 11 & 31) + 1) {}
  uint32_t mask() const { return width == 32 ? ~0u : (1u << width) - 1; }
};

void get_register(Wave& wave, const Step& step) {
  const RegisterField field(immediate(step));
  uint32_t value = 0;
  if (!read_hardware_register(wave, field.id, value))
    fault(wave, step, SimulatorError::Kind::kUnsupported,
          "hardware register " + std::to_string(field.id) + " is not modelled");
  *destination(wave, step.dst) = value >> field.offset & field.mask();
}

void set_field(Wave& wave, const Step& step, uint32_t value) {
  const RegisterField field(immediate(step));
  const uint32_t mask = field.mask() << field.offset;
  const uint32_t placed = value << field.offset & mask;
  if (field.id == kModeRegister) {
    wave.mode.bits = (wave.mode.bits & ~mask) | placed;
    apply_mode(wave);
  } else if (field.id == kTrapStatusRegister) {
    wave.trap_status = (wave.trap_status & ~mask) | placed;
  } else {
    fault(wave, step, SimulatorError::Kind::kUnsupported,
          "writing hardware register " + std::to_string(field.id) + " is not modelled");
  }
}
void set_register(Wave& wave, const Step& step) {
  set_field(wave, step, value32(wave, step.src[0]));
}

void get_program_counter(Wave& wave, const Step& step) {
  const Instruction& instruction = wave.group->program->instruction(step);
  write64(wave, step.dst, instruction.address + instruction.size);
}

template <unsigned kDwords>
void move_relative_source(Wave& wave, const Step& step) {
  const Instruction& instruction = wave.group->program->instruction(step);
  const uint32_t index = instruction.src[0].index + wave.scalar[kM0];
  if (index + kDwords > 128)
    fault(wave, step, SimulatorError::Kind::kBadAddress,
          "scalar register " + std::to_string(index) + " does not exist");
  for (unsigned i = 0; i < kDwords; ++i) destination(wave, step.dst)[i] = wave.scalar[index + i];
}
template <unsigned kDwords>
void move_relative_destination(Wave& wave, const Step& step) {
  const Instruction& instruction = wave.group->program->instruction(step);
  const uint32_t index = instruction.dst.index + wave.scalar[kM0];
  if (index + kDwords > 128)
    fault(wave, step, SimulatorError::Kind::kBadAddress,
          "scalar register " + std::to_string(index) + " does not exist");
  const uint64_t value = kDwords == 2 ? source64(wave, step.src[0]) : value32(wave, step.src[0]);
  for (unsigned i = 0; i < kDwords; ++i) wave.scalar[index + i] = static_cast<uint32_t>(value >> 32 * i);
}

#define SCALAR(NAME, RESULT, SOURCES, ...)                                                                   \
  {                                                                                                          \
    struct Kernel {                                                                                          \
      static inline RESULT apply SOURCES { __VA_ARGS__; }                                                    \
    };                                                                                                       \
    table[Op::NAME] = scalar_op<Kernel>;                                                                     \
  }
#define SCALAR_LOGIC(NAME, EXPRESSION)                                                                       \
  SCALAR(NAME##_B32, uint32_t, (uint32_t& scc, uint32_t a, uint32_t b), const uint32_t r = EXPRESSION;       \
         scc = r != 0; return r)                                                                             \
  SCALAR(NAME##_B64, uint64_t, (uint32_t& scc, uint64_t a, uint64_t b), const uint64_t r = EXPRESSION;       \
         scc = r != 0; return r)
#define SCALAR_COMPARE(NAME, TYPE_A, TYPE_B, EXPRESSION)                                                     \
  {                                                                                                          \
    struct Kernel {                                                                                          \
      static inline bool apply(TYPE_A a, TYPE_B b) { return EXPRESSION; }                                    \
    };                                                                                                       \
    table[Op::NAME] = scalar_compare<Kernel>;                                                                \
  }
#define COMPARE_IMMEDIATE(NAME, EXPRESSION)                                                                  \
  {                                                                                                          \
    struct Kernel {                                                                                          \
      static inline bool apply(uint32_t a, int32_t k) { return EXPRESSION; }                                 \
    };                                                                                                       \
    table[Op::NAME] = compare_immediate<Kernel>;                                                             \
  }
#define IMMEDIATE(NAME, ...)                                                                                 \
  {                                                                                                          \
    struct Kernel {                                                                                          \
      static inline void apply(uint32_t& scc, uint32_t& d, int32_t k) {                                      \
        (void)scc;                                                                                           \
        __VA_ARGS__;                                                                                         \
      }                                                                                                      \
    };                                                                                                       \
    table[Op::NAME] = immediate_op<Kernel>;                                                                  \
  }
#define EXEC_LOGIC(NAME, HANDLER, EXPRESSION)                                                                \
  {                                                                                                          \
    struct Kernel {                                                                                          \
      static inline uint64_t apply(uint64_t a, uint64_t exec) { return EXPRESSION; }                         \
    };                                                                                                       \
    table[Op::NAME] = HANDLER<Kernel>;                                                                       \
  }

void install_two_sources(HandlerTable& table) {
  SCALAR(S_ADD_U32, uint32_t, (uint32_t& scc, uint32_t a, uint32_t b), scc = a + b < a; return a + b)
  SCALAR(S_SUB_U32, uint32_t, (uint32_t& scc, uint32_t a, uint32_t b), scc = a < b; return a - b)
  SCALAR(S_ADD_I32, int32_t, (uint32_t& scc, int32_t a, int32_t b), int32_t r;
         scc = __builtin_add_overflow(a, b, &r); return r)
  SCALAR(S_SUB_I32, int32_t, (uint32_t& scc, int32_t a, int32_t b), int32_t r;
         scc = __builtin_sub_overflow(a, b, &r); return r)
  SCALAR(S_ADDC_U32, uint32_t, (uint32_t& scc, uint32_t a, uint32_t b),
         const uint64_t r = uint64_t{a} + b + scc;
         scc = r >> 32 != 0; return static_cast<uint32_t>(r))
  SCALAR(S_SUBB_U32, uint32_t, (uint32_t& scc, uint32_t a, uint32_t b), const uint32_t r = a - b - scc;
         scc = a < uint64_t{b} + scc; return r)
  SCALAR(S_MIN_I32, int32_t, (uint32_t& scc, int32_t a, int32_t b), scc = a < b; return a < b ? a : b)
  SCALAR(S_MIN_U32, uint32_t, (uint32_t& scc, uint32_t a, uint32_t b), scc = a < b; return a < b ? a : b)
  SCALAR(S_MAX_I32, int32_t, (uint32_t& scc, int32_t a, int32_t b), scc = a >= b; return a >= b ? a : b)
  SCALAR(S_MAX_U32, uint32_t, (uint32_t& scc, uint32_t a, uint32_t b), scc = a >= b; return a >= b ? a : b)
  SCALAR(S_CSELECT_B32, uint32_t, (uint32_t& scc, uint32_t a, uint32_t b), return scc ? a : b)
  SCALAR(S_CSELECT_B64, uint64_t, (uint32_t& scc, uint64_t a, uint64_t b), return scc ? a : b)
  SCALAR_LOGIC(S_AND, a & b)
  SCALAR_LOGIC(S_OR, a | b)
  SCALAR_LOGIC(S_XOR, a ^ b)
  SCALAR_LOGIC(S_ANDN2, a & ~b)
  SCALAR_LOGIC(S_ORN2, a | ~b)
  SCALAR_LOGIC(S_NAND, ~(a & b))
  SCALAR_LOGIC(S_NOR, ~(a | b))
  SCALAR_LOGIC(S_XNOR, ~(a ^ b))
  SCALAR(S_LSHL_B32, uint32_t, (uint32_t& scc, uint32_t a, uint32_t b), const uint32_t r = a << (b & 31);
         scc = r != 0; return r)
  SCALAR(S_LSHL_B64, uint64_t, (uint32_t& scc, uint64_t a, uint32_t b), const uint64_t r = a << (b & 63);
         scc = r != 0; return r)
  SCALAR(S_LSHR_B32, uint32_t, (uint32_t& scc, uint32_t a, uint32_t b), const uint32_t r = a >> (b & 31);
         scc = r != 0; return r)
  SCALAR(S_LSHR_B64, uint64_t, (uint32_t& scc, uint64_t a, uint32_t b), const uint64_t r = a >> (b & 63);
         scc = r != 0; return r)
  SCALAR(S_ASHR_I32, int32_t, (uint32_t& scc, int32_t a, uint32_t b), const int32_t r = a >> (b & 31);
         scc = r != 0; return r)
  SCALAR(S_ASHR_I64, int64_t, (uint32_t& scc, int64_t a, uint32_t b), const int64_t r = a >> (b & 63);
         scc = r != 0; return r)
  SCALAR(S_BFM_B32, uint32_t, (uint32_t&, uint32_t a, uint32_t b), return ((1u << (a & 31)) - 1) << (b & 31))
  SCALAR(S_BFM_B64, uint64_t, (uint32_t&, uint32_t a, uint32_t b),
         return ((uint64_t{1} << (a & 63)) - 1) << (b & 63))
  SCALAR(S_MUL_I32, uint32_t, (uint32_t&, uint32_t a, uint32_t b), return a * b)
  SCALAR(S_MUL_HI_U32, uint32_t, (uint32_t&, uint32_t a, uint32_t b),
         return static_cast<uint32_t>(uint64_t{a} * b >> 32))
  SCALAR(S_MUL_HI_I32, int32_t, (uint32_t&, int32_t a, int32_t b),
         return static_cast<int32_t>(int64_t{a} * b >> 32))
  SCALAR(S_BFE_U32, uint32_t, (uint32_t& scc, uint32_t a, uint32_t b), const uint32_t r = extract(a, b);
         scc = r != 0; return r)
  SCALAR(S_BFE_I32, int32_t, (uint32_t& scc, int32_t a, uint32_t b), const int32_t r = extract(a, b);
         scc = r != 0; return r)
  SCALAR(S_BFE_U64, uint64_t, (uint32_t& scc, uint64_t a, uint32_t b), const uint64_t r = extract(a, b);
         scc = r != 0; return r)
  SCALAR(S_BFE_I64, int64_t, (uint32_t& scc, int64_t a, uint32_t b), const int64_t r = extract(a, b);
         scc = r != 0; return r)
  SCALAR(S_ABSDIFF_I32, uint32_t, (uint32_t& scc, uint32_t a, uint32_t b), const uint32_t d = a - b;
         const uint32_t r = static_cast<int32_t>(d) < 0 ? 0u - d : d; scc = r != 0; return r)
  SCALAR(S_LSHL1_ADD_U32, uint32_t, (uint32_t& scc, uint32_t a, uint32_t b),
         const uint64_t r = (uint64_t{a} << 1) + b;
         scc = r >> 32 != 0; return static_cast<uint32_t>(r))
  SCALAR(S_LSHL2_ADD_U32, uint32_t, (uint32_t& scc, uint32_t a, uint32_t b),
         const uint64_t r = (uint64_t{a} << 2) + b;
         scc = r >> 32 != 0; return static_cast<uint32_t>(r))
  SCALAR(S_LSHL3_ADD_U32, uint32_t, (uint32_t& scc, uint32_t a, uint32_t b),
         const uint64_t r = (uint64_t{a} << 3) + b;
         scc = r >> 32 != 0; return static_cast<uint32_t>(r))
  SCALAR(S_LSHL4_ADD_U32, uint32_t, (uint32_t& scc, uint32_t a, uint32_t b),
         const uint64_t r = (uint64_t{a} << 4) + b;
         scc = r >> 32 != 0; return static_cast<uint32_t>(r))
  SCALAR(S_PACK_LL_B32_B16, uint32_t, (uint32_t&, uint32_t a, uint32_t b), return (a & 0xFFFF) | b << 16)
  SCALAR(S_PACK_LH_B32_B16, uint32_t, (uint32_t&, uint32_t a, uint32_t b),
         return (a & 0xFFFF) | (b & 0xFFFF0000))
  SCALAR(S_PACK_HH_B32_B16, uint32_t, (uint32_t&, uint32_t a, uint32_t b), return a >> 16 | (b & 0xFFFF0000))
}

template <class T>
void conditional_move(Wave& wave, const Step& step) {
  if (wave.scc) write_result(wave, step, operand_value<T>(wave, step.src[0]));
}
template <class T, bool kSet>
void set_bit(Wave& wave, const Step& step) {
  const uint64_t bit = uint64_t{1} << (value32(wave, step.src[0]) & (sizeof(T) * 8 - 1));
  const uint64_t old = operand_value<T>(wave, step.dst);
  write_result(wave, step, static_cast<T>(kSet ? old | bit : old & ~bit));
}

void install_one_source(HandlerTable& table) {
  SCALAR(S_MOV_B32, uint32_t, (uint32_t&, uint32_t a), return a)
  SCALAR(S_MOV_B64, uint64_t, (uint32_t&, uint64_t a), return a)
  table[Op::S_CMOV_B32] = conditional_move<uint32_t>;
  table[Op::S_CMOV_B64] = conditional_move<uint64_t>;
  SCALAR(S_NOT_B32, uint32_t, (uint32_t& scc, uint32_t a), scc = ~a != 0; return ~a)
  SCALAR(S_NOT_B64, uint64_t, (uint32_t& scc, uint64_t a), scc = ~a != 0; return ~a)
  SCALAR(S_WQM_B32, uint32_t, (uint32_t& scc, uint32_t a),
         const auto r = static_cast<uint32_t>(whole_quads(a));
         scc = r != 0; return r)
  SCALAR(S_WQM_B64, uint64_t, (uint32_t& scc, uint64_t a), const uint64_t r = whole_quads(a); scc = r != 0;
         return r)
  SCALAR(S_QUADMASK_B32, uint32_t, (uint32_t& scc, uint32_t a),
         const auto r = static_cast<uint32_t>(quad_mask(a));
         scc = r != 0; return r)
  SCALAR(S_QUADMASK_B64, uint64_t, (uint32_t& scc, uint64_t a), const uint64_t r = quad_mask(a); scc = r != 0;
         return r)
  SCALAR(S_BREV_B32, uint32_t, (uint32_t&, uint32_t a), return static_cast<uint32_t>(reverse64(a) >> 32))
  SCALAR(S_BREV_B64, uint64_t, (uint32_t&, uint64_t a), return reverse64(a))
  SCALAR(S_BCNT0_I32_B32, int32_t, (uint32_t& scc, uint32_t a), const int32_t r = __builtin_popcount(~a);
         scc = r != 0; return r)
  SCALAR(S_BCNT0_I32_B64, int32_t, (uint32_t& scc, uint64_t a), const int32_t r = __builtin_popcountll(~a);
         scc = r != 0; return r)
  SCALAR(S_BCNT1_I32_B32, int32_t, (uint32_t& scc, uint32_t a), const int32_t r = __builtin_popcount(a);
         scc = r != 0; return r)
  SCALAR(S_BCNT1_I32_B64, int32_t, (uint32_t& scc, uint64_t a), const int32_t r = __builtin_popcountll(a);
         scc = r != 0; return r)
  SCALAR(S_FF0_I32_B32, int32_t, (uint32_t&, uint32_t a), return ~a ? __builtin_ctz(~a) : -1)
  SCALAR(S_FF0_I32_B64, int32_t, (uint32_t&, uint64_t a), return ~a ? __builtin_ctzll(~a) : -1)
  SCALAR(S_FF1_I32_B32, int32_t, (uint32_t&, uint32_t a), return a ? __builtin_ctz(a) : -1)
  SCALAR(S_FF1_I32_B64, int32_t, (uint32_t&, uint64_t a), return a ? __builtin_ctzll(a) : -1)
  SCALAR(S_FLBIT_I32_B32, int32_t, (uint32_t&, uint32_t a), return a ? __builtin_clz(a) : -1)
  SCALAR(S_FLBIT_I32_B64, int32_t, (uint32_t&, uint64_t a), return a ? __builtin_clzll(a) : -1)
  SCALAR(S_FLBIT_I32, int32_t, (uint32_t&, int32_t a), return leading_sign_bits(a, 32))
  SCALAR(S_FLBIT_I32_I64, int32_t, (uint32_t&, int64_t a), return leading_sign_bits(a, 64))
  SCALAR(S_SEXT_I32_I8, int32_t, (uint32_t&, uint32_t a), return static_cast<int8_t>(a))
  SCALAR(S_SEXT_I32_I16, int32_t, (uint32_t&, uint32_t a), return static_cast<int16_t>(a))
  table[Op::S_BITSET0_B32] = set_bit<uint32_t, false>;
  table[Op::S_BITSET0_B64] = set_bit<uint64_t, false>;
  table[Op::S_BITSET1_B32] = set_bit<uint32_t, true>;
  table[Op::S_BITSET1_B64] = set_bit<uint64_t, true>;
  SCALAR(S_ABS_I32, uint32_t, (uint32_t& scc, int32_t a),
         const uint32_t r = a < 0 ? 0u - static_cast<uint32_t>(a) : static_cast<uint32_t>(a);
         scc = r != 0; return r)
  SCALAR(S_BITREPLICATE_B64_B32, uint64_t, (uint32_t&, uint32_t a), uint64_t r = 0;
         for (int bit = 0; bit < 32; ++bit) if (a >> bit & 1) r |= uint64_t{3} << 2 * bit; return r)
  table[Op::S_GETPC_B64] = get_program_counter;
  table[Op::S_MOVRELS_B32] = move_relative_source<1>;
  table[Op::S_MOVRELS_B64] = move_relative_source<2>;
  table[Op::S_MOVRELD_B32] = move_relative_destination<1>;
  table[Op::S_MOVRELD_B64] = move_relative_destination<2>;

  EXEC_LOGIC(S_AND_SAVEEXEC_B64, save_exec, a & exec)
  EXEC_LOGIC(S_OR_SAVEEXEC_B64, save_exec, a | exec)
  EXEC_LOGIC(S_XOR_SAVEEXEC_B64, save_exec, a ^ exec)
  EXEC_LOGIC(S_ANDN2_SAVEEXEC_B64, save_exec, a & ~exec)
  EXEC_LOGIC(S_ORN2_SAVEEXEC_B64, save_exec, a | ~exec)
  EXEC_LOGIC(S_NAND_SAVEEXEC_B64, save_exec, ~(a & exec))
  EXEC_LOGIC(S_NOR_SAVEEXEC_B64, save_exec, ~(a | exec))
  EXEC_LOGIC(S_XNOR_SAVEEXEC_B64, save_exec, ~(a ^ exec))
  EXEC_LOGIC(S_ANDN1_SAVEEXEC_B64, save_exec, ~a & exec)
  EXEC_LOGIC(S_ORN1_SAVEEXEC_B64, save_exec, ~a | exec)
  EXEC_LOGIC(S_ANDN1_WREXEC_B64, write_exec, ~a & exec)
  EXEC_LOGIC(S_ANDN2_WREXEC_B64, write_exec, a & ~exec)
}

void install_comparisons(HandlerTable& table) {
  SCALAR_COMPARE(S_CMP_EQ_I32, int32_t, int32_t, a == b)
  SCALAR_COMPARE(S_CMP_LG_I32, int32_t, int32_t, a != b)
  SCALAR_COMPARE(S_CMP_GT_I32, int32_t, int32_t, a > b)
  SCALAR_COMPARE(S_CMP_GE_I32, int32_t, int32_t, a >= b)
  SCALAR_COMPARE(S_CMP_LT_I32, int32_t, int32_t, a < b)
  SCALAR_COMPARE(S_CMP_LE_I32, int32_t, int32_t, a <= b)
  SCALAR_COMPARE(S_CMP_EQ_U32, uint32_t, uint32_t, a == b)
  SCALAR_COMPARE(S_CMP_LG_U32, uint32_t, uint32_t, a != b)
  SCALAR_COMPARE(S_CMP_GT_U32, uint32_t, uint32_t, a > b)
  SCALAR_COMPARE(S_CMP_GE_U32, uint32_t, uint32_t, a >= b)
  SCALAR_COMPARE(S_CMP_LT_U32, uint32_t, uint32_t, a < b)
  SCALAR_COMPARE(S_CMP_LE_U32, uint32_t, uint32_t, a <= b)
  SCALAR_COMPARE(S_CMP_EQ_U64, uint64_t, uint64_t, a == b)
  SCALAR_COMPARE(S_CMP_LG_U64, uint64_t, uint64_t, a != b)
  SCALAR_COMPARE(S_BITCMP0_B32, uint32_t, uint32_t, !(a >> (b & 31) & 1))
  SCALAR_COMPARE(S_BITCMP1_B32, uint32_t, uint32_t, a >> (b & 31) & 1)
  SCALAR_COMPARE(S_BITCMP0_B64, uint64_t, uint32_t, !(a >> (b & 63) & 1))
  SCALAR_COMPARE(S_BITCMP1_B64, uint64_t, uint32_t, a >> (b & 63) & 1)
}

void install_immediates(HandlerTable& table) {
  IMMEDIATE(S_MOVK_I32, d = static_cast<uint32_t>(k))
  IMMEDIATE(S_CMOVK_I32, if (scc) d = static_cast<uint32_t>(k))
  IMMEDIATE(S_ADDK_I32, int32_t r; scc = __builtin_add_overflow(static_cast<int32_t>(d), k, &r);
            d = static_cast<uint32_t>(r))
  IMMEDIATE(S_MULK_I32, d *= static_cast<uint32_t>(k))
  COMPARE_IMMEDIATE(S_CMPK_EQ_I32, static_cast<int32_t>(a) == k)
  COMPARE_IMMEDIATE(S_CMPK_LG_I32, static_cast<int32_t>(a) != k)
  COMPARE_IMMEDIATE(S_CMPK_GT_I32, static_cast<int32_t>(a) > k)
  COMPARE_IMMEDIATE(S_CMPK_GE_I32, static_cast<int32_t>(a) >= k)
  COMPARE_IMMEDIATE(S_CMPK_LT_I32, static_cast<int32_t>(a) < k)
  COMPARE_IMMEDIATE(S_CMPK_LE_I32, static_cast<int32_t>(a) <= k)
  COMPARE_IMMEDIATE(S_CMPK_EQ_U32, a == (static_cast<uint32_t>(k) & 0xFFFF))
  COMPARE_IMMEDIATE(S_CMPK_LG_U32, a != (static_cast<uint32_t>(k) & 0xFFFF))
  COMPARE_IMMEDIATE(S_CMPK_GT_U32, a > (static_cast<uint32_t>(k) & 0xFFFF))
  COMPARE_IMMEDIATE(S_CMPK_GE_U32, a >= (static_cast<uint32_t>(k) & 0xFFFF))
  COMPARE_IMMEDIATE(S_CMPK_LT_U32, a < (static_cast<uint32_t>(k) & 0xFFFF))
  COMPARE_IMMEDIATE(S_CMPK_LE_U32, a <= (static_cast<uint32_t>(k) & 0xFFFF))
  table[Op::S_GETREG_B32] = get_register;
  table[Op::S_SETREG_B32] = set_register;
  table[Op::S_SETREG_IMM32_B32] = set_register;
}

}  // namespace

void install_scalar(HandlerTable& table) {
  install_two_sources(table);
  install_one_source(table);
  install_comparisons(table);
  install_immediates(table);
}

}  // namespace gfx942
