// Which launches one forward call makes. Pure arithmetic on shapes and the device's properties.
#pragma once

#include <array>
#include <cstdint>

namespace liteattention_rocm {

struct Problem {
  int64_t batch, heads, kv_heads, seqlen_q, seqlen_kv;
};

struct DeviceProperties {
  int compute_units;
};

struct Launch {
  std::array<uint32_t, 3> grid;  // workgroups: query tiles, heads, batch entries
  int64_t first_batch;
};

class Plan {
 public:
  // Throws std::invalid_argument naming the size that is out of range.
  Plan(const Problem& problem, const DeviceProperties& device);

  int64_t launch_count() const { return launch_count_; }  // 0 when there is nothing to write
  Launch launch(int64_t index) const;

  int64_t query_tiles() const { return query_tiles_; }
  int64_t kv_tiles() const { return kv_tiles_; }  // per workgroup
  int64_t workgroups() const { return workgroups_; }
  // The most workgroups any compute unit gets when they are dealt out evenly.
  int64_t workgroups_per_compute_unit() const { return workgroups_per_compute_unit_; }
  // Share of the compute units' time that this deal keeps busy, in (0, 1].
  double occupancy() const;

 private:
  Problem problem_;
  DeviceProperties device_;
  int64_t query_tiles_, kv_tiles_, workgroups_, workgroups_per_compute_unit_, launch_count_;
};

}  // namespace liteattention_rocm
