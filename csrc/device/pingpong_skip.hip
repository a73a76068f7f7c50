// The out-of-phase kernel over skip lists, see pingpong.hip and skip.hpp.
//
// Lists are those of skip.hpp: a row of bits for each block of 128 query rows. A workgroup's 384 rows are
// three blocks, and it visits the tiles that any of them lists. For the others the scores of such a tile are
// −Inf: each block attends exactly the tiles of its own list, and votes on no others. A vote is taken for 16
// rows, an MFMA tile, as 128 rows aren't whole waves here; blocks gather them by atomic ORs into the written
// list when the walk leaves a word.
//
// The walk is scalar work behind MFMAs. What is rare has one check a tile: a part-filled tile, one that not
// every query tile visits, and the first and the last of a word.
#pragma once

#include "pingpong.hip"
#include "skip_split.hpp"

namespace liteattention_rocm {
namespace {

// The query rows of a workgroup, in the order of their work.
LRA_DEVICE Share workgroup_share(const SkipArguments& arguments) {
  Share share = grid_share(arguments);
  if (arguments.order) {
    const int64_t head = static_cast<int64_t>(share.batch) * arguments.heads + share.head;
    const int groups = (arguments.seqlen_q + pingpong::kQueryRows - 1) / pingpong::kQueryRows;
    share.query_tile = ((ScalarWords)arguments.order)[head * groups + share.query_tile];
  }
  return share;
}

}  // namespace

namespace pingpong {
namespace {

constexpr int kBlocks = kQueryRows / kQueryRowsPerWorkgroup;  // of a workgroup
static_assert(kBlocks * kQueryRowsPerWorkgroup == kQueryRows && kBlocks == 3);
static_assert(kQueryRowsPerWorkgroup % kMfma == 0);

// The bits of a row's last word that stand for tiles.
LRA_DEVICE uint32_t tail_mask(int seqlen_kv) {
  const int tiles = (seqlen_kv + kKvRowsPerTile - 1) / kKvRowsPerTile;
  return ~0u >> (-tiles & (kTilesPerWord - 1));
}

// The tile of a row that a walk visits first; −1: none.
LRA_DEVICE int first_tile(ScalarWords row, int words, uint32_t tail, int backward) {
#pragma unroll 1
  for (int i = 0; i < words; ++i) {
    const int word = backward ? words - 1 - i : i;
    const uint32_t bits = row[word] & (word == words - 1 ? tail : ~0u);
    if (bits) return word * kTilesPerWord + (backward ? 31 - __builtin_clz(bits) : __builtin_ctz(bits));
  }
  return -1;
}

template <RoundMode kMode, typename Arguments>
LRA_DEVICE void skip_attention() {
  // Arguments are read where they are needed: the loop leaves few scalar registers to keep them in.
  const Arguments arguments = isa::scalar_arguments_anew<Arguments>();
  alignas(kChunkBytes) LRA_SHARED char lds[4 * kTileBytes];  // K, K, V, V

  const int thread = __builtin_amdgcn_workitem_id_x();
  const int lane = isa::lane();
  const Share share = workgroup_share(arguments);
  const int head = share.head, batch = share.batch, group = share.query_tile;
  const int kv_head = head / arguments.heads_per_kv_head;
  const int wave = isa::uniform(thread / kWaveSize);
  const int second_group = wave / kWavesPerGroup;
  ListPiece piece{0, static_cast<uint32_t>(arguments.words) - 1, 1, 1};
  if constexpr (kSplits<Arguments>)
    if (share.partial >= 0) {
      piece = list_piece(arguments, share.partial);
      if (piece.tiles == 0) return;
    }

  const int64_t first_row = static_cast<int64_t>(group) * kQueryRows + wave * kRowsPerWave;
  const int64_t remaining_rows = arguments.seqlen_q - first_row;
  const int rows = remaining_rows < 0 ? 0 : remaining_rows < kRowsPerWave ? remaining_rows : kRowsPerWave;

  // The lists of this workgroup's blocks. A block that doesn't exist reads the first one's.
  const int64_t head_index = static_cast<int64_t>(batch) * arguments.heads + head;
  const int blocks_of_head = (arguments.seqlen_q + kQueryRowsPerWorkgroup - 1) / kQueryRowsPerWorkgroup;
  const int blocks_left = blocks_of_head - kBlocks * group;
  const int blocks = blocks_left < kBlocks ? blocks_left : kBlocks;
  const int64_t first_word =
      (head_index * blocks_of_head + static_cast<int64_t>(group) * kBlocks) * arguments.words;
  auto read = (ScalarWords)arguments.read_list + first_word;
  const uint32_t* votes = arguments.write_list + first_word;
  const uint32_t tail = tail_mask(arguments.seqlen_kv);
  uint32_t row_offset[kBlocks];
  uint32_t empty = 0, empty_blocks = 0;
  for (int block = 0; block < kBlocks; ++block)
    row_offset[block] = block < blocks ? block * arguments.words * sizeof(uint32_t) : 0;
  uint32_t vote_row = 0;
  if (share.partial < 0) {
    for (int block = 0; block < kBlocks; ++block) {
      const int row = block < blocks ? block * arguments.words : 0;
      const int first = first_tile(read + row, arguments.words, tail, arguments.backward);
      empty_blocks |= (first < 0) << block;
      // Whatever the votes, the first visited tile stays.
      const int kept = first < 0 ? 0 : first;
      if (block == wave && block < blocks)
        isa::atomic_or(arguments.write_list + first_word + row + kept / kTilesPerWord,
                       1u << kept % kTilesPerWord);
    }
  }
  if constexpr (kSplits<Arguments>) {
    if (share.partial >= 0) {
      read = (ScalarWords)piece_lists(arguments, share.partial);
      votes = piece_votes(arguments, share.partial) + wave * kQueryTilesPerWave * arguments.words;
      vote_row = arguments.words * sizeof(uint32_t);
    }
  } else {
    asm("" : "={s35}"(vote_row));  // isn't read
  }
  int row_of[kQueryTilesPerWave];
  uint32_t voters[kQueryTilesPerWave];
  for (int q = 0; q < kQueryTilesPerWave; ++q) {
    const int block = (wave * kQueryTilesPerWave + q) * kMfma / kQueryRowsPerWorkgroup;
    const int tile_rows = rows - q * kMfma;
    voters[q] = tile_rows <= 0 ? 0 : tile_rows < kMfma ? (1u << tile_rows) - 1 : (1u << kMfma) - 1;
    row_of[q] = tile_rows > 0 ? block * arguments.words * static_cast<int>(sizeof(uint32_t)) : -1;
    empty |= (empty_blocks >> block & 1) << q;
  }
  empty |= (empty_blocks != 0) << 3;

  const uint32_t query_row_bytes = arguments.query_strides.row;
  const BufferResource query_buffer =
      isa::make_buffer(head_base(arguments.query, arguments.query_strides, batch, head) +
                           first_row * arguments.query_strides.row,
                       rows == 0 ? 0 : span_bytes(rows, query_row_bytes));
  Query query[kQueryTilesPerWave];
  float maximum[kQueryTilesPerWave], sums[kQueryTilesPerWave];
  for (int q = 0; q < kQueryTilesPerWave; ++q) {
    const int row = q * kMfma + lane_column(lane);
    query[q] = load_query(query_buffer, row, rows, query_row_bytes, arguments.query_sign_mask, lane);
  }

  const TensorStrides& strides = second_group ? arguments.value_strides : arguments.key_strides;
  const int worker = thread % kThreadsPerGroup;
  const uint32_t row_bytes = strides.row;
  const uint32_t row_step = second_group ? 1 : kThreadsPerGroup / kChunksPerRow;
  const uint32_t worker_row = worker / kChunksPerRow * (second_group ? 4 : 1);
  const uint32_t lds_base = reinterpret_cast<uintptr_t>((__attribute__((address_space(3))) char*)(lds));
  const auto tensor = reinterpret_cast<uint64_t>(
      head_base(second_group ? arguments.value : arguments.key, strides, batch, kv_head));
  uint32_t deposit =
      lds_base + (second_group
                      ? 2 * kTileBytes + value_lds_offset(worker / kChunksPerRow, worker % kChunksPerRow, 0)
                      : key_lds_offset(worker / kChunksPerRow, worker % kChunksPerRow));
  uint32_t read_value = lds_base + 3 * kTileBytes + lane * kChunkBytes;
  uint32_t read_key_even = lds_base + key_read_offset(lane, 0);
  uint32_t read_key_odd = lds_base + key_read_offset(lane, 1);

  const auto lists = reinterpret_cast<uint64_t>(read);
  const uint64_t written = reinterpret_cast<uint64_t>(votes) - lists;
  const uint32_t last_word = (arguments.words - 1) * sizeof(uint32_t);
  const uint32_t from_word = piece.first_word * sizeof(uint32_t);
  const uint32_t to_word = piece.last_word * sizeof(uint32_t);
  const bool backward = arguments.backward;
  OutputRegisters output[kQueryTilesPerWave];
  asm volatile(
#include "pingpong_loop.inl"
      : "={v[0:31]}"(output[0]), "={v[32:63]}"(output[1]), "={v[64:95]}"(output[2]), "={v228}"(maximum[0]),
        "={v229}"(maximum[1]), "={v230}"(maximum[2]), "={v234}"(sums[0]), "={v235}"(sums[1]),
        "={v236}"(sums[2]), "+{v237}"(read_value), "+{v238}"(read_key_even), "+{v239}"(read_key_odd),
        "+{v240}"(deposit)
      : "{v[96:111]}"(query[0]), "{v[112:127]}"(query[1]), "{v[128:143]}"(query[2]),
        "{v241}"(worker_row * row_bytes + worker % kChunksPerRow * kChunkBytes),
        "{v242}"(4 * lane_group(lane)), "{v243}"((lane ^ 32) * 4), "{v244}"(worker_row), "{s40}"(row_bytes),
        "{s41}"(row_step * row_bytes), "{s42}"(row_step), "{s44}"(second_group),
        "{s45}"(arguments.scale_log2e), "{s[62:63]}"(lists), "{s64}"(row_offset[1]), "{s65}"(row_offset[2]),
        "{s66}"(row_of[0]), "{s67}"(row_of[1]), "{s68}"(row_of[2]), "{s[70:71]}"(written),
        "{s[72:73]}"(tensor), "{s74}"(arguments.threshold), "{s75}"(arguments.seqlen_kv),
        "{s76}"(backward ? kTilesPerWord - 1 : 0), "{s77}"(backward ? to_word + 4 : from_word - 4),
        "{s78}"(backward ? -4 : 4), "{s79}"(backward ? from_word : to_word), "{s80}"(last_word),
        "{s81}"(tail), "{s82}"(empty), "{s99}"(voters[0]), "{s100}"(voters[1]), "{s101}"(voters[2]),
        "{s35}"(vote_row), [mode] "i"(static_cast<int>(kMode)), [lists] "i"(kSplits<Arguments> ? 2 : 1)
      : "memory", "vcc", "scc", "s36", "s37", "s38", "s39", "s43", "s46", "s47", "s48", "s49", "s50", "s51",
        "s52", "s54", "s55", "s56", "s57", "s53", "s58", "s59", "s60", "s61", "s69", "s83", "s84", "s85",
        "s86", "s87", "s88", "s89", "s90", "s91", "s92", "s93", "s94", "s95", "s96", "s97", "s98", "v245",
        "v246", "v247", "v144", "v145", "v146", "v147", "v148", "v149", V10(15), V10(16), V10(17), V10(18),
        V10(19), V10(20), V10(21), "v220", "v221", "v222", "v223", "v224", "v225", "v226", "v227", "v231",
        "v232", "v233");

  if (rows == 0) return;
  if constexpr (kSplits<Arguments>) {
    if (share.partial >= 0) {
      const SplitArguments again = isa::scalar_arguments_anew<SplitArguments>();
      const int lane_again = isa::lane_anew();
      for (int q = 0; q < kQueryTilesPerWave; ++q)
        store_partial(output[q], maximum[q], sum_over_groups(sums[q], (lane_again ^ 32) * 4),
                      partial_address(again, share.partial, wave * kQueryTilesPerWave + q), lane_again);
      return;
    }
  }
  const ForwardArguments again = isa::scalar_arguments_anew<ForwardArguments>();
  store_results<kMode>(again, batch, head, first_row, rows, output, maximum, sums, isa::lane_anew());
}

}  // namespace
}  // namespace pingpong

#define LRA_PINGPONG_SKIP_KERNEL(rounding, mode)                                                             \
  extern "C" LRA_KERNEL __attribute__((amdgpu_flat_work_group_size(pingpong::kThreads, pingpong::kThreads),  \
                                       amdgpu_waves_per_eu(2, 2))) void                                      \
  attention_skip_pingpong_##rounding(SkipArguments) {                                                        \
    pingpong::skip_attention<mode, SkipArguments>();                                                         \
  }                                                                                                          \
  extern "C" LRA_KERNEL __attribute__((amdgpu_flat_work_group_size(pingpong::kThreads, pingpong::kThreads),  \
                                       amdgpu_waves_per_eu(2, 2))) void                                      \
  attention_skip_pingpong_split_##rounding(SkipSplitArguments) {                                             \
    pingpong::skip_attention<mode, SkipSplitArguments>();                                                    \
  }

LRA_PINGPONG_SKIP_KERNEL(rtne, RoundMode::kRtne)
LRA_PINGPONG_SKIP_KERNEL(rtna, RoundMode::kRtna)
LRA_PINGPONG_SKIP_KERNEL(rtz, RoundMode::kRtz)

}  // namespace liteattention_rocm
