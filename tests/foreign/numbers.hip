// One instruction a kernel, over 64 lanes: 8-bit floats, the 16-bit multiply-adds that clear the upper half,
// and the matrix core's reduced float32.
typedef float float2v __attribute__((ext_vector_type(2)));
typedef float float4v __attribute__((ext_vector_type(4)));
typedef float float16v __attribute__((ext_vector_type(16)));

#define LANE __builtin_amdgcn_workitem_id_x()
#define I (__builtin_amdgcn_workgroup_id_x() * 64 + LANE)

// out[4 i ...]: two values packed below, then above, 0x5a5a elsewhere; rounding stochastically into byte 2 of
// it.
#define NARROW(NAME)                                                                                         \
  extern "C" __global__ void narrow_##NAME(const float* in, const u32* random, u32* out) {                   \
    const float a = in[2 * I], b = in[2 * I + 1];                                                            \
    out[3 * I] = __builtin_amdgcn_cvt_pk_##NAME##_f32(a, b, 0x5a5a5a5a, false);                              \
    out[3 * I + 1] = __builtin_amdgcn_cvt_pk_##NAME##_f32(a, b, 0x5a5a5a5a, true);                           \
    out[3 * I + 2] = __builtin_amdgcn_cvt_sr_##NAME##_f32(a, random[I], 0x5a5a5a5a, 2);                      \
  }                                                                                                          \
  extern "C" __global__ void widen_##NAME(const u32* in, float* out) {                                       \
    const u32 word = in[I];                                                                                  \
    out[8 * I] = __builtin_amdgcn_cvt_f32_##NAME(word, 0);                                                   \
    out[8 * I + 1] = __builtin_amdgcn_cvt_f32_##NAME(word, 1);                                               \
    out[8 * I + 2] = __builtin_amdgcn_cvt_f32_##NAME(word, 2);                                               \
    out[8 * I + 3] = __builtin_amdgcn_cvt_f32_##NAME(word, 3);                                               \
    *(float2v*)(out + 8 * I + 4) = __builtin_amdgcn_cvt_pk_f32_##NAME(word, false);                          \
    *(float2v*)(out + 8 * I + 6) = __builtin_amdgcn_cvt_pk_f32_##NAME(word, true);                           \
  }
NARROW(fp8)
NARROW(bf8)

#define THREE(NAME, MODIFIERS)                                                                               \
  {                                                                                                          \
    u32 d = 0xdeadbeef;                                                                                      \
    asm volatile(NAME " %0, %1, %2, %3" MODIFIERS : "+v"(d) : "v"(a), "v"(b), "v"(c));                       \
    *out++ = d;                                                                                              \
  }
extern "C" __global__ void legacy(const u32* in, u32* out) {
  const u32 a = in[3 * I], b = in[3 * I + 1], c = in[3 * I + 2];
  out += 7 * I;
  THREE("v_mad_legacy_u16", "")
  THREE("v_mad_legacy_i16", "")
  THREE("v_mad_legacy_u16", " clamp")
  THREE("v_mad_legacy_i16", " clamp")
  THREE("v_fma_legacy_f16", "")
  THREE("v_mad_legacy_f16", "")
  THREE("v_div_fixup_legacy_f16", "")
}

// D = A B + C with A [N, K], B [K, N]; lane l holds two k of row or column l % N, from 2 (l / N).
extern "C" __global__ void reduced_16(const float* a, const float* b, float* d) {
  const int line = LANE % 16, group = LANE / 16;
  const float2v left = {a[line * 8 + group * 2], a[line * 8 + group * 2 + 1]};
  const float2v right = {b[group * 2 * 16 + line], b[(group * 2 + 1) * 16 + line]};
  float4v sum = {1, 1, 1, 1};
  sum = __builtin_amdgcn_mfma_f32_16x16x8_xf32(left, right, sum, 0, 0, 0);
  for (int r = 0; r < 4; ++r) d[(group * 4 + r) * 16 + line] = sum[r];
}
extern "C" __global__ void reduced_32(const float* a, const float* b, float* d) {
  const int line = LANE % 32, group = LANE / 32;
  const float2v left = {a[line * 4 + group * 2], a[line * 4 + group * 2 + 1]};
  const float2v right = {b[group * 2 * 32 + line], b[(group * 2 + 1) * 32 + line]};
  float16v sum;
  for (int r = 0; r < 16; ++r) sum[r] = 1;
  sum = __builtin_amdgcn_mfma_f32_32x32x4_xf32(left, right, sum, 0, 0, 0);
  for (int r = 0; r < 16; ++r) d[(r / 4 * 8 + group * 4 + r % 4) * 32 + line] = sum[r];
}

extern "C" __global__ void unsupported(u64* out) {
  u64 d;
  asm volatile("v_trig_preop_f64 %0, %1, %2" : "=&v"(d) : "v"(out[0]), "v"(1));
  out[0] = d;
}
