// Comparisons, selection by a lane mask, and arithmetic with carries in lane masks.
// Included once per host instruction set (vector_targets.inl).

template <class K, class A, class B>
inline void compare_rows(bool (*)(A, B), uint32_t* d, const uint32_t* a, const uint32_t* b) {
#pragma GCC ivdep
  for (int lane = 0; lane < kLanes; ++lane)
    d[lane] = K::apply(Element<A>::get(a, lane), Element<B>::get(b, lane)) ? ~uint32_t{0} : 0;
}

template <class K, bool kWritesExec>
void compare_op(Wave& wave, const Step& step) {
  if (step.prepare) prepare_sources(wave, step);
  compare_rows<K>(&K::apply, wave.result[0], source(wave, step.src[0]), source(wave, step.src[1]));
  const uint64_t mask = pack_mask(wave.result[0]) & wave.exec();
  write64(wave, step.dst, mask);
  if (kWritesExec) wave.set_exec(mask);
}

inline uint32_t* carry_destination(Wave& wave, const Step& step) {
  return reinterpret_cast<uint32_t*>(&wave) + (step.src[3] >> 48);
}

// K::apply(a, b, carry in, carry out) with carries 0 or 1.
template <class K, bool kCarryIn>
void carry_op(Wave& wave, const Step& step) {
  if (step.prepare) prepare_sources(wave, step);
  const uint32_t* a = source(wave, step.src[0]);
  const uint32_t* b = source(wave, step.src[1]);
  const uint64_t exec = wave.exec();
  alignas(64) uint32_t carry_in[kLanes] = {}, carry_out[kLanes];
  if (kCarryIn) unpack_mask(source64(wave, step.src[2]), carry_in);
  uint32_t* d = wave.result[0];
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint32_t x = a[lane], y = b[lane], in = carry_in[lane] & 1;
    bool out = false;
    d[lane] = K::apply(x, y, in, out);
    carry_out[lane] = out ? ~uint32_t{0} : 0;
  }
  const uint64_t mask = pack_mask(carry_out) & exec;
  std::memcpy(carry_destination(wave, step), &mask, 8);
  finish_result(wave, step);
}

inline void select_op(Wave& wave, const Step& step) {
  if (step.prepare) prepare_sources(wave, step);
  const uint32_t* a = source(wave, step.src[0]);
  const uint32_t* b = source(wave, step.src[1]);
  const uint64_t mask = source64(wave, step.src[2]);
  const bool direct = wave.exec() == ~uint64_t{0} && !step.finish;
  uint32_t* d = direct ? destination(wave, step.dst) : wave.result[0];
  static constexpr uint32_t kBit[8] = {1, 2, 4, 8, 16, 32, 64, 128};
  for (int group = 0; group < 8; ++group) {
    const uint32_t byte = static_cast<uint32_t>(mask >> 8 * group) & 0xFF;
#pragma GCC ivdep
    for (int i = 0; i < 8; ++i) {
      const uint32_t no = a[8 * group + i], yes = b[8 * group + i];
      d[8 * group + i] = (byte & kBit[i]) ? yes : no;
    }
  }
  if (!direct) finish_result(wave, step);
}

// The ten classes of v_cmp_class, as a one-hot mask.
inline uint32_t class_of(bool negative, bool nan, bool signalling, bool infinite, bool zero, bool subnormal) {
  if (nan) return signalling ? 1 : 2;
  if (infinite) return negative ? 4 : 512;
  if (zero) return negative ? 32 : 64;
  if (subnormal) return negative ? 16 : 128;
  return negative ? 8 : 256;
}
inline bool in_class(uint32_t bits, uint32_t classes) {
  const uint32_t m = bits & 0x7FFFFFFF;
  return (class_of(bits >> 31, m > 0x7F800000, m < 0x7FC00000, m == 0x7F800000, m == 0, m < 0x800000) &
          classes) != 0;
}
inline bool in_class(uint64_t bits, uint32_t classes) {
  const uint64_t m = bits & 0x7FFFFFFFFFFFFFFF;
  return (class_of(bits >> 63, m > 0x7FF0000000000000, m < 0x7FF8000000000000, m == 0x7FF0000000000000,
                   m == 0, m < 0x10000000000000) &
          classes) != 0;
}
inline bool in_class(uint16_t bits, uint32_t classes) {
  const uint32_t m = bits & 0x7FFFu;
  return (class_of(bits >> 15, m > 0x7C00, m < 0x7E00, m == 0x7C00, m == 0, m < 0x400) & classes) != 0;
}

inline float number(Half value) {
  return to_float(value);
}
inline float number(float value) {
  return value;
}
inline double number(double value) {
  return value;
}

