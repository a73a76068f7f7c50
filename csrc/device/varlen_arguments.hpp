// Kernel arguments of the forward kernel for packed sequences: plain data, shared by host and device code.
#pragma once

#include "arguments.hpp"

namespace liteattention_rocm {

// Rows of all sequences lie behind one another: query and out [total_q, heads, 128], key and value
// [total_k, kv_heads, 128], lse [heads, total_q]. seqlen_q and seqlen_kv are the totals; batch strides mean
// nothing. Sequence i has the rows from entry i of its cumulative lengths up to entry i + 1.
struct VarlenArguments : ForwardArguments {
  const int32_t* cu_seqlens_q;  // [sequences + 1], from 0 to total_q, never falling
  const int32_t* cu_seqlens_k;  // [sequences + 1], from 0 to total_k, never falling
};

}  // namespace liteattention_rocm
