R"(
// Registers. Vectors in fours where MFMAs use them.
.set O, 0            // O[q][d] at O + 32 q + 4 d
.set Q, 96           // Q[q][step] at Q + 16 q + 4 step
.set S, 144          // S[q][t] at S + 16 q + 4 t; P takes the first two of the four
.set STAGED, 192     // rows on their way from memory to LDS
.set RING, 208       // fragments on their way from LDS to the matrix pipe
.set T, RING         // outside the matrix phase: temporaries
.set M, 228          // running maximum of the scores
.set NEGM, 231       // reference exponent, negated
.set SUM, 234
.set READ_V, 237
.set READ_K, 238     // even and odd steps
.set DEPOSIT, 240
.set OFFSET, 241
.set GROUP4, 242
.set SWAP, 243
.set ROW, 244
.set X, 245          // results of cross-lane exchange

.set BUFFER, 36      // s[36:39]
.set ROW_BYTES, 40
.set STEP_BYTES, 41
.set ROW_STEP, 42
.set REMAINING, 43   // kv rows from this tile on
.set SECOND, 44
.set SCALE, 45
.set TILE_BYTES, 46
.set ROWS, 47
.set TMP, 48
.set ULP, 49
.set LOW, 50
.set HIGH, 51
.set ROUND, 52
.set LIMIT, 53
.set EXTREME, 60     // s[60:61]: lanes with a row whose scores are large
.set RISES, 54       // s[54:59]: per query tile, the lanes whose maximum rose

.macro mma c, a, b
  v_mfma_f32_16x16x16_bf16 v[\c:\c+3], v[\a:\a+1], v[\b:\b+1], v[\c:\c+3]
.endm
.macro mma_first c, a, b
  v_mfma_f32_16x16x16_bf16 v[\c:\c+3], v[\a:\a+1], v[\b:\b+1], 0
.endm

// ---- matrix phase: steps 0..15 are O += V P, steps 16..31 are S = K Q
.macro read_fragment step
  .set slot, RING + 4 * ((\step) - (\step) / 5 * 5)
  .if (\step) < 16
    ds_read_b128 v[slot:slot+3], v[READ_V] offset:1024*(\step)
  .else
    ds_read_b128 v[slot:slot+3], v[READ_K+((\step)&1)] offset:1024*((\step)-16)
  .endif
.endm

.macro multiply step
  .set slot, RING + 4 * ((\step) - (\step) / 5 * 5)
  .if (\step) < 16
    .irp q, 0, 1, 2
      mma O+32*\q+8*((\step)&3), slot, S+16*\q+4*((\step)/4)
    .endr
    .irp q, 0, 1, 2
      mma O+32*\q+8*((\step)&3)+4, slot+2, S+16*\q+4*((\step)/4)
    .endr
  .else
    .irp q, 0, 1, 2
      .if ((\step)&3) == 0
        mma_first S+16*\q+((\step)-16), slot, Q+16*\q
      .else
        mma S+16*\q+4*(((\step)-16)/4), slot, Q+16*\q+4*((\step)&3)
      .endif
    .endr
    .irp q, 0, 1, 2
      mma S+16*\q+4*(((\step)-16)/4), slot+2, Q+16*\q+4*((\step)&3)+2
    .endr
  .endif
.endm

.macro read_ahead first
  .irp i, 0, 1, 2, 3
    read_fragment \first+\i
  .endr
.endm

.macro multiply_steps first, last
  .set step, \first
  .rept \last-\first
    .if step + 4 <= \last
      read_fragment step+4
      s_waitcnt lgkmcnt(4)
    .else
      s_waitcnt lgkmcnt(\last-step)
    .endif
    multiply step
    .set step, step+1
  .endr
  s_waitcnt lgkmcnt(0)
.endm

