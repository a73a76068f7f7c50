#include "launch.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "device_memory.hpp"
#include "hip_error.hpp"
#include "locks.hpp"
#include "options.hpp"
#include "statistics.hpp"
#include "timing.hpp"
#include "unwritten.hpp"
#include "worker_pool.hpp"

namespace gfx942 {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kLdsBytes = 65536, kMaxWorkItems = 1024;
constexpr double kMaxWorkgroups = 281474976710656.0;  // 2^48
constexpr auto kPoll = std::chrono::milliseconds(100);
constexpr auto kProgressAfter = std::chrono::seconds(2);
constexpr auto kProgressEvery = std::chrono::milliseconds(500);
// How long workgroups below a failed one may go on, in case one of them fails as well.
constexpr auto kGrace = std::chrono::seconds(2);

std::atomic<int (*)()> interrupt_callback{nullptr};

std::string dimensions(const std::array<uint32_t, 3>& extents) {
  return std::to_string(extents[0]) + "x" + std::to_string(extents[1]) + "x" + std::to_string(extents[2]);
}

void validate(const Function& function, const LaunchRequest& request) {
  const KernelMetadata& metadata = function.metadata;
  const auto refuse = [&](hipError_t code, const std::string& message) {
    throw HipError(code, "kernel " + function.kernel.name + ": " + message);
  };
  uint64_t work_items = 1;
  double workgroups = 1;
  for (size_t i = 0; i < 3; ++i) {
    if (!request.grid[i])
      refuse(hipErrorInvalidConfiguration, "grid " + dimensions(request.grid) + " is empty");
    if (!request.block[i] || request.block[i] > kMaxWorkItems)
      refuse(hipErrorInvalidConfiguration,
             "block " + dimensions(request.block) + ": each extent is 1 to 1024");
    if (uint64_t{request.grid[i]} * request.block[i] > UINT32_MAX)
      refuse(hipErrorInvalidConfiguration, "grid " + dimensions(request.grid) + " of blocks " +
                                               dimensions(request.block) +
                                               " exceeds 2^32 - 1 work-items in one dimension");
    work_items *= request.block[i];
    workgroups *= request.grid[i];
  }
  if (workgroups > kMaxWorkgroups)
    refuse(hipErrorInvalidConfiguration,
           "grid " + dimensions(request.grid) + " has more than 2^48 workgroups");
  const uint64_t limit = std::min<uint64_t>(kMaxWorkItems, metadata.max_flat_workgroup_size);
  if (work_items > limit)
    refuse(hipErrorInvalidConfiguration, "block " + dimensions(request.block) + " has " +
                                             std::to_string(work_items) + " work-items; allowed are " +
                                             std::to_string(limit));
  const auto& required = metadata.required_workgroup_size;
  if (required[0] && required != request.block)
    refuse(hipErrorInvalidConfiguration,
           "block " + dimensions(request.block) + ", the kernel requires " + dimensions(required));
  const uint64_t lds = metadata.group_bytes + request.dynamic_lds;
  if (lds > kLdsBytes)
    refuse(hipErrorLaunchOutOfResources, std::to_string(metadata.group_bytes) + " bytes of static and " +
                                             std::to_string(request.dynamic_lds) +
                                             " of dynamic LDS exceed 65536");
}

class ProgressLine {
 public:
  ProgressLine(const std::string& kernel, Options::Progress wanted)
      : kernel_(kernel), next_(Clock::now() + kProgressAfter),
        enabled_(wanted == Options::Progress::kOn || (wanted == Options::Progress::kTerminal && isatty(2))) {}

  ~ProgressLine() {
    if (shown_) std::fputc('\n', stderr);
  }

  void update(uint64_t done, uint64_t total, uint64_t instructions, double seconds) {
    if (!enabled_ || Clock::now() < next_) return;
    next_ = Clock::now() + kProgressEvery;
    shown_ = true;
    char remaining[32] = "?";
    if (done) {
      const auto left =
          static_cast<uint64_t>(seconds / static_cast<double>(done) * static_cast<double>(total - done));
      std::snprintf(remaining, sizeof remaining, "%llu:%02llu", static_cast<unsigned long long>(left / 60),
                    static_cast<unsigned long long>(left % 60));
    }
    std::fprintf(stderr, "\rsimulating %s: %llu of %llu workgroups, %.1f M instructions/s, %s left  ",
                 kernel_.c_str(), static_cast<unsigned long long>(done),
                 static_cast<unsigned long long>(total), static_cast<double>(instructions) / seconds * 1e-6,
                 remaining);
    std::fflush(stderr);
  }

