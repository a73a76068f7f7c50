// Forward attention over packed sequences of any lengths, in one launch: workgroup (x, y, z) has query tile x
// of head y in sequence z, and is the forward kernel of attention.hip on the rows of that sequence.
//
// The grid is as wide as the longest sequence needs; workgroups behind the end of theirs return. Lengths are
// known to the device alone. Whatever they are, no row outside the tensors is touched.
#include "varlen_arguments.hpp"

namespace liteattention_rocm {
namespace {

struct Rows {
  int first, count;
};

// The rows of a sequence, kept within the packed tensor. Read by scalar loads: nothing writes the lengths
// during a launch.
LRA_DEVICE Rows rows_of(const int32_t* cu_seqlens, int sequence, int total) {
  const auto bounds = (const __attribute__((address_space(4))) int32_t*)cu_seqlens + sequence;
  int first = bounds[0], end = bounds[1];
  end = end < total ? end : total;
  first = first < 0 ? 0 : first;
  return {first, end - first};
}

template <RoundMode kMode>
LRA_DEVICE void attention_varlen(const VarlenArguments& arguments) {
  const uint32_t query_tile = __builtin_amdgcn_workgroup_id_x();
  const int head = __builtin_amdgcn_workgroup_id_y(), sequence = __builtin_amdgcn_workgroup_id_z();
  const Rows query = rows_of(arguments.cu_seqlens_q, sequence, arguments.seqlen_q);
  const int64_t first_row = static_cast<int64_t>(query_tile) * kQueryRowsPerWorkgroup;
  if (first_row >= query.count) return;
  const Rows kv = rows_of(arguments.cu_seqlens_k, sequence, arguments.seqlen_kv);

  ForwardArguments own = arguments;
  const auto from = [](const void* tensor, TensorStrides& strides, int row) {
    strides.batch = 0;  // the sequence's number, where the forward kernel has a batch entry's
    return static_cast<const char*>(tensor) + row * strides.row;
  };
  own.query = from(arguments.query, own.query_strides, query.first);
  own.key = from(arguments.key, own.key_strides, kv.first);
  own.value = from(arguments.value, own.value_strides, kv.first);
  own.out = const_cast<char*>(from(arguments.out, own.out_strides, query.first));
  own.seqlen_q = query.count;
  own.seqlen_kv = kv.count;
  // The forward kernel adds (sequence · heads + head) · seqlen_q and the row.
  if (arguments.lse)
    own.lse += static_cast<int64_t>(head) * arguments.seqlen_q + query.first -
               (static_cast<int64_t>(sequence) * arguments.heads + head) * query.count;

  if (kv.count > 0) {
    NoProbe probe;
    attention_forward<kMode, EveryTile>(own, query_tile, probe);
    return;
  }
  // Without keys the output is 0 and the log-sum-exp −Inf.
  const int64_t wave_row = first_row + isa::uniform(__builtin_amdgcn_workitem_id_x() / kWaveSize) *
                                           static_cast<int64_t>(kQueryRowsPerWave);
  const int64_t remaining = query.count - wave_row;
  if (remaining <= 0) return;
  store_results<kMode>(own, sequence, head, wave_row,
                       remaining < kQueryRowsPerWave ? remaining : kQueryRowsPerWave, Output{},
                       {OnlineSoftmax{}, OnlineSoftmax{}}, isa::lane());
}

}  // namespace

#define LRA_VARLEN_KERNEL(rounding, mode)                                                                    \
  LRA_ATTENTION_KERNEL attention_varlen_##rounding(VarlenArguments arguments) {                              \
    attention_varlen<mode>(arguments);                                                                       \
  }

LRA_VARLEN_KERNEL(rtne, RoundMode::kRtne)
LRA_VARLEN_KERNEL(rtna, RoundMode::kRtna)
LRA_VARLEN_KERNEL(rtz, RoundMode::kRtz)

}  // namespace liteattention_rocm
