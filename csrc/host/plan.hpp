// Which launches one forward call makes. Pure arithmetic on shapes and the device's properties.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "host/split.hpp"

namespace liteattention_rocm {

struct Problem {
  int64_t batch, heads, kv_heads, seqlen_q, seqlen_kv;
};

struct DeviceProperties {
  int compute_units;
};

// The kernels that compute dense attention, and what a plan needs to know of them. No plan chooses
// kAiterExact.
enum class DenseKernel { kForward, kPingpong, kAiterExact };

struct KernelTraits {
  // Modelled clocks (D0 of docs/timing.md, rtz) of a compute unit with one workgroup, or with a pair.
  struct Clocks {
    double fixed, per_kv_tile;
  };
  const char* name;
  int query_rows, threads;  // of a workgroup
  Clocks alone;
  std::optional<Clocks> paired;  // none: one workgroup fills a compute unit
};

const KernelTraits& kernel_traits(DenseKernel kernel);

// The kernel of that name, none for "". Throws std::invalid_argument for other names.
std::optional<DenseKernel> dense_kernel(std::string_view name);

struct Launch {
  std::array<uint32_t, 3> grid;  // workgroups: query tiles, heads, batch entries
  int64_t first_batch;
};

class Plan {
 public:
  // With the kernel that is modelled as fastest, unless one is given. pieces: 1, every query block is whole;
  // 0, KV is split where the model says that it pays; more, every block is in so many pieces, or as many as
  // there are KV tiles. Throws std::invalid_argument naming the argument that is out of range.
  Plan(const Problem& problem, const DeviceProperties& device,
       std::optional<DenseKernel> kernel = std::nullopt, int64_t pieces = 1);

  DenseKernel kernel() const { return kernel_; }
  int threads() const { return kernel_traits(kernel_).threads; }  // of a workgroup

  // None: each query block has a workgroup of its own, and launch(i) are the launches. Otherwise one launch
  // of the splitting kernel and one of the merge.
  const std::optional<Split>& split() const { return split_; }
  int64_t workspace_bytes() const { return split_ ? split_->workspace_bytes(kernel_traits(kernel_)) : 0; }
  // Of the compute unit with most work.
  double modelled_clocks() const { return modelled_clocks_; }

  int64_t launch_count() const { return launch_count_; }  // 0 when there is nothing to write
  Launch launch(int64_t index) const;
  Launch split_launch() const;
  Launch merge_launch() const;

  int64_t query_tiles() const { return query_tiles_; }
  int64_t kv_tiles() const { return kv_tiles_; }      // per query block
  int64_t workgroups() const { return workgroups_; }  // unsplit
  // The most workgroups any compute unit gets when they are dealt out evenly, unsplit.
  int64_t workgroups_per_compute_unit() const { return workgroups_per_compute_unit_; }
  // Share of the compute units' time that this deal keeps busy, in (0, 1].
  double occupancy() const;

 private:
  Problem problem_;
  DeviceProperties device_;
  DenseKernel kernel_;
  std::optional<Split> split_;
  double modelled_clocks_;
  int64_t query_tiles_, kv_tiles_, workgroups_, workgroups_per_compute_unit_, launch_count_;
};

}  // namespace liteattention_rocm
