// Kernel arguments of the forward kernel: plain data, shared by host and device code.
#pragma once

#include <cstdint>

namespace liteattention_rocm {

// Strides are in bytes. `row` steps along the sequence.
struct TensorStrides {
  int64_t batch;
  int64_t head;
  int64_t row;
};

struct ForwardArguments {
  const void* query;
  const void* key;
  const void* value;
  void* out;
  float* lse;  // [batch, heads, seqlen_q], natural log; null: not written
  TensorStrides query_strides;
  TensorStrides key_strides;
  TensorStrides value_strides;
  TensorStrides out_strides;
  int32_t seqlen_q;
  int32_t seqlen_kv;
  int32_t heads;
  int32_t heads_per_kv_head;
  float scale;               // |softmax scale|; a negative scale arrives as query_sign_mask
  float scale_log2e;         // |softmax scale| · log2(e), at least 2⁻¹⁴⁹: the kernel excludes a kv row by a
                             // score of −Inf, and −Inf · 0 would be NaN
  uint32_t query_sign_mask;  // XORed into every packed pair of query elements: 0 or 0x80008000
  int32_t reserved;
};

// Geometry of the forward kernels. The host plans with these, the kernels are written for them.
constexpr int kHeadDim = 128;
constexpr int kThreadsPerWorkgroup = 256;
constexpr int kQueryRowsPerWorkgroup = 128;
constexpr int kPingpongThreadsPerWorkgroup = 512;
constexpr int kPingpongQueryRowsPerWorkgroup = 384;
constexpr int kKvRowsPerTile = 64;
// A tile is addressed with 32-bit byte offsets from a 64-bit base: the row stride it can span.
constexpr int64_t kMaxRowStrideBytes = int64_t{1} << 24;

}  // namespace liteattention_rocm
