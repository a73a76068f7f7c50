// Forward attention for gfx942: bf16, head dim 128, not causal, any Sq and Skv.
//
// A workgroup of 4 waves owns 128 query rows of one head; a wave owns 32 of them as two MFMA tiles of 16.
// All waves walk the same KV tiles of 64 rows:
//
//   registers   K,V tile i+1 on their way from memory      (issued right after the second barrier)
//   LDS         K,V tile i
//
//   barrier     every wave has finished reading tile i−1
//   deposit     tile i: registers → LDS, V transposed on the way
//   barrier     tile i is complete
//   fetch       tile i+1: memory → registers
//   scores      S^T = K·Q^T
//   softmax     P, row maximum, row sum
//   accumulate  O^T = O^T·shrink + V^T·P^T
//
// At the end O is divided by the row sum and rounded; LSE = m·scale + ln(sum).
#include "kv_rows.hpp"
#include "output.hpp"
#include "skip.hpp"
#include "skip_order.hpp"
#include "skip_split.hpp"
#include "split.hpp"
#include "walk.hpp"

namespace liteattention_rocm {
namespace {

using namespace fragments;

static_assert(kQueryRowsPerWave * (kThreadsPerWorkgroup / kWaveSize) == kQueryRowsPerWorkgroup);

// The two MFMA operands that one b128 access brings.
struct OperandPair {
  Bf16x4 first, second;
};
LRA_DEVICE OperandPair split(Dword4 chunk) {
  return {__builtin_bit_cast(Bf16x4, Dword2{chunk[0], chunk[1]}),
          __builtin_bit_cast(Bf16x4, Dword2{chunk[2], chunk[3]})};
}
LRA_DEVICE OperandPair read_operands(const char* lds, int offset) {
  return split(*reinterpret_cast<const Dword4*>(lds + offset));
}

struct QueryTile {
  OperandPair operands[kDimSteps];
};
LRA_DEVICE QueryTile load_query(BufferResource buffer, int row, int rows, uint32_t row_bytes,
                                uint32_t sign_mask, int lane) {
  QueryTile tile;
  for (int step = 0; step < kDimSteps; ++step) {
    const uint32_t offset = row * row_bytes + operand_chunk(lane, step) * kChunkBytes;
    tile.operands[step] =
        split(isa::buffer_load_b128(buffer, row < rows ? offset : kOutOfBounds) ^ sign_mask);
  }
  return tile;
}

using Scores = Float4[kQueryTiles][kKvTiles];
using Output = Float4[kQueryTiles][kDimTiles];

LRA_DEVICE void compute_scores(Scores& scores, const QueryTile (&query)[kQueryTiles], const char* key_lds,
                               int lane) {
  for (int t = 0; t < kKvTiles; ++t) {
    for (int q = 0; q < kQueryTiles; ++q) scores[q][t] = Float4{0, 0, 0, 0};
    for (int step = 0; step < kDimSteps; ++step) {
      const int row = t * kMfma + lane_column(lane);
      const OperandPair key = read_operands(key_lds, key_lds_offset(row, operand_chunk(lane, step)));
      for (int q = 0; q < kQueryTiles; ++q) {
        scores[q][t] = isa::mfma_16x16x16_bf16(key.first, query[q].operands[step].first, scores[q][t]);
        scores[q][t] = isa::mfma_16x16x16_bf16(key.second, query[q].operands[step].second, scores[q][t]);
      }
    }
  }
}

// Turns the scores of one query tile into probabilities, and the output so far into what they add to.
LRA_DEVICE void fold(OnlineSoftmax& softmax, Float4 (&scores)[kKvTiles], Float4 (&output)[kDimTiles],
                     float tile_maximum, float c) {
  const float shrink = softmax.update(scores, tile_maximum, c);
  for (int d = 0; d < kDimTiles; ++d) output[d] *= shrink;
}

template <RoundMode kMode>
LRA_DEVICE Bf16x4 probability_operand(Float4 p) {
  return __builtin_bit_cast(Bf16x4, Dword2{bf16::pack<kMode>(p[0], p[1]), bf16::pack<kMode>(p[2], p[3])});
}

template <RoundMode kMode>
LRA_DEVICE void accumulate(Output& output, const Scores& probabilities, const char* value_lds, int lane) {
  for (int pair = 0; pair < kKvTiles / 2; ++pair) {
    OperandPair p[kQueryTiles];
    for (int q = 0; q < kQueryTiles; ++q)
      p[q] = {probability_operand<kMode>(probabilities[q][2 * pair]),
              probability_operand<kMode>(probabilities[q][2 * pair + 1])};
    for (int d = 0; d < kDimTiles; ++d) {
      const OperandPair value = read_operands(value_lds, value_operand_offset(lane, pair, d));
      for (int q = 0; q < kQueryTiles; ++q) {
        output[q][d] = isa::mfma_16x16x16_bf16(value.first, p[q].first, output[q][d]);
        output[q][d] = isa::mfma_16x16x16_bf16(value.second, p[q].second, output[q][d]);
      }
    }
  }
}

// Sees the boundaries between the kernel's phases, see calibration.hip, and what the dense walk computes in
// them, see observed.hip; this one only keeps the phases apart.
struct NoProbe {
  LRA_DEVICE void boundary(int) { isa::phase_boundary(); }
  LRA_DEVICE void scores(int, const Float4 (&)[kKvTiles], int) {}
  LRA_DEVICE void probabilities(int, const Float4 (&)[kKvTiles], const OnlineSoftmax&) {}
};

// The outputs and the log-sum-exps of the `rows` rows of a wave that exist.
template <RoundMode kMode>
LRA_DEVICE void store_results(const ForwardArguments& arguments, int batch, int head, int64_t first_row,
                              int rows, const Output& output, const OnlineSoftmax (&softmax)[kQueryTiles],
                              int lane) {
  const uint32_t out_row_bytes = arguments.out_strides.row;
  const BufferResource out_buffer = isa::make_buffer(
      head_base(arguments.out, arguments.out_strides, batch, head) + first_row * arguments.out_strides.row,
      span_bytes(rows, out_row_bytes));
  const int64_t lse_row =
      (static_cast<int64_t>(batch) * arguments.heads + head) * arguments.seqlen_q + first_row;
  const BufferResource lse_buffer =
      isa::make_buffer(arguments.lse + lse_row, arguments.lse ? rows * sizeof(float) : 0);
  const int half_swap_address = (lane ^ 32) * 4;
  for (int q = 0; q < kQueryTiles; ++q) {
    const int row = q * kMfma + lane_column(lane);
    const float sum = sum_over_groups(softmax[q].sum, half_swap_address);
    store_output<kMode>(output[q], sum, out_buffer, row < rows ? row * out_row_bytes : kOutOfBounds, lane);
    const float lse = log_sum_exp(softmax[q].maximum, sum, arguments.scale);
    const bool writes = lane_group(lane) == 0 && row < rows;
    isa::buffer_store_b32(__builtin_bit_cast(uint32_t, lse), lse_buffer,
                          writes ? row * sizeof(float) : kOutOfBounds);
  }
}

// A workgroup's work: the query tile of 128 rows of its share, and the KV tiles of a Walk through it.
template <RoundMode kMode, typename Walk, typename Arguments, class Probe>
LRA_DEVICE void attend(const Arguments& arguments, const Share& share, Probe& probe) {
  alignas(kChunkBytes) LRA_SHARED char key_lds[kKeyTileBytes];
  alignas(kChunkBytes) LRA_SHARED char value_lds[kValueTileBytes];

  const int thread = __builtin_amdgcn_workitem_id_x();
  const int lane = isa::lane();
  const int half_swap_address = (lane ^ 32) * 4;
  const int head = share.head, batch = share.batch;
  const int kv_head = head / arguments.heads_per_kv_head;
  const int wave = isa::uniform(thread / kWaveSize);
  const int64_t first_row =
      static_cast<int64_t>(share.query_tile) * kQueryRowsPerWorkgroup + wave * kQueryRowsPerWave;
  // Rows of this wave that exist; a wave past the end still helps to carry K and V.
  const int64_t remaining_rows = arguments.seqlen_q - first_row;
  const int rows = remaining_rows < 0                   ? 0
                   : remaining_rows < kQueryRowsPerWave ? remaining_rows
                                                        : kQueryRowsPerWave;

  QueryTile query[kQueryTiles];
  const uint32_t query_row_bytes = arguments.query_strides.row;
  const BufferResource query_buffer =
      isa::make_buffer(head_base(arguments.query, arguments.query_strides, batch, head) +
                           first_row * arguments.query_strides.row,
                       rows == 0 ? 0 : span_bytes(rows, query_row_bytes));
  for (int q = 0; q < kQueryTiles; ++q)
    query[q] = load_query(query_buffer, q * kMfma + lane_column(lane), rows, query_row_bytes,
                          arguments.query_sign_mask, lane);

  KvRows key{head_base(arguments.key, arguments.key_strides, batch, kv_head),
             static_cast<uint32_t>(arguments.key_strides.row)};
  KvRows value{head_base(arguments.value, arguments.value_strides, batch, kv_head),
               static_cast<uint32_t>(arguments.value_strides.row)};
  key.move(share.first_kv_row);
  value.move(share.first_kv_row);

  OnlineSoftmax softmax[kQueryTiles];
  // Lanes of query rows that exist. The others' scores are 0, or NaN where K is infinite: they don't vote.
  uint64_t voters[kQueryTiles] = {};
  if constexpr (Walk::kVotes) {
    for (int q = 0; q < kQueryTiles; ++q) voters[q] = isa::ballot(q * kMfma + lane_column(lane) < rows);
  }
  Output output = {};
  Scores scores;

  Walk walk(arguments, share);
  int remaining = walk.first(share.kv_rows);  // KV rows of the share from the current tile on
  key.move(share.kv_rows - remaining);
  value.move(share.kv_rows - remaining);
  int fetch_rows = remaining < kKvRowsPerTile ? remaining : kKvRowsPerTile;
  Fetched next_key = fetch_key(key, fetch_rows, thread);
  Fetched next_value = fetch_value(value, fetch_rows, thread);

  for (int behind; remaining > 0; remaining = behind) {
    isa::lds_barrier();
    deposit_key(next_key, key_lds, thread);
    deposit_value<value_lds_offset>(next_value, value_lds, thread);
    isa::lds_barrier();

    behind = walk.next(remaining);
    if (behind > 0) {
      key.move(remaining - behind);
      value.move(remaining - behind);
      fetch_rows = behind < kKvRowsPerTile ? behind : kKvRowsPerTile;
      next_key = fetch_key(key, fetch_rows, thread);
      next_value = fetch_value(value, fetch_rows, thread);
    }

    probe.boundary(0);
    compute_scores(scores, query, key_lds, lane);
    probe.boundary(1);
    if constexpr (Walk::kVotes) {
      float tile_maximum[kQueryTiles];
      uint64_t in_favour[kQueryTiles];
      for (int q = 0; q < kQueryTiles; ++q) {
        if (remaining < kKvRowsPerTile) mask_scores(scores[q], remaining, lane);
        tile_maximum[q] = row_maximum(scores[q], half_swap_address);
        const float lead = (tile_maximum[q] - softmax[q].maximum) * arguments.scale_log2e;
        in_favour[q] = lanes_in_favour(lead, arguments.threshold) & voters[q];
      }
      if (!walk.vote(in_favour)) continue;
      for (int q = 0; q < kQueryTiles; ++q)
        fold(softmax[q], scores[q], output[q], tile_maximum[q], arguments.scale_log2e);
    } else {
      for (int q = 0; q < kQueryTiles; ++q) {
        if (remaining < kKvRowsPerTile) mask_scores(scores[q], remaining, lane);
        probe.scores(q, scores[q], remaining);
        fold(softmax[q], scores[q], output[q], row_maximum(scores[q], half_swap_address),
             arguments.scale_log2e);
        probe.probabilities(q, scores[q], softmax[q]);
      }
    }
    probe.boundary(2);
    accumulate<kMode>(output, scores, value_lds, lane);
    probe.boundary(3);
  }

  if (rows == 0) return;
  // Where the walk is a list or a share is a piece, the loop has no registers to spare for what comes now.
  if constexpr (kSplits<Arguments>) {
    isa::wait_for_loads();
    const Arguments anew = isa::scalar_arguments_anew<Arguments>();
    const Share again = workgroup_share(anew);
    const int lane_again = isa::lane_anew();
    if (again.partial < 0) {
      store_results<kMode>(anew, again.batch, again.head, first_row, rows, output, softmax, lane_again);
      return;
    }
    for (int q = 0; q < kQueryTiles; ++q)
      store_partial(output[q], softmax[q].maximum, sum_over_groups(softmax[q].sum, (lane_again ^ 32) * 4),
                    partial_address(anew, again.partial, wave * kQueryTiles + q), lane_again);
  } else if constexpr (Walk::kVotes) {
    isa::wait_for_loads();
    store_results<kMode>(isa::scalar_arguments_anew<ForwardArguments>(), batch, head, first_row, rows, output,
                         softmax, isa::lane_anew());
  } else {
    store_results<kMode>(arguments, batch, head, first_row, rows, output, softmax, lane);
  }
}

template <RoundMode kMode, typename Walk, typename Arguments, class Probe>
LRA_DEVICE void attention_forward(const Arguments& arguments, uint32_t query_tile, Probe& probe) {
  Share share = grid_share(arguments);
  share.query_tile = query_tile;
  attend<kMode, Walk>(arguments, share, probe);
}

}  // namespace

#ifndef LRA_WITHOUT_KERNELS  // others instantiate the same code with a probe
#define LRA_ATTENTION_KERNEL                                                                                 \
  extern "C" LRA_KERNEL                                                                                      \
      __attribute__((amdgpu_flat_work_group_size(kThreadsPerWorkgroup, kThreadsPerWorkgroup),                \
                     amdgpu_waves_per_eu(2, 2))) void

#define LRA_FORWARD_KERNEL(rounding, mode)                                                                   \
  LRA_ATTENTION_KERNEL attention_forward_##rounding(ForwardArguments arguments) {                            \
    NoProbe probe;                                                                                           \
    attention_forward<mode, EveryTile>(arguments, __builtin_amdgcn_workgroup_id_x(), probe);                 \
  }
