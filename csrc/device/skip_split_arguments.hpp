// Kernel arguments of the skipping kernels that split KV, of the one that prepares their lists, and of the
// one that merges: plain data, shared by host and device code.
#pragma once

#include "skip_arguments.hpp"
#include "split_arguments.hpp"

namespace liteattention_rocm {

// What a piece of a split query block visits: the tiles of one rank to another, in the walk's direction,
// among those that any list of the block names.
struct ListPiece {
  uint32_t first_word, last_word;  // of its lists: others name no tile, and hold no vote
  uint32_t tiles;                  // 0: there are fewer tiles than pieces, and none for this one
  uint32_t pieces;                 // of its block, those that have tiles
};

// The block of SplitArguments is `lists` query tiles, of which the last of a head may lack some; as in
// SkipArguments, `order` says which.
struct SkipSplitArguments : SplitArguments {
  const uint32_t* read_list;  // the fields of SkipArguments
  uint32_t* write_list;
  const uint32_t* order;
  float threshold;
  int32_t words;
  int32_t backward;
  int32_t votes_count;
  ListPiece* list_pieces;  // [pieces, split_blocks]
  uint32_t* piece_lists;   // [pieces, split_blocks, lists, words]: the piece's tiles of each list
  uint32_t* votes;         // [pieces, split_blocks, vote_rows(fragments), words]: on the piece's tiles
  int32_t lists;           // 1 or 3
  int32_t reserved;
};

// The row of votes of 16 query rows: between those of one query tile and the next lies a row that isn't used,
// so that a list's offset in its block can be a part of a row's.
constexpr int kFragmentsPerList = kQueryRowsPerWorkgroup / kPartialRows;
constexpr int vote_row(int fragment) {
  return fragment + fragment / kFragmentsPerList;
}
constexpr int vote_rows(int fragments) {
  return vote_row(fragments - 1) + 1;
}

constexpr int kListPieceThreads = 256;  // a wave prepares a piece

}  // namespace liteattention_rocm
