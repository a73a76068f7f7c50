// Integer and bitwise arithmetic. Included once per host instruction set (vector_targets.inl).

inline int32_t sign24(uint32_t value) {
  return static_cast<int32_t>(value << 8) >> 8;
}
inline uint32_t low24(uint32_t value) {
  return value & 0xFFFFFF;
}

inline uint32_t extract_unsigned(uint32_t value, uint32_t offset, uint32_t width) {
  const uint32_t shifted = value >> (offset & 31);
  width &= 31;
  return shifted & ((1u << width) - 1);
}
inline int32_t extract_signed(int32_t value, uint32_t offset, uint32_t width) {
  offset &= 31;
  width &= 31;
  const uint32_t shifted = static_cast<uint32_t>(value >> offset) & ((1u << width) - 1);
  const uint32_t sign = width ? 1u << (width - 1) : 0;
  return static_cast<int32_t>((shifted ^ sign) - sign);
}

template <class T>
inline T median_integer(T a, T b, T c) {
  const T low = a < b ? a : b, high = a < b ? b : a;
  const T capped = high < c ? high : c;
  return low > capped ? low : capped;
}

inline uint32_t sum_absolute_differences(uint32_t a, uint32_t b, uint32_t c, bool masked) {
  for (int byte = 0; byte < 4; ++byte) {
    const int32_t x = static_cast<int32_t>(a >> 8 * byte & 0xFF),
                  y = static_cast<int32_t>(b >> 8 * byte & 0xFF);
    if (masked && y == 0) continue;
    c += static_cast<uint32_t>(x > y ? x - y : y - x);
  }
  return c;
}

inline uint32_t sum_absolute_halves(uint32_t a, uint32_t b) {
  const uint32_t al = a & 0xFFFF, bl = b & 0xFFFF, ah = a >> 16, bh = b >> 16;
  return (al > bl ? al - bl : bl - al) + (ah > bh ? ah - bh : bh - ah);
}
inline uint32_t saturated_sum(uint32_t a, uint32_t b) {
  return a + b < a ? ~0u : a + b;
}

// Four sums of absolute differences, of the four bytes of `b` with those of `a` from byte 0, 1, 2 and 3 on.
struct FourSums {
  uint32_t sum[4];
};
template <>
struct Element<FourSums> {
  static FourSums get(const uint32_t* row, int lane) {
    return {{row[lane], row[kLanes + lane], row[2 * kLanes + lane], row[3 * kLanes + lane]}};
  }
  static void put(uint32_t* row, int lane, FourSums value) {
    for (int i = 0; i < 4; ++i) row[i * kLanes + lane] = value.sum[i];
  }
};
inline FourSums four_sums(uint64_t a, uint32_t b, FourSums c, bool masked) {
  for (int i = 0; i < 4; ++i)
    c.sum[i] = sum_absolute_differences(static_cast<uint32_t>(a >> 8 * i), b, c.sum[i], masked);
  return c;
}
inline uint64_t four_packed_sums(uint64_t a, uint32_t b, uint64_t c, bool masked) {
  uint64_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t start = static_cast<uint32_t>(c >> 16 * i & 0xFFFF);
    const uint32_t sum = sum_absolute_differences(static_cast<uint32_t>(a >> 8 * i), b, start, masked);
    result |= static_cast<uint64_t>(sum & 0xFFFF) << 16 * i;
  }
  return result;
}

// Bytes of {a, b}, b lowest, as each selector byte of s says.
inline uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t s) {
  uint32_t result = 0;
  const uint64_t both = static_cast<uint64_t>(a) << 32 | b;
  for (int byte = 0; byte < 4; ++byte) {
    const uint32_t select = s >> 8 * byte & 0xFF;
    uint32_t value;
    if (select >= 13)
      value = 0xFF;
    else if (select == 12)
      value = 0;
    else if (select >= 8)
      value = (both >> (16 * (select - 8) + 15) & 1) ? 0xFF : 0;
    else
      value = static_cast<uint32_t>(both >> 8 * select) & 0xFF;
    result |= value << 8 * byte;
  }
  return result;
}

