#include "timing.hpp"

#include <algorithm>

#include "hip_call.hpp"
#include "program.hpp"

namespace gfx942 {

namespace {

thread_local Recording* recording_of_thread = nullptr;

size_t deliver(const std::string& text, char* buffer, size_t size) {
  if (buffer && size) {
    const size_t copied = std::min(size - 1, text.size());
    std::copy_n(text.data(), copied, buffer);
    buffer[copied] = 0;
  }
  return text.size() + 1;
}

// Registers that a wave of the kernel holds: granulated_workitem_vgpr_count of a unified register file.
uint32_t allocated_vgprs(const KernelDescriptor& descriptor) {
  return ((descriptor.compute_pgm_rsrc1 & 0x3F) + 1) * 8;
}

uint64_t instructions(const LaunchTrace& trace) {
  uint64_t count = 0;
  for (const WorkgroupTrace& group : trace.workgroups)
    for (const std::vector<TraceEvent>& events : group.waves) count += events.size();
  return count;
}

class JsonObject {
 public:
  JsonObject& add(const std::string& key, uint64_t value) { return put(key, std::to_string(value)); }
  JsonObject& put(const std::string& key, const std::string& json) {
    text_ += (text_.size() > 1 ? "," : "") + json_string(key) + ":" + json;
    return *this;
  }
  std::string text() const { return text_ + "}"; }

 private:
  std::string text_ = "{";
};

template <class Range, class Write>
std::string json_list(const Range& range, Write&& write) {
  std::string text = "[";
  for (const auto& item : range) {
    const std::string one = write(item);
    if (!one.empty()) text += (text.size() > 1 ? "," : "") + one;
  }
  return text + "]";
}

constexpr const char* kCategoryNames[] = {"scalar", "scalar_memory", "vector",  "transcendental", "matrix",
                                          "lds",    "vector_memory", "control", "wait",           "barrier"};

std::string instruction_text(const LaunchTrace& trace, uint32_t index, JsonObject& object) {
  const Instruction& instruction = trace.program->instructions()[index];
  object.add("address", instruction.address - trace.load_bias);
  object.put("text", json_string(instruction.op == Op::kInvalid ? "?" : disassemble(instruction)));
  object.put("category", json_string(kCategoryNames[static_cast<size_t>(op_info(instruction.op).category)]));
  return object.text();
}

}  // namespace

Recording* current_recording() {
  return recording_of_thread;
}

namespace {

constexpr double kReferenceGhz = 0.1;  // s_memrealtime, CDNA3: 100 MHz

std::array<uint32_t, 3> place(uint64_t id, const Launch& launch) {
  const uint64_t x = launch.grid[0], y = launch.grid[1];
  return {static_cast<uint32_t>(id % x), static_cast<uint32_t>(id / x % y),
          static_cast<uint32_t>(id / x / y)};
}

// Lets the launch pass on the recording's device and its kernel read the clocks.
void pass_time(Recording& recording, const LaunchTrace& trace, const Launch& launch, Machine& machine) {
  const ClockResult result = run_clock(trace, *recording.timed);
  for (size_t group = 0; group < trace.workgroups.size(); ++group) {
    TimeStamps stamps;
    stamps.waves = result.stamps[group];
    stamps.next.assign(stamps.waves.size(), 0);
    stamps.reference_per_core = kReferenceGhz / recording.core_ghz;
    for (std::vector<uint64_t>& wave : stamps.waves)
      for (uint64_t& clock : wave) clock += recording.core_clocks;
    Launch again = launch;
    again.stamps = &stamps;
    Counters counters;
    const auto& id = trace.workgroups[group].id;
    machine.run_workgroup(again, id[0], id[1], id[2], counters);
    for (size_t wave = 0; wave < stamps.waves.size(); ++wave)
      if (stamps.next[wave] != stamps.waves[wave].size()) refuse_clock_dependence(launch);
  }
  recording.core_clocks += result.clocks;
}

}  // namespace

void record_launch_trace(Recording& recording, const Function& function, const Launch& launch) {
  LaunchTrace trace;
  trace.kernel = function.kernel.name;
  trace.program = function.kernel.program;
  trace.load_bias = function.kernel.load_bias;
  trace.grid = launch.grid;
  trace.block = launch.block;
  trace.vgprs = allocated_vgprs(function.kernel.descriptor);
  trace.lds_bytes = function.kernel.descriptor.group_segment_fixed_size + launch.dynamic_lds;
  const uint64_t total = uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2];
  Machine machine;
  for (const uint64_t id : recording.workgroups) {
    if (recording.timed && (id >= total || trace.workgroups.size() == trace.workgroups_per_cu())) continue;
    if (id >= total)
      throw HipError(hipErrorInvalidValue, "kernel " + trace.kernel + ": workgroup " + std::to_string(id) +
                                               " is to be traced, the grid has " + std::to_string(total));
    WorkgroupTrace workgroup;
    Launch traced = launch;
    traced.trace = &workgroup;
    Counters counters;
    const auto at = place(id, launch);
    machine.run_workgroup(traced, at[0], at[1], at[2], counters);
    trace.workgroups.push_back(std::move(workgroup));
  }
  if (recording.timed && !trace.workgroups.empty()) pass_time(recording, trace, launch, machine);
  if (!recording.trace.program || instructions(trace) >= instructions(recording.trace))
    recording.trace = std::move(trace);
}

