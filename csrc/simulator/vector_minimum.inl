// Minimum, maximum and median of floating-point numbers. Included once per host instruction set
// (vector_targets.inl) by the kernels that need them.

inline bool is_signalling(float value) {
  return (bit_cast<uint32_t>(value) & 0x7FFFFFFFu) - 0x7F800001u < 0x3FFFFFu;
}
inline bool is_signalling(double value) {
  return (bit_cast<uint64_t>(value) & 0x7FFFFFFFFFFFFFFFu) - 0x7FF0000000000001u < 0x7FFFFFFFFFFFFu;
}
inline float quiet(float value) {
  return bit_cast<float>(bit_cast<uint32_t>(value) | 0x400000u);
}
inline double quiet(double value) {
  return bit_cast<double>(bit_cast<uint64_t>(value) | 0x8000000000000u);
}
inline uint32_t raw(float value) {
  return bit_cast<uint32_t>(value);
}
inline uint64_t raw(double value) {
  return bit_cast<uint64_t>(value);
}

// IEEE mode: a signalling NaN comes back quiet, a quiet one gives way to the other operand; -0 < +0.
template <class T>
inline T maximum(T a, T b) {
  auto result = a > b ? raw(a) : raw(b);
  result = a == b ? raw(a) & raw(b) : result;
  result = a != a ? raw(b) : result;
  result = b != b ? raw(a) : result;
  result = is_signalling(b) ? raw(quiet(b)) : result;
  return bit_cast<T>(is_signalling(a) ? raw(quiet(a)) : result);
}
template <class T>
inline T minimum(T a, T b) {
  auto result = a < b ? raw(a) : raw(b);
  result = a == b ? raw(a) | raw(b) : result;
  result = a != a ? raw(b) : result;
  result = b != b ? raw(a) : result;
  result = is_signalling(b) ? raw(quiet(b)) : result;
  return bit_cast<T>(is_signalling(a) ? raw(quiet(a)) : result);
}
template <class T>
inline T median(T a, T b, T c) {
  const bool nan = a != a || b != b || c != c;
  return nan ? minimum(minimum(a, b), c) : maximum(minimum(a, b), minimum(maximum(a, b), c));
}
