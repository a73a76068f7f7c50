// LiteAttention: the walk over a skip list, and the vote that makes the next one.
//
// A tile stays in the list unless it is negligible for every query row of the workgroup: unless, in log2
// units, the maximum of its scores lies by more than the threshold below the maximum of the tiles visited
// before it. Each wave votes with scores it has anyway, gathers the votes of a word in a scalar register, and
// ORs them into the written list when the walk leaves the word. Nothing is exchanged between waves.
#pragma once

#include "fragments.hpp"
#include "skip_arguments.hpp"
#include "softmax.hpp"
#include "split.hpp"
#include "walk.hpp"

namespace liteattention_rocm {

// Read by scalar loads: nothing writes the read list during a launch.
using ScalarWords = const __attribute__((address_space(4))) uint32_t*;

// Row of the lists for the first query tile of this workgroup's head.
LRA_DEVICE int64_t first_list_row(const SkipArguments& arguments) {
  const int query_tiles = (arguments.seqlen_q + kQueryRowsPerWorkgroup - 1) / kQueryRowsPerWorkgroup;
  const int batch = __builtin_amdgcn_workgroup_id_z(), head = __builtin_amdgcn_workgroup_id_y();
  return (static_cast<int64_t>(batch) * arguments.heads + head) * query_tiles;
}

LRA_DEVICE uint32_t ordered_query_tile(const SkipArguments& arguments) {
  const uint32_t place = __builtin_amdgcn_workgroup_id_x();
  if (!arguments.order) return place;
  return ((ScalarWords)arguments.order)[first_list_row(arguments) + place];
}

// The tiles of one row of a list, in the direction of the walk. Words are held mirrored in a backward walk,
// so that the next tile is always the lowest bit.
class ListWalk {
 public:
  static constexpr bool kVotes = true;

  LRA_DEVICE int next(int) {
    while (bits_ == 0) {
      word_ += mirror_ ? -1 : 1;
      bits_ = 1;
      if (word_ == end_word_)
        rows_ = -kKvRowsPerTile;  // whatever tile is taken now, it has no rows
      else
        bits_ = mirrored(read_[word_]);
    }
    next_bit_ = bits_ & -bits_;
    bits_ ^= next_bit_;
    const int tile = word_ * kTilesPerWord + (__builtin_ctz(next_bit_) ^ mirror_);
    return rows_ - tile * kKvRowsPerTile;
  }

 protected:
  // Over the words from first_word to last_word.
  template <typename Arguments>
  LRA_DEVICE ListWalk(const Arguments& arguments, int first_word, int last_word)
      : rows_(arguments.seqlen_kv), mirror_(arguments.backward ? kTilesPerWord - 1 : 0),
        votes_count_(arguments.votes_count), word_(mirror_ ? last_word + 1 : first_word - 1),
        end_word_(mirror_ ? first_word - 1 : last_word + 1) {}

  // A list that names no tile is walked as if that were tile 0.
  LRA_DEVICE int first_tile(int rows) {
    int remaining = next(rows);
    if (remaining <= 0) {
      remaining = rows;
      word_ = 0;
      next_bit_ = mirrored(1);
    }
    bit_ = next_bit_;
    voted_word_ = word_;
    __builtin_assume(remaining > 0);
    return remaining;
  }

  LRA_DEVICE uint32_t mirrored(uint32_t word) const { return mirror_ ? __builtin_bitreverse32(word) : word; }

  ScalarWords read_;
  int rows_;  // of the sequence
  int mirror_, votes_count_;
  int word_, end_word_;              // the open word, and what follows the last
  uint32_t bits_ = 0;                // tiles of the open word that were not taken yet
  uint32_t bit_ = 0, next_bit_ = 0;  // of the current and the next tile
  int voted_word_ = 0;               // of the current tile's word
};

// Those of the read list, and this wave's votes on them.
class ListedTiles : public ListWalk {
 public:
  LRA_DEVICE ListedTiles(const SkipArguments& arguments, const Share& share)
      : ListWalk(arguments, 0, arguments.words - 1) {
    const int64_t row = first_list_row(arguments) + share.query_tile;
    read_ = (ScalarWords)arguments.read_list + row * arguments.words;
    written_ = arguments.write_list + row * arguments.words;
  }

  LRA_DEVICE int first(int rows) {
    const int remaining = first_tile(rows);
    kept_ = bit_;
    return remaining;
  }

  // This wave's vote on the current tile, after the next is known: that of any lane. Whether the wave goes on
  // with the tile.
  LRA_DEVICE bool vote(const uint64_t (&in_favour)[fragments::kQueryTiles]) {
    const bool keep = (in_favour[0] | in_favour[1]) != 0;
    kept_ |= keep ? bit_ : 0;
    bit_ = next_bit_;
    if (word_ != voted_word_) {
      isa::atomic_or(written_ + voted_word_, mirrored(kept_));
      kept_ = 0;
      voted_word_ = word_;
    }
    return keep || !votes_count_;
  }

 private:
  uint32_t* written_;
  uint32_t kept_ = 0;  // votes on the tiles of the current tile's word
};

// Whether a row whose largest score in the tile leads all earlier ones by `lead` log2 units wants the tile: a
// bit per lane. A NaN always does.
LRA_DEVICE uint64_t lanes_in_favour(float lead, float threshold) {
  return isa::ballot(!(lead <= threshold));
}

}  // namespace liteattention_rocm
