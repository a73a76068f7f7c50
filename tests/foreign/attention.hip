// Attention kernels that share nothing with the package's own: plain, split over a wave, and tiled for the
// matrix cores. Every one takes contiguous [batch, heads, rows, D] and blockIdx = (tile, head, batch).
typedef _Float16 f16;
typedef __bf16 bf16;
typedef float float4v __attribute__((ext_vector_type(4)));
typedef float float16v __attribute__((ext_vector_type(16)));
typedef f16 half4 __attribute__((ext_vector_type(4)));
typedef short short4v __attribute__((ext_vector_type(4)));
typedef float float2v __attribute__((ext_vector_type(2)));

#define SYNC()                                                                                               \
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup"), __builtin_amdgcn_s_barrier(),                       \
      __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup")

__device__ inline u32 tid() {
  return __builtin_amdgcn_workitem_id_x() +
         __builtin_amdgcn_workgroup_size_x() *
             (__builtin_amdgcn_workitem_id_y() +
              __builtin_amdgcn_workgroup_size_y() * __builtin_amdgcn_workitem_id_z());
}
__device__ inline u32 threads() {
  return __builtin_amdgcn_workgroup_size_x() * __builtin_amdgcn_workgroup_size_y() *
         __builtin_amdgcn_workgroup_size_z();
}
struct Shape {
  int heads, sq, skv;
  float scale;
};
__device__ inline long head_offset(const Shape& s, int rows, int d) {
  return ((long)__builtin_amdgcn_workgroup_id_z() * s.heads + __builtin_amdgcn_workgroup_id_y()) * rows * d;
}

template <class T>
__device__ inline float to_float(T x) {
  return (float)x;
}

// One thread per row, scores of the whole row in scratch.
template <class T, int D, int kMaximum>
__device__ void naive(const T* q, const T* k, const T* v, T* out, const Shape& s) {
  const int row = __builtin_amdgcn_workgroup_id_x() * threads() + tid();
  if (row >= s.sq) return;
  q += head_offset(s, s.sq, D) + (long)row * D;
  out += head_offset(s, s.sq, D) + (long)row * D;
  k += head_offset(s, s.skv, D);
  v += head_offset(s, s.skv, D);
  float score[kMaximum], top = -__builtin_inff(), sum = 0;
  for (int j = 0; j < s.skv; ++j) {
    float dot = 0;
    for (int d = 0; d < D; ++d) dot += to_float(q[d]) * to_float(k[(long)j * D + d]);
    score[j] = dot * s.scale * 1.44269504f;
    top = __builtin_fmaxf(top, score[j]);
  }
  for (int j = 0; j < s.skv; ++j) sum += score[j] = __builtin_amdgcn_exp2f(score[j] - top);
  for (int d = 0; d < D; ++d) {
    float value = 0;
    for (int j = 0; j < s.skv; ++j) value += score[j] * to_float(v[(long)j * D + d]);
    out[d] = (T)(value / sum);
  }
}
#define NAIVE(NAME, T, D)                                                                                    \
  extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(1, 1024))) NAME(                     \
      const T* q, const T* k, const T* v, T* out, Shape s) {                                                 \
    naive<T, D, 128>(q, k, v, out, s);                                                                       \
  }
NAIVE(naive_f32, float, 32)
NAIVE(naive_f16, f16, 40)
NAIVE(naive_bf16, bf16, 128)
NAIVE(naive_f64, double, 16)

template <int kControl>
__device__ inline float dpp(float x, float old) {
  return __builtin_bit_cast(float, __builtin_amdgcn_update_dpp(__builtin_bit_cast(int, old),
                                                               __builtin_bit_cast(int, x), kControl, 0xf, 0xf,
                                                               false));
}
__device__ inline float shuffle_xor(float x, int mask) {
  const int lane = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
  return __builtin_bit_cast(float,
                            __builtin_amdgcn_ds_bpermute((lane ^ mask) * 4, __builtin_bit_cast(int, x)));
}
// The sum of a wave by DPP row shifts and broadcasts, as compilers of scans do: valid in lane 63.
__device__ inline float wave_sum_dpp(float x) {
  x += dpp<0x111>(x, 0);
  x += dpp<0x112>(x, 0);
  x += dpp<0x114>(x, 0);
  x += dpp<0x118>(x, 0);
  x += __builtin_bit_cast(float,
                          __builtin_amdgcn_update_dpp(0, __builtin_bit_cast(int, x), 0x142, 0xa, 0xf, false));
  x += __builtin_bit_cast(float,
                          __builtin_amdgcn_update_dpp(0, __builtin_bit_cast(int, x), 0x143, 0xc, 0xf, false));
  return __builtin_bit_cast(float, __builtin_amdgcn_readlane(__builtin_bit_cast(int, x), 63));
}
__device__ inline float wave_max_swizzle(float x) {
#define SWIZZLE(MASK)                                                                                        \
  x = __builtin_fmaxf(x, __builtin_bit_cast(float, __builtin_amdgcn_ds_swizzle(__builtin_bit_cast(int, x),   \
                                                                               MASK << 10 | 0x1f)))
  SWIZZLE(1);
  SWIZZLE(2);
  SWIZZLE(4);
  SWIZZLE(8);
  SWIZZLE(16);
  return __builtin_fmaxf(x, shuffle_xor(x, 32));
}

