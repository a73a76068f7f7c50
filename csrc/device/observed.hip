// Kernels that show what lies between: the forward kernel of attention.hip, the same code, with stores behind
// what it computes. None serves an attention call.
#define LRA_WITHOUT_KERNELS
#include "attention.hip"

namespace liteattention_rocm {
namespace {

// `trace` holds, for all rows of [batch, heads, seqlen_q]: S, P and packed P, [rows, tiles · 64] each, the
// running row maximum and the running row sum, [rows, tiles] each. S is unscaled, −Inf behind the last kv
// row; packed P is widened to float.
struct ObservedArguments {
  ForwardArguments forward;
  float* trace;
  int64_t rows;  // batch · heads · seqlen_q
};

// One wave's part of the trace at one KV tile. Made anew wherever it is needed: the kernel has no registers
// to keep it in.
class Place {
 public:
  LRA_DEVICE explicit Place(int remaining) : arguments_(isa::arguments_anew<ObservedArguments>()) {
    const ForwardArguments& forward = arguments_.forward;
    const int row = __builtin_amdgcn_workgroup_id_x() * kQueryRowsPerWorkgroup +
                    isa::uniform(__builtin_amdgcn_workitem_id_x() / kWaveSize) * kQueryRowsPerWave;
    const int left = forward.seqlen_q - row;
    const int head = __builtin_amdgcn_workgroup_id_z() * forward.heads + __builtin_amdgcn_workgroup_id_y();
    rows_ = left < 0 ? 0 : left < kQueryRowsPerWave ? left : kQueryRowsPerWave;
    tiles_ = (forward.seqlen_kv + kKvRowsPerTile - 1) / kKvRowsPerTile;
    tile_ = (forward.seqlen_kv - remaining) / kKvRowsPerTile;
    first_ = static_cast<int64_t>(head) * forward.seqlen_q + row;
  }

  // Four columns of a row into a wide plane.
  LRA_DEVICE void store(int plane, int query_tile, int kv_tile, Dword4 values) const {
    const int lane = isa::lane(), row = query_tile * kMfma + lane_column(lane);
    const uint32_t offset = (row * tiles_ * kKvRowsPerTile + score_row(lane, kv_tile, 0)) * sizeof(float);
    const int64_t at = ((plane * arguments_.rows + first_) * tiles_ + tile_) * kKvRowsPerTile;
    isa::buffer_store_b128(values, buffer(at, kKvRowsPerTile), row < rows_ ? offset : kOutOfBounds);
    isa::phase_boundary();
  }
  // A value of a row, the same in all four lanes, into a narrow plane.
  LRA_DEVICE void store(int plane, int query_tile, float value) const {
    const int lane = isa::lane(), row = query_tile * kMfma + lane_column(lane);
    const bool writes = lane_group(lane) == 0 && row < rows_;
    const uint32_t offset = writes ? row * tiles_ * sizeof(float) : kOutOfBounds;
    const int64_t at = ((3 * kKvRowsPerTile + plane) * arguments_.rows + first_) * tiles_ + tile_;
    isa::buffer_store_b32(__builtin_bit_cast(uint32_t, value), buffer(at, 1), offset);
  }

 private:
  // This wave's rows, from one of their elements on; `width` elements belong to a tile.
  LRA_DEVICE BufferResource buffer(int64_t element, int width) const {
    const uint32_t elements = rows_ == 0 ? 0 : ((rows_ - 1) * tiles_ + 1) * width;
    return isa::make_buffer(arguments_.trace + element, elements * sizeof(float));
  }

  ObservedArguments arguments_;
  int64_t first_;  // row of the trace
  int rows_, tiles_, tile_;
};

template <RoundMode kMode>
struct Observer : NoProbe {
  int remaining;  // kv rows from the current tile on

  LRA_DEVICE void scores(int query_tile, const Float4 (&scores)[kKvTiles], int remaining_rows) {
    remaining = remaining_rows;
    const Place place(remaining);
    for (int t = 0; t < kKvTiles; ++t) place.store(0, query_tile, t, __builtin_bit_cast(Dword4, scores[t]));
  }

  // The packed ones are made as accumulate() makes them.
  LRA_DEVICE void probabilities(int query_tile, const Float4 (&p)[kKvTiles], const OnlineSoftmax& softmax) {
    const Place place(remaining);
    for (int t = 0; t < kKvTiles; ++t) {
      place.store(1, query_tile, t, __builtin_bit_cast(Dword4, p[t]));
      const Dword2 packed = __builtin_bit_cast(Dword2, probability_operand<kMode>(p[t]));
      place.store(2, query_tile, t,
                  Dword4{packed[0] << 16, packed[0] & 0xFFFF0000, packed[1] << 16, packed[1] & 0xFFFF0000});
    }
    place.store(0, query_tile, softmax.maximum);
    place.store(1, query_tile, sum_over_groups(softmax.sum, (isa::lane() ^ 32) * 4));
  }
};

template <RoundMode kMode>
LRA_DEVICE void observe(const ObservedArguments& arguments) {
  Observer<kMode> observer;
  attention_forward<kMode, EveryTile>(arguments.forward, __builtin_amdgcn_workgroup_id_x(), observer);
}

}  // namespace

#define LRA_OBSERVED_KERNEL(rounding, mode)                                                                  \
  extern "C" LRA_KERNEL                                                                                      \
      __attribute__((amdgpu_flat_work_group_size(kThreadsPerWorkgroup, kThreadsPerWorkgroup),                \
                     amdgpu_waves_per_eu(2, 2))) void                                                        \
      attention_observed_##rounding(ObservedArguments arguments) {                                           \
    observe<mode>(arguments);                                                                                \
  }

LRA_OBSERVED_KERNEL(rtne, RoundMode::kRtne)
LRA_OBSERVED_KERNEL(rtna, RoundMode::kRtna)
LRA_OBSERVED_KERNEL(rtz, RoundMode::kRtz)

}  // namespace liteattention_rocm
