// Conversions. Included once per host instruction set (vector_targets.inl).

// Toward zero, saturating, NaN to 0.
inline uint32_t to_u32(double value) {
  if (!(value > 0)) return 0;
  return value >= 4294967296.0 ? ~0u : static_cast<uint32_t>(static_cast<int64_t>(value));
}
inline int32_t to_i32(double value) {
  if (value != value) return 0;
  if (value >= 2147483648.0) return 0x7FFFFFFF;
  return value <= -2147483648.0 ? -0x7FFFFFFF - 1 : static_cast<int32_t>(value);
}
inline uint16_t to_u16(float value) {
  if (!(value > 0)) return 0;
  return value >= 65535.0f ? 0xFFFF : static_cast<uint16_t>(static_cast<int32_t>(value));
}
inline int16_t to_i16(float value) {
  if (value != value) return 0;
  if (value >= 32767.0f) return 0x7FFF;
  return value <= -32768.0f ? -0x8000 : static_cast<int16_t>(static_cast<int32_t>(value));
}

inline uint32_t pack(uint16_t low, uint16_t high) {
  return low | static_cast<uint32_t>(high) << 16;
}
inline uint16_t normalised_i16(float value) {
  if (value != value) return 0;
  const double clamped = value < -1 ? -1.0f : value > 1 ? 1.0f : value;  // whose product is exact
  return static_cast<uint16_t>(static_cast<int16_t>(__builtin_roundeven(clamped * 32767.0)));
}
inline uint16_t normalised_u16(float value) {
  const double clamped = !(value > 0) ? 0.0f : value > 1 ? 1.0f : value;
  return static_cast<uint16_t>(static_cast<int32_t>(__builtin_roundeven(clamped * 65535.0)));
}
inline uint32_t saturated_u8(float value) {
  if (!(value > 0)) return 0;
  return value >= 255.0f ? 255 : static_cast<uint32_t>(static_cast<int32_t>(__builtin_roundevenf(value)));
}
inline uint32_t insert_byte(uint32_t value, uint32_t byte, uint32_t into) {
  const uint32_t shift = 8 * (byte & 3);
  return (into & ~(0xFFu << shift)) | value << shift;
}

static void install(HandlerTable& table) {
  OP(V_CVT_F32_I32, float, (int32_t a), return static_cast<float>(a))
  OP(V_CVT_F32_U32, float, (uint32_t a), return static_cast<float>(static_cast<double>(a)))
  OP(V_CVT_U32_F32, uint32_t, (float a), return to_u32(static_cast<double>(a)))
  OP(V_CVT_I32_F32, int32_t, (float a), return to_i32(static_cast<double>(a)))
  OP(V_CVT_RPI_I32_F32, int32_t, (float a), return to_i32(static_cast<double>(__builtin_floorf(a + 0.5f))))
  OP(V_CVT_FLR_I32_F32, int32_t, (float a), return to_i32(__builtin_floor(static_cast<double>(a))))
  OP(V_CVT_I32_F64, int32_t, (double a), return to_i32(a))
  OP(V_CVT_U32_F64, uint32_t, (double a), return to_u32(a))
  OP(V_CVT_F64_I32, double, (int32_t a), return static_cast<double>(a))
  OP(V_CVT_F64_U32, double, (uint32_t a), return static_cast<double>(a))
  OP(V_CVT_F64_F32, double, (float a), return static_cast<double>(a))
  OP(V_CVT_F32_F64, float, (double a), return static_cast<float>(a))
  OP(V_CVT_F16_F32, Half, (float a), return to_half(a))
  OP(V_CVT_F32_F16, float, (Half a), return to_float(a))
  OP(V_CVT_F16_U16, Half, (uint16_t a), return to_half(static_cast<float>(static_cast<int32_t>(a))))
  OP(V_CVT_F16_I16, Half, (int16_t a), return to_half(static_cast<float>(a)))
  OP(V_CVT_U16_F16, uint16_t, (Half a), return to_u16(to_float(a)))
  OP(V_CVT_I16_F16, int16_t, (Half a), return to_i16(to_float(a)))
  OP(V_CVT_F32_UBYTE0, float, (uint32_t a), return static_cast<float>(static_cast<int32_t>(a & 0xFF)))
  OP(V_CVT_F32_UBYTE1, float, (uint32_t a), return static_cast<float>(static_cast<int32_t>(a >> 8 & 0xFF)))
  OP(V_CVT_F32_UBYTE2, float, (uint32_t a), return static_cast<float>(static_cast<int32_t>(a >> 16 & 0xFF)))
  OP(V_CVT_F32_UBYTE3, float, (uint32_t a), return static_cast<float>(static_cast<int32_t>(a >> 24)))
  OP(V_CVT_OFF_F32_I4, float, (uint32_t a),
     return static_cast<float>(static_cast<int32_t>(a << 28) >> 28) * 0.0625f)
  OP(V_CVT_PKRTZ_F16_F32, uint32_t, (float a, float b),
     return pack(to_half_truncated(a).bits, to_half_truncated(b).bits))
  OP(V_PACK_B32_F16, uint32_t, (Half a, Half b), return pack(a.bits, b.bits))
  OP(V_CVT_PK_U16_U32, uint32_t, (uint32_t a, uint32_t b),
     return pack(static_cast<uint16_t>(a > 0xFFFF ? 0xFFFF : a),
                 static_cast<uint16_t>(b > 0xFFFF ? 0xFFFF : b)))
  OP(V_CVT_PK_I16_I32, uint32_t, (int32_t a, int32_t b),
     a = a > 0x7FFF    ? 0x7FFF
         : a < -0x8000 ? -0x8000
                       : a;
     b = b > 0x7FFF    ? 0x7FFF
         : b < -0x8000 ? -0x8000
                       : b;
     return pack(static_cast<uint16_t>(a), static_cast<uint16_t>(b)))
  OP(V_CVT_PKNORM_I16_F32, uint32_t, (float a, float b), return pack(normalised_i16(a), normalised_i16(b)))
  OP(V_CVT_PKNORM_U16_F32, uint32_t, (float a, float b), return pack(normalised_u16(a), normalised_u16(b)))
  OP(V_CVT_PKNORM_I16_F16, uint32_t, (Half a, Half b),
     return pack(normalised_i16(to_float(a)), normalised_i16(to_float(b))))
  OP(V_CVT_PKNORM_U16_F16, uint32_t, (Half a, Half b),
     return pack(normalised_u16(to_float(a)), normalised_u16(to_float(b))))
  OP(V_CVT_NORM_I16_F16, uint16_t, (Half a), return normalised_i16(to_float(a)))
  OP(V_CVT_NORM_U16_F16, uint16_t, (Half a), return normalised_u16(to_float(a)))
  OP(V_CVT_PK_U8_F32, uint32_t, (float a, uint32_t b, uint32_t c), return insert_byte(saturated_u8(a), b, c))
  OP(V_SAT_PK_U8_I16, uint32_t, (uint32_t a), const int32_t low = static_cast<int16_t>(a),
     high = static_cast<int16_t>(a >> 16);
     return static_cast<uint32_t>(low < 0     ? 0
                                  : low > 255 ? 255
                                              : low) |
            static_cast<uint32_t>(high < 0     ? 0
                                  : high > 255 ? 255
                                               : high)
                << 8)
}
