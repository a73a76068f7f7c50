// One forward call over packed sequences: check and launch, once.
#pragma once

#include "host/forward.hpp"

namespace liteattention_rocm {

// As csrc/device/varlen_arguments.hpp says. `forward` describes the packed tensors as one batch entry; its
// lse is float32 [heads, total_q].
struct VarlenCall {
  ForwardCall forward;
  uint64_t cu_seqlens_q, cu_seqlens_k;  // device addresses of int32 [sequences + 1]
  int64_t sequences;
  int64_t max_seqlen_q;  // rows of a sequence behind this many are not written
};

// As forward() in every other respect. Nothing on the device is read by the host.
void varlen_forward(int hip, int device, std::string_view arch, int compute_units, const VarlenCall& call);

}  // namespace liteattention_rocm
