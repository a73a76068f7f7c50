// Kernels that the build must refuse, one per limit. OVERSIZED_LDS needs an architecture with more than 64
// KB.
#define KERNEL(...) extern "C" __attribute__((global, __VA_ARGS__)) void

#ifndef OVERSIZED_LDS

KERNEL(amdgpu_flat_work_group_size(256, 256), amdgpu_num_vgpr(32)) spills_vgprs(float* p) {
  const int t = __builtin_amdgcn_workitem_id_x();
  float v[100];
#pragma unroll
  for (int i = 0; i < 100; ++i) v[i] = p[t + i * 256];
  __builtin_amdgcn_s_barrier();
#pragma unroll
  for (int i = 0; i < 100; ++i) p[t + (99 - i) * 256] = v[i] * v[(i * 7) % 100];
}

KERNEL(amdgpu_num_sgpr(32)) spills_sgprs(int* p) {
  int s[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) asm volatile("s_mov_b32 %0, 7" : "=s"(s[i]));
#pragma unroll
  for (int i = 0; i < 64; ++i) asm volatile("s_add_u32 %0, %0, %1" : "+s"(s[i]) : "s"(s[63 - i]));
  int sum = 0;
#pragma unroll
  for (int i = 0; i < 64; ++i) sum ^= s[i];
  p[0] = sum;
}

KERNEL(amdgpu_flat_work_group_size(256, 256)) uses_scratch(float* p) {
  const int t = __builtin_amdgcn_workitem_id_x();
  volatile float v[64];
  for (int i = 0; i < 64; ++i) v[i] = p[t + i];
  p[t] = v[t & 63];
}

KERNEL(amdgpu_flat_work_group_size(256, 256), amdgpu_waves_per_eu(1, 1)) takes_300_vgprs(float* p) {
  const int t = __builtin_amdgcn_workitem_id_x();
  float v[280];
#pragma unroll
  for (int i = 0; i < 280; ++i) v[i] = p[t + i * 256];
  __builtin_amdgcn_s_barrier();
#pragma unroll
  for (int i = 0; i < 280; ++i) p[t + (279 - i) * 256] = v[i] * v[(i * 7) % 280];
}

KERNEL(amdgpu_flat_work_group_size(256, 256)) keeps_the_limits(float* p) {
  p[__builtin_amdgcn_workitem_id_x()] = 1.0f;
}

#else

KERNEL(amdgpu_flat_work_group_size(256, 256)) takes_80000_bytes_of_lds(float* p) {
  static __attribute__((shared)) float v[20000];
  const int t = __builtin_amdgcn_workitem_id_x();
  v[t] = p[t];
  __builtin_amdgcn_s_barrier();
  p[t] = v[t * 77];
}

#endif
