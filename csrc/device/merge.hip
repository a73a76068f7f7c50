// Merges the partial results of a KV split, in float32 and always in the same order.
//
// A wave owns 16 query rows of a split block and goes through its pieces as the forward kernels go through KV
// tiles: where a piece raises a row's maximum, output and sum so far shrink, else what the piece adds does.
// Output and sum go through the same operations: where they are equal in every piece, as for V = 1 and equal
// scores, their ratio is 1.
//
// Where the pieces are of skip lists, a piece's votes on its tiles come in, unless it is negligible as a
// whole: see skip_split.hpp.
#include "skip_split.hpp"

namespace liteattention_rocm {
namespace {

struct Partial {
  OutputRegisters output;
  float maximum, sum;
};

LRA_DEVICE Partial load_partial(PartialAddress address, int lane) {
  Partial partial;
  partial.maximum = partial_maximum(address, lane);
  partial.sum = partial_sum(address, lane);
  for (int d = 0; d < kDimTiles; ++d) {
    const Float4 registers = partial_output(address, d, lane);
    for (int r = 0; r < 4; ++r) partial.output[4 * d + r] = registers[r];
  }
  return partial;
}

LRA_DEVICE void add(Partial& total, const Partial& piece, float c) {
  const float maximum = __builtin_fmaxf(total.maximum, piece.maximum);
  const float shrink = isa::exp2((total.maximum - maximum) * c);
  const float weight = isa::exp2((piece.maximum - maximum) * c);
  total.maximum = maximum;
  total.sum = __builtin_fmaf(piece.sum, weight, total.sum * shrink);
  for (int i = 0; i < kDimTiles * 4; ++i)
    total.output[i] = __builtin_fmaf(piece.output[i], weight, total.output[i] * shrink);
}

LRA_DEVICE Share block_of(const SplitArguments& arguments, uint32_t block) {
  return block_share(arguments, arguments.whole_blocks + block);
}
LRA_DEVICE Share block_of(const SkipSplitArguments& arguments, uint32_t block) {
  return listed_share(arguments, arguments.whole_blocks + block);
}

// The votes of 16 query rows on the tiles of one piece, a word a lane, on their way before they are wanted.
class PieceVotes {
 public:
  LRA_DEVICE PieceVotes(const SkipSplitArguments& arguments, int place, int fragment, int lane)
      : words_(list_piece(arguments, place)),
        votes_(isa::make_buffer(piece_votes(arguments, place) +
                                    vote_row(fragment) * static_cast<int64_t>(arguments.words) +
                                    words_.first_word,
                                (words_.last_word - words_.first_word + 1) * sizeof(uint32_t))),
        kept_(isa::buffer_load_b32(votes_, lane * sizeof(uint32_t))) {}

  LRA_DEVICE int pieces() const { return words_.pieces; }

  // ORs them into a row of the written list, unless the piece is negligible for all of the rows that exist
  // beside the maximum of the pieces before. A NaN that scores left in a sum speaks for them.
  LRA_DEVICE void gather(const SkipSplitArguments& arguments, const Partial& piece, float maximum,
                         bool exists, uint32_t* row, int lane) {
    const float lead = (piece.maximum - maximum) * arguments.scale_log2e;
    const bool wanted = !(lead <= arguments.threshold) || piece.sum != piece.sum;
    if (isa::ballot(wanted && exists) == 0) return;
#pragma unroll 1
    for (uint32_t word = words_.first_word;;) {
      if (kept_) isa::atomic_or_of_device(row + word + lane, kept_);
      word += fragments::kWaveSize;
      if (word > words_.last_word) return;
      kept_ = isa::buffer_load_b32(votes_, (word - words_.first_word + lane) * sizeof(uint32_t));
    }
  }

