// Merges the partial results of a KV split, in float32 and always in the same order.
//
// A wave owns 16 query rows of a split block. With m the largest of the maxima m_p of a row's pieces,
//
//   O = Σ O_p 2^((m_p − m)·c) / Σ sum_p 2^((m_p − m)·c)
//
// which is how the forward kernels rescale what they have summed when a maximum rises. Output and sum go
// through the same operations: where they are equal in every piece, as for V = 1 and equal scores, O is 1.
#include "split.hpp"

namespace liteattention_rocm {
namespace {

LRA_DEVICE float load_float(BufferResource buffer, uint32_t offset) {
  return __builtin_bit_cast(float, isa::buffer_load_b32(buffer, offset));
}

template <RoundMode kMode>
LRA_DEVICE void merge(const SplitArguments& arguments) {
  const int lane = isa::lane();
  const int wave = isa::uniform(__builtin_amdgcn_workitem_id_x() / fragments::kWaveSize);
  const uint32_t index = __builtin_amdgcn_workgroup_id_x() * (kMergeThreads / fragments::kWaveSize) + wave;
  const uint32_t block = index / arguments.fragments, fragment = index % arguments.fragments;
  if (block >= static_cast<uint32_t>(arguments.split_blocks)) return;
  const Share share = block_share(arguments, arguments.whole_blocks + block);
  const int64_t first_row =
      (static_cast<int64_t>(share.query_tile) * arguments.fragments + fragment) * kPartialRows;
  const int64_t remaining = arguments.seqlen_q - first_row;
  if (remaining <= 0) return;
  const int rows = remaining < kPartialRows ? remaining : kPartialRows;

  const int column = fragments::lane_column(lane);
  const uint32_t maximum_offset = kPartialOutputBytes + column * sizeof(float);
  const auto piece_buffer = [&](int piece) {
    return partial_buffer(arguments, piece * arguments.split_blocks + block, fragment);
  };
  float maximum = load_float(piece_buffer(0), maximum_offset);
#pragma unroll 4
  for (int piece = 1; piece < arguments.pieces; ++piece)
    maximum = __builtin_fmaxf(maximum, load_float(piece_buffer(piece), maximum_offset));

  OutputRegisters output = 0.0f;
  float sum = 0.0f;
  for (int piece = 0; piece < arguments.pieces; ++piece) {
    const BufferResource buffer = piece_buffer(piece);
    const float piece_maximum = load_float(buffer, maximum_offset);
    const float piece_sum = load_float(buffer, maximum_offset + kPartialRows * sizeof(float));
    const float weight = isa::exp2((piece_maximum - maximum) * arguments.scale_log2e);
    sum = __builtin_fmaf(piece_sum, weight, sum);
    for (int d = 0; d < kDimTiles; ++d) {
      const Float4 registers = __builtin_bit_cast(
          Float4, isa::buffer_load_b128(buffer, (d * fragments::kWaveSize + lane) * fragments::kChunkBytes));
      for (int r = 0; r < 4; ++r) output[4 * d + r] = __builtin_fmaf(registers[r], weight, output[4 * d + r]);
    }
  }

  const uint32_t out_row_bytes = arguments.out_strides.row;
  const BufferResource out_buffer =
      isa::make_buffer(head_base(arguments.out, arguments.out_strides, share.batch, share.head) +
                           first_row * arguments.out_strides.row,
                       span_bytes(rows, out_row_bytes));
  const bool exists = column < rows;
  store_output<kMode>(output, sum, out_buffer, exists ? column * out_row_bytes : kOutOfBounds, lane);
  const int64_t lse_row =
      (static_cast<int64_t>(share.batch) * arguments.heads + share.head) * arguments.seqlen_q + first_row;
  const BufferResource lse_buffer =
      isa::make_buffer(arguments.lse + lse_row, arguments.lse ? rows * sizeof(float) : 0);
  const float lse = log_sum_exp(maximum, sum, arguments.scale);
  isa::buffer_store_b32(__builtin_bit_cast(uint32_t, lse), lse_buffer,
                        exists && fragments::lane_group(lane) == 0 ? column * sizeof(float) : kOutOfBounds);
}

}  // namespace

#define LRA_MERGE_KERNEL(rounding, mode)                                                                     \
  extern "C" LRA_KERNEL __attribute__((amdgpu_flat_work_group_size(kMergeThreads, kMergeThreads))) void      \
  attention_merge_##rounding(SplitArguments arguments) {                                                     \
    merge<mode>(arguments);                                                                                  \
  }

LRA_MERGE_KERNEL(rtne, RoundMode::kRtne)
LRA_MERGE_KERNEL(rtna, RoundMode::kRtna)
LRA_MERGE_KERNEL(rtz, RoundMode::kRtz)

}  // namespace liteattention_rocm
