// Skip lists whose walk is split: which tiles a piece has, and where its votes go.
//
// The pieces of a query block share the tiles that its lists name, evenly, in the order of the walk; with
// full lists these are the pieces of split.hpp. A wave of attention_skip_pieces writes for each piece a copy
// of the block's lists that names its tiles alone, and the kernels walk that.
//
// A piece votes as a walk that starts with it would: it can't know what the pieces before it saw. Its votes
// wait in the workspace, by 16 query rows, for the merge, which comes through the pieces in the walk's order
// and knows: where the piece's own maximum is negligible for all 16 rows beside those of the pieces before,
// no tile of it can be worth keeping, and its votes are dropped. Every tile that the unsplit walk keeps is
// kept.
#pragma once

#include "skip.hpp"
#include "skip_split_arguments.hpp"

namespace liteattention_rocm {
namespace {

template <>
constexpr bool kSplits<SkipSplitArguments> = true;

// As share_of, but of all KV rows, and with the blocks of a head in the order of their work.
LRA_DEVICE Share listed_share(const SkipSplitArguments& arguments, uint32_t workgroup) {
  const uint32_t whole = arguments.whole_blocks;
  const uint32_t place = workgroup - whole;
  Share share = block_share(arguments, workgroup < whole
                                           ? workgroup
                                           : whole + place % static_cast<uint32_t>(arguments.split_blocks));
  if (workgroup >= whole) share.partial = place;
  if (arguments.order) {
    const int64_t head = static_cast<int64_t>(share.batch) * arguments.heads + share.head;
    share.query_tile = ((ScalarWords)arguments.order)[head * arguments.query_tiles + share.query_tile];
  }
  return share;
}
LRA_DEVICE Share workgroup_share(const SkipSplitArguments& arguments) {
  return listed_share(arguments, __builtin_amdgcn_workgroup_id_x());
}

using ScalarPieces = const __attribute__((address_space(4))) ListPiece*;
LRA_DEVICE ListPiece list_piece(const SkipSplitArguments& arguments, int place) {
  const ScalarPieces piece = (ScalarPieces)arguments.list_pieces + place;
  return {piece->first_word, piece->last_word, piece->tiles, piece->pieces};
}

// Query tiles of a head, and the first of a block's, as rows of the lists.
LRA_DEVICE int list_rows(const SkipSplitArguments& arguments) {
  return (arguments.seqlen_q + kQueryRowsPerWorkgroup - 1) / kQueryRowsPerWorkgroup;
}
LRA_DEVICE int64_t first_list_row(const SkipSplitArguments& arguments, const Share& share) {
  const int64_t head = static_cast<int64_t>(share.batch) * arguments.heads + share.head;
  return head * list_rows(arguments) + static_cast<int64_t>(share.query_tile) * arguments.lists;
}
// Of the query tiles of a block, those that exist.
LRA_DEVICE int lists_of(const SkipSplitArguments& arguments, const Share& share) {
  const int left = list_rows(arguments) - static_cast<int>(share.query_tile) * arguments.lists;
  return left < arguments.lists ? left : arguments.lists;
}

LRA_DEVICE uint32_t* piece_lists(const SkipSplitArguments& arguments, int place) {
  return arguments.piece_lists + static_cast<int64_t>(place) * arguments.lists * arguments.words;
}
LRA_DEVICE uint32_t* piece_votes(const SkipSplitArguments& arguments, int place) {
  return arguments.votes + static_cast<int64_t>(place) * vote_rows(arguments.fragments) * arguments.words;
}

// The walk of the kernel of 128 rows over its share's list: a whole block's, whose votes go to the written
// list as those of ListedTiles do; or a piece's.
class SharedTiles : public ListWalk {
 public:
  LRA_DEVICE SharedTiles(const SkipSplitArguments& arguments, const Share& share)
      : SharedTiles(arguments, share,
                    share.partial < 0 ? ListPiece{0, static_cast<uint32_t>(arguments.words) - 1, 1, 1}
                                      : list_piece(arguments, share.partial)) {}

  LRA_DEVICE int first(int rows) {
    const int remaining = first_tile(rows);
    for (uint32_t& kept : kept_) kept = first_ ? bit_ : 0;
    return remaining;
  }

  // As ListedTiles's, with the votes of each 16 rows apart.
  LRA_DEVICE bool vote(const uint64_t (&in_favour)[fragments::kQueryTiles]) {
    for (int q = 0; q < fragments::kQueryTiles; ++q) kept_[q] |= in_favour[q] ? bit_ : 0;
    bit_ = next_bit_;
    if (word_ != voted_word_) {
      for (int q = 0; q < fragments::kQueryTiles; ++q) {
        isa::atomic_or(written_ + q * row_ + voted_word_, mirrored(kept_[q]));
        kept_[q] = 0;
      }
      voted_word_ = word_;
    }
    return (in_favour[0] | in_favour[1]) != 0 || !votes_count_;
  }

 private:
  LRA_DEVICE SharedTiles(const SkipSplitArguments& arguments, const Share& share, const ListPiece& piece)
      : ListWalk(arguments, piece.first_word, piece.last_word), first_(share.partial < 0) {
    if (first_) {
      const int64_t row = first_list_row(arguments, share) * arguments.words;
      read_ = (ScalarWords)arguments.read_list + row;
      written_ = arguments.write_list + row;
      row_ = 0;
      return;
    }
    const int wave = isa::uniform(__builtin_amdgcn_workitem_id_x() / fragments::kWaveSize);
    read_ = (ScalarWords)piece_lists(arguments, share.partial);
    row_ = arguments.words;
    written_ = piece_votes(arguments, share.partial) + wave * fragments::kQueryTiles * row_;
  }

  uint32_t* written_;
  int row_;     // from the votes of 16 rows to those of the next; 0 where they have one place
  bool first_;  // the first tile stays, whatever the votes; of pieces attention_skip_pieces sees to that
  uint32_t kept_[fragments::kQueryTiles] = {};
};

}  // namespace
}  // namespace liteattention_rocm