 private:
  ListPiece words_;
  BufferResource votes_;
  uint32_t kept_;
};

template <typename Arguments>
constexpr bool kGathersVotes = false;
template <>
constexpr bool kGathersVotes<SkipSplitArguments> = true;

template <RoundMode kMode, typename Arguments>
LRA_DEVICE void merge(const Arguments& arguments) {
  const int lane = isa::lane();
  const int wave = isa::uniform(__builtin_amdgcn_workitem_id_x() / fragments::kWaveSize);
  const uint32_t index = __builtin_amdgcn_workgroup_id_x() * (kMergeThreads / fragments::kWaveSize) + wave;
  const uint32_t block = index / arguments.fragments, fragment = index % arguments.fragments;
  if (block >= static_cast<uint32_t>(arguments.split_blocks)) return;
  const Share share = block_of(arguments, block);
  const int64_t first_row =
      (static_cast<int64_t>(share.query_tile) * arguments.fragments + fragment) * kPartialRows;
  const int64_t remaining = arguments.seqlen_q - first_row;
  if (remaining <= 0) return;
  const int rows = remaining < kPartialRows ? remaining : kPartialRows;

  PartialAddress address = partial_address(arguments, block, fragment);
  const int64_t step = int64_t{arguments.split_blocks} * arguments.fragments * kPartialBytes;
  Partial total{OutputRegisters(0.0f), kLowestScore, 0.0f};
  if constexpr (kGathersVotes<Arguments>) {
    const bool exists = fragments::lane_column(lane) < rows;
    uint32_t* row = arguments.write_list +
                    (first_list_row(arguments, share) + fragment / kFragmentsPerList) * arguments.words;
    int place = block, pieces = 0, added = 0;
    do {
      PieceVotes votes(arguments, place, fragment, lane);
      pieces = votes.pieces();
      const Partial piece = load_partial(address, lane);
      votes.gather(arguments, piece, total.maximum, exists, row, lane);
      add(total, piece, arguments.scale_log2e);
      address += step;
      place += arguments.split_blocks;
    } while (++added < pieces);
  } else {
    // The next piece is on its way while one is added.
    Partial piece = load_partial(address, lane);
    for (int more = arguments.pieces - 1; more > 0; --more) {
      address += step;
      const Partial next = load_partial(address, lane);
      add(total, piece, arguments.scale_log2e);
      piece = next;
    }
    add(total, piece, arguments.scale_log2e);
  }

  const int column = fragments::lane_column(lane);
  const uint32_t out_row_bytes = arguments.out_strides.row;
  const BufferResource out_buffer =
      isa::make_buffer(head_base(arguments.out, arguments.out_strides, share.batch, share.head) +
                           first_row * arguments.out_strides.row,
                       span_bytes(rows, out_row_bytes));
  const bool exists = column < rows;
  store_output<kMode>(total.output, total.sum, out_buffer, exists ? column * out_row_bytes : kOutOfBounds,
                      lane);
  const int64_t lse_row =
      (static_cast<int64_t>(share.batch) * arguments.heads + share.head) * arguments.seqlen_q + first_row;
  const BufferResource lse_buffer =
      isa::make_buffer(arguments.lse + lse_row, arguments.lse ? rows * sizeof(float) : 0);
  const float lse = log_sum_exp(total.maximum, total.sum, arguments.scale);
  isa::buffer_store_b32(__builtin_bit_cast(uint32_t, lse), lse_buffer,
                        exists && fragments::lane_group(lane) == 0 ? column * sizeof(float) : kOutOfBounds);
}

}  // namespace

#define LRA_MERGE_KERNEL(rounding, mode)                                                                     \
  extern "C" LRA_KERNEL __attribute__((amdgpu_flat_work_group_size(kMergeThreads, kMergeThreads))) void      \
  attention_merge_##rounding(SplitArguments arguments) {                                                     \
    merge<mode>(arguments);                                                                                  \
  }                                                                                                          \
  extern "C" LRA_KERNEL __attribute__((amdgpu_flat_work_group_size(kMergeThreads, kMergeThreads))) void      \
  attention_skip_merge_##rounding(SkipSplitArguments arguments) {                                            \
    merge<mode>(arguments);                                                                                  \
  }

LRA_MERGE_KERNEL(rtne, RoundMode::kRtne)
LRA_MERGE_KERNEL(rtna, RoundMode::kRtna)
LRA_MERGE_KERNEL(rtz, RoundMode::kRtz)

}  // namespace liteattention_rocm