#ifdef VECTOR_AVX2
inline void permute_op(Wave& wave, const Step& step) {
  if (step.prepare) prepare_sources(wave, step);
  const uint32_t *a = source(wave, step.src[0]), *b = source(wave, step.src[1]),
                 *s = source(wave, step.src[2]);
  const bool direct = wave.exec() == ~uint64_t{0} && !step.finish;
  uint32_t* d = direct ? destination(wave, step.dst) : wave.result[0];
  // A shuffle of the lane pairs {b, a} in each half; selectors from 8 on (signs and constants) are left to
  // the lane by lane code.
  const __m256i second = _mm256_set1_epi64x(0x0808080800000000), simple = _mm256_set1_epi8(7);
  for (int lane = 0; lane < kLanes; lane += 8) {
    const auto load = [lane](const uint32_t* row) {
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + lane));
    };
    const __m256i select = load(s), first = load(a), other = load(b);
    if (!_mm256_testc_si256(simple, select)) {
      for (int i = lane; i < lane + 8; ++i) d[i] = permute_bytes(a[i], b[i], s[i]);
      continue;
    }
    const __m256i index = _mm256_add_epi8(select, second);
    const __m256i low = _mm256_shuffle_epi8(_mm256_unpacklo_epi32(other, first), index);
    const __m256i high = _mm256_shuffle_epi8(_mm256_unpackhi_epi32(other, first), index);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(d + lane), _mm256_blend_epi32(low, high, 0xCC));
  }
  if (!direct) finish_result(wave, step);
}
#endif

inline uint32_t reverse_bits(uint32_t v) {
  v = (v >> 1 & 0x55555555) | (v & 0x55555555) << 1;
  v = (v >> 2 & 0x33333333) | (v & 0x33333333) << 2;
  v = (v >> 4 & 0x0F0F0F0F) | (v & 0x0F0F0F0F) << 4;
  return __builtin_bswap32(v);
}
inline uint32_t count_bits(uint32_t v) {
  v -= v >> 1 & 0x55555555;
  v = (v & 0x33333333) + (v >> 2 & 0x33333333);
  return ((v + (v >> 4)) & 0x0F0F0F0F) * 0x01010101 >> 24;
}
inline uint32_t leading_sign_bits(int32_t value) {
  if (value == 0 || value == -1) return ~uint32_t{0};
  return static_cast<uint32_t>(__builtin_clz(static_cast<uint32_t>(value < 0 ? ~value : value)));
}

template <class T>
inline T clamp_between(int64_t value, int64_t low, int64_t high) {
  return static_cast<T>(value < low ? low : value > high ? high : value);
}
constexpr int64_t kI32Min = -0x80000000ll, kI32Max = 0x7FFFFFFF, kU32Max = 0xFFFFFFFF;