#define LRA_FORWARD_SPLIT_KERNEL(rounding, mode)                                                             \
  LRA_ATTENTION_KERNEL attention_forward_split_##rounding(SplitArguments arguments) {                        \
    NoProbe probe;                                                                                           \
    attend<mode, EveryTile>(arguments, workgroup_share(arguments), probe);                                   \
  }
#define LRA_SKIP_FORWARD_KERNEL(rounding, mode)                                                              \
  LRA_ATTENTION_KERNEL attention_skip_forward_##rounding(SkipArguments arguments) {                          \
    NoProbe probe;                                                                                           \
    attention_forward<mode, ListedTiles>(arguments, ordered_query_tile(arguments), probe);                   \
  }

#define LRA_SKIP_FORWARD_SPLIT_KERNEL(rounding, mode)                                                        \
  LRA_ATTENTION_KERNEL attention_skip_forward_split_##rounding(SkipSplitArguments arguments) {               \
    const Share share = workgroup_share(arguments);                                                          \
    if (share.partial >= 0 && list_piece(arguments, share.partial).tiles == 0) return;                       \
    NoProbe probe;                                                                                           \
    attend<mode, SharedTiles>(arguments, share, probe);                                                      \
  }

LRA_FORWARD_KERNEL(rtne, RoundMode::kRtne)
LRA_FORWARD_KERNEL(rtna, RoundMode::kRtna)
LRA_FORWARD_KERNEL(rtz, RoundMode::kRtz)
LRA_FORWARD_SPLIT_KERNEL(rtne, RoundMode::kRtne)
LRA_FORWARD_SPLIT_KERNEL(rtna, RoundMode::kRtna)
LRA_FORWARD_SPLIT_KERNEL(rtz, RoundMode::kRtz)
LRA_SKIP_FORWARD_KERNEL(rtne, RoundMode::kRtne)
LRA_SKIP_FORWARD_KERNEL(rtna, RoundMode::kRtna)
LRA_SKIP_FORWARD_KERNEL(rtz, RoundMode::kRtz)
LRA_SKIP_FORWARD_SPLIT_KERNEL(rtne, RoundMode::kRtne)
LRA_SKIP_FORWARD_SPLIT_KERNEL(rtna, RoundMode::kRtna)
LRA_SKIP_FORWARD_SPLIT_KERNEL(rtz, RoundMode::kRtz)

extern "C" LRA_KERNEL
    __attribute__((amdgpu_flat_work_group_size(kThreadsPerWorkgroup, kThreadsPerWorkgroup))) void
    attention_skip_order(OrderArguments arguments) {
  order_by_work(arguments);
}
#endif

}  // namespace liteattention_rocm
