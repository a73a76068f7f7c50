// Forward attention for gfx942 at speed: bf16, head dim 128, not causal, any Sq and Skv.
//
// A workgroup of 8 waves owns 384 query rows of one head and fills a compute unit; a wave owns 48 of them as
// three MFMA tiles of 16. Its two groups of 4 waves, one wave of each on every SIMD, do the same half an
// iteration apart, so that one holds the matrix pipe while the other does softmax:
//
// clang-format off
//   group 1, carries K b O += V(i-1)·P   S = K(i)·Q b softmax(i)                 b O += V(i)·P   S = K(i+1)·Q b
//                      b                            b K(i+1) → LDS, fetch K(i+2) b                            b
//   group 2, carries V b softmax(i-1)               b O += V(i-1)·P   S = K(i)·Q b softmax(i)                 b
//                      b V(i) → LDS, fetch V(i+1)   b                            b V(i+1) → LDS, fetch V(i+2) b
// clang-format on
//
// `b` is an s_barrier. The group at the matrix pipe arrives there three MFMAs before it is done, and has the
// higher priority, so that the pipe never waits for the hand-over. Each group carries one of K and V, 64 rows
// at a time: memory → registers, an iteration ahead → LDS in the order in which fragments are read, V
// transposed by v_perm_b32 on the way. LDS holds two tiles of each, 64 KB: while K(i) and V(i-1) are read,
// K(i+1) and V(i) are written. All LDS accesses are 16 bytes a lane and free of bank conflicts.
//
// The loop is one asm program, pingpong_loop.inl: 238 of the 256 registers are in use throughout, more than
// the compiler's allocation of the same code could hold, and each wait is counted. What surrounds it is C++.
#pragma once

#include "split.hpp"