// ---- stream
// Fetches up to 64 of the s[ROWS] rows that are left, none for none. \tail is where the code for a part-filled
// tile is, which comes back to \back.
.macro fetch tail, back
  s_min_i32 s[ROWS], s[ROWS], 64
  s_sub_i32 s[TMP], s[ROWS], 1
  s_mul_i32 s[TMP], s[TMP], s[ROW_BYTES]
  s_add_u32 s[TMP], s[TMP], 256
  s_cmp_gt_i32 s[ROWS], 0
  s_cselect_b32 s[BUFFER+2], s[TMP], 0
  v_mov_b32 v[T], v[OFFSET]
  v_add_u32 v[T+1], s[STEP_BYTES], v[OFFSET]
  v_add_u32 v[T+2], s[STEP_BYTES], v[T+1]
  v_add_u32 v[T+3], s[STEP_BYTES], v[T+2]
  s_cmp_lt_i32 s[ROWS], 64
  s_cbranch_scc1 \tail
\back:
  .irp i, 0, 1, 2, 3
    buffer_load_dwordx4 v[STAGED+4*\i:STAGED+4*\i+3], v[T+\i], s[BUFFER:BUFFER+3], 0 offen
  .endr
  s_add_u32 s[BUFFER], s[BUFFER], s[TILE_BYTES]
  s_addc_u32 s[BUFFER+1], s[BUFFER+1], 0
.endm

// Rows beyond the end are out of bounds by index as well: where rows overlap, bytes can't tell them apart.
.macro fetch_tail back
  v_mov_b32 v[T+4], 0x80000000
  .irp i, 0, 1, 2, 3
    v_cmp_gt_i32 vcc, s[ROWS], v[ROW]
    s_sub_i32 s[ROWS], s[ROWS], s[ROW_STEP]
    s_nop 0
    v_cndmask_b32 v[T+\i], v[T+4], v[T+\i], vcc
  .endr
  s_branch \back
.endm

.macro deposit_key
  .irp i, 0, 1, 2, 3
    ds_write_b128 v[DEPOSIT], v[STAGED+4*\i:STAGED+4*\i+3] offset:4096*\i
  .endr
.endm

.macro deposit_value
  .irp i, 0, 1, 2, 3
    v_perm_b32 v[T+4*\i], v[STAGED+4+\i], v[STAGED+\i], s[LOW]
    v_perm_b32 v[T+4*\i+1], v[STAGED+12+\i], v[STAGED+8+\i], s[LOW]
    v_perm_b32 v[T+4*\i+2], v[STAGED+4+\i], v[STAGED+\i], s[HIGH]
    v_perm_b32 v[T+4*\i+3], v[STAGED+12+\i], v[STAGED+8+\i], s[HIGH]
    ds_write_b128 v[DEPOSIT], v[T+4*\i:T+4*\i+3] offset:1024*\i
  .endr
.endm

.macro deposit key, back
  s_waitcnt vmcnt(0)
  s_cmp_eq_u32 s[SECOND], 0
  s_cbranch_scc1 \key
  deposit_value
\back:
  v_xor_b32 v[DEPOSIT], 0x4000, v[DEPOSIT]
.endm

// ---- softmax
.macro mask
  v_mov_b32 v[T], 0xff800000
  .set i, 0
  .rept 16
    s_sub_i32 s[TMP], s[REMAINING], 16*(i/4)+(i&3)
    v_cmp_gt_i32 vcc, s[TMP], v[GROUP4]
    s_nop 1
    .irp q, 0, 1, 2
      v_cndmask_b32 v[S+16*\q+i], v[T], v[S+16*\q+i], vcc
    .endr
    .set i, i+1
  .endr
.endm

.macro lane_maximum
  .irp q, 0, 1, 2
    v_max3_f32 v[X+\q], v[S+16*\q], v[S+16*\q+1], v[S+16*\q+2]
    .set i, 3
    .rept 6
      v_max3_f32 v[X+\q], v[X+\q], v[S+16*\q+i], v[S+16*\q+i+1]
      .set i, i+2
    .endr
  .endr
  .irp q, 0, 1, 2
    v_max3_f32 v[T+16+\q], v[X+\q], v[S+16*\q+15], v[M+\q]
  .endr
  .irp q, 0, 1, 2
    ds_swizzle_b32 v[X+\q], v[T+16+\q] offset:0x401F
  .endr