#define COMPARE(NAME, TYPE_A, TYPE_B, ...)                                                                   \
  {                                                                                                          \
    struct NAME##_ {                                                                                         \
      static inline bool apply(TYPE_A p, TYPE_B q) { __VA_ARGS__; }                                          \
    };                                                                                                       \
    table[Op::V_CMP_##NAME] = compare_op<NAME##_, false>;                                                    \
    table[Op::V_CMPX_##NAME] = compare_op<NAME##_, true>;                                                    \
  }
#define COMPARE_FLOAT(SUFFIX, TYPE)                                                                          \
  COMPARE(F_##SUFFIX, TYPE, TYPE, (void)p; (void)q; return false)                                            \
  COMPARE(LT_##SUFFIX, TYPE, TYPE, return number(p) < number(q))                                             \
  COMPARE(EQ_##SUFFIX, TYPE, TYPE, return number(p) == number(q))                                            \
  COMPARE(LE_##SUFFIX, TYPE, TYPE, return number(p) <= number(q))                                            \
  COMPARE(GT_##SUFFIX, TYPE, TYPE, return number(p) > number(q))                                             \
  COMPARE(LG_##SUFFIX, TYPE, TYPE, return number(p) < number(q) || number(p) > number(q))                    \
  COMPARE(GE_##SUFFIX, TYPE, TYPE, return number(p) >= number(q))                                            \
  COMPARE(O_##SUFFIX, TYPE, TYPE, return !__builtin_isunordered(number(p), number(q)))                       \
  COMPARE(U_##SUFFIX, TYPE, TYPE, return __builtin_isunordered(number(p), number(q)))                        \
  COMPARE(NGE_##SUFFIX, TYPE, TYPE, return !(number(p) >= number(q)))                                        \
  COMPARE(NLG_##SUFFIX, TYPE, TYPE, return !(number(p) < number(q) || number(p) > number(q)))                \
  COMPARE(NGT_##SUFFIX, TYPE, TYPE, return !(number(p) > number(q)))                                         \
  COMPARE(NLE_##SUFFIX, TYPE, TYPE, return !(number(p) <= number(q)))                                        \
  COMPARE(NEQ_##SUFFIX, TYPE, TYPE, return !(number(p) == number(q)))                                        \
  COMPARE(NLT_##SUFFIX, TYPE, TYPE, return !(number(p) < number(q)))                                         \
  COMPARE(TRU_##SUFFIX, TYPE, TYPE, (void)p; (void)q; return true)
#define COMPARE_INTEGER(SUFFIX, TYPE)                                                                        \
  COMPARE(F_##SUFFIX, TYPE, TYPE, (void)p; (void)q; return false)                                            \
  COMPARE(LT_##SUFFIX, TYPE, TYPE, return p < q)                                                             \
  COMPARE(EQ_##SUFFIX, TYPE, TYPE, return p == q)                                                            \
  COMPARE(LE_##SUFFIX, TYPE, TYPE, return p <= q)                                                            \
  COMPARE(GT_##SUFFIX, TYPE, TYPE, return p > q)                                                             \
  COMPARE(NE_##SUFFIX, TYPE, TYPE, return p != q)                                                            \
  COMPARE(GE_##SUFFIX, TYPE, TYPE, return p >= q)                                                            \
  COMPARE(T_##SUFFIX, TYPE, TYPE, (void)p; (void)q; return true)

#define CARRY(NAME, IN, ...)                                                                                 \
  {                                                                                                          \
    struct NAME##_ {                                                                                         \
      static inline uint32_t apply(uint32_t a, uint32_t b, uint32_t in, bool& out) { __VA_ARGS__; }          \
    };                                                                                                       \
    table[Op::NAME] = carry_op<NAME##_, IN>;                                                                 \
  }

static void install_arithmetic(HandlerTable& table) {
  table[Op::V_CNDMASK_B32] = select_op;
  CARRY(V_ADD_CO_U32, false, (void)in; out = a + b < a; return a + b)
  CARRY(V_SUB_CO_U32, false, (void)in; out = a < b; return a - b)
  CARRY(V_SUBREV_CO_U32, false, (void)in; out = b < a; return b - a)
  CARRY(V_ADDC_CO_U32, true, const uint64_t sum = uint64_t{a} + b + in; out = sum >> 32 != 0;
        return static_cast<uint32_t>(sum))
  CARRY(V_SUBB_CO_U32, true, out = uint64_t{a} < uint64_t{b} + in; return a - b - in)
  CARRY(V_SUBBREV_CO_U32, true, out = uint64_t{b} < uint64_t{a} + in; return b - a - in)
}

static void install(HandlerTable& table) {
  install_arithmetic(table);
  COMPARE_FLOAT(F16, Half)
  COMPARE_FLOAT(F32, float)
  COMPARE_FLOAT(F64, double)
  COMPARE_INTEGER(I16, int16_t)
  COMPARE_INTEGER(U16, uint16_t)
  COMPARE_INTEGER(I32, int32_t)
  COMPARE_INTEGER(U32, uint32_t)
  COMPARE_INTEGER(I64, int64_t)
  COMPARE_INTEGER(U64, uint64_t)
  COMPARE(CLASS_F16, uint16_t, uint32_t, return in_class(p, q))
  COMPARE(CLASS_F32, uint32_t, uint32_t, return in_class(p, q))
  COMPARE(CLASS_F64, uint64_t, uint32_t, return in_class(p, q))
}
