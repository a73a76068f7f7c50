R"(
// The loop of pingpong.hpp, as a program for the assembler: one instance for a kernel, %[mode] its rounding.
// %[lists] is 1 where the walk and the votes are those of skip lists, see pingpong_skip.hip.
// All registers are assigned here; pingpong.hpp pins the values that go in and come out.

// ---- registers: v[0:247]
.set O, 0            // O^T[q][d] at O + 32 q + 4 d
.set Q, 96           // Q[q][step] at Q + 16 q + 4 step
.set S, 144          // S^T[q][t] at S + 16 q + 4 t; P^T takes the first two of the four
.set STAGED, 192     // 16: rows of K or V on their way from memory to LDS
.set RING, 208       // 5 x 4: fragments on their way from LDS to the matrix pipe
.set T, RING         // outside the matrix phase: temporaries
.set M, 228          // 3: running maximum of the scores of a query row
.set NEGM, 231       // 3: -M c, rounded up
.set SUM, 234        // 3: of the lane's share of P, unrounded
.set READ_V, 237     // LDS addresses
.set READ_K, 238     // 2: even and odd steps
.set DEPOSIT, 240
.set OFFSET, 241     // of the thread's first chunk in a tile in memory
.set GROUP4, 242     // 4 (lane / 16)
.set SWAP, 243       // 4 (lane xor 32)
.set ROW, 244        // first of the thread's four rows of a tile
.set X, 245          // 3: results of cross-lane exchange; in the matrix phase X is a temporary

// ---- scalars: s[36:61]
.set BUFFER, 36      // 4: what is left of K or V
.set ROW_BYTES, 40   // stride
.set STEP_BYTES, 41  // between the thread's rows
.set ROW_STEP, 42
.set REMAINING, 43   // kv rows from the current tile on
.set SECOND, 44      // 1 in the second group
.set SCALE, 45       // c = scale log2(e)
.set TILE_BYTES, 46
.set ROWS, 47
.set TMP, 48
.set ULP, 49         // 2^-23
.set LOW, 50         // v_perm_b32 selectors of the lower and upper halves
.set HIGH, 51
.set ROUND, 52
.set LIMIT, 53       // 2^12
.set RISES, 54       // 3 x 2: the lanes whose maximum rose, by query tile
.set EXTREME, 60     // 2: lanes with a row whose scores are beyond LIMIT

// ---- scalars of skip lists: s[62:101]. Words are mirrored in a backward walk, so that the next tile is always
// the lowest bit; votes are not.
.set LISTS, 62       // 2: the first block's row of the read list
.set BLOCK, 64       // 2: offset from there of the second and the third block's row
.set ROW_OF, 66      // 3: of the row of each query tile's block; negative: no such query rows
.set WRITTEN, 70     // 2: from a read word to the one to be written
.set TENSOR, 72      // 2: K or V
.set THRESHOLD, 74
.set SEQUENCE, 75    // kv rows
.set MIRROR, 76      // 31 in a backward walk, else 0
.set WORD, 77        // offset of the open word in its row
.set WORD_STEP, 78   // 4 or -4
.set FINAL_WORD, 79  // where the walk ends
.set TAIL_WORD, 80   // the last word of a row, and the bits in it that stand for tiles
.set TAIL_MASK, 81
.set EMPTY, 82       // bits 0 to 2: the query tile's block lists no tile and visits tile 0; 3: any block
.set BITS, 83        // tiles of the open word that any block lists and that were not taken yet
.set LIST, 84        // 3: the open word of each query tile's block
.set QUEUE, 87       // 3: whether each query tile's block lists the tile taken last (bit 0), the one before …
.set KEPT, 90        // 3: votes on tiles of the current tile's word
.set NEXT, 93        // as REMAINING, of the next tile and the one after it, the last one taken; 0: none
.set AFTER, 94
.set BIT, 96         // 3: the current tile's in its word, 0 where it isn't listed
.set VOTERS, 99      // 3: the lanes of the first 16 whose query row exists
.set EVENT, 69       // not 0: this softmax phase has something to do beyond the usual, see .Levent
.set VOTED, 95       // offset of the word that KEPT is of

