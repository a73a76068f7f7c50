// A forward call that is complete but for its addresses: what shapes, strides and options settle, kept from
// call to call.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "host/forward.hpp"

namespace liteattention_rocm {

struct ForwardAddresses {
  uint64_t query, key, value, out;
  uint64_t lse;        // 0: not written
  uint64_t workspace;  // of workspace_bytes
};

class BoundForward {
 public:
  // `call` without addresses, workspace and stream. For the rest see forward().
  BoundForward(int library, int device, std::string arch, int compute_units, const ForwardCall& call);

  int64_t workspace_bytes() const { return call_.workspace_bytes; }  // the plan's

  // As forward(). The simulator may touch the call's tensors meanwhile, and stores to out, lse and the
  // workspace alone.
  void launch(const ForwardAddresses& addresses, uint64_t stream) const;

 private:
  int library_, device_;
  std::string arch_;
  int compute_units_;
  ForwardCall call_;
  Plan plan_;
  uint64_t query_bytes_, key_bytes_, value_bytes_, out_bytes_, lse_bytes_;  // from first to last element
};

}  // namespace liteattention_rocm
