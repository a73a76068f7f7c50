"""HIP source of the small kernels that the simulator's tests launch."""

SOURCE = """
#define BLOCK_X __builtin_amdgcn_workgroup_id_x()
#define THREAD_X __builtin_amdgcn_workitem_id_x()
typedef const u32 __attribute__((address_space(4))) constant_u32;

// Every work-item writes its global index and the launch's extents.
extern "C" __global__ void indices(u32* out) {
  const u32 size[3] = {__builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y(),
                       __builtin_amdgcn_workgroup_size_z()};
  const u32 total[2] = {__builtin_amdgcn_grid_size_x(), __builtin_amdgcn_grid_size_y()};
  const u32 x = BLOCK_X * size[0] + THREAD_X;
  const u32 y = __builtin_amdgcn_workgroup_id_y() * size[1] + __builtin_amdgcn_workitem_id_y();
  const u32 z = __builtin_amdgcn_workgroup_id_z() * size[2] + __builtin_amdgcn_workitem_id_z();
  out[(z * total[1] + y) * total[0] + x] = x | y << 8 | z << 16;
}

// 64 dwords of the implicit arguments.
extern "C" __global__ void implicit(u32* out) {
  constant_u32* in = (constant_u32*)__builtin_amdgcn_implicitarg_ptr();
  if (THREAD_X < 64) out[THREAD_X] = in[THREAD_X];
}
extern "C" __global__ void implicit_v4(u32* out) {
  constant_u32* in = (constant_u32*)__builtin_amdgcn_implicitarg_ptr();
  if (THREAD_X < 14) out[THREAD_X] = in[THREAD_X];
}

extern "C" __global__ void dispatch_packet(u32* out) {
  constant_u32* in = (constant_u32*)__builtin_amdgcn_dispatch_ptr();
  if (THREAD_X < 16) out[THREAD_X] = in[THREAD_X];
}

struct Triple { int a, b, c; };
extern "C" __global__ void mixed(u64* out, u8 a, u16 b, u32 c, u64 d, float e, double f, Triple g) {
  if (THREAD_X) return;
  out[0] = a; out[1] = b; out[2] = c; out[3] = d;
  out[4] = __builtin_bit_cast(u32, e);
  out[5] = __builtin_bit_cast(u64, f);
  out[6] = (u32)g.a; out[7] = (u32)g.b; out[8] = (u32)g.c;
}

__device__ int counter = 5;
__device__ int* pointer_to_counter = &counter;
__constant__ int table[4] = {10, 20, 30, 40};
extern "C" __global__ void variables(int* out) {
  if (THREAD_X) return;
  out[0] = *pointer_to_counter;
  out[1] = table[2];
  *pointer_to_counter += table[3];
}

extern "C" __global__ void store_byte(u8* p, long offset) { if (!THREAD_X) p[offset] = 42; }
extern "C" __global__ void load_byte(const u8* p, long offset, u32* out) {
  if (!THREAD_X) out[0] = p[offset];
}
// One instruction that loads four bytes from any address.
typedef u32 __attribute__((aligned(1))) unaligned_u32;
extern "C" __global__ void load_word(const u8* p, long offset, u32* out) {
  if (!THREAD_X) out[0] = *(const unaligned_u32*)(p + offset);
}

extern "C" __global__ void spin(volatile u32* out) { while (!out[0]) {} }

// Workgroups from `first` on store to address 0; the lower they are, the later.
extern "C" __global__ void fail_from(u32* out, u32 first, u32 count) {
  if (BLOCK_X < first) { out[BLOCK_X] = 1; return; }
  for (u32 i = 0; i < (count - BLOCK_X) * 300; ++i) __builtin_amdgcn_s_sleep(0);
  *(volatile u32*)nullptr = 1;
}

extern __shared__ u32 dynamic_lds[];
extern "C" __global__ void reverse(u32* out) {
  const u32 n = __builtin_amdgcn_workgroup_size_x();
  dynamic_lds[THREAD_X] = THREAD_X * 3;
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
  out[BLOCK_X * n + THREAD_X] = dynamic_lds[n - 1 - THREAD_X];
}

extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(1, 128))) void at_most_128(u32* out) {
  out[THREAD_X] = 1;
}
extern "C" __global__ void large_lds(u32* out) {
  __shared__ u32 big[15000];
  big[THREAD_X] = out[THREAD_X];
  __builtin_amdgcn_s_barrier();
  out[THREAD_X] = big[63 - THREAD_X % 64];
}

// Sorts 24 values in private memory; recursion and calls on top when built without optimisation.
__device__ __attribute__((noinline)) u32 mix(u32 x, u32 depth) {
  return depth ? mix(x * 1664525u + 1013904223u, depth - 1) : x;
}
extern "C" __global__ void sort(const u32* in, u32* out) {
  const u32 i = BLOCK_X * __builtin_amdgcn_workgroup_size_x() + THREAD_X;
  u32 values[24];
  for (u32 k = 0; k < 24; ++k) values[k] = in[i * 24 + k];
  for (u32 k = 1; k < 24; ++k)
    for (u32 j = k; j > 0 && values[j - 1] > values[j]; --j) {
      const u32 swap = values[j]; values[j] = values[j - 1]; values[j - 1] = swap;
    }
  for (u32 k = 0; k < 24; ++k) out[i * 24 + k] = values[k] ^ mix(k, 5);
}

// Attention of one query row per work-item; the accumulator's extent is not known to the compiler, so that it
// lies in scratch.
extern "C" __global__ void attention(const float* q, const float* k, const float* v, float* out, int rows,
                                     int keys, int dim, float scale_log2e) {
  const int row = (int)(BLOCK_X * __builtin_amdgcn_workgroup_size_x() + THREAD_X);
  if (row >= rows) return;
  float sum[48], maximum = -__builtin_huge_valf(), total = 0;
  for (int d = 0; d < dim; ++d) sum[d] = 0;
  for (int key = 0; key < keys; ++key) {
    float score = 0;
    for (int d = 0; d < dim; ++d) score += q[row * dim + d] * k[key * dim + d];
    score *= scale_log2e;
    const float raised = __builtin_fmaxf(maximum, score);
    const float kept = __builtin_amdgcn_exp2f(maximum - raised), p = __builtin_amdgcn_exp2f(score - raised);
    maximum = raised;
    total = total * kept + p;
    for (int d = 0; d < dim; ++d) sum[d] = sum[d] * kept + p * v[key * dim + d];
  }
  for (int d = 0; d < dim; ++d) out[row * dim + d] = sum[d] / total;
}
"""

# Stores 7 to its one argument's address. The metadata asks for workgroups of 64x2x1.
ASSEMBLY = """
.text
.globl exactly_64x2
.p2align 8
.type exactly_64x2,@function
exactly_64x2:
  s_load_dwordx2 s[0:1], s[0:1], 0x0
  v_mov_b32_e32 v1, 0
  v_mov_b32_e32 v2, 7
  s_waitcnt lgkmcnt(0)
  global_store_dword v1, v2, s[0:1]
  s_endpgm
.size exactly_64x2, .-exactly_64x2
.rodata
.p2align 6
.amdhsa_kernel exactly_64x2
  .amdhsa_kernarg_size 8
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_next_free_vgpr 3
  .amdhsa_next_free_sgpr 8
  .amdhsa_accum_offset 4
.end_amdhsa_kernel
.amdgpu_metadata
amdhsa.version: [1, 2]
amdhsa.kernels:
  - .name: exactly_64x2
    .symbol: exactly_64x2.kd
    .kernarg_segment_size: 8
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 0
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 8
    .vgpr_count: 3
    .max_flat_workgroup_size: 128
    .reqd_workgroup_size: [64, 2, 1]
    .args:
      - {.offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}
.end_amdgpu_metadata
"""