.macro mma c, a, b
  v_mfma_f32_16x16x16_bf16 v[\c:\c+3], v[\a:\a+1], v[\b:\b+1], v[\c:\c+3]
.endm
.macro mma_first c, a, b
  v_mfma_f32_16x16x16_bf16 v[\c:\c+3], v[\a:\a+1], v[\b:\b+1], 0
.endm

// ---- rounding of P: float32 -> bf16, pairs into dwords. A pair (t, q, half) takes so many instructions.
// rtne: x + 0x7FFF + bit 16 of x; rtna: x + 0x8000; then, as in rtz, the upper halves.
.set PARTS, 5 - 2*%[mode]
.macro round_part t, q, half, part
  .set pair, S + 16*(\q) + 4*(\t) + 2*(\half)
  .if (\part) == PARTS-1
    v_perm_b32 v[pair-(\half)], v[pair+1], v[pair], s[HIGH]
  .elseif %[mode] == 1
    v_add_u32 v[pair+(\part)], s[ROUND], v[pair+(\part)]
  .elseif ((\part)&1) == 0
    v_bfe_u32 v[X], v[pair+(\part)/2], 16, 1
  .else
    v_add3_u32 v[pair+(\part)/2], v[pair+(\part)/2], v[X], s[ROUND]
  .endif
.endm

.macro round_tile t
  .irp q, 0, 1, 2
    .irp half, 0, 1
      .set part, 0
      .rept PARTS
        round_part \t, \q, \half, part
        .set part, part+1
      .endr
    .endr
  .endr
.endm

// The n-th instruction of rounding tiles 1 to 3.
.macro round_next n
  .set turn, (\n) / PARTS
  .if turn < 18
    round_part 1 + turn/6, (turn - turn/6*6)/2, turn&1, (\n) - turn*PARTS
  .endif
.endm

// What goes behind a step's six MFMAs of O += V P: tiles 1 to 3 are rounded while the ones before are
// multiplied. In rtna one instruction each. rtne has more: two each, as many as fit where an MFMA leaves a slot
// empty, with the read of a fragment behind the first and the wait for the next step's behind the last.
.macro round_behind step, place
  .if %[mode] == 1
    round_next 6*(\step)+(\place)
  .elseif (%[mode] == 0) && ((\place) < 5)
    .if (\place) > 0
      round_next 9*(\step)+2*(\place)-1
    .endif
    round_next 9*(\step)+2*(\place)
  .endif
.endm

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

// ---- matrix phase: 32 steps of one 16-byte fragment and 6 MFMAs
// Steps 0..15 are O^T += V^T P^T, 4 t + d: kv tile t, dim tiles 2 d and 2 d + 1.
// Steps 16..31 are S^T = K Q^T, 16 + 4 t + d: kv tile t, dim step d.
.macro read_fragment step
  .set into, RING + 4 * ((\step) - (\step) / 5 * 5)
  .if (\step) < 16
    ds_read_b128 v[into:into+3], v[READ_V] offset:1024*(\step)
  .else
    ds_read_b128 v[into:into+3], v[READ_K+((\step)&1)] offset:1024*((\step)-16)
  .endif
.endm

.macro multiply_first step
  .set slot, RING + 4 * ((\step) - (\step) / 5 * 5)
  .irp q, 0, 1, 2
    .if (\step) < 16
      mma O+32*\q+8*((\step)&3), slot, S+16*\q+4*((\step)/4)
      round_behind \step, \q
      .if (%[mode] == 0) && (\q == 0) && (\step + 4 <= final)
        read_fragment \step+4
      .endif
    .elseif ((\step)&3) == 0
      mma_first S+16*\q+((\step)-16), slot, Q+16*\q
    .else
      mma S+16*\q+4*(((\step)-16)/4), slot, Q+16*\q+4*((\step)&3)
    .endif
    .if ((\step) >= 16) && %[lists]
      walk_behind 4*((\step)-16)+\q
    .endif
  .endr
