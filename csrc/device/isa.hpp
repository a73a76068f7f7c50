// One forceinline function per machine instruction that the kernels choose themselves.
//
// Memory accesses and arithmetic are compiler builtins, so that clang's own passes insert the s_waitcnt and
// the wait states between these instructions and whatever consumes their results. What is asm needs neither.
#pragma once

#include <cstdint>

#define LRA_DEVICE __attribute__((device, always_inline)) inline
#define LRA_KERNEL __attribute__((global))
#define LRA_SHARED __attribute__((shared))

namespace liteattention_rocm {

using Bf16x4 = short __attribute__((ext_vector_type(4)));
using Float16 = float __attribute__((ext_vector_type(16)));
using Float2 = float __attribute__((ext_vector_type(2)));
using Float4 = float __attribute__((ext_vector_type(4)));
using Dword2 = uint32_t __attribute__((ext_vector_type(2)));
using Dword4 = uint32_t __attribute__((ext_vector_type(4)));
using BufferResource = __amdgpu_buffer_rsrc_t;

namespace isa {

// v_mfma_f32_16x16x16_bf16: D = A·B + C. Lane l holds A[row l%16][k 4·(l/16)+i], B[k 4·(l/16)+i][col l%16]
// and D[row 4·(l/16)+i][col l%16], i in 0..3.
LRA_DEVICE Float4 mfma_16x16x16_bf16(Bf16x4 a, Bf16x4 b, Float4 c) {
  return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, 0, 0, 0);
}

// v_mfma_f32_32x32x8_bf16: D = A·B + C. Lane l holds A[row l%32][k 4·(l/32)+i], B[k 4·(l/32)+i][col l%32],
// i in 0..3, and D[row 8·(r/4) + 4·(l/32) + r%4][col l%32], r in 0..15.
LRA_DEVICE Float16 mfma_32x32x8_bf16(Bf16x4 a, Bf16x4 b, Float16 c) {
  return __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(a, b, c, 0, 0, 0);
}

// v_exp_f32: 2^x, about 1 ulp.
LRA_DEVICE float exp2(float x) {
  return __builtin_amdgcn_exp2f(x);
}

// v_log_f32: log2(x), about 1 ulp.
LRA_DEVICE float log2(float x) {
  return __builtin_amdgcn_logf(x);
}

// v_rcp_f32: 1/x, about 1 ulp.
LRA_DEVICE float rcp(float x) {
  return __builtin_amdgcn_rcpf(x);
}

// v_div_fixup_f32: `quotient` unless numerator or denominator is 0, Inf or NaN, then what IEEE division
// gives.
LRA_DEVICE float div_fixup(float quotient, float denominator, float numerator) {
  return __builtin_amdgcn_div_fixupf(quotient, denominator, numerator);
}

// v_perm_b32: byte i of the result is byte selector[i] of {low, high} (0..3 from low, 4..7 from high).
LRA_DEVICE uint32_t perm(uint32_t high, uint32_t low, uint32_t selector) {
  return __builtin_amdgcn_perm(high, low, selector);
}

// ds_swizzle_b32 in bit mode: reads lane (l XOR 16) within each half of the wave.
LRA_DEVICE float swizzle_xor16(float x) {
  constexpr int kXor16 = (0x10 << 10) | 0x1F;
  return __builtin_bit_cast(float, __builtin_amdgcn_ds_swizzle(__builtin_bit_cast(int, x), kXor16));
}

// ds_bpermute_b32: reads lane `byte_address / 4`.
LRA_DEVICE float bpermute(int byte_address, float x) {
  return __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute(byte_address, __builtin_bit_cast(int, x)));
}

// v_mbcnt_lo/hi_u32_b32 over a full mask: this lane's number, 0..63.
LRA_DEVICE int lane() {
  return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
}

