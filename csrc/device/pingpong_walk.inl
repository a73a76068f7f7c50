R"(
// The walk through skip lists, as macros of pingpong_loop.inl and on its registers: which tile comes next, who
// takes part in the current one, and who wants it.

// What goes behind MFMAs of S = K Q, four of each step's six: the walk moves on by a tile, without a branch.
// Takes the tile after the next one: the lowest bit of the open word; the word is empty only at the end.
// Then what the softmax phase wants to know of the tile whose scores these are.
.set TAKEN, 25
.macro walk_behind n
  .set q, ((\n) - 7) / 2
  .if (\n) == 0
    s_mov_b32 s[REMAINING], s[NEXT]
  .elseif (\n) == 1
    s_mov_b32 s[NEXT], s[AFTER]
  .elseif (\n) == 2
    s_cmp_lg_u32 s[BITS], 0
  .elseif (\n) == 3
    s_cselect_b32 s[AFTER], -1, 0
  .elseif (\n) == 4
    s_ff1_i32_b32 s[TMP], s[BITS]
  .elseif (\n) == 5
    s_and_b32 s[TMP], s[TMP], 31
  .elseif (\n) == 6
    s_bitset0_b32 s[BITS], s[TMP]
  .elseif ((\n) < 13) && ((\n) & 1)
    s_bitcmp1_b32 s[LIST+q], s[TMP]
  .elseif (\n) < 13
    s_addc_u32 s[QUEUE+q], s[QUEUE+q], s[QUEUE+q]
  .elseif (\n) == 13
    s_xor_b32 s[TMP], s[TMP], s[MIRROR]
  .elseif (\n) == 14
    s_lshl_b32 s[ROWS], s[WORD], 3  // 32 tiles for 4 bytes
  .elseif (\n) == 15
    s_add_u32 s[TMP], s[TMP], s[ROWS]
  .elseif (\n) == 16
    s_mul_i32 s[BUFFER], s[TMP], s[TILE_BYTES]
  .elseif (\n) == 17
    s_mul_hi_u32 s[BUFFER+1], s[TMP], s[TILE_BYTES]
  .elseif (\n) == 18
    s_add_u32 s[BUFFER], s[BUFFER], s[TENSOR]
  .elseif (\n) == 19
    s_addc_u32 s[BUFFER+1], s[BUFFER+1], s[TENSOR+1]
  .elseif (\n) == 20
    s_lshl_b32 s[TMP], s[TMP], 6
  .elseif (\n) == 21
    s_sub_i32 s[TMP], s[SEQUENCE], s[TMP]
  .elseif (\n) == 22
    s_and_b32 s[AFTER], s[AFTER], s[TMP]
  .elseif (\n) == 23
    s_cmp_eq_u32 s[BITS], 0
  .elseif (\n) == 24
    s_cselect_b32 s[EVENT], 1, 0
  .elseif (\n) == TAKEN
    s_sub_i32 s[TMP], s[SEQUENCE], s[REMAINING]
  .elseif (\n) == 26
    s_lshr_b32 s[ROWS], s[TMP], 11
  .elseif (\n) == 27
    s_lshl_b32 s[ROWS], s[ROWS], 2
  .elseif (\n) == 28
    s_cmp_lg_u32 s[ROWS], s[VOTED]
  .elseif (\n) == 29
    s_cselect_b32 s[EVENT], 1, s[EVENT]
  .elseif (\n) == 30
    s_cmp_lt_i32 s[REMAINING], 64
  .elseif (\n) == 31
    s_cselect_b32 s[EVENT], 1, s[EVENT]
  .elseif (\n) == 32
    s_lshr_b32 s[TMP], s[TMP], 6
  .elseif (\n) == 33
    s_lshl_b32 s[TMP], 1, s[TMP]
  .elseif (\n) < 40
    .set q, ((\n) - 34) / 2
    .if ((\n) & 1) == 0
      s_bitcmp1_b32 s[QUEUE+q], 2
    .else
      s_cselect_b32 s[BIT+q], s[TMP], 0
    .endif
  .elseif (\n) == 40
    s_and_b32 s[TMP], s[BIT], s[BIT+1]
  .elseif (\n) == 41
    s_and_b32 s[TMP], s[TMP], s[BIT+2]
  .elseif (\n) == 42
    s_cselect_b32 s[EVENT], s[EVENT], 1
  .endif