.endm

.macro multiply_second step
  .set slot, RING + 4 * ((\step) - (\step) / 5 * 5)
  .irp q, 0, 1, 2
    .if (\step) < 16
      mma O+32*\q+8*((\step)&3)+4, slot+2, S+16*\q+4*((\step)/4)
      round_behind \step, \q+3
    .else
      mma S+16*\q+4*(((\step)-16)/4), slot+2, Q+16*\q+4*((\step)&3)+2
    .endif
    .if ((\step) >= 16) && (\q == 0) && %[lists]
      walk_behind 4*((\step)-16)+3
    .endif
  .endr
.endm

.macro read_ahead first
  .irp i, 0, 1, 2, 3
    read_fragment \first+\i
  .endr
.endm

// Up to the first half of the last step. Fragments are read four steps ahead; LDS answers a wave in order.
.macro multiply_steps first, last
  .set step, \first
  .set final, \last
  .rept \last-\first
    .if (%[mode] == 0) && (step < 16)
      .if step + 3 <= \last
        s_waitcnt lgkmcnt(3)
      .else
        s_waitcnt lgkmcnt(\last-step)
      .endif
      .p2align 3  // as in the softmax phase
    .elseif step + 4 <= \last
      read_fragment step+4
      s_waitcnt lgkmcnt(4)
    .else
      s_waitcnt lgkmcnt(\last-step)
    .endif
    multiply_first step
    multiply_second step
    .set step, step+1
  .endr
  s_waitcnt lgkmcnt(0)
  multiply_first \last
.endm

// ---- from memory to LDS: the first group carries K, the second V
// Fetches up to 64 of the s[ROWS] rows that are left, none for none. At \tail is the code for a part-filled
// tile, which comes back to \back.
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
  .if %[lists] == 0
    s_add_u32 s[BUFFER], s[BUFFER], s[TILE_BYTES]
    s_addc_u32 s[BUFFER+1], s[BUFFER+1], 0
  .endif
.endm

// The rows to fetch: of the tile that is \behind rows behind the current one, or of the last one taken.
.macro rows_to_fetch behind
  .if %[lists]
    s_mov_b32 s[ROWS], s[AFTER]
  .else
    s_sub_i32 s[ROWS], s[REMAINING], \behind
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

// Four rows of eight head dims become four pairs of cells of four kv rows.
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
// Excludes the kv rows from s[REMAINING] on: a score of -Inf gives P = 0.
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

// ORs the votes on a word's tiles into the written list.
.macro write_votes
  s_add_u32 s[RISES], s[LISTS], s[WRITTEN]
  s_addc_u32 s[RISES+1], s[LISTS+1], s[WRITTEN+1]
  s_mov_b64 exec, 1
  .irp q, 0, 1, 2
    s_cmp_eq_u32 s[KEPT+\q], 0
    s_cbranch_scc1 1f
    s_add_u32 s[RISES+2], s[VOTED], s[ROW_OF+\q]
    v_mov_b32 v[T+16], s[RISES+2]
    v_mov_b32 v[T+17], s[KEPT+\q]
    global_atomic_or v[T+16], v[T+17], s[RISES:RISES+1]
    s_mov_b32 s[KEPT+\q], 0
1:
  .endr
  s_mov_b64 exec, -1
.endm

// The maximum of M and a query row's scores, without M where it votes: over the lane, over lanes 16 apart,
// over lanes 32 apart.
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
    .if %[lists]
      v_max_f32 v[T+16+\q], v[X+\q], v[S+16*\q+15]
    .else
      v_max3_f32 v[T+16+\q], v[X+\q], v[S+16*\q+15], v[M+\q]
    .endif
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

// Where the maximum of a query tile rose, what was summed so far shrinks by 2^((M_old - M_new) c). Tiles in
// which no row rose keep their bits, as the factor would be 1.
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