// One wave per row, lanes over the keys, head dim 64; waves of a block (3-D) take neighbouring rows.
// `cycles` gets something positive; `total` the sum of all outputs by float atomics.
extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(64, 1024)))
wave_f32(const float* q, const float* k, const float* v, float* out, Shape s, u64* cycles, float* total) {
  extern __shared__ float dynamic[];
  const u64 begin = __builtin_readcyclecounter();
  const int wave = tid() / 64, lane = tid() % 64;
  const int row = __builtin_amdgcn_workgroup_id_x() * (threads() / 64) + wave;
  float* weight = dynamic + wave * 64;
  const long from = head_offset(s, s.skv, 64), at = head_offset(s, s.sq, 64) + (long)row * 64;
  float top = -__builtin_inff(), sum = 0, value = 0;
  for (int first = 0; first < s.skv; first += 64) {
    const int j = first + lane;
    float dot = -__builtin_inff();
    if (j < s.skv && row < s.sq) {
      const float4v* key = (const float4v*)(k + from + (long)j * 64);
      const float4v* query = (const float4v*)(q + at);
      float4v products = {0, 0, 0, 0};
      for (int d = 0; d < 16; ++d) products += key[d] * query[d];
      dot = (products.x + products.y + products.z + products.w) * s.scale * 1.44269504f;
    }
    const float new_top = __builtin_fmaxf(top, wave_max_swizzle(dot));
    const float weight_now = row < s.sq ? __builtin_amdgcn_exp2f(dot - new_top) : 0,
                fade = __builtin_amdgcn_exp2f(top - new_top);
    sum = sum * fade + wave_sum_dpp(weight_now);
    weight[lane] = weight_now;
    SYNC();
    value *= fade;
    if (row < s.sq)
      for (int i = 0; i < 64 && first + i < s.skv; ++i)
        value += weight[i] * v[from + (long)(first + i) * 64 + lane];
    SYNC();
    top = new_top;
  }
  if (row < s.sq) {
    out[at + lane] = value / sum;
    __hip_atomic_fetch_add(total, value / sum, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    if (lane == 0)
      __hip_atomic_fetch_max(cycles, __builtin_readcyclecounter() - begin + __builtin_amdgcn_s_memtime() % 2,
                             __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  }
}

// Tiles of 64 rows by 32 keys, head dim 64, v_mfma_f32_16x16x16: four waves of 16 rows, K and V double
// buffered in LDS, filled from registers while the last tile is multiplied.
__device__ inline float4v multiply(half4 a, half4 b, float4v c) {
  return __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, 0, 0, 0);
}
__device__ inline float4v multiply(short4v a, short4v b, float4v c) {
  return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, 0, 0, 0);
}
__device__ inline float16v multiply(half4 a, half4 b, float16v c) {
  return __builtin_amdgcn_mfma_f32_32x32x8f16(a, b, c, 0, 0, 0);
}
__device__ inline float16v multiply(short4v a, short4v b, float16v c) {
  return __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(a, b, c, 0, 0, 0);
}
template <class T>
struct Four;
template <>
struct Four<f16> {
  typedef half4 type;
};
template <>
struct Four<bf16> {
  typedef short4v type;
};
template <int kRows>
struct Sum;
template <>
struct Sum<16> {
  typedef float4v type;
};
template <>
struct Sum<32> {
  typedef float16v type;
};

