// Microbenchmarks: the time of a short and of a long run of one piece of code, so that their difference is
// free of whatever surrounds it. Each is written out in assembly: the compiler must neither drop nor pad
// anything.
#pragma once

#include "isa.hpp"

namespace liteattention_rocm {
namespace calibration {

// Both clocks of the chip: s_memtime counts core clocks, s_memrealtime a constant 100 MHz.
struct Instant {
  uint64_t core, reference;
};
LRA_DEVICE Instant now() {
  Instant instant;
  asm volatile("s_memtime %0\n s_memrealtime %1\n s_waitcnt lgkmcnt(0)"
               : "=&s"(instant.core), "=&s"(instant.reference)::"memory");
  return instant;
}

// What a wave writes of its two runs.
struct RunRecord {
  Instant begin, end;
};

struct Arguments {
  RunRecord* records;      // [workgroup, wave, run]
  const uint32_t* memory;  // zeros, or the links of a chain, see `calibrate_l2_latency`
  int32_t passes;          // the last one is recorded; those before fill caches and raise the clock
  int32_t links;           // that a pass of calibrate_l2_latency walks through before it measures
};

// Copies of the code in the two runs. calibration/microbenchmarks.py divides by their difference.
#define LRA_SHORT_RUN "64"
#define LRA_LONG_RUN "320"

// One run. `body` may use v64 to v127 and s40 to s47, %[address] (a VGPR) and %[base] (an SGPR pair), and
// begins at a multiple of 64 bytes plus 24; `before` comes ahead of the first clock: no register lasts from
// one run to the next.
#define LRA_RUN(record, count, before, body)                                                                 \
  asm volatile("s_waitcnt vmcnt(0) lgkmcnt(0)\n" before                                                      \
               ".p2align 6\n s_memrealtime %[r0]\n s_memtime %[c0]\n s_waitcnt lgkmcnt(0)\n s_nop 0\n"       \
               ".rept " count "\n" body ".endr\n"                                                            \
               "s_waitcnt vmcnt(0) lgkmcnt(0)\n"                                                             \
               "s_memtime %[c1]\n s_memrealtime %[r1]\n s_waitcnt lgkmcnt(0)\n"                              \
               : [c0] "=&s"(record.begin.core), [r0] "=&s"(record.begin.reference),                          \
                 [c1] "=&s"(record.end.core), [r1] "=&s"(record.end.reference)                               \
               : [address] "v"(address), [base] "s"(base)                                                    \
               : "memory", "scc", "s40", "s41", "s42", "s43", "s44", "s45", "s46", "s47", LRA_VECTORS(6),    \
                 LRA_VECTORS(7), LRA_VECTORS(8), LRA_VECTORS(9), LRA_VECTORS(10), LRA_VECTORS(11), "v64",    \
                 "v65", "v66", "v67", "v68", "v69", "v120", "v121", "v122", "v123", "v124", "v125", "v126",  \
                 "v127")
#define LRA_VECTORS(tens)                                                                                    \
  "v" #tens "0", "v" #tens "1", "v" #tens "2", "v" #tens "3", "v" #tens "4", "v" #tens "5", "v" #tens "6",   \
      "v" #tens "7", "v" #tens "8", "v" #tens "9"

LRA_DEVICE void write(const Arguments& arguments, int waves, const RunRecord& shorter,
                      const RunRecord& longer) {
  const int wave = isa::uniform(__builtin_amdgcn_workitem_id_x() / 64);
  RunRecord* records = arguments.records + (__builtin_amdgcn_workgroup_id_x() * waves + wave) * 2;
  if (isa::lane() != 0) return;
  records[0] = shorter;
  records[1] = longer;
}

// A kernel of `waves` waves. `setup` may set the per-lane `address`.
#define LRA_MICROBENCHMARK(name, waves, setup, before, body)                                                 \
  extern "C" LRA_KERNEL __attribute__((amdgpu_flat_work_group_size(64 * (waves), 64 * (waves)))) void        \
  calibrate_##name(Arguments arguments) {                                                                    \
    const uint32_t* base = arguments.memory;                                                                 \
    const int thread = __builtin_amdgcn_workitem_id_x();                                                     \
    uint32_t address = 0;                                                                                    \
    RunRecord shorter, longer;                                                                               \
    setup;                                                                                                   \
    for (int pass = 0; pass < arguments.passes; ++pass) {                                                    \
      __builtin_amdgcn_s_barrier();                                                                          \
      LRA_RUN(shorter, LRA_SHORT_RUN, before, body);                                                         \
      __builtin_amdgcn_s_barrier();                                                                          \
      LRA_RUN(longer, LRA_LONG_RUN, before, body);                                                           \
    }                                                                                                        \
    (void)thread;                                                                                            \
    write(arguments, waves, shorter, longer);                                                                \
  }

// One wave a SIMD, or two where said.
LRA_MICROBENCHMARK(vector, 4, , "v_mov_b32 v64, 0\n", "v_add_f32_e32 v64, v64, v64\n")
LRA_MICROBENCHMARK(stamp_pair, 4, , "", "s_memtime s[40:41]\n s_waitcnt lgkmcnt(0)\n")
#define LRA_EIGHT(line)                                                                                      \
  line("64") line("65") line("66") line("67") line("68") line("69") line("70") line("71")
#define LRA_EXP(v) "v_exp_f32_e32 v" v ", v72\n"
#define LRA_MUL(v) "v_mul_lo_u32 v" v ", v72, v73\n"
#define LRA_ADD(v) "v_add_f32_e32 v" v ", v72, v73\n"
LRA_MICROBENCHMARK(transcendental, 4, , "v_mov_b32 v72, 0\n", LRA_EIGHT(LRA_EXP))
LRA_MICROBENCHMARK(integer_product, 4, , "v_mov_b32 v72, 0\n v_mov_b32 v73, 0\n", LRA_EIGHT(LRA_MUL))
// 64 bytes, begun 24 bytes into a window of 32: two of the seven long instructions cross into the next.
#define LRA_SHORT_ADD "v_add_f32_e32 v64, v64, v64\n"
#define LRA_LONG_ADD "v_add_f32_e64 v64, v64, v64\n"
LRA_MICROBENCHMARK(straddle, 4, , "v_mov_b32 v64, 0\n",
                   LRA_SHORT_ADD LRA_LONG_ADD LRA_LONG_ADD LRA_LONG_ADD LRA_LONG_ADD LRA_LONG_ADD LRA_LONG_ADD
                       LRA_LONG_ADD LRA_SHORT_ADD)

// Matrix products on v72 to v75 (zeros).
#define LRA_ZERO_OPERANDS                                                                                    \
  "v_mov_b32 v72, 0\n v_mov_b32 v73, 0\n v_mov_b32 v74, 0\n v_mov_b32 v75, 0\n s_nop 1\n"
#define LRA_MATRIX16(d) "v_mfma_f32_16x16x16_bf16 v[" d "], v[72:73], v[74:75], v[" d "]\n"
#define LRA_MATRIX32(d) "v_mfma_f32_32x32x8_bf16 v[" d "], v[72:73], v[74:75], v[" d "]\n"
#define LRA_FOUR16 LRA_MATRIX16("80:83") LRA_MATRIX16("84:87") LRA_MATRIX16("88:91") LRA_MATRIX16("92:95")
LRA_MICROBENCHMARK(matrix_16x16x16, 4, , LRA_ZERO_OPERANDS, LRA_FOUR16)
LRA_MICROBENCHMARK(matrix_16x16x16_dependent, 4, , LRA_ZERO_OPERANDS, LRA_MATRIX16("80:83"))
LRA_MICROBENCHMARK(matrix_32x32x8, 4, , LRA_ZERO_OPERANDS, LRA_MATRIX32("80:95") LRA_MATRIX32("96:111"))
// A product, then eight VALU instructions: more than its passes hide.
LRA_MICROBENCHMARK(matrix_then_vector, 4, , LRA_ZERO_OPERANDS, LRA_MATRIX16("80:83") LRA_EIGHT(LRA_ADD))
LRA_MICROBENCHMARK(matrix_then_vector_two_waves, 8, , LRA_ZERO_OPERANDS,
                   LRA_MATRIX16("80:83") LRA_EIGHT(LRA_ADD))
LRA_MICROBENCHMARK(matrix_then_packed, 4, , LRA_ZERO_OPERANDS,
                   LRA_MATRIX16("80:83") "v_pk_mul_f32 v[64:65], v[72:73], v[74:75]\n")

LRA_MICROBENCHMARK(barrier, 4, , "", "s_barrier\n")
LRA_MICROBENCHMARK(branch_taken, 4, , "", "s_branch 1\n s_nop 0\n")
LRA_MICROBENCHMARK(branch_not_taken, 4, , "", "s_cmp_eq_u32 s40, s40\n s_cbranch_scc0 1\n")

// Memory of 16 waves: each reads 1 KiB of its own, 16 bytes a lane, in order: no bank conflicts, L1 hits.
#define LRA_LDS_BYTES 16384
#define LRA_LDS_SETUP                                                                                        \
  alignas(16) LRA_SHARED uint32_t lds[LRA_LDS_BYTES / 4];                                                    \
  for (int i = thread; i < LRA_LDS_BYTES / 4; i += __builtin_amdgcn_workgroup_size_x()) lds[i] = 0;          \
  isa::lds_barrier();                                                                                        \
  address = reinterpret_cast<uintptr_t>((__attribute__((address_space(3))) uint32_t*)lds)
#define LRA_LDS_READ(first, last) "s_waitcnt lgkmcnt(7)\n ds_read_b128 v[" first ":" last "], %[address]\n"
#define LRA_EIGHT_QUADS(line)                                                                                \
  line("64", "67") line("68", "71") line("72", "75") line("76", "79") line("80", "83") line("84", "87")      \
      line("88", "91") line("92", "95")
LRA_MICROBENCHMARK(lds_read_b128, 16, LRA_LDS_SETUP + thread * 16, "", LRA_EIGHT_QUADS(LRA_LDS_READ))
LRA_MICROBENCHMARK(lds_latency, 1, LRA_LDS_SETUP, "v_mov_b32 v64, %[address]\n",
                   "ds_read_b32 v64, v64\n s_waitcnt lgkmcnt(0)\n")
#define LRA_L1_READ(first, last)                                                                             \
  "s_waitcnt vmcnt(7)\n global_load_dwordx4 v[" first ":" last "], %[address], %[base]\n"
LRA_MICROBENCHMARK(l1_read_b128, 16, address = thread * 16, "", LRA_EIGHT_QUADS(LRA_L1_READ))
LRA_MICROBENCHMARK(l1_latency, 1, , "v_mov_b32 v64, 0\n",
                   "global_load_dword v64, v64, %[base]\n s_waitcnt vmcnt(0)\n")
LRA_MICROBENCHMARK(scalar_latency, 1, , "s_mov_b32 s40, 0\n",
                   "s_load_dword s40, %[base], s40\n s_waitcnt lgkmcnt(0)\n")

// Word i·32 of memory holds the byte offset of the next line's word. A walk over all links leaves the first
// ones in L2 alone. The long run begins where the short one ended.
extern "C" LRA_KERNEL __attribute__((amdgpu_flat_work_group_size(64, 64))) void
calibrate_l2_latency(Arguments arguments) {
  const uint32_t* base = arguments.memory;
  RunRecord shorter, longer;
  for (int pass = 0; pass < arguments.passes; ++pass) {
    uint32_t address = 0;
    for (int i = 0; i < arguments.links; ++i) address = base[address / 4];
    LRA_RUN(shorter, LRA_SHORT_RUN, "v_mov_b32 v64, %[address]\n",
            "global_load_dword v64, v64, %[base]\n s_waitcnt vmcnt(0)\n");
    LRA_RUN(longer, LRA_LONG_RUN, "v_mov_b32 v64, 0x2000\n",
            "global_load_dword v64, v64, %[base]\n s_waitcnt vmcnt(0)\n");
  }
  write(arguments, 1, shorter, longer);
}

}  // namespace calibration
}  // namespace liteattention_rocm
