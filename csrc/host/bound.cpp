#include "host/bound.hpp"

#include <utility>

#include "host/hip.hpp"
#include "host/kernels.hpp"

namespace liteattention_rocm {
namespace {

constexpr uint64_t kElementBytes = 2;  // bf16

// Wraps for tensors beyond 2^64 bytes, which forward() refuses.
uint64_t extent_bytes(const Strides& strides, const std::array<int64_t, 3>& sizes) {
  uint64_t last = kHeadDim - 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return 0;
    last += static_cast<uint64_t>(sizes[i] - 1) * static_cast<uint64_t>(strides[i]);
  }
  return (last + 1) * kElementBytes;
}

}  // namespace

BoundForward::BoundForward(int library, int device, std::string arch, int compute_units,
                           const ForwardCall& call)
    : library_(library), device_(device), arch_(std::move(arch)), compute_units_(compute_units), call_(call),
      plan_(call.problem, DeviceProperties{compute_units}, call.kernel, call.pieces) {
  const Problem& problem = call.problem;
  call_.workspace_bytes = plan_.workspace_bytes();
  const std::array<int64_t, 3> query{problem.batch, problem.heads, problem.seqlen_q};
  const std::array<int64_t, 3> kv{problem.batch, problem.kv_heads, problem.seqlen_kv};
  query_bytes_ = extent_bytes(call.query_strides, query);
  key_bytes_ = extent_bytes(call.key_strides, kv);
  value_bytes_ = extent_bytes(call.value_strides, kv);
  out_bytes_ = extent_bytes(call.out_strides, query);
  lse_bytes_ = static_cast<uint64_t>(problem.batch) * static_cast<uint64_t>(problem.heads) *
               static_cast<uint64_t>(problem.seqlen_q) * sizeof(float);
}

void BoundForward::launch(const ForwardAddresses& addresses, uint64_t stream) const {
  ForwardCall call = call_;
  call.query = addresses.query;
  call.key = addresses.key;
  call.value = addresses.value;
  call.out = addresses.out;
  call.lse = addresses.lse;
  call.workspace = addresses.workspace;
  call.stream = stream;
  const HipLibrary& hip = hip_library(library_);
  const SimulatedAccess access[] = {
      {hip, call.query, query_bytes_, "q", false},
      {hip, call.key, key_bytes_, "k", false},
      {hip, call.value, value_bytes_, "v", false},
      {hip, call.out, out_bytes_, "out", true},
      {hip, call.lse, call.lse ? lse_bytes_ : 0, "lse", true},
      {hip, call.workspace, static_cast<uint64_t>(call.workspace_bytes), "workspace", true}};
  forward(library_, device_, arch_, compute_units_, call, plan_);
}

}  // namespace liteattention_rocm