.endm

// Before the loop: takes a tile.
.macro take_first open, opened
  .if %[lists]
    open_word \open, \opened
    .set n, 0
    .rept TAKEN
      walk_behind n
      .set n, n+1
    .endr
  .endif
.endm

// Where the open word is empty, opens words until one has a tile. There is none behind the last.
.macro open_word open, opened
\open:
  s_cmp_lg_u32 s[BITS], 0
  s_cbranch_scc1 \opened
  s_cmp_eq_u32 s[WORD], s[FINAL_WORD]
  s_cbranch_scc1 \opened
  s_add_u32 s[WORD], s[WORD], s[WORD_STEP]
  s_load_dword s[BITS], s[LISTS:LISTS+1], s[WORD]
  s_add_u32 s[ROWS], s[WORD], s[BLOCK]
  s_load_dword s[RISES], s[LISTS:LISTS+1], s[ROWS]
  s_add_u32 s[TMP], s[WORD], s[BLOCK+1]
  s_load_dword s[RISES+1], s[LISTS:LISTS+1], s[TMP]
  .irp q, 0, 1, 2
    s_max_i32 s[RISES+2], s[ROW_OF+\q], 0
    s_add_u32 s[RISES+2], s[RISES+2], s[WORD]
    s_load_dword s[LIST+\q], s[LISTS:LISTS+1], s[RISES+2]
  .endr
  s_waitcnt lgkmcnt(0)
  s_or_b32 s[BITS], s[BITS], s[RISES]
  s_or_b32 s[BITS], s[BITS], s[RISES+1]
  s_cmp_eq_u32 s[WORD], 0
  s_cselect_b32 s[TMP], s[EMPTY], 0
  .irp q, 0, 1, 2
    s_bfe_u32 s[ROWS], s[TMP], 0x10000+\q
    s_or_b32 s[LIST+\q], s[LIST+\q], s[ROWS]
    s_ashr_i32 s[ROWS], s[ROW_OF+\q], 31
    s_andn2_b32 s[LIST+\q], s[LIST+\q], s[ROWS]
  .endr
  s_lshr_b32 s[TMP], s[TMP], 3
  s_or_b32 s[BITS], s[BITS], s[TMP]
  s_cmp_eq_u32 s[WORD], s[TAIL_WORD]
  s_cselect_b32 s[TMP], s[TAIL_MASK], -1
  s_and_b32 s[BITS], s[BITS], s[TMP]
  s_cmp_eq_u32 s[MIRROR], 0
  s_cbranch_scc1 \open
  s_brev_b32 s[BITS], s[BITS]
  .irp q, 0, 1, 2
    s_brev_b32 s[LIST+\q], s[LIST+\q]
  .endr
  s_branch \open
\opened:
.endm

// Query tiles that don't visit the tile have scores of -Inf.
.macro leave_out
  .irp q, 0, 1, 2
    s_cmp_lg_u32 s[BIT+\q], 0
    s_cbranch_scc1 1f
    .set i, 0
    .rept 16
      v_mov_b32 v[S+16*\q+i], 0xff800000
      .set i, i+1
    .endr
1:
  .endr
.endm

// A query tile wants the tile unless, for all rows that exist, the tile's maximum X lies more than the
// threshold below M. A NaN threshold stands for -Inf: every listed tile is wanted.
.macro vote
  .if %[lists]
    .irp q, 0, 1, 2
      v_sub_f32 v[T+16+\q], v[X+\q], v[M+\q]
      v_max_f32 v[X+\q], v[X+\q], v[M+\q]
      v_mul_f32 v[T+16+\q], s[SCALE], v[T+16+\q]
      v_cmp_nge_f32 vcc, s[THRESHOLD], v[T+16+\q]
      s_and_b32 s[TMP], vcc_lo, s[VOTERS+\q]
      s_cselect_b32 s[TMP], s[BIT+\q], 0
      s_or_b32 s[KEPT+\q], s[KEPT+\q], s[TMP]
    .endr
  .endif
.endm
)"
