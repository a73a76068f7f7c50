// Prepares the lists of the pieces of a split, see skip_split.hpp.
#include "skip_split.hpp"

namespace liteattention_rocm {
namespace {

constexpr uint32_t kWordBytes = sizeof(uint32_t);

// A row of a list, seen through a buffer: words that aren't there read as 0, and aren't written.
LRA_DEVICE BufferResource row_buffer(const uint32_t* row, int words) {
  return isa::make_buffer(row, words * kWordBytes);
}

// The lists of a block, a word a lane. A list that names no tile names tile 0.
struct BlockLists {
  const uint32_t* first;
  int lists, words;
  uint32_t tail;       // the bits of a row's last word that stand for tiles
  uint32_t empty = 0;  // bit i: list i names no tile

  LRA_DEVICE uint32_t word_of(int list, int word) const {
    const uint32_t bits = isa::buffer_load_b32(row_buffer(first + static_cast<int64_t>(list) * words, words),
                                               word * kWordBytes);
    return (bits & (word == words - 1 ? tail : ~0u)) | (word == 0 ? empty >> list & 1 : 0);
  }
  LRA_DEVICE uint32_t union_of(int word) const {
    uint32_t listed = 0;
#pragma unroll 1
    for (int list = 0; list < lists; ++list) listed |= word_of(list, word);
    return listed;
  }
};

// Sums of numbers up to 32: over all lanes, and over those below the lane's own.
struct LaneSums {
  int all = 0, below = 0;

  LRA_DEVICE explicit LaneSums(int number) {
    for (int bit = 0; bit < 6; ++bit) {
      const uint64_t lanes = isa::ballot(number >> bit & 1);
      all += __builtin_popcountll(lanes) << bit;
      below += __builtin_amdgcn_mbcnt_hi(lanes >> 32, __builtin_amdgcn_mbcnt_lo(lanes, 0)) << bit;
    }
  }
};

// The lowest `count` of a word's set bits: none below 1, all where it has no more.
LRA_DEVICE uint32_t lowest_bits(uint32_t word, int count) {
  int position = 0;  // of the first bit that isn't among them
  constexpr int kWidths[] = {16, 8, 4, 2, 1, 1};
  for (const int width : kWidths) {
    const int here = __builtin_popcount(__builtin_amdgcn_ubfe(word, position, width));
    if (here > count) continue;
    position += width;
    count -= here;
  }
  return position == 32 ? word : word & ((1u << position) - 1);
}

LRA_DEVICE void prepare_piece(const SkipSplitArguments& arguments, int place) {
  const int lane = isa::lane();
  const int blocks = arguments.split_blocks, piece = place / blocks, words = arguments.words;
  const Share share = listed_share(arguments, arguments.whole_blocks + place);
  const int64_t first_word = first_list_row(arguments, share) * words;
  const int tiles_of_row = (arguments.seqlen_kv + kKvRowsPerTile - 1) / kKvRowsPerTile;
  BlockLists lists{arguments.read_list + first_word, lists_of(arguments, share), words,
                   ~0u >> (-tiles_of_row & (kTilesPerWord - 1))};

  uint32_t named = 0;
#pragma unroll 1
  for (int list = 0; list < lists.lists; ++list) {
    uint64_t lanes = 0;
#pragma unroll 1
    for (int chunk = 0; chunk < words; chunk += fragments::kWaveSize)
      lanes |= isa::ballot(lists.word_of(list, chunk + lane) != 0);
    named |= static_cast<uint32_t>(lanes != 0) << list;
  }
  lists.empty = ~named & ((1u << lists.lists) - 1);
  int tiles = 0;
#pragma unroll 1
  for (int chunk = 0; chunk < words; chunk += fragments::kWaveSize)
    tiles += LaneSums(__builtin_popcount(lists.union_of(chunk + lane))).all;

  // The first `rest` pieces have a tile more.
  const int least = tiles / arguments.pieces, rest = tiles % arguments.pieces;
  const int own = least + (piece < rest);
  const int first = piece * least + (piece < rest ? piece : rest);
  const int from = arguments.backward ? tiles - first - own : first;  // by rising tile
  uint32_t low = words, high = 0;
  int before = 0;  // tiles in earlier words
#pragma unroll 1
  for (int chunk = 0; chunk < words; chunk += fragments::kWaveSize) {
    const int word = chunk + lane;
    const uint32_t listed = lists.union_of(word);
    const LaneSums sums(__builtin_popcount(listed));
    const int rank = before + sums.below;
    before += sums.all;
    const uint32_t ours = lowest_bits(listed, from + own - rank) & ~lowest_bits(listed, from - rank);
    if (const uint64_t lanes = isa::ballot(ours != 0)) {
      if (low == static_cast<uint32_t>(words)) low = chunk + __builtin_ctzll(lanes);
      high = chunk + 63 - __builtin_clzll(lanes);
    }
#pragma unroll 1
    for (int list = 0; list < lists.lists; ++list)
      isa::buffer_store_b32(lists.word_of(list, word) & ours,
                            row_buffer(piece_lists(arguments, place) + list * words, words),
                            word * kWordBytes);
  }
  const int votes = vote_rows(arguments.fragments) * words;
  const BufferResource votes_buffer = row_buffer(piece_votes(arguments, place), votes);
#pragma unroll 1
  for (int chunk = 0; chunk < votes; chunk += fragments::kWaveSize)
    isa::buffer_store_b32(0, votes_buffer, (chunk + lane) * kWordBytes);
  const int pieces = tiles < arguments.pieces ? tiles : arguments.pieces;
  isa::buffer_store_b128({low, high, static_cast<uint32_t>(own), static_cast<uint32_t>(pieces)},
                         isa::make_buffer(arguments.list_pieces + place, sizeof(ListPiece)),
                         lane * sizeof(ListPiece));

  // Whatever the votes, the first tile that a query tile visits stays.
  if (piece > 0) return;
#pragma unroll 1
  for (int list = 0; list < lists.lists; ++list) {
    uint64_t lanes = 0;
    int chunk = arguments.backward ? (words - 1) / fragments::kWaveSize * fragments::kWaveSize : 0;
    uint32_t bits = 0;
#pragma unroll 1
    while (true) {
      bits = lists.word_of(list, chunk + lane);
      lanes = isa::ballot(bits != 0);
      if (lanes) break;
      chunk += arguments.backward ? -fragments::kWaveSize : fragments::kWaveSize;
    }
    const int holder = arguments.backward ? 63 - __builtin_clzll(lanes) : __builtin_ctzll(lanes);
    const uint32_t bit = arguments.backward ? 0x80000000u >> __builtin_clz(bits | 1) : bits & -bits;
    // Every lane takes part: EXEC stays.
    const int word = chunk + lane < words ? chunk + lane : words - 1;
    isa::atomic_or(arguments.write_list + first_word + list * words + word, lane == holder ? bit : 0);
  }
}

}  // namespace

extern "C" LRA_KERNEL __attribute__((amdgpu_flat_work_group_size(kListPieceThreads, kListPieceThreads))) void
attention_skip_pieces(SkipSplitArguments arguments) {
  const int wave = isa::uniform(__builtin_amdgcn_workitem_id_x() / fragments::kWaveSize);
  const int place = __builtin_amdgcn_workgroup_id_x() * (kListPieceThreads / fragments::kWaveSize) + wave;
  if (place < arguments.pieces * arguments.split_blocks) prepare_piece(arguments, place);
}

}  // namespace liteattention_rocm
