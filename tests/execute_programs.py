# ruff: noqa: E501 (C source)
"""C functions that a compiler builds for the host and for gfx942: f_<name>(input, i) -> 64 bits."""

NAMES = [
    *("divide_i64", "divide_u64", "divide_i32", "divide_f32", "divide_f64", "root_f32", "root_f64"),
    *("float32", "float64", "convert", "half", "integer", "saturate", "packed", "array", "choose"),
    *("calls", "recursion", "pointers", "bits", "vector_index"),
]

SOURCE = """
typedef unsigned char b8;
typedef unsigned short b16;
typedef unsigned int b32;
typedef unsigned long long b64;
typedef _Float16 float16;
typedef float float2 __attribute__((ext_vector_type(2)));
typedef float16 half2 __attribute__((ext_vector_type(2)));
typedef short short2 __attribute__((ext_vector_type(2)));
typedef b32 b32x16 __attribute__((ext_vector_type(16)));
#define NOINLINE __attribute__((noinline))
#define CAST(TYPE, VALUE) __builtin_bit_cast(TYPE, VALUE)

FN b64 wide(const b32* in, b32 i) { return (b64)in[i] << 32 | in[i + 1]; }
FN float number(b32 x) { return ((int)(x & 0xffff) - 32768) / 1024.0f + 0.001f; }
FN b64 bits_of(float x) { return x != x ? 1 : CAST(b32, x); }
FN b64 bits_of(double x) { return x != x ? 1 : CAST(b64, x); }

FN b64 f_divide_i64(const b32* in, b32 i) {
  long a = (long)wide(in, i), b = (int)in[i + 2];
  if (b == 0 || b == -1) b = 7;
  return (b64)(a / b) ^ (b64)(a % b) << 1;
}
FN b64 f_divide_u64(const b32* in, b32 i) {
  b64 a = wide(in, i), b = (b64)in[i + 2] << (in[i + 3] & 31) | 1;
  return (a / b) ^ (a % b) << 1;
}
FN b64 f_divide_i32(const b32* in, b32 i) {
  int a = (int)in[i], b = (int)in[i + 1] | 1;
  if (b == -1) b = 5;
  b32 c = in[i + 2], d = in[i + 3] | 1;
  return (b32)(a / b) + ((b64)(b32)(a % b) << 32) + c / d + c % d;
}
FN b64 f_divide_f32(const b32* in, b32 i) { return bits_of(CAST(float, in[i]) / CAST(float, in[i + 1])); }
FN b64 f_divide_f64(const b32* in, b32 i) { return bits_of(CAST(double, wide(in, i)) / CAST(double, wide(in, i + 2))); }
FN b64 f_root_f32(const b32* in, b32 i) { return bits_of(__builtin_sqrtf(CAST(float, in[i] & 0x7fffffff))); }
FN b64 f_root_f64(const b32* in, b32 i) {
  return bits_of(__builtin_sqrt(CAST(double, wide(in, i) & 0x7fffffffffffffffull)));
}
FN b64 f_float32(const b32* in, b32 i) {
  float a = number(in[i]), b = number(in[i + 1]), c = number(in[i + 2]), r = a * b + c;
  r = __builtin_fmaf(r, a, b);
  r = r < c ? r - c : r + c;
  r = __builtin_fabsf(r) - __builtin_floorf(r) + __builtin_ceilf(a) * __builtin_truncf(b) + __builtin_rintf(c);
  r += __builtin_fminf(a, b) * __builtin_fmaxf(b, c);
  return bits_of(__builtin_copysignf(r, a) + __builtin_ldexpf(a, (int)(in[i + 3] & 15) - 8));
}
FN b64 f_float64(const b32* in, b32 i) {
  double a = number(in[i]) * 1.1, b = number(in[i + 1]) * 1.3, c = number(in[i + 2]), r = a * b + c;
  r = __builtin_fma(r, a, b);
  r = r < c ? r - c : r + c;
  r = __builtin_fabs(r) - __builtin_floor(r) + __builtin_ceil(a) * __builtin_trunc(b) + __builtin_rint(c);
  return bits_of(r + __builtin_fmin(a, b) * __builtin_fmax(b, c));
}
FN b64 f_convert(const b32* in, b32 i) {
  float a = number(in[i]) * 100;
  double d = number(in[i + 1]) * 1000.0;
  b64 r = (b64)(long)a;
  r = r * 31 + (b32)(int)d;
  r = r * 31 + (b64)(long)d;
  r = r * 31 + bits_of((float)(int)in[i]);
  r = r * 31 + bits_of((float)in[i + 1]);
  r = r * 31 + bits_of((double)(long)wide(in, i));
  r = r * 31 + bits_of((float)wide(in, i));
  r = r * 31 + bits_of((float)(long)((b64)in[i] << 20 | in[i + 1]));
  r = r * 31 + (b64)(b8)(int)a + (b16)(short)in[i];
  r = r * 31 + (b64)(__builtin_fabs(d) * 1e9);
  return r * 31 + bits_of((float)d);
}
FN b64 f_half(const b32* in, b32 i) {
  float16 a = (float16)number(in[i]), b = (float16)number(in[i + 1]), c = (float16)number(in[i + 2]), r = a * b;
  r = r + c;
  r = r - a;
  half2 x = {a, b}, y = {b, c};
  x = x * y;
  x = x + y;
  x = x < y ? x : -y;
  return (b64)CAST(b16, r) | (b64)CAST(b32, x) << 16 | (b64)(b16)(short)(float)r << 48;
}
FN b64 f_integer(const b32* in, b32 i) {
  b32 a = in[i], b = in[i + 1], c = in[i + 2];
  b64 r = (b64)a * b;
  r += (b64)((long)(int)a * (int)b);
  r ^= (b64)(a << (b & 31)) + (a >> (c & 31)) + ((int)a >> (b & 31));
  r += __builtin_popcount(a) + __builtin_clz(a | 1) + __builtin_ctz(b | 1) + __builtin_bitreverse32(c);
  r = r * ((b64)b << 32 | c) + __builtin_bswap32(a);
  r ^= r >> (a & 63);
  r ^= (b64)((long)r >> (b & 63));
  r += (a < b ? a : b) + ((int)a < (int)c ? c : a) + (b64)(b8)a * (b8)b + (b64)(short)a * (short)c;
  r += __builtin_popcountll(r) + __builtin_clzll(r | 1) + __builtin_ctzll(r | 1);
  r = r << (c & 63) | r >> (64 - (c & 63) & 63);
  return r + (a & 0xffffff) * (b & 0xffffff) + __builtin_rotateleft32(a, b & 31);
}
FN b64 f_saturate(const b32* in, b32 i) {
  b32 a = in[i], b = in[i + 1];
  b64 r = __builtin_elementwise_add_sat(a, b);
  r = r * 31 + __builtin_elementwise_sub_sat(a, b);
  r = r * 31 + (b32)__builtin_elementwise_add_sat((int)a, (int)b);
  r = r * 31 + (b32)__builtin_elementwise_sub_sat((int)a, (int)b);
  r = r * 31 + __builtin_elementwise_add_sat((b16)a, (b16)b);
  return r * 31 + (b16)__builtin_elementwise_sub_sat((short)a, (short)b);
}
FN b64 f_packed(const b32* in, b32 i) {
  short2 a = CAST(short2, in[i]), b = CAST(short2, in[i + 1]), c = CAST(short2, in[i + 2]), r = a * b + c;
  const short2 shifts = {5, 3};
  r = __builtin_elementwise_max(r, a) - __builtin_elementwise_min(b, c);
  r ^= (a << (b & 15)) + (c >> shifts);
  float2 x = {number(in[i]), number(in[i + 1])}, y = {number(in[i + 2]), number(in[i + 3])};
  x = x * y + x;
  float2 z = x.yx * y;
  z += x;
  return CAST(b32, r) + CAST(b64, z) * 3;
}
FN b64 f_array(const b32* in, b32 i) {
  b32 t[32];
  for (int k = 0; k < 32; k++) t[k] = in[(i + k) & 4095];
  for (int k = 0; k < 32; k++) {
    b32 j = t[k] & 31, s = t[k];
    t[k] = t[j];
    t[j] = s + k;
  }
  b64 r = 0;
  for (int k = 0; k < 32; k++) r = r * 31 + t[k * 7 & 31];
  b8 b[40];
  for (int k = 0; k < 40; k++) b[k] = (b8)(r >> (k & 31));
  for (int k = 0; k < 40; k++) b[b[k] * 5 % 40] ^= k;
  b16 h[9];
  for (int k = 0; k < 9; k++) h[k] = b[k * 4] | b[k * 4 + 1] << 8;
  for (int k = 0; k < 9; k++) r = r * 33 + h[(h[k] + k) % 9];
  return r;
}
FN b64 f_choose(const b32* in, b32 i) {
  b64 r = 1;
  for (b32 k = 0; k < (in[i] & 15) + 3; k++) {
    b32 v = in[(i + k) & 4095];
    switch (v % 13) {
    case 0: r += v; break;
    case 1: r *= v | 1; break;
    case 2: r ^= v;
    case 3: r += 7; break;
    case 4: if (v & 64) continue; r -= v; break;
    case 5: r = r << 3 | r >> 61; break;
    case 6: if (v & 128) return r; break;
    case 7: r += v * v; break;
    case 8: r = ~r; break;
    case 9: r /= 3; break;
    case 10: r %= 1000003; break;
    case 11: r += k; break;
    default: r ^= r >> 7;
    }
  }
  return r;
}
struct Record { b32 a; double b; b16 c[5]; };
FN NOINLINE struct Record make(b32 a, double b, const b32* in) {
  struct Record s;
  s.a = a * 3;
  s.b = b + 0.5;
  for (int k = 0; k < 5; k++) s.c[k] = (b16)in[k];
  return s;
}
FN NOINLINE b64 consume(struct Record s, int depth) {
  if (depth <= 0) return s.a + (b64)(long)s.b;
  s.a += s.c[depth % 5];
  s.b *= 1.25;
  return consume(s, depth - 1) * 3 + s.c[0];
}
FN b64 f_calls(const b32* in, b32 i) { return consume(make(in[i], number(in[i + 1]), in + i), in[i + 2] & 7); }
FN NOINLINE b64 fibonacci(b32 n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
FN b64 f_recursion(const b32* in, b32 i) { return fibonacci(in[i] & 7) * 1000 + fibonacci(in[i + 1] % 9); }
FN b64 f_pointers(const b32* in, b32 i) {
  b64 (*functions[3])(const b32*, b32) = {f_integer, f_choose, f_array};
  return functions[in[i] % 3](in, i);
}
FN b64 f_bits(const b32* in, b32 i) {
  b32 a = in[i], b = in[i + 1], c = in[i + 2];
  b64 r = (a & b) | (~a & c);
  r = r * 31 + (a >> 5 & 0x1ff) + (b32)((int)(a << 7) >> 20);
  r ^= ((b64)a << 32 | b) >> (c & 31);
  r += (a << 8 & 0xff00ff00) | (b >> 8 & 0x00ff00ff);
  return r + (a ^ b ^ c) + (a | b | c) + ((a << 2) + b) + ((a + b) << 3) + (a << 4 | c);
}
FN b64 f_vector_index(const b32* in, b32 i) {
  b32x16 v;
  for (int k = 0; k < 16; k++) v[k] = in[(i + k) & 4095];
  b32 s = in[0] & 15;
  b64 r = v[s];
  v[(s * 3 + 1) & 15] = (b32)r + 5;
  for (b32 k = 0; k < (in[1] & 7) + 2; k++) {
    r = r * 31 + v[(k * 5 + s) & 15];
    v[(k + s) & 15] ^= (b32)r;
  }
  r += v[in[i] & 15];
  v[in[i + 1] & 15] = 7;
  return r * 3 + v[3] + v[in[i + 2] & 15];
}
"""

DEVICE = f"""
#define FN __device__
{SOURCE}
#define KERNEL(NAME)                                                                                          \\
  extern "C" __global__ void NAME(const b32* in, b64* out) {{                                                  \\
    b32 i = __builtin_amdgcn_workgroup_id_x() * __builtin_amdgcn_workgroup_size_x() +                         \\
            __builtin_amdgcn_workitem_id_x();                                                                 \\
    out[i] = f_##NAME(in, i);                                                                                 \\
  }}
{" ".join(f"KERNEL({name})" for name in NAMES)}
"""

HOST = f"""
#define FN static
{SOURCE}
#define FUNCTION(NAME) \\
  extern "C" void NAME(const b32* in, b64* out, b32 count) {{ for (b32 i = 0; i < count; i++) out[i] = f_##NAME(in, i); }}
{" ".join(f"FUNCTION({name})" for name in NAMES)}
"""