std::string trace_json(const LaunchTrace& trace) {
  JsonObject object;
  const auto number = [](uint32_t value) { return std::to_string(value); };
  object.put("kernel", json_string(trace.kernel));
  object.put("grid", json_list(trace.grid, number)).put("block", json_list(trace.block, number));
  object.add("vgprs", trace.vgprs).add("lds_bytes", trace.lds_bytes);
  object.add("waves_per_workgroup", trace.waves_per_workgroup());
  object.add("workgroups_per_cu", trace.workgroups_per_cu());
  object.put("workgroups", json_list(trace.workgroups, [&](const WorkgroupTrace& group) {
               JsonObject one;
               one.put("id", json_list(group.id, number));
               one.put("instructions", json_list(group.waves, [](const std::vector<TraceEvent>& events) {
                         return std::to_string(events.size());
                       }));
               return one.text();
             }));
  return object.text();
}

std::string clock_json(const LaunchTrace& trace, const ClockResult& result) {
  JsonObject object;
  object.add("clocks", result.clocks);
  object.put("workgroup_clocks",
             json_list(result.workgroup_clocks, [](uint64_t n) { return std::to_string(n); }));
  JsonObject categories;
  for (size_t i = 0; i < result.by_category.size(); ++i)
    categories.add(kCategoryNames[i], result.by_category[i]);
  object.put("executed", categories.text());
  object.add("matrix_slots", result.matrix_slots).add("vector_slots", result.vector_slots);
  object.add("lds_clocks", result.lds_clocks).add("lds_conflict_clocks", result.lds_conflict_clocks);
  object.add("l1_clocks", result.l1_clocks)
      .add("l1_accesses", result.l1_accesses)
      .add("l1_lines", result.l1_lines);
  object.add("l1_hits", result.l1_hits).add("l1_misses", result.l1_misses).add("hbm_lines", result.hbm_lines);
  object.add("stored_lines", result.stored_lines).add("loads", result.loads).add("stores", result.stores);
  object.add("flat", result.flat).add("branches", result.branches);
  object.add("mfma_16x16x16", result.matrix_by_shape[0]).add("mfma_32x32x8", result.matrix_by_shape[1]);
  object.add("mfma_other", result.matrix_by_shape[2]);
  std::vector<uint32_t> indices(result.issues.size());
  for (uint32_t i = 0; i < indices.size(); ++i) indices[i] = i;
  object.put("instructions", json_list(indices, [&](uint32_t index) {
               if (!result.issues[index]) return std::string();
               JsonObject one, stalls;
               one.add("index", index);
               for (size_t s = 0; s < static_cast<size_t>(Stall::kCount); ++s)
                 if (const uint64_t slots = result.stalls[index][s])
                   stalls.add(stall_name(static_cast<Stall>(s)), slots);
               one.add("issues", result.issues[index]).put("stalls", stalls.text());
               return instruction_text(trace, index, one);
             }));
  object.put("timeline", json_list(result.timeline, [](const TimelineEntry& entry) {
               return "[" + std::to_string(entry.wave) + "," + std::to_string(entry.instruction) + "," +
                      std::to_string(entry.begin) + "," + std::to_string(entry.end) + ",\"" +
                      stall_name(entry.stall) + "\"]";
             }));
  return object.text();
}

}  // namespace gfx942

using namespace gfx942;

#pragma GCC visibility push(default)
extern "C" {

int gfx942sim_trace_begin(const uint64_t* workgroups, size_t count, void** recording) {
  return guarded(__func__, [&] {
    require_pointer(workgroups, "workgroups");
    require_pointer(recording, "recording");
    if (!count) refuse_value("count is 0");
    if (recording_of_thread) refuse_value("this thread is recording already");
    auto* begun = new Recording;
    begun->workgroups.assign(workgroups, workgroups + count);
    *recording = recording_of_thread = begun;
  });
}

int gfx942sim_trace_end(void* recording) {
  return guarded(__func__, [&] {
    if (!recording || recording_of_thread != recording)
      refuse_value("recording is not this thread's current one");
    recording_of_thread = nullptr;
  });
}

void gfx942sim_trace_free(void* recording) {
  if (recording_of_thread == recording) recording_of_thread = nullptr;
  delete static_cast<Recording*>(recording);
}

int gfx942sim_trace_time(void* recording, const char* parameters, double core_ghz) {
  return guarded(__func__, [&] {
    require_pointer(recording, "recording");
    require_pointer(parameters, "parameters");
    if (!(core_ghz > 0)) refuse_value("core_ghz is " + std::to_string(core_ghz) + ", allowed: above 0");
    auto& recorded = *static_cast<Recording*>(recording);
    recorded.timed = ClockParameters::parse(parameters);
    recorded.core_ghz = core_ghz;
  });
}

int gfx942sim_clock_run(void* recording, const char* parameters) {
  return guarded(__func__, [&] {
    require_pointer(recording, "recording");
    require_pointer(parameters, "parameters");
    auto& recorded = *static_cast<Recording*>(recording);
    if (!recorded.trace.program) refuse_value("recording holds no launch");
    recorded.answer =
        clock_json(recorded.trace, run_clock(recorded.trace, ClockParameters::parse(parameters)));
  });
}

size_t gfx942sim_clock_json(void* recording, char* buffer, size_t size) {
  return deliver(recording ? static_cast<Recording*>(recording)->answer : "{}", buffer, size);
}

size_t gfx942sim_trace_json(void* recording, char* buffer, size_t size) {
  const auto* recorded = static_cast<Recording*>(recording);
  return deliver(recorded && recorded->trace.program ? trace_json(recorded->trace) : "{}", buffer, size);
}

}  // extern "C"
#pragma GCC visibility pop