.endm

.macro half_maximum
  .irp q, 0, 1, 2
    v_max_f32 v[T+16+\q], v[T+16+\q], v[X+\q]
  .endr
  .irp q, 0, 1, 2
    ds_bpermute_b32 v[X+\q], v[SWAP], v[T+16+\q]
  .endr
.endm

.macro raise
  .irp q, 0, 1, 2
    s_cmp_lg_u64 s[RISES+2*\q:RISES+2*\q+1], 0
    s_cbranch_scc0 1f
    v_sub_f32 v[T+1], v[M+\q], v[X+\q]
    v_mul_f32 v[T], s[SCALE], v[X+\q]
    v_mul_f32 v[T+1], s[SCALE], v[T+1]
    v_exp_f32 v[T+1], v[T+1]
    v_cmp_lt_f32 vcc, s[LIMIT], |v[T]|
    s_or_b64 s[EXTREME:EXTREME+1], s[EXTREME:EXTREME+1], vcc
    v_mov_b32 v[M+\q], v[X+\q]
    v_fma_f32 v[NEGM+\q], |v[T]|, s[ULP], -v[T]
    v_mul_f32 v[SUM+\q], v[T+1], v[SUM+\q]
    .set i, 0
    .rept 32
      v_mul_f32 v[O+32*\q+i], v[T+1], v[O+32*\q+i]
      .set i, i+1
    .endr
1:
  .endr
.endm

.macro exponents
  .irp q, 0, 1, 2
    .set i, 0
    .rept 16
      v_fma_f32 v[S+16*\q+i], v[S+16*\q+i], s[SCALE], v[NEGM+\q]
      .set i, i+1
    .endr
  .endr
.endm

.macro extreme_exponents
  .irp q, 0, 1, 2
    .set i, 0
    .rept 16
      v_sub_f32 v[S+16*\q+i], v[S+16*\q+i], v[M+\q]
      v_mul_f32 v[S+16*\q+i], s[SCALE], v[S+16*\q+i]
      .set i, i+1
    .endr
  .endr
.endm

.macro probabilities
  .set i, 0
  .rept 48
    v_exp_f32 v[S+i], v[S+i] clamp
    .set i, i+1
  .endr
  .set i, 0
  .rept 16
    .irp q, 0, 1, 2
      v_add_f32 v[SUM+\q], v[SUM+\q], v[S+16*\q+i]
    .endr
    .set i, i+1
  .endr
.endm

.macro round x, tmp
  .if %[mode] == 0
    v_bfe_u32 v[\tmp], v[\x], 16, 1
    v_add3_u32 v[\x], v[\x], v[\tmp], s[ROUND]
  .elseif %[mode] == 1
    v_add_u32 v[\x], s[ROUND], v[\x]
  .endif
.endm

.macro pack
  .set i, 0
  .rept 12
    .irp r, 0, 1, 2, 3
      round S+4*i+\r, T+16+\r
    .endr
    v_perm_b32 v[S+4*i], v[S+4*i+1], v[S+4*i], s[HIGH]
    v_perm_b32 v[S+4*i+1], v[S+4*i+3], v[S+4*i+2], s[HIGH]
    .set i, i+1
  .endr
.endm

