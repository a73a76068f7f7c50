// Forward attention for gfx942 with AITER's arithmetic: bf16, head dim 128, not causal, any Sq and Skv.
//
// Every result that reaches O or LSE comes from the operation that AITER's fwd_hd128_bf16 kernels do, on the
// operands that they give it, in their order; docs/kernel.md says what that order is. The schedule is that of
// attention.hip, a workgroup of 4 waves and 128 query rows, except that a wave holds its 32 rows as one MFMA
// tile and takes a tile of 64 KV rows in two steps of 32:
//
//   scores      S^T = K·Q^T, a chain of 16 MFMAs
//   softmax     m' = max(S, m); P = 2^fma(S, c, −m'·c); l = ΣP + shrink·l, shrink = 2^((m − m')·c)
//   accumulate  O^T = shrink·O^T, then + V^T·P^T, a chain of 4 MFMAs a tile
//
// At the end O·rcp(l) is rounded; LSE = fma(log2 l, rcp(log2 e), m·scale).
#include "aiter_exact_fragments.hpp"
#include "kv_rows.hpp"

namespace liteattention_rocm {
namespace aiter_exact {
namespace {

constexpr float kLog2E = 0x1.715476p+0f;
constexpr float kLowest = -0x1.fffffep+127f;

using Output = Float16[kDimTiles];

struct Operands {
  Bf16x4 first, second;
};
LRA_DEVICE Operands split(Dword4 chunk) {
  return {__builtin_bit_cast(Bf16x4, Dword2{chunk[0], chunk[1]}),
          __builtin_bit_cast(Bf16x4, Dword2{chunk[2], chunk[3]})};
}
LRA_DEVICE Operands read_operands(const char* lds, int offset) {
  return split(*reinterpret_cast<const Dword4*>(lds + offset));
}

struct Query {
  Operands operands[kDimSteps];
};
LRA_DEVICE Query load_query(BufferResource buffer, int row, int rows, uint32_t row_bytes, int lane) {
  Query query;
  for (int step = 0; step < kDimSteps; ++step) {
    const uint32_t offset = row * row_bytes + operand_chunk(lane, step) * kChunkBytes;
    query.operands[step] = split(isa::buffer_load_b128(buffer, row < rows ? offset : kOutOfBounds));
  }
  return query;
}

LRA_DEVICE Float16 compute_scores(const Query& query, const char* key_lds, int kv_step, int lane) {
  Float16 scores = {};
  for (int step = 0; step < kDimSteps; ++step) {
    const int row = kv_step * kKvRows + lane_column(lane);
    const Operands key = read_operands(key_lds, key_lds_offset(row, operand_chunk(lane, step)));
    scores = isa::mfma_32x32x8_bf16(key.first, query.operands[step].first, scores);
    scores = isa::mfma_32x32x8_bf16(key.second, query.operands[step].second, scores);
  }
  return scores;
}

// Excludes the kv rows from `valid_rows` on.
LRA_DEVICE void mask_scores(Float16& scores, int valid_rows, int lane) {
  for (int i = 0; i < kRegisters; ++i)
    scores[i] = first_row(lane, i / kQuads) + i % 4 < valid_rows ? scores[i] : -__builtin_inff();
}

// v_add_f32 and v_mul_f32 with their operands in this order, which the compiler would exchange: of two NaN
// the first one comes out, and rtz shows it.
LRA_DEVICE float add(float a, float b) {
  float result;
  asm("v_add_f32_e32 %0, %1, %2" : "=v"(result) : "v"(a), "v"(b));
  return result;
}
LRA_DEVICE float multiply(float a, float b) {
  float result;
  asm("v_mul_f32_e32 %0, %1, %2" : "=v"(result) : "v"(a), "v"(b));
  return result;
}
// The wait state between v_exp_f32 and those, which the compiler doesn't know about.
LRA_DEVICE void settle(Float16& exponentials, float& exponential) {
  asm("s_nop 0" : "+v"(exponentials), "+v"(exponential));
}

struct OnlineSoftmax {
  float maximum;  // of the row; the same in both lanes that share it
  float sum;      // of this lane's share of unrounded P