// P = 2^(S c - M c) with one fma. M c is rounded down, so that the largest score of a row gives at least 1,
// which v_exp_f32's clamp makes exactly 1. The others come out too large by at most 2^(1.5 ulp(M c)), which
// below LIMIT is less than 2^-10 of them.
.macro exponents
  .irp q, 0, 1, 2
    .set i, 0
    .rept 16
      v_fma_f32 v[S+16*\q+i], v[S+16*\q+i], s[SCALE], v[NEGM+\q]
      .set i, i+1
    .endr
  .endr
.endm

// Beyond LIMIT: P = 2^((S - M) c), exact where S = M however large |M|.
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

.macro round_tiles
  round_tile 0
  .if %[mode] == 2  // one instruction a pair: not worth its place behind an MFMA
    round_tile 1
    round_tile 2
    round_tile 3
  .endif
.endm

// ==== program
  s_setreg_imm32_b32 hwreg(HW_REG_MODE, 8, 1), 0  // DX10_CLAMP off: a clamped NaN stays NaN
  .if %[lists]
    s_mov_b32 s[BITS], 0
    s_mov_b32 s[VOTED], -1
    .irp q, 0, 1, 2
      s_mov_b32 s[QUEUE+\q], 0
      s_mov_b32 s[KEPT+\q], 0
    .endr
  .endif
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
    v_mov_b32 v[M+\q], 0xff7fffff     // lowest finite: a row whose scores are all -Inf keeps it,
    v_mov_b32 v[NEGM+\q], 0x7f000000  // and its P are 0
    v_mov_b32 v[SUM+\q], 0
  .endr

  // tile 0 into LDS, tile 1 on its way; the second group starts half an iteration later
  take_first .Lfirst_open%=, .Lfirst_opened%=
  rows_to_fetch 0
  fetch .Lfirst_tail%=, .Lfirst_full%=
  deposit .Lfirst_key%=, .Lfirst_value%=
  take_first .Lsecond_open%=, .Lsecond_opened%=
  rows_to_fetch 64
  fetch .Lsecond_tail%=, .Lsecond_full%=
  .if %[lists]
    open_word .Lthird_open%=, .Lthird_opened%=
  .endif
  s_waitcnt lgkmcnt(0)
  s_barrier
  s_cmp_eq_u32 s[SECOND], 0
  s_cbranch_scc1 .Lstart%=
  s_barrier
.Lstart%=:
  s_setprio 1
  read_ahead 16
  multiply_steps 16, 31
  s_setprio 2
  s_barrier
  multiply_second 31

.Lsoftmax_phase%=:
  s_setprio 0
  v_xor_b32 v[READ_V], 0x4000, v[READ_V]
  v_xor_b32 v[READ_K], 0x4000, v[READ_K]
  v_xor_b32 v[READ_K+1], 0x4000, v[READ_K+1]
  .if %[lists]
    s_cmp_lg_u32 s[EVENT], 0
    s_cbranch_scc1 .Levent%=
  .else
    s_cmp_lt_i32 s[REMAINING], 64
    s_cbranch_scc1 .Lmask%=
  .endif
.Lmasked%=:
  .p2align 3  // instructions of 8 bytes that straddle a fetch window of 32 take longer
  lane_maximum
  .if %[lists]
    s_cmp_le_i32 s[NEXT], 0
  .else
    s_cmp_le_i32 s[REMAINING], 64
  .endif
  s_cbranch_scc1 .Llast_maximum%=
  deposit .Lkey%=, .Lvalue%=
  s_waitcnt lgkmcnt(4)
  half_maximum
  rows_to_fetch 128
  fetch .Ltail%=, .Lfull%=