// ==== program
  s_setreg_imm32_b32 hwreg(HW_REG_MODE, 8, 1), 0
  s_mov_b32 s[BUFFER+3], 0x00020000
  s_lshl_b32 s[TILE_BYTES], s[ROW_BYTES], 6
  s_mov_b32 s[ULP], 0x34000000
  s_mov_b32 s[LIMIT], 0x45800000
  s_mov_b64 s[EXTREME:EXTREME+1], 0
  s_mov_b32 s[LOW], 0x05040100
  s_mov_b32 s[HIGH], 0x07060302
  .if %[mode] == 0
    s_movk_i32 s[ROUND], 0x7fff
  .elseif %[mode] == 1
    s_mov_b32 s[ROUND], 0x8000
  .endif
  .set i, 0
  .rept 96
    v_mov_b32 v[O+i], 0
    .set i, i+1
  .endr
  .irp q, 0, 1, 2
    v_mov_b32 v[M+\q], 0xff7fffff
    v_mov_b32 v[NEGM+\q], 0x7f000000
    v_mov_b32 v[SUM+\q], 0
  .endr
  s_mov_b32 s[ROWS], s[REMAINING]
  fetch 20f, 21
  deposit 22f, 23
  s_sub_i32 s[ROWS], s[REMAINING], 64
  fetch 24f, 25
  s_waitcnt lgkmcnt(0)
  s_barrier
  s_cmp_eq_u32 s[SECOND], 0
  s_cbranch_scc1 3f
  s_barrier
3:
  s_setprio 1
  read_ahead 16
  multiply_steps 16, 31
  s_setprio 2
  s_barrier
  multiply 31

4:
  s_setprio 0
  v_xor_b32 v[READ_V], 0x4000, v[READ_V]
  v_xor_b32 v[READ_K], 0x4000, v[READ_K]
  v_xor_b32 v[READ_K+1], 0x4000, v[READ_K+1]
  s_cmp_lt_i32 s[REMAINING], 64
  s_cbranch_scc1 26f
27:
  .p2align 3
  lane_maximum
  s_cmp_le_i32 s[REMAINING], 64
  s_cbranch_scc1 28f
  deposit 30f, 31
  s_waitcnt lgkmcnt(4)
  half_maximum
  s_sub_i32 s[ROWS], s[REMAINING], 128
  fetch 32f, 33
29:
  s_waitcnt lgkmcnt(0)
  .irp q, 0, 1, 2
    v_max_f32 v[X+\q], v[X+\q], v[T+16+\q]
    v_cmp_gt_f32 s[RISES+2*\q:RISES+2*\q+1], v[X+\q], v[M+\q]
  .endr
  s_or_b64 vcc, s[RISES:RISES+1], s[RISES+2:RISES+3]
  s_or_b64 vcc, vcc, s[RISES+4:RISES+5]
  s_cbranch_scc0 7f
  raise
7:
  s_cmp_lg_u64 s[EXTREME:EXTREME+1], 0
  s_cbranch_scc1 34f
  .p2align 3
  exponents
35:
  probabilities
  .p2align 3
  pack
  read_ahead 0
  s_sub_i32 s[REMAINING], s[REMAINING], 64
  s_cmp_le_i32 s[REMAINING], 0
  s_cbranch_scc1 8f
  s_waitcnt lgkmcnt(4)
  s_barrier
  s_setprio 1
  multiply_steps 0, 31
  s_setprio 2
  s_barrier
  multiply 31
  s_branch 4b

20:
  fetch_tail 21b
22:
  deposit_key
  s_branch 23b
24:
  fetch_tail 25b
26:
  mask
  s_branch 27b
28:
  s_waitcnt lgkmcnt(0)
  half_maximum
  s_branch 29b
30:
  deposit_key
  s_branch 31b
32:
  fetch_tail 33b
34:
  extreme_exponents
  s_branch 35b

8:
  s_cmp_lg_u32 s[SECOND], 0
  s_cbranch_scc1 9f
  s_barrier
9:
  multiply_steps 0, 15
  multiply 15
  s_waitcnt vmcnt(0)
  s_nop 7
.irp name, mma, mma_first, read_fragment, multiply, read_ahead, multiply_steps, fetch, fetch_tail, deposit_key, deposit_value, deposit, mask, lane_maximum, half_maximum, raise, exponents, extreme_exponents, probabilities, round, pack
  .purgem \name
.endr
)"
