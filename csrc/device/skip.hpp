// LiteAttention: the walk over a skip list, and the vote that makes the next one.
//
// A tile stays in the list unless it is negligible for every query row of the workgroup: unless, in log2
// units, the maximum of its scores lies by more than the threshold below the maximum of the tiles visited
// before it. Each wave votes with scores it has anyway, gathers the votes of a word in a scalar register, and
// ORs them into the written list when the walk leaves the word. Nothing is exchanged between waves, and votes
// never change the output of the call they are cast in.
#pragma once

#include "fragments.hpp"
#include "skip_arguments.hpp"
#include "softmax.hpp"
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

// The tiles of one row of the read list, in the direction of the walk, and this wave's votes on them.
class ListedTiles {
 public:
  static constexpr bool kVotes = true;

  LRA_DEVICE ListedTiles(const SkipArguments& arguments, uint32_t query_tile)
      : seqlen_kv_(arguments.seqlen_kv), tiles_((arguments.seqlen_kv + kKvRowsPerTile - 1) / kKvRowsPerTile),
        backward_(arguments.backward), word_(backward_ ? arguments.words : -1), words_left_(arguments.words) {
    const int64_t row = first_list_row(arguments) + query_tile;
    read_ = (ScalarWords)arguments.read_list + row * arguments.words;
    written_ = arguments.write_list + row * arguments.words;
  }

  // A list that names no tile first is walked as if that were tile 0.
  LRA_DEVICE int first(int) {
    tile_ = take();
    if (tile_ >= tiles_) tile_ = 0;
    kept_ = bit(tile_);
    return remaining_from(tile_);
  }
  LRA_DEVICE int next(int) {
    next_ = take();
    return next_ < tiles_ ? remaining_from(next_) : 0;
  }

  // About the current tile, whether or not the next is known already.
  LRA_DEVICE void vote(bool keep) { kept_ |= keep ? bit(tile_) : 0; }
  LRA_DEVICE void leave() {
    const uint32_t word = tile_ / kTilesPerWord;
    if (next_ / kTilesPerWord != word) {
      isa::atomic_or(written_ + word, kept_);
      kept_ = 0;
    }
    tile_ = next_;
  }

 private:
  static constexpr uint32_t kNone = ~0u;

  static LRA_DEVICE uint32_t bit(uint32_t tile) { return 1u << (tile % kTilesPerWord); }
  LRA_DEVICE int remaining_from(uint32_t tile) const { return seqlen_kv_ - tile * kKvRowsPerTile; }

  LRA_DEVICE uint32_t take() {
    while (bits_ == 0) {
      if (words_left_ == 0) return kNone;
      --words_left_;
      word_ += backward_ ? -1 : 1;
      bits_ = read_[word_];
      if (backward_) bits_ = __builtin_bitreverse32(bits_);
    }
    const uint32_t lowest = __builtin_ctz(bits_);
    bits_ &= bits_ - 1;
    return word_ * kTilesPerWord + (backward_ ? kTilesPerWord - 1 - lowest : lowest);
  }

  ScalarWords read_;
  uint32_t* written_;
  int seqlen_kv_;
  uint32_t tiles_;
  int backward_;
  int word_, words_left_;  // the word that bits_ are from, and how many lie behind it
  uint32_t bits_ = 0;      // not taken yet; mirrored in a backward walk, so that the lowest is the next
  uint32_t tile_ = kNone, next_ = kNone;
  uint32_t kept_ = 0;  // votes on the tiles of tile_'s word
};

// The lanes whose query row wants the tile; a NaN score always does.
LRA_DEVICE uint64_t lanes_in_favour(float tile_maximum, float maximum, float c, float threshold) {
  return isa::ballot(!((tile_maximum - maximum) * c <= threshold));
}

}  // namespace liteattention_rocm