 private:
  const std::string& kernel_;
  Clock::time_point next_;
  bool enabled_, shown_ = false;
};

hipError_t code_of(SimulatorError::Kind kind) {
  switch (kind) {
  case SimulatorError::Kind::kBadCodeObject: return hipErrorInvalidImage;
  case SimulatorError::Kind::kBadAddress: return hipErrorIllegalAddress;
  case SimulatorError::Kind::kUnsupported: return hipErrorNotSupported;
  default: return hipErrorLaunchFailure;
  }
}

// Waits for the job on the caller's thread; true when it was interrupted.
bool wait_for(Job& job, ProgressLine& progress, Clock::time_point start) {
  const unsigned generation = fork_generation();
  bool interrupted = false;
  std::unique_lock lock(locks().pool);
  submit(job);
  while (!job.finished.wait_for(lock, kPoll, [&] { return job.is_finished(); })) {
    if (job.failure && Clock::now() - job.failed_at > kGrace) job.cancel();
    const uint64_t done = job.done, instructions = job.counters.instructions;
    lock.unlock();
    progress.update(done, job.total, instructions,
                    std::chrono::duration<double>(Clock::now() - start).count());
    const auto callback = interrupt_callback.load();
    const bool stop = !interrupted && callback && callback();
    lock.lock();
    if (fork_generation() != generation)
      throw HipError(hipErrorLaunchFailure, "the process forked inside the interrupt callback of a launch");
    if (stop) {
      interrupted = true;
      job.cancel();
    }
  }
  withdraw(job);
  return interrupted;
}

}  // namespace

void set_interrupt_callback(int (*callback)()) {
  interrupt_callback.store(callback);
}

void launch_kernel(const Function& function, const LaunchRequest& request) {
  const Options current = options();
  validate(function, request);
  if (!current.execute) return record_launch(function.kernel.name, {}, 0);
  const DispatchMemory dispatch(function, request);
  DeviceMemory::Snapshot snapshot = DeviceMemory::instance().snapshot();
  snapshot.regions.insert(snapshot.regions.end(), dispatch.regions().begin(), dispatch.regions().end());
  const AddressSpace memory(std::move(snapshot.regions));

  Launch launch;
  launch.kernel = &function.kernel;
  launch.memory = &memory;
  launch.grid = request.grid;
  launch.block = request.block;
  launch.dynamic_lds = request.dynamic_lds;
  launch.kernarg_address = dispatch.kernarg_address();
  launch.dispatch_packet_address = dispatch.packet_address();
  launch.implicit_queue_address = dispatch.queue_address();
  launch.matrix = current.matrix;
  launch.checks = current.checks;
  launch.mutation = current.mutation;
  launch.delivery = current.delivery;
  launch.delivery_seed = current.delivery_seed;
  launch.collect_findings = current.collect_findings;
  const std::shared_ptr<LaunchObservation> observation = observe(launch);
  launch.observation = observation.get();
  // What this launch stores is not followed.
  if (!launch.checks.uninitialised) UnwrittenMemory::instance().forget();

  if (Recording* recording = current_recording()) {
    try {
      return record_launch_trace(*recording, function, launch);
    } catch (const SimulatorError& error) {
      throw HipError(code_of(error.kind), error.what());
    }
  }

  const Clock::time_point start = Clock::now();
  Job job(launch, current.threads);
  bool interrupted = false;
  {
    ProgressLine progress(function.kernel.name, current.progress);
    interrupted = wait_for(job, progress, start);
  }
  record_launch(function.kernel.name, job.counters,
                std::chrono::duration<double>(Clock::now() - start).count());
  if (job.failure) {
    try {
      std::rethrow_exception(job.failure);
    } catch (const SimulatorError& error) {
      throw HipError(code_of(error.kind), error.what());
    } catch (const std::exception& error) {
      throw HipError(hipErrorLaunchFailure, "kernel " + function.kernel.name + ", workgroup " +
                                                std::to_string(job.failed_workgroup) + ": " + error.what());
    }
  }
  if (interrupted)
    throw HipError(hipErrorLaunchFailure, "kernel " + function.kernel.name + ": interrupted after " +
                                              std::to_string(job.done) + " of " + std::to_string(job.total) +
                                              " workgroups");
}

}  // namespace gfx942