static void install(HandlerTable& table) {
  OP(V_MOV_B32, uint32_t, (uint32_t a), return a)
  OP(V_MOV_B64, uint64_t, (uint64_t a), return a)
  OP(V_ACCVGPR_READ_B32, uint32_t, (uint32_t a), return a)
  OP(V_ACCVGPR_WRITE_B32, uint32_t, (uint32_t a), return a)
  OP(V_ACCVGPR_MOV_B32, uint32_t, (uint32_t a), return a)
  OP(V_NOT_B32, uint32_t, (uint32_t a), return ~a)
  OP(V_AND_B32, uint32_t, (uint32_t a, uint32_t b), return a & b)
  OP(V_OR_B32, uint32_t, (uint32_t a, uint32_t b), return a | b)
  OP(V_XOR_B32, uint32_t, (uint32_t a, uint32_t b), return a ^ b)
  OP(V_XNOR_B32, uint32_t, (uint32_t a, uint32_t b), return ~(a ^ b))
  OP(V_OR3_B32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return a | b | c)
  OP(V_AND_OR_B32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return (a & b) | c)
  OP(V_LSHL_OR_B32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return a << (b & 31) | c)
  OP(V_LSHL_ADD_U32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return (a << (b & 31)) + c)
  OP(V_ADD_LSHL_U32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return (a + b) << (c & 31))
  OP(V_ADD3_U32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return a + b + c)
  OP(V_XAD_U32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return (a ^ b) + c)
  OP(V_LSHL_ADD_U64, uint64_t, (uint64_t a, uint32_t b, uint64_t c), return (a << (b & 7)) + c)
  OP(V_BFI_B32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return (a & b) | (~a & c))
  OP(V_BFM_B32, uint32_t, (uint32_t a, uint32_t b), return ((1u << (a & 31)) - 1) << (b & 31))
  OP(V_BFE_U32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return extract_unsigned(a, b, c))
  OP(V_BFE_I32, int32_t, (int32_t a, uint32_t b, uint32_t c), return extract_signed(a, b, c))
  OP(V_PERM_B32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return permute_bytes(a, b, c))
#ifdef VECTOR_AVX2
  table[Op::V_PERM_B32] = permute_op;
#endif
  OP(V_ALIGNBIT_B32, uint32_t, (uint32_t a, uint32_t b, uint32_t c),
     return static_cast<uint32_t>((static_cast<uint64_t>(a) << 32 | b) >> (c & 31)))
  OP(V_ALIGNBYTE_B32, uint32_t, (uint32_t a, uint32_t b, uint32_t c),
     return static_cast<uint32_t>((static_cast<uint64_t>(a) << 32 | b) >> 8 * (c & 3)))
  OP(V_BFREV_B32, uint32_t, (uint32_t a), return reverse_bits(a))
  OP(V_FFBH_U32, uint32_t, (uint32_t a), return a ? static_cast<uint32_t>(__builtin_clz(a)) : ~0u)
  OP(V_FFBL_B32, uint32_t, (uint32_t a), return a ? static_cast<uint32_t>(__builtin_ctz(a)) : ~0u)
  OP(V_FFBH_I32, uint32_t, (int32_t a), return leading_sign_bits(a))
  OP(V_BCNT_U32_B32, uint32_t, (uint32_t a, uint32_t b), return count_bits(a) + b)

  OP(V_LSHLREV_B32, uint32_t, (uint32_t a, uint32_t b), return b << (a & 31))
  OP(V_LSHRREV_B32, uint32_t, (uint32_t a, uint32_t b), return b >> (a & 31))
  OP(V_ASHRREV_I32, int32_t, (uint32_t a, int32_t b), return b >> (a & 31))
  OP(V_LSHLREV_B64, uint64_t, (uint32_t a, uint64_t b), return b << (a & 63))
  OP(V_LSHRREV_B64, uint64_t, (uint32_t a, uint64_t b), return b >> (a & 63))
  OP(V_ASHRREV_I64, int64_t, (uint32_t a, int64_t b), return b >> (a & 63))
  OP(V_LSHLREV_B16, uint16_t, (uint16_t a, uint16_t b), return static_cast<uint16_t>(b << (a & 15)))
  OP(V_LSHRREV_B16, uint16_t, (uint16_t a, uint16_t b), return static_cast<uint16_t>(b >> (a & 15)))
  OP(V_ASHRREV_I16, int16_t, (uint16_t a, int16_t b), return static_cast<int16_t>(b >> (a & 15)))

  OP(V_ADD_U32, uint32_t, (uint32_t a, uint32_t b), return a + b)
  OP(V_SUB_U32, uint32_t, (uint32_t a, uint32_t b), return a - b)
  OP(V_SUBREV_U32, uint32_t, (uint32_t a, uint32_t b), return b - a)
  OP(V_ADD_I32, uint32_t, (uint32_t a, uint32_t b), return a + b)
  OP(V_SUB_I32, uint32_t, (uint32_t a, uint32_t b), return a - b)
  OP(V_ADD_U16, uint16_t, (uint16_t a, uint16_t b), return static_cast<uint16_t>(a + b))
  OP(V_SUB_U16, uint16_t, (uint16_t a, uint16_t b), return static_cast<uint16_t>(a - b))
  OP(V_SUBREV_U16, uint16_t, (uint16_t a, uint16_t b), return static_cast<uint16_t>(b - a))
  OP(V_ADD_I16, uint16_t, (uint16_t a, uint16_t b), return static_cast<uint16_t>(a + b))
  OP(V_SUB_I16, uint16_t, (uint16_t a, uint16_t b), return static_cast<uint16_t>(a - b))
  OP(V_MUL_LO_U16, uint16_t, (uint16_t a, uint16_t b), return static_cast<uint16_t>(uint32_t{a} * b))
  OP(V_MAD_U16, uint16_t, (uint16_t a, uint16_t b, uint16_t c),
     return static_cast<uint16_t>(uint32_t{a} * b + c))
  OP(V_MAD_I16, uint16_t, (uint16_t a, uint16_t b, uint16_t c),
     return static_cast<uint16_t>(uint32_t{a} * b + c))
  OP(V_MAD_LEGACY_U16, uint16_t, (uint16_t a, uint16_t b, uint16_t c),
     return static_cast<uint16_t>(uint32_t{a} * b + c))
  OP(V_MAD_LEGACY_I16, uint16_t, (uint16_t a, uint16_t b, uint16_t c),
     return static_cast<uint16_t>(uint32_t{a} * b + c))
  OP(V_MAD_U32_U16, uint32_t, (uint16_t a, uint16_t b, uint32_t c), return uint32_t{a} * b + c)
  OP(V_MAD_I32_I16, int32_t, (int16_t a, int16_t b, uint32_t c),
     return static_cast<int32_t>(static_cast<uint32_t>(int32_t{a} * b) + c))
  OP(V_MUL_LO_U32, uint32_t, (uint32_t a, uint32_t b), return a * b)
  OP(V_MUL_HI_U32, uint32_t, (uint32_t a, uint32_t b), return static_cast<uint32_t>(uint64_t{a} * b >> 32))
  OP(V_MUL_HI_I32, int32_t, (int32_t a, int32_t b), return static_cast<int32_t>(int64_t{a} * b >> 32))
  OP(V_MUL_I32_I24, uint32_t, (uint32_t a, uint32_t b),
     return static_cast<uint32_t>(sign24(a)) * static_cast<uint32_t>(sign24(b)))
  OP(V_MUL_HI_I32_I24, int32_t, (uint32_t a, uint32_t b),
     return static_cast<int32_t>(int64_t{sign24(a)} * sign24(b) >> 32))
  OP(V_MUL_U32_U24, uint32_t, (uint32_t a, uint32_t b), return low24(a) * low24(b))
  OP(V_MUL_HI_U32_U24, uint32_t, (uint32_t a, uint32_t b),
     return static_cast<uint32_t>(uint64_t{low24(a)} * low24(b) >> 32))
  OP(V_MAD_I32_I24, uint32_t, (uint32_t a, uint32_t b, uint32_t c),
     return static_cast<uint32_t>(sign24(a)) * static_cast<uint32_t>(sign24(b)) + c)
  OP(V_MAD_U32_U24, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return low24(a) * low24(b) + c)

  OP(V_MIN_I32, int32_t, (int32_t a, int32_t b), return a < b ? a : b)
  OP(V_MAX_I32, int32_t, (int32_t a, int32_t b), return a > b ? a : b)
  OP(V_MIN_U32, uint32_t, (uint32_t a, uint32_t b), return a < b ? a : b)
  OP(V_MAX_U32, uint32_t, (uint32_t a, uint32_t b), return a > b ? a : b)
  OP(V_MIN_I16, int16_t, (int16_t a, int16_t b), return a < b ? a : b)
  OP(V_MAX_I16, int16_t, (int16_t a, int16_t b), return a > b ? a : b)
  OP(V_MIN_U16, uint16_t, (uint16_t a, uint16_t b), return a < b ? a : b)
  OP(V_MAX_U16, uint16_t, (uint16_t a, uint16_t b), return a > b ? a : b)
  OP(V_MIN3_I32, int32_t, (int32_t a, int32_t b, int32_t c), const int32_t m = a < b ? a : b;
     return m < c ? m : c)
  OP(V_MAX3_I32, int32_t, (int32_t a, int32_t b, int32_t c), const int32_t m = a > b ? a : b;
     return m > c ? m : c)
  OP(V_MIN3_U32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), const uint32_t m = a < b ? a : b;
     return m < c ? m : c)
  OP(V_MAX3_U32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), const uint32_t m = a > b ? a : b;
     return m > c ? m : c)
  OP(V_MED3_I32, int32_t, (int32_t a, int32_t b, int32_t c), return median_integer(a, b, c))
  OP(V_MED3_U32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return median_integer(a, b, c))
  OP(V_MIN3_I16, int16_t, (int16_t a, int16_t b, int16_t c), const int16_t m = a < b ? a : b;
     return m < c ? m : c)
  OP(V_MAX3_I16, int16_t, (int16_t a, int16_t b, int16_t c), const int16_t m = a > b ? a : b;
     return m > c ? m : c)
  OP(V_MIN3_U16, uint16_t, (uint16_t a, uint16_t b, uint16_t c), const uint16_t m = a < b ? a : b;
     return m < c ? m : c)
  OP(V_MAX3_U16, uint16_t, (uint16_t a, uint16_t b, uint16_t c), const uint16_t m = a > b ? a : b;
     return m > c ? m : c)
  OP(V_MED3_I16, int16_t, (int16_t a, int16_t b, int16_t c), return median_integer(a, b, c))
  OP(V_MED3_U16, uint16_t, (uint16_t a, uint16_t b, uint16_t c), return median_integer(a, b, c))

  OP(V_SAD_U8, uint32_t, (uint32_t a, uint32_t b, uint32_t c),
     return sum_absolute_differences(a, b, c, false))
  OP(V_MSAD_U8, uint32_t, (uint32_t a, uint32_t b, uint32_t c),
     return sum_absolute_differences(a, b, c, true))
  OP(V_QSAD_PK_U16_U8, uint64_t, (uint64_t a, uint32_t b, uint64_t c),
     return four_packed_sums(a, b, c, false))
  OP(V_MQSAD_PK_U16_U8, uint64_t, (uint64_t a, uint32_t b, uint64_t c),
     return four_packed_sums(a, b, c, true))
  OP(V_MQSAD_U32_U8, FourSums, (uint64_t a, uint32_t b, FourSums c), return four_sums(a, b, c, true))
  OP(V_SAD_HI_U8, uint32_t, (uint32_t a, uint32_t b, uint32_t c),
     return (sum_absolute_differences(a, b, 0, false) << 16) + c)
  OP(V_SAD_U32, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return (a > b ? a - b : b - a) + c)
  OP(V_SAD_U16, uint32_t, (uint32_t a, uint32_t b, uint32_t c), return sum_absolute_halves(a, b) + c)
  OP(V_LERP_U8, uint32_t, (uint32_t a, uint32_t b, uint32_t c), uint32_t result = 0;
     for (int shift = 0; shift < 32; shift += 8) result |=
     ((a >> shift & 0xFF) + (b >> shift & 0xFF) + (c >> shift & 1)) >> 1 << shift;
     return result)

  SATURATING(V_ADD_U32, uint32_t, (uint32_t a, uint32_t b), return a + b < a ? ~0u : a + b)
  SATURATING(V_SUB_U32, uint32_t, (uint32_t a, uint32_t b), return a < b ? 0 : a - b)
  SATURATING(V_SUBREV_U32, uint32_t, (uint32_t a, uint32_t b), return b < a ? 0 : b - a)
  SATURATING(V_ADD_I32, int32_t, (int32_t a, int32_t b),
             return clamp_between<int32_t>(int64_t{a} + b, kI32Min, kI32Max))
  SATURATING(V_SUB_I32, int32_t, (int32_t a, int32_t b),
             return clamp_between<int32_t>(int64_t{a} - b, kI32Min, kI32Max))
  SATURATING(V_ADD_U16, uint16_t, (uint16_t a, uint16_t b), return clamp_between<uint16_t>(a + b, 0, 0xFFFF))
  SATURATING(V_SUB_U16, uint16_t, (uint16_t a, uint16_t b), return clamp_between<uint16_t>(a - b, 0, 0xFFFF))
  SATURATING(V_SUBREV_U16, uint16_t, (uint16_t a, uint16_t b),
             return clamp_between<uint16_t>(b - a, 0, 0xFFFF))
  SATURATING(V_ADD_I16, int16_t, (int16_t a, int16_t b),
             return clamp_between<int16_t>(a + b, -0x8000, 0x7FFF))
  SATURATING(V_SUB_I16, int16_t, (int16_t a, int16_t b),
             return clamp_between<int16_t>(a - b, -0x8000, 0x7FFF))
  SATURATING(
      V_MAD_U32_U24, uint32_t, (uint32_t a, uint32_t b, uint32_t c),
      return clamp_between<uint32_t>(static_cast<int64_t>(uint64_t{low24(a)} * low24(b) + c), 0, kU32Max))
  SATURATING(V_MAD_I32_I24, int32_t, (uint32_t a, uint32_t b, int32_t c),
             return clamp_between<int32_t>(int64_t{sign24(a)} * sign24(b) + c, kI32Min, kI32Max))
  SATURATING(V_MUL_U32_U24, uint32_t, (uint32_t a, uint32_t b),
             return clamp_between<uint32_t>(static_cast<int64_t>(uint64_t{low24(a)} * low24(b)), 0, kU32Max))
  SATURATING(V_MUL_I32_I24, int32_t, (uint32_t a, uint32_t b),
             return clamp_between<int32_t>(int64_t{sign24(a)} * sign24(b), kI32Min, kI32Max))
  SATURATING(V_MAD_U32_U16, uint32_t, (uint16_t a, uint16_t b, uint32_t c),
             return clamp_between<uint32_t>(int64_t{uint32_t{a} * b} + c, 0, kU32Max))
  SATURATING(V_MAD_I32_I16, int32_t, (int16_t a, int16_t b, int32_t c),
             return clamp_between<int32_t>(int64_t{a} * b + c, kI32Min, kI32Max))
  SATURATING(V_SAD_U8, uint32_t, (uint32_t a, uint32_t b, uint32_t c),
             return saturated_sum(sum_absolute_differences(a, b, 0, false), c))
  SATURATING(V_MSAD_U8, uint32_t, (uint32_t a, uint32_t b, uint32_t c),
             return saturated_sum(sum_absolute_differences(a, b, 0, true), c))
  SATURATING(V_SAD_HI_U8, uint32_t, (uint32_t a, uint32_t b, uint32_t c),
             return saturated_sum(sum_absolute_differences(a, b, 0, false) << 16, c))
  SATURATING(V_SAD_U16, uint32_t, (uint32_t a, uint32_t b, uint32_t c),
             return saturated_sum(sum_absolute_halves(a, b), c))
  SATURATING(V_SAD_U32, uint32_t, (uint32_t a, uint32_t b, uint32_t c),
             return saturated_sum(a > b ? a - b : b - a, c))
  SATURATING(V_MAD_U16, uint16_t, (uint16_t a, uint16_t b, uint16_t c),
             return clamp_between<uint16_t>(int64_t{a} * b + c, 0, 0xFFFF))
  SATURATING(V_MAD_I16, int16_t, (int16_t a, int16_t b, int16_t c),
             return clamp_between<int16_t>(int64_t{a} * b + c, -0x8000, 0x7FFF))
  SATURATING(V_MAD_LEGACY_U16, uint16_t, (uint16_t a, uint16_t b, uint16_t c),
             return clamp_between<uint16_t>(int64_t{a} * b + c, 0, 0xFFFF))
  SATURATING(V_MAD_LEGACY_I16, int16_t, (int16_t a, int16_t b, int16_t c),
             return clamp_between<int16_t>(int64_t{a} * b + c, -0x8000, 0x7FFF))
}