.Lmaximum%=:
  s_waitcnt lgkmcnt(0)
  .irp q, 0, 1, 2
    v_max_f32 v[X+\q], v[X+\q], v[T+16+\q]
    v_cmp_gt_f32 s[RISES+2*\q:RISES+2*\q+1], v[X+\q], v[M+\q]
  .endr
  vote
  s_or_b64 vcc, s[RISES:RISES+1], s[RISES+2:RISES+3]
  s_or_b64 vcc, vcc, s[RISES+4:RISES+5]
  s_cbranch_scc0 .Lsettled%=
  raise
.Lsettled%=:
  s_cmp_lg_u64 s[EXTREME:EXTREME+1], 0
  s_cbranch_scc1 .Lextreme%=
  .p2align 3
  exponents
.Lexponents%=:
  probabilities
  .p2align 3
  round_tiles
  read_ahead 0
  .if %[lists]
    s_cmp_le_i32 s[NEXT], 0
    s_cbranch_scc1 .Lfinish%=
  .else
    s_sub_i32 s[REMAINING], s[REMAINING], 64
    s_cmp_le_i32 s[REMAINING], 0
    s_cbranch_scc1 .Lfinish%=
  .endif
  s_waitcnt lgkmcnt(4)  // what was deposited is in LDS, the fragments read ahead need not be here
  s_barrier

  // matrix phase; its last three MFMAs run while the other group starts
  s_setprio 1
  multiply_steps 0, 31
  s_setprio 2
  s_barrier
  multiply_second 31
  s_branch .Lsoftmax_phase%=

.Lfinish%=:
  .if %[lists]
    write_votes
  .endif
  s_cmp_lg_u32 s[SECOND], 0
  s_cbranch_scc1 .Llast_product%=
  s_barrier  // the one that the second group had at its start
.Llast_product%=:
  multiply_steps 0, 15
  multiply_second 15
  s_waitcnt vmcnt(0)  // fetches of tiles that aren't there
  s_nop 7             // the compiler doesn't know that MFMAs are running
  s_branch .Lend%=

// ---- out of the way
.Lfirst_tail%=:
  fetch_tail .Lfirst_full%=
.Lfirst_key%=:
  deposit_key
  s_branch .Lfirst_value%=
.Lsecond_tail%=:
  fetch_tail .Lsecond_full%=
.if %[lists] == 0
.Lmask%=:
  mask
  s_branch .Lmasked%=
.endif
.Llast_maximum%=:
  s_waitcnt lgkmcnt(0)
  half_maximum
  s_branch .Lmaximum%=
.Lkey%=:
  deposit_key
  s_branch .Lvalue%=
.Ltail%=:
  fetch_tail .Lfull%=
.Lextreme%=:
  extreme_exponents
  s_branch .Lexponents%=
  .if %[lists]
.Levent%=:  // a part-filled tile, one that not every query tile visits, the first of a word, the last of one
    s_cmp_ge_i32 s[REMAINING], 64
    s_cbranch_scc1 1f
    mask
1:
    leave_out
    s_sub_i32 s[TMP], s[SEQUENCE], s[REMAINING]
    s_lshr_b32 s[TMP], s[TMP], 11
    s_lshl_b32 s[TMP], s[TMP], 2
    s_cmp_eq_u32 s[TMP], s[VOTED]
    s_cbranch_scc1 .Lsame_word%=
    write_votes
    s_mov_b32 s[VOTED], s[TMP]
.Lsame_word%=:
    open_word .Lopen%=, .Lopened%=
    s_branch .Lmasked%=
  .endif
.Lend%=:
.irp name, mma, mma_first, round_part, round_tile, round_tiles, round_next, round_behind
  .purgem \name
.endr
.irp name, read_fragment, read_ahead, multiply_first, multiply_second, multiply_steps
  .purgem \name
.endr
.irp name, fetch, fetch_tail, deposit_key, deposit_value, deposit
  .purgem \name
.endr
.irp name, walk_behind, rows_to_fetch, take_first, open_word, leave_out, vote, write_votes
  .purgem \name
.endr
.irp name, mask, lane_maximum, half_maximum, raise, exponents, extreme_exponents, probabilities
  .purgem \name
.endr
)"