// kRows (16 or 32) rows per wave, D = 64, kKeys = kRows keys at a time. S = Q K^T with A = Q: lane l holds
// row l % kRows of A and column l % kRows of B, four k from 4 * (l / kRows).
template <class T, int kRows, int kWaves>
__device__ void tiled(const T* q, const T* k, const T* v, T* out, const Shape& s) {
  typedef typename Four<T>::type four;
  typedef typename Sum<kRows>::type accumulator;
  constexpr int D = 64, kStep = 256 / kRows, kRegisters = kRows * kRows / 64, kPad = D + 8;
  __shared__ T keys[2][kRows][kPad], values[2][kRows][kPad], weights[kWaves][kRows][kRows + 4];
  const int wave = tid() / 64, lane = tid() % 64, column = lane % kRows, group = lane / kRows;
  const int first_row = (__builtin_amdgcn_workgroup_id_x() * kWaves + wave) * kRows;
  q += head_offset(s, s.sq, D);
  out += head_offset(s, s.sq, D);
  k += head_offset(s, s.skv, D);
  v += head_offset(s, s.skv, D);
  four query[D / kStep];
  for (int step = 0; step < D / kStep; ++step) {
    four zero = {};
    query[step] = first_row + column < s.sq
                      ? *(const four*)(q + (long)(first_row + column) * D + step * kStep + group * 4)
                      : zero;
  }
  constexpr int kPieces = kRows * D / 4, kEach = (kPieces + kWaves * 64 - 1) / (kWaves * 64);
  four held_k[kEach], held_v[kEach];
  auto fetch = [&](int first) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int piece = i * kWaves * 64 + tid(), j = first + piece / (D / 4), d = piece % (D / 4) * 4;
      four zero = {};
      const bool inside = piece < kPieces && j < s.skv;
      held_k[i] = inside ? *(const four*)(k + (long)j * D + d) : zero;
      held_v[i] = inside ? *(const four*)(v + (long)j * D + d) : zero;
    }
  };
  auto put = [&](int buffer) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int piece = i * kWaves * 64 + tid();
      if (piece < kPieces) {
        *(four*)&keys[buffer][piece / (D / 4)][piece % (D / 4) * 4] = held_k[i];
        *(four*)&values[buffer][piece / (D / 4)][piece % (D / 4) * 4] = held_v[i];
      }
    }
  };
  auto row_of = [&](int r) { return kRows == 16 ? group * 4 + r : r / 4 * 8 + group * 4 + r % 4; };
  accumulator result[D / kRows] = {};
  float top[kRegisters], sum[kRegisters];
  for (int r = 0; r < kRegisters; ++r) top[r] = -1e30f, sum[r] = 0;
  fetch(0);
  put(0);
  SYNC();
  for (int first = 0, buffer = 0; first < s.skv; first += kRows, buffer ^= 1) {
    fetch(first + kRows);
    accumulator score = {};
#pragma unroll
    for (int step = 0; step < D / kStep; ++step)
      score = multiply(query[step], *(four*)&keys[buffer][column][step * kStep + group * 4], score);
    for (int r = 0; r < kRegisters; ++r) {
      float x = first + column < s.skv ? score[r] * s.scale * 1.44269504f : -1e30f, largest = x;
#pragma unroll
      for (int mask = 1; mask < kRows; mask *= 2)
        largest = __builtin_fmaxf(largest, shuffle_xor(largest, mask));
      largest = __builtin_fmaxf(largest, top[r]);
      const float fade = __builtin_amdgcn_exp2f(top[r] - largest),
                  weight = __builtin_amdgcn_exp2f(x - largest);
      sum[r] = sum[r] * fade + weight;
      top[r] = largest;
      for (int part = 0; part < D / kRows; ++part) result[part][r] *= fade;
      weights[wave][row_of(r)][column] = (T)weight;
    }
    SYNC();
    for (int step = 0; step < kRows / kStep + (kRows < kStep); ++step) {
      const four a = *(four*)&weights[wave][column][step * kStep + group * 4];
      for (int part = 0; part < D / kRows; ++part) {
        T gathered[4];
        for (int i = 0; i < 4; ++i)
          gathered[i] = values[buffer][step * kStep + group * 4 + i][part * kRows + column];
        result[part] = multiply(a, __builtin_bit_cast(four, gathered), result[part]);
      }
    }
    put(buffer ^ 1);
    SYNC();
  }
  for (int r = 0; r < kRegisters; ++r) {
#pragma unroll
    for (int mask = 1; mask < kRows; mask *= 2) sum[r] += shuffle_xor(sum[r], mask);
    const int row = first_row + row_of(r);
    if (row < s.sq)
      for (int part = 0; part < D / kRows; ++part)
        out[(long)row * D + part * kRows + column] = (T)(result[part][r] / sum[r]);
  }
}
#define TILED(NAME, T, ROWS, WAVES)                                                                          \
  extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(WAVES * 64, WAVES * 64))) NAME(      \
      const T* q, const T* k, const T* v, T* out, Shape s) {                                                 \
    tiled<T, ROWS, WAVES>(q, k, v, out, s);                                                                  \
  }