namespace liteattention_rocm {
namespace pingpong {
namespace {

using namespace fragments;

constexpr int kQueryTilesPerWave = 3;
constexpr int kRowsPerWave = kQueryTilesPerWave * kMfma;
constexpr int kWavesPerGroup = 4;
constexpr int kThreadsPerGroup = kWavesPerGroup * kWaveSize;
constexpr int kThreads = 2 * kThreadsPerGroup;
constexpr int kQueryRows = kRowsPerWave * kThreads / kWaveSize;
static_assert(kThreads == kPingpongThreadsPerWorkgroup && kQueryRows == kPingpongQueryRowsPerWorkgroup);
constexpr int kTileBytes = kKvRowsPerTile * kRowBytes;  // 16 KB, of K and of V

using Query = uint32_t __attribute__((ext_vector_type(kDimSteps * 4)));

// LDS holds a tile of K or V as 16 read steps of 1 KB, a lane's 16 bytes of a step in a row of 64.
// K, step 4·t + d: lane l gets chunk 4·d + l/16 of row 16·t + l%16. XOR with the chunk spreads the 16 chunks
// of a row, which are written together, over all banks.
constexpr int kStepBytes = kWaveSize * kChunkBytes;
LRA_CONSTEXPR int key_lds_offset(int row, int chunk) {
  const int step = row / kMfma * kDimSteps + chunk / 4;
  return step * kStepBytes + (chunk % 4 * kMfma + ((row % kMfma) ^ (chunk % 8))) * kChunkBytes;
}
// Where in a step a lane reads; `odd` of the step.
LRA_CONSTEXPR int key_read_offset(int lane, int odd) {
  return (lane_group(lane) * kMfma + (lane_column(lane) ^ (lane_group(lane) + 4 * odd))) * kChunkBytes;
}
// V, step 4·t + d: lane l gets kv rows 16·t + 4·(l/16) … + 3 of head dims 8·(l%16) + 2·d and the next.
LRA_CONSTEXPR int value_lds_offset(int quad, int chunk, int dim_pair) {
  const int step = quad / 4 * 4 + dim_pair;
  return step * kStepBytes + (quad % 4 * kMfma + chunk) * kChunkBytes;
}

LRA_DEVICE Query load_query(BufferResource buffer, int row, int rows, uint32_t row_bytes, uint32_t sign_mask,
                            int lane) {
  Query query;
  for (int step = 0; step < kDimSteps; ++step) {
    const uint32_t offset = row * row_bytes + operand_chunk(lane, step) * kChunkBytes;
    const Dword4 chunk = isa::buffer_load_b128(buffer, row < rows ? offset : kOutOfBounds) ^ sign_mask;
    for (int i = 0; i < 4; ++i) query[4 * step + i] = chunk[i];
  }
  return query;
}

// The outputs and the log-sum-exps of the `rows` rows of a wave that exist.
template <RoundMode kMode>
LRA_DEVICE void store_results(const ForwardArguments& arguments, int batch, int head, int64_t first_row,
                              int rows, const OutputRegisters (&output)[kQueryTilesPerWave],
                              const float (&maximum)[kQueryTilesPerWave],
                              const float (&sums)[kQueryTilesPerWave], int lane) {
  const uint32_t out_row_bytes = arguments.out_strides.row;
  const BufferResource out_buffer = isa::make_buffer(
      head_base(arguments.out, arguments.out_strides, batch, head) + first_row * arguments.out_strides.row,
      span_bytes(rows, out_row_bytes));
  const int64_t lse_row =
      (static_cast<int64_t>(batch) * arguments.heads + head) * arguments.seqlen_q + first_row;
  const BufferResource lse_buffer =
      isa::make_buffer(arguments.lse + lse_row, arguments.lse ? rows * sizeof(float) : 0);
  for (int q = 0; q < kQueryTilesPerWave; ++q) {
    const int row = q * kMfma + lane_column(lane);
    const float sum = sum_over_groups(sums[q], (lane ^ 32) * 4);
    store_output<kMode>(output[q], sum, out_buffer, row < rows ? row * out_row_bytes : kOutOfBounds, lane);
    const float lse = log_sum_exp(maximum[q], sum, arguments.scale);
    const bool writes = lane_group(lane) == 0 && row < rows;
    isa::buffer_store_b32(__builtin_bit_cast(uint32_t, lse), lse_buffer,
                          writes ? row * sizeof(float) : kOutOfBounds);
  }
}

// Clobbered registers v{n}0 to v{n}9.
#define V10(n)                                                                                               \
  "v" #n "0", "v" #n "1", "v" #n "2", "v" #n "3", "v" #n "4", "v" #n "5", "v" #n "6", "v" #n "7",            \
      "v" #n "8", "v" #n "9"

// A workgroup's work: the query rows and KV rows of its share.
template <RoundMode kMode, typename Arguments>
LRA_DEVICE void attention(const Arguments& arguments, const Share& share) {
  alignas(kChunkBytes) LRA_SHARED char lds[4 * kTileBytes];  // K, K, V, V

  const int thread = __builtin_amdgcn_workitem_id_x();
  const int lane = isa::lane();
  const int half_swap_address = (lane ^ 32) * 4;
  const int head = share.head, batch = share.batch;
  const int kv_head = head / arguments.heads_per_kv_head;
  const int wave = isa::uniform(thread / kWaveSize);
  const int second_group = wave / kWavesPerGroup;
  const int64_t first_row = static_cast<int64_t>(share.query_tile) * kQueryRows + wave * kRowsPerWave;
  const int64_t remaining_rows = arguments.seqlen_q - first_row;
  const int rows = remaining_rows < 0 ? 0 : remaining_rows < kRowsPerWave ? remaining_rows : kRowsPerWave;

  const uint32_t query_row_bytes = arguments.query_strides.row;
  const BufferResource query_buffer =
      isa::make_buffer(head_base(arguments.query, arguments.query_strides, batch, head) +
                           first_row * arguments.query_strides.row,
                       rows == 0 ? 0 : span_bytes(rows, query_row_bytes));
  Query query[kQueryTilesPerWave];
  for (int q = 0; q < kQueryTilesPerWave; ++q)
    query[q] = load_query(query_buffer, q * kMfma + lane_column(lane), rows, query_row_bytes,
                          arguments.query_sign_mask, lane);

  // The first group carries K, the second V.
  const TensorStrides& strides = second_group ? arguments.value_strides : arguments.key_strides;
  const int worker = thread % kThreadsPerGroup;
  const uint32_t row_bytes = strides.row;
  const uint32_t row_step = second_group ? 1 : kThreadsPerGroup / kChunksPerRow;
  const uint32_t worker_row = worker / kChunksPerRow * (second_group ? 4 : 1);
  const uint32_t lds_base = reinterpret_cast<uintptr_t>((__attribute__((address_space(3))) char*)(lds));
  const char* tile = head_base(second_group ? arguments.value : arguments.key, strides, batch, kv_head) +
                     static_cast<int64_t>(share.first_kv_row) * row_bytes;
  uint32_t deposit =
      lds_base + (second_group
                      ? 2 * kTileBytes + value_lds_offset(worker / kChunksPerRow, worker % kChunksPerRow, 0)
                      : key_lds_offset(worker / kChunksPerRow, worker % kChunksPerRow));
  uint32_t read_value = lds_base + 3 * kTileBytes + lane * kChunkBytes;
  uint32_t read_key_even = lds_base + key_read_offset(lane, 0);
  uint32_t read_key_odd = lds_base + key_read_offset(lane, 1);
  uint32_t remaining = share.kv_rows;

  OutputRegisters output[kQueryTilesPerWave];
  float maximum[kQueryTilesPerWave], sums[kQueryTilesPerWave];
  asm volatile(
#include "pingpong_loop.inl"
      : "={v[0:31]}"(output[0]), "={v[32:63]}"(output[1]), "={v[64:95]}"(output[2]), "={v228}"(maximum[0]),
        "={v229}"(maximum[1]), "={v230}"(maximum[2]), "={v234}"(sums[0]), "={v235}"(sums[1]),
        "={v236}"(sums[2]), "+{v237}"(read_value), "+{v238}"(read_key_even), "+{v239}"(read_key_odd),
        "+{v240}"(deposit), "+{s[36:37]}"(tile), "+{s43}"(remaining)
      : "{v[96:111]}"(query[0]), "{v[112:127]}"(query[1]), "{v[128:143]}"(query[2]),
        "{v241}"(worker_row * row_bytes + worker % kChunksPerRow * kChunkBytes),
        "{v242}"(4 * lane_group(lane)), "{v243}"(half_swap_address), "{v244}"(worker_row), "{s40}"(row_bytes),
        "{s41}"(row_step * row_bytes), "{s42}"(row_step), "{s44}"(second_group),
        "{s45}"(arguments.scale_log2e), [mode] "i"(static_cast<int>(kMode)), [lists] "i"(0)
      : "memory", "vcc", "scc", "s38", "s39", "s46", "s47", "s48", "s49", "s50", "s51", "s52", "s54", "s55",
        "s56", "s57", "s53", "s58", "s59", "s60", "s61", "v245", "v246", "v247", "v144", "v145", "v146",
        "v147", "v148", "v149", V10(15), V10(16), V10(17), V10(18), V10(19), V10(20), V10(21), "v220", "v221",
        "v222", "v223", "v224", "v225", "v226", "v227", "v231", "v232", "v233");

  if (rows == 0) return;
  if constexpr (kSplits<Arguments>) {
    if (share.partial >= 0) {
      for (int q = 0; q < kQueryTilesPerWave; ++q)
        store_partial(output[q], maximum[q], sum_over_groups(sums[q], half_swap_address),
                      partial_address(arguments, share.partial, wave * kQueryTilesPerWave + q), lane);
      return;
    }
  }
  store_results<kMode>(arguments, batch, head, first_row, rows, output, maximum, sums, lane);
}

}  // namespace
}  // namespace pingpong

#define LRA_PINGPONG_KERNEL                                                                                  \
  extern "C" LRA_KERNEL __attribute__((amdgpu_flat_work_group_size(pingpong::kThreads, pingpong::kThreads),  \
                                       amdgpu_waves_per_eu(2, 2))) void

#define LRA_PINGPONG_FORWARD_KERNEL(rounding, mode)                                                          \
  LRA_PINGPONG_KERNEL attention_pingpong_##rounding(ForwardArguments arguments) {                            \
    pingpong::attention<mode>(arguments, grid_share(arguments));                                             \
  }
#define LRA_PINGPONG_SPLIT_KERNEL(rounding, mode)                                                            \
  LRA_PINGPONG_KERNEL attention_pingpong_split_##rounding(SplitArguments arguments) {                        \
    pingpong::attention<mode>(arguments, share_of(arguments, __builtin_amdgcn_workgroup_id_x()));            \
  }

LRA_PINGPONG_FORWARD_KERNEL(rtne, RoundMode::kRtne)
LRA_PINGPONG_FORWARD_KERNEL(rtna, RoundMode::kRtna)
LRA_PINGPONG_FORWARD_KERNEL(rtz, RoundMode::kRtz)
LRA_PINGPONG_SPLIT_KERNEL(rtne, RoundMode::kRtne)
LRA_PINGPONG_SPLIT_KERNEL(rtna, RoundMode::kRtna)
LRA_PINGPONG_SPLIT_KERNEL(rtz, RoundMode::kRtz)

}  // namespace liteattention_rocm