// The same, and the kernel's arguments, fetched where this stands: values that only the end of a kernel needs
// don't occupy registers before.
LRA_DEVICE int lane_anew() {
  uint32_t zero = 0;
  asm("" : "+v"(zero));
  return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, zero));
}
template <typename Arguments>
LRA_DEVICE Arguments arguments_anew() {
  auto segment = reinterpret_cast<uint64_t>(__builtin_amdgcn_kernarg_segment_ptr());
  asm("" : "+s"(segment));
  Arguments arguments;
  __builtin_memcpy(&arguments, (const void*)(const __attribute__((address_space(4))) void*)segment,
                   sizeof arguments);
  return arguments;
}
// The same in scalar registers, by scalar loads.
template <typename Arguments>
LRA_DEVICE Arguments scalar_arguments_anew() {
  auto segment = reinterpret_cast<uint64_t>(__builtin_amdgcn_kernarg_segment_ptr());
  asm("" : "+s"(segment));
  const auto words = reinterpret_cast<const __attribute__((address_space(4))) uint32_t*>(segment);
  struct Words {
    uint32_t at[sizeof(Arguments) / sizeof(uint32_t)];
  } copy;
  for (int i = 0; i < static_cast<int>(sizeof copy / sizeof(uint32_t)); ++i) copy.at[i] = words[i];
  return __builtin_bit_cast(Arguments, copy);
}

// v_readfirstlane_b32: tells the compiler that x is the same in every lane.
LRA_DEVICE int uniform(int x) {
  return __builtin_amdgcn_readfirstlane(x);
}

// x, of which the compiler knows nothing.
LRA_DEVICE float at_run_time(float x) {
  asm("" : "+v"(x));
  return x;
}

// s_setreg_imm32_b32 of MODE bits 4 to 9: float32 operations read and write subnormals as 0, those of float16
// and float64 keep them; IEEE and DX10_CLAMP are off. Gives x back for operations that must come behind to
// use.
LRA_DEVICE float flush_float32_subnormals(float x) {
  asm volatile("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 6), 0xc" : "+s"(x));
  return x;
}

// One bit for each lane, 0 for inactive ones.
LRA_DEVICE uint64_t ballot(bool x) {
  return __builtin_amdgcn_ballot_w64(x);
}

// global_atomic_or, ordered with nothing.
LRA_DEVICE void atomic_or(uint32_t* address, uint32_t bits) {
  __hip_atomic_fetch_or(address, bits, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}

// The same where workgroups meet, which may run on other XCDs.
LRA_DEVICE void atomic_or_of_device(uint32_t* address, uint32_t bits) {
  __hip_atomic_fetch_or(address, bits, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

// A raw buffer over `bytes` bytes: loads beyond it return 0, stores beyond it are dropped.
LRA_DEVICE BufferResource make_buffer(const void* base, uint32_t bytes) {
  constexpr int kRawBuffer = 0x00020000;
  return __builtin_amdgcn_make_buffer_rsrc(const_cast<void*>(base), 0, bytes, kRawBuffer);
}

// buffer_load_dwordx4 with a byte offset per lane.
LRA_DEVICE Dword4 buffer_load_b128(BufferResource buffer, uint32_t offset) {
  return __builtin_amdgcn_raw_buffer_load_b128(buffer, offset, 0, 0);
}

// buffer_load_dword with a byte offset per lane.
LRA_DEVICE uint32_t buffer_load_b32(BufferResource buffer, uint32_t offset) {
  return __builtin_amdgcn_raw_buffer_load_b32(buffer, offset, 0, 0);
}

// buffer_store_dwordx4 with a byte offset per lane.
LRA_DEVICE void buffer_store_b128(Dword4 value, BufferResource buffer, uint32_t offset) {
  __builtin_amdgcn_raw_buffer_store_b128(value, buffer, offset, 0, 0);
}

// buffer_store_dwordx2 with a byte offset per lane.
LRA_DEVICE void buffer_store_b64(Dword2 value, BufferResource buffer, uint32_t offset) {
  __builtin_amdgcn_raw_buffer_store_b64(value, buffer, offset, 0, 0);
}

// buffer_store_dword with a byte offset per lane.
LRA_DEVICE void buffer_store_b32(uint32_t value, BufferResource buffer, uint32_t offset) {
  __builtin_amdgcn_raw_buffer_store_b32(value, buffer, offset, 0, 0);
}

// s_waitcnt vmcnt(0): every load of this wave has returned.
LRA_DEVICE void wait_for_loads() {
  __builtin_amdgcn_s_waitcnt(0x0F70);
}

// s_barrier between LDS accesses: what any wave wrote to LDS before is visible to every wave behind it.
// The fences name LDS alone, so that outstanding global loads stay outstanding.
LRA_DEVICE void lds_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}

// Nothing is scheduled across this point: keeps the phases of the kernel, and their registers, apart.
LRA_DEVICE void phase_boundary() {
  __builtin_amdgcn_sched_barrier(0);
}

}  // namespace isa
}  // namespace liteattention_rocm
