// Host threads that execute workgroups.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <vector>

#include "machine.hpp"

namespace gfx942 {

// One launch in the pool. Everything but `launch` is guarded by locks().pool.
struct Job {
  Job(const Launch& launch, unsigned max_workers);

  const Launch launch;
  const uint64_t total;  // workgroups
  uint64_t next = 0, done = 0;
  unsigned active = 0;  // workers inside
  bool cancelled = false;
  uint64_t failed_workgroup = UINT64_MAX;
  std::exception_ptr failure;
  std::chrono::steady_clock::time_point failed_at;
  Counters counters;
  std::condition_variable finished;

  struct Slot {  // one worker
    bool busy = false;
    uint64_t workgroup = 0;
    std::atomic<bool> stop{false};
  };
  std::vector<Slot> slots;

  bool has_work() const { return next < total && !cancelled && !failure && active < slots.size(); }
  bool is_finished() const { return !active && (next >= total || cancelled || failure); }
  // Ends the workgroups above `workgroup`.
  void stop_above(uint64_t workgroup);
  void cancel();
};

// Call all with locks().pool held.
// Makes the job known to the workers, starting as many as it may use and are missing.
void submit(Job& job);
void withdraw(Job& job);

}  // namespace gfx942