  // Turns scores into P in place and returns the factor by which earlier sums and outputs shrink.
  LRA_DEVICE float update(Float16& scores, float c, int half_swap_address) {
#pragma clang fp contract(off)
    float raised = maximum;
    for (int i = 0; i < kRegisters; i += 2)
      raised = __builtin_fmaxf(__builtin_fmaxf(scores[i], scores[i + 1]), raised);
    raised = __builtin_fmaxf(isa::bpermute(half_swap_address, raised), raised);
    float shrink = isa::exp2(c * (maximum - raised));
    maximum = raised;

    const float offset = c * raised;
    for (int i = 0; i < kRegisters; ++i) scores[i] = isa::exp2(__builtin_fmaf(scores[i], c, -offset));
    settle(scores, shrink);
    float tile_sum = add(scores[1], scores[0]);
    for (int i = 2; i < kRegisters; ++i) tile_sum = add(scores[i], tile_sum);
    sum = add(tile_sum, multiply(shrink, sum));
    return shrink;
  }
};

template <RoundMode kMode>
LRA_DEVICE Bf16x4 probability_operand(const Float16& p, int quad) {
  const int i = 4 * quad;
  return __builtin_bit_cast(
      Bf16x4, Dword2{bf16::pack_output<kMode>(p[i], p[i + 1]), bf16::pack_output<kMode>(p[i + 2], p[i + 3])});
}

template <RoundMode kMode>
LRA_DEVICE void accumulate(Output& output, float shrink, const Float16& probabilities, const char* value_lds,
                           int kv_step, int lane) {
  Bf16x4 p[kQuads];
  for (int quad = 0; quad < kQuads; ++quad) p[quad] = probability_operand<kMode>(probabilities, quad);
  for (int d = 0; d < kDimTiles; ++d) {
    for (int i = 0; i < kRegisters; ++i) output[d][i] = shrink * output[d][i];
    for (int run = 0; run < kQuads / 2; ++run) {
      const Operands value =
          read_operands(value_lds, value_operand_offset(lane, kv_step * (kQuads / 2) + run, d));
      output[d] = isa::mfma_32x32x8_bf16(value.first, p[2 * run], output[d]);
      output[d] = isa::mfma_32x32x8_bf16(value.second, p[2 * run + 1], output[d]);
    }
  }
}

// Divides, rounds and stores one query row, shared by two lanes.
template <RoundMode kMode>
LRA_DEVICE void store_output(const Output& output, float sum, BufferResource buffer, uint32_t row_offset,
                             int lane) {
  const float reciprocal = sum == 0.0f ? 0.0f : isa::rcp(sum);
  for (int d = 0; d < kDimTiles; ++d)
    for (int quad = 0; quad < kQuads; ++quad) {
      Dword2 packed;
      for (int i = 0; i < 2; ++i) {
        // v_pk_mul_f32, reciprocal first: it decides which of two NaN comes out.
        const int at = 4 * quad + 2 * i;
        const Float2 pair = Float2{reciprocal, reciprocal} * Float2{output[d][at], output[d][at + 1]};
        packed[i] = bf16::pack_output<kMode>(pair[0], pair[1]);
      }
      isa::buffer_store_b64(packed, buffer, row_offset + (d * kMfma + first_row(lane, quad)) * 2);
    }
}

template <RoundMode kMode>
LRA_DEVICE void attention(const ForwardArguments& arguments) {
  alignas(kChunkBytes) LRA_SHARED char key_lds[kKeyTileBytes];
  alignas(kChunkBytes) LRA_SHARED char value_lds[kValueTileBytes];

  // MODE before the first float operation: all of them use the scale.
  const float scale = isa::flush_float32_subnormals(arguments.scale);
  const float c = __builtin_bit_cast(float, isa::uniform(__builtin_bit_cast(int, kLog2E* scale)));

  const int thread = __builtin_amdgcn_workitem_id_x();
  const int lane = isa::lane();
  const int half_swap_address = (lane ^ kMfma) * 4;
  const int head = __builtin_amdgcn_workgroup_id_y(), batch = __builtin_amdgcn_workgroup_id_z();
  const int kv_head = head / arguments.heads_per_kv_head;
  const int64_t first = static_cast<int64_t>(__builtin_amdgcn_workgroup_id_x()) * kQueryRowsPerWorkgroup +
                        isa::uniform(thread / kWaveSize) * kMfma;
  // Rows of this wave that exist; a wave past the end still helps to carry K and V.
  const int64_t remaining_rows = arguments.seqlen_q - first;
  const int rows = remaining_rows < 0 ? 0 : remaining_rows < kMfma ? remaining_rows : kMfma;
  const int row = lane_column(lane);

  const uint32_t query_row_bytes = arguments.query_strides.row;
  const Query query =
      load_query(isa::make_buffer(head_base(arguments.query, arguments.query_strides, batch, head) +
                                      first * arguments.query_strides.row,
                                  rows == 0 ? 0 : span_bytes(rows, query_row_bytes)),
                 row, rows, query_row_bytes, lane);

  KvRows key{head_base(arguments.key, arguments.key_strides, batch, kv_head),
             static_cast<uint32_t>(arguments.key_strides.row)};
  KvRows value{head_base(arguments.value, arguments.value_strides, batch, kv_head),
               static_cast<uint32_t>(arguments.value_strides.row)};

  // The lowest maximum whose product with c is finite.
  OnlineSoftmax softmax{__builtin_fmaxf(kLowest, kLowest * isa::rcp(c)), 0.0f};
  Output output = {};

  int remaining = arguments.seqlen_kv;  // KV rows from the current tile on
  int fetch_rows = remaining < kKvRowsPerTile ? remaining : kKvRowsPerTile;
  Fetched next_key = fetch_key(key, fetch_rows, thread);
  Fetched next_value = fetch_value(value, fetch_rows, thread);

  for (; remaining > 0; remaining -= kKvRowsPerTile) {
    isa::lds_barrier();
    deposit_key(next_key, key_lds, thread);
    deposit_value<value_lds_offset>(next_value, value_lds, thread);
    isa::lds_barrier();

    if (remaining > kKvRowsPerTile) {
      key.move(kKvRowsPerTile);
      value.move(kKvRowsPerTile);
      const int behind = remaining - kKvRowsPerTile;
      fetch_rows = behind < kKvRowsPerTile ? behind : kKvRowsPerTile;
      next_key = fetch_key(key, fetch_rows, thread);
      next_value = fetch_value(value, fetch_rows, thread);
    }

    // A step without rows isn't taken: where m is +Inf it would make shrink NaN.
    for (int step = 0; step < kKvSteps; ++step) {
      const int valid_rows = remaining - step * kKvRows;
      if (valid_rows <= 0) break;
      Float16 scores = compute_scores(query, key_lds, step, lane);
      if (valid_rows < kKvRows) mask_scores(scores, valid_rows, lane);
      const float shrink = softmax.update(scores, c, half_swap_address);
      accumulate<kMode>(output, shrink, scores, value_lds, step, lane);
    }
  }

  if (rows == 0) return;
  const float sum = add(isa::bpermute(half_swap_address, softmax.sum), softmax.sum);
  const uint32_t out_row_bytes = arguments.out_strides.row;
  const BufferResource out_buffer = isa::make_buffer(
      head_base(arguments.out, arguments.out_strides, batch, head) + first * arguments.out_strides.row,
      span_bytes(rows, out_row_bytes));
  store_output<kMode>(output, sum, out_buffer, row < rows ? row * out_row_bytes : kOutOfBounds, lane);

  const int64_t lse_row = (static_cast<int64_t>(batch) * arguments.heads + head) * arguments.seqlen_q + first;
  const BufferResource lse_buffer =
      isa::make_buffer(arguments.lse + lse_row, arguments.lse ? rows * sizeof(float) : 0);
  // v_rcp_f32 of log2 e, which the compiler would compute more exactly.
  const float lse =
      __builtin_fmaf(isa::log2(sum), isa::rcp(isa::at_run_time(kLog2E)), softmax.maximum * scale);
  // Both lanes of a row store theirs in AITER's, the upper one last: they differ if the sum's halves are two
  // NaN.
  const bool writes = lane_half(lane) == 1 && row < rows;
  isa::buffer_store_b32(__builtin_bit_cast(uint32_t, lse), lse_buffer,
                        writes ? row * sizeof(float) : kOutOfBounds);
}

}  // namespace
}  // namespace aiter_exact

#define LRA_AITER_EXACT_KERNEL(rounding, mode)                                                               \
  extern "C" LRA_KERNEL                                                                                      \
      __attribute__((amdgpu_flat_work_group_size(kThreadsPerWorkgroup, kThreadsPerWorkgroup),                \
                     amdgpu_waves_per_eu(2, 2))) void                                                        \
      attention_aiter_exact_##rounding(ForwardArguments arguments) {                                         \
    aiter_exact::attention<mode>(arguments);                                                                 \
  }

LRA_AITER_EXACT_KERNEL(rtne, RoundMode::kRtne)
LRA_AITER_EXACT_KERNEL(rtna, RoundMode::kRtna)
LRA_AITER_EXACT_KERNEL(rtz, RoundMode::kRtz)

}  // namespace liteattention_rocm
