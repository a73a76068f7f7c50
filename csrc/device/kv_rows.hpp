// Rows of K and V on their way from memory to LDS, 64 of each at a time, by a workgroup of 256 threads.
#pragma once

#include "bf16.hpp"
#include "rows.hpp"

namespace liteattention_rocm {
namespace {

using namespace fragments;

constexpr int kFetchesPerThread = 4;
static_assert(kThreadsPerWorkgroup * kFetchesPerThread == kKvRowsPerTile * kChunksPerRow);

// The rows of one head as a chain of KV tiles, each seen through a buffer of its own: a base in 64 bits
// and offsets that fit 32.
struct KvRows {
  const char* tile;    // first row of the next tile to fetch
  uint32_t row_bytes;  // stride

  LRA_DEVICE void move(int rows) { tile += static_cast<int64_t>(rows) * row_bytes; }
};

struct Fetched {
  Dword4 chunks[kFetchesPerThread];
};

// Fetches chunk `chunk` of rows first_row + i·row_step. Rows from `rows` on read as 0: by the buffer's size
// where rows lie apart, by index where they overlap (a stride below a row, as expand() makes).
LRA_DEVICE Fetched fetch(const KvRows& kv, int rows, int first_row, int row_step, int chunk) {
  const BufferResource buffer = isa::make_buffer(kv.tile, span_bytes(rows, kv.row_bytes));
  const bool overlapping = kv.row_bytes < static_cast<uint32_t>(kRowBytes);
  Fetched fetched;
  for (int i = 0; i < kFetchesPerThread; ++i) {
    const int row = first_row + i * row_step;
    uint32_t offset = row * kv.row_bytes + chunk * kChunkBytes;
    if (overlapping && row >= rows) offset = kOutOfBounds;
    fetched.chunks[i] = isa::buffer_load_b128(buffer, offset);
  }
  return fetched;
}

// Thread t carries chunk t%16 of K rows t/16 + 16·i …
LRA_DEVICE Fetched fetch_key(const KvRows& key, int rows, int thread) {
  return fetch(key, rows, thread / kChunksPerRow, kThreadsPerWorkgroup / kChunksPerRow,
               thread % kChunksPerRow);
}
LRA_DEVICE void deposit_key(const Fetched& fetched, char* lds, int thread) {
  for (int i = 0; i < kFetchesPerThread; ++i) {
    const int row = thread / kChunksPerRow + i * (kThreadsPerWorkgroup / kChunksPerRow);
    *reinterpret_cast<Dword4*>(lds + key_lds_offset(row, thread % kChunksPerRow)) = fetched.chunks[i];
  }
}

// … and of the four V rows of quad t/16, which it transposes into eight cells.
LRA_DEVICE Fetched fetch_value(const KvRows& value, int rows, int thread) {
  return fetch(value, rows, thread / kChunksPerRow * 4, 1, thread % kChunksPerRow);
}
template <auto kOffset>  // value_lds_offset of the layout
LRA_DEVICE void deposit_value(const Fetched& fetched, char* lds, int thread) {
  const int quad = thread / kChunksPerRow, first_dim = thread % kChunksPerRow * 8;
  for (int i = 0; i < 4; ++i) {
    const uint32_t row0 = fetched.chunks[0][i], row1 = fetched.chunks[1][i];
    const uint32_t row2 = fetched.chunks[2][i], row3 = fetched.chunks[3][i];
    const Dword2 even = {isa::perm(row1, row0, bf16::kLowHalves), isa::perm(row3, row2, bf16::kLowHalves)};
    const Dword2 odd = {isa::perm(row1, row0, bf16::kHighHalves), isa::perm(row3, row2, bf16::kHighHalves)};
    *reinterpret_cast<Dword2*>(lds + kOffset(quad, first_dim + 2 * i)) = even;
    *reinterpret_cast<Dword2*>(lds + kOffset(quad, first_dim + 2 * i + 1)) = odd;
  }
}

}  // namespace
}  // namespace liteattention_rocm
