// Kernels that measure a device; none serves an attention call.
//
//   calibrate_NAME            clocks of one instruction or access: see calibration_microbenchmarks.hpp
//   calibrate_phases_MODE     the forward kernel of attention.hip, the same code, with a clock at its phases
//   calibrate_stamp           both clocks, once per workgroup
//   calibrate_samples         both clocks, again and again, beside whatever else runs
//   calibrate_exactness       v_exp, v_rcp and v_log of given numbers
#define LRA_WITHOUT_KERNELS
#include "attention.hip"
#include "calibration_microbenchmarks.hpp"

namespace liteattention_rocm {
namespace {

using calibration::Instant;
using calibration::now;

constexpr int kPhases = 4;

// What calibrate_phases writes per wave, wave by wave, workgroup by workgroup: core clocks, modulo 2^32.
struct PhaseRecord {
  uint32_t sums[kPhases];  // between the boundaries of attention_forward, over all KV tiles
  uint32_t last;           // at the last boundary
  uint32_t begin, end;     // of the kernel
  uint32_t wave;           // in its workgroup
};
constexpr int kLast = kPhases, kBegin = kPhases + 1, kEnd = kPhases + 2, kWave = kPhases + 3,
              kRecordWords = kPhases + 4;
static_assert(sizeof(PhaseRecord) == kRecordWords * sizeof(uint32_t));

// Keeps the record in one vector register, word i in lane i: the kernel has hardly another one free.
// Boundary 0 ends the phase that began at boundary 3 of the tile before.
struct ClockProbe : NoProbe {
  int words = 0;
  LRA_DEVICE static int core_clock() {
    uint64_t time;
    asm volatile("s_memtime %0\n s_waitcnt lgkmcnt(0)" : "=s"(time));
    return static_cast<int>(time);
  }
  LRA_DEVICE ClockProbe() {
    const int time = core_clock();
    put(kLast, time);
    put(kBegin, time);
    put(kWave, isa::uniform(__builtin_amdgcn_workitem_id_x() / fragments::kWaveSize));
  }
  LRA_DEVICE void put(int word, int value) {
    asm("v_writelane_b32 %0, %1, %2" : "+v"(words) : "s"(value), "is"(word));
  }
  LRA_DEVICE int get(int word) const { return __builtin_amdgcn_readlane(words, word); }
  LRA_DEVICE void boundary(int phase) {
    isa::phase_boundary();
    const int time = core_clock();
    put(phase, get(phase) + time - get(kLast));
    put(kLast, time);
    isa::phase_boundary();
  }
};

struct PhaseArguments {
  ForwardArguments forward;
  PhaseRecord* records;
};

LRA_DEVICE PhaseRecord& record_of(const PhaseArguments& arguments, int wave) {
  const int along_x = (arguments.forward.seqlen_q + kQueryRowsPerWorkgroup - 1) / kQueryRowsPerWorkgroup;
  const int workgroup = __builtin_amdgcn_workgroup_id_x() +
                        along_x * (__builtin_amdgcn_workgroup_id_y() +
                                   arguments.forward.heads * __builtin_amdgcn_workgroup_id_z());
  return arguments.records[workgroup * (kThreadsPerWorkgroup / fragments::kWaveSize) + wave];
}

template <RoundMode kMode>
LRA_DEVICE void measure_phases(const PhaseArguments& arguments) {
  ClockProbe probe;
  attention_forward<kMode, EveryTile>(arguments.forward, __builtin_amdgcn_workgroup_id_x(), probe);
  probe.put(kEnd, ClockProbe::core_clock());
  if (isa::lane() < kRecordWords)
    reinterpret_cast<int*>(&record_of(arguments, probe.get(kWave)))[isa::lane()] = probe.words;
}

struct StampRecord {
  Instant instant;
  uint64_t xcc;  // the XCD that the workgroup ran on: its clock counter may differ from other XCDs'
};

struct SampleArguments {
  StampRecord* records;  // `count` of each workgroup
  int32_t count;
};

LRA_DEVICE uint64_t xcc_id() {
  uint32_t id;
  asm volatile("s_getreg_b32 %0, hwreg(HW_REG_XCC_ID)" : "=s"(id));
  return id & 0xF;
}

LRA_DEVICE void stamp(StampRecord& record) {
  const Instant instant = now();
  if (isa::lane() == 0) record = {instant, xcc_id()};
}

struct ExactnessArguments {
  const float* arguments;  // count
  float* results;          // [3, count]: v_exp, v_rcp, v_log
  int32_t count;
};

}  // namespace

#define LRA_PHASE_KERNEL(name, mode)                                                                         \
  extern "C" LRA_KERNEL                                                                                      \
      __attribute__((amdgpu_flat_work_group_size(kThreadsPerWorkgroup, kThreadsPerWorkgroup),                \
                     amdgpu_waves_per_eu(2, 2))) void                                                        \
      name(PhaseArguments arguments) {                                                                       \
    measure_phases<mode>(arguments);                                                                         \
  }

LRA_PHASE_KERNEL(calibrate_phases_rtne, RoundMode::kRtne)
LRA_PHASE_KERNEL(calibrate_phases_rtna, RoundMode::kRtna)
LRA_PHASE_KERNEL(calibrate_phases_rtz, RoundMode::kRtz)

extern "C" LRA_KERNEL __attribute__((amdgpu_flat_work_group_size(64, 64))) void
calibrate_stamp(StampRecord* records) {
  stamp(records[__builtin_amdgcn_workgroup_id_x()]);
}

// s_sleep between samples: 127 · 64 clocks, so that the sampling waves cost next to nothing.
extern "C" LRA_KERNEL __attribute__((amdgpu_flat_work_group_size(64, 64))) void
calibrate_samples(SampleArguments arguments) {
  StampRecord* records = arguments.records + __builtin_amdgcn_workgroup_id_x() * arguments.count;
  for (int i = 0; i < arguments.count; ++i) {
    stamp(records[i]);
    __builtin_amdgcn_s_sleep(127);
  }
}

extern "C" LRA_KERNEL __attribute__((amdgpu_flat_work_group_size(64, 64))) void
calibrate_exactness(ExactnessArguments arguments) {
  const int i = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
  if (i >= arguments.count) return;
  const float x = arguments.arguments[i];
  arguments.results[i] = isa::exp2(x);
  arguments.results[arguments.count + i] = isa::rcp(x);
  arguments.results[2 * arguments.count + i] = isa::log2(x);
}

}  // namespace liteattention_rocm