TILED(tiled_f16_16, f16, 16, 4)
TILED(tiled_bf16_16, bf16, 16, 2)
TILED(tiled_f16_32, f16, 32, 1)
TILED(tiled_bf16_32, bf16, 32, 4)

#ifndef WITHOUT_DIRECT
// K and V go to LDS without passing registers (global_load_lds_dword), head dim 64, float32 MFMA; one wave
// takes 16 rows; products of P and V by packed float32 arithmetic.
extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(64, 64)))
direct_f32(const float* q, const float* k, const float* v, float* out, Shape s) {
  constexpr int D = 64;
  __shared__ float keys[16 * D], values[16 * D], weights[16][17];
  const int lane = tid(), column = lane % 16, group = lane / 16,
            first_row = __builtin_amdgcn_workgroup_id_x() * 16;
  q += head_offset(s, s.sq, D);
  out += head_offset(s, s.sq, D);
  k += head_offset(s, s.skv, D);
  v += head_offset(s, s.skv, D);
  float query[16];
  for (int step = 0; step < 16; ++step)
    query[step] = first_row + column < s.sq ? q[(long)(first_row + column) * D + step * 4 + group] : 0;
  float top[4], sum[4];
  for (int r = 0; r < 4; ++r) top[r] = -1e30f, sum[r] = 0;
  float2v result[8] = {};
  for (int first = 0; first < s.skv; first += 16) {
    for (int i = 0; i < 16; ++i) {
      const int j = first + i < s.skv ? first + i : s.skv - 1;
      __builtin_amdgcn_global_load_lds((__attribute__((address_space(1))) void*)(k + (long)j * D + lane),
                                       (__attribute__((address_space(3))) void*)(keys + i * D), 4, 0, 0);
      __builtin_amdgcn_global_load_lds((__attribute__((address_space(1))) void*)(v + (long)j * D + lane),
                                       (__attribute__((address_space(3))) void*)(values + i * D), 4, 0, 0);
    }
    __builtin_amdgcn_s_waitcnt(0x0f70);
    SYNC();
    float4v score = {};
    for (int step = 0; step < 16; ++step)
      score = __builtin_amdgcn_mfma_f32_16x16x4f32(query[step], keys[column * D + step * 4 + group], score, 0,
                                                   0, 0);
    for (int r = 0; r < 4; ++r) {
      const float x = first + column < s.skv ? score[r] * s.scale : -1e30f;
      float largest = x;
      largest = __builtin_fmaxf(largest, dpp<0xb1>(largest, 0));   // quad_perm 1,0,3,2
      largest = __builtin_fmaxf(largest, dpp<0x4e>(largest, 0));   // quad_perm 2,3,0,1
      largest = __builtin_fmaxf(largest, dpp<0x141>(largest, 0));  // row_half_mirror
      largest = __builtin_fmaxf(largest, dpp<0x140>(largest, 0));  // row_mirror
      largest = __builtin_fmaxf(largest, top[r]);
      const float fade = __builtin_expf(top[r] - largest), weight = __builtin_expf(x - largest);
      sum[r] = sum[r] * fade + weight;
      top[r] = largest;
      weights[group * 4 + r][column] = weight;
      if (column == 0) weights[group * 4 + r][16] = fade;
    }
    SYNC();
    const int row = lane / 4;
    for (int d = 0; d < 8; ++d) {
      result[d] *= weights[row][16];
      for (int j = 0; j < 16; ++j)
        result[d] += weights[row][j] * *(float2v*)&values[j * D + lane % 4 * 16 + d * 2];
    }
    SYNC();
  }
  for (int r = 0; r < 4; ++r) {
    for (int mask = 1; mask < 16; mask *= 2) sum[r] += shuffle_xor(sum[r], mask);
    if (column == 0) weights[group * 4 + r][16] = sum[r];
  }
  SYNC();
  const int row = lane / 4;
  if (first_row + row < s.sq)
    for (int d = 0; d < 8; ++d)
      *(float2v*)(out + (long)(first_row + row) * D + lane % 4 * 16 + d * 2) = result[d] / weights[row][16];
}
#endif
