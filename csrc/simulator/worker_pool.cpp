#include "worker_pool.hpp"

#include <csignal>
#include <pthread.h>

#include <algorithm>
#include <system_error>
#include <thread>

#include "locks.hpp"

namespace gfx942 {
namespace {

struct Pool {
  std::vector<Job*> jobs;
  std::condition_variable work;
  unsigned workers = 0;
  unsigned generation = fork_generation();
};

// A forked child has none of its parent's threads: it gets a pool of its own. Pools are never destroyed,
// since their threads wait in them until the process ends.
Pool& pool() {
  static Pool* current = new Pool;
  if (current->generation != fork_generation()) current = new Pool;
  return *current;
}

// The job with the fewest workers, so that concurrent launches share them evenly.
Job* pick(const Pool& pool) {
  Job* best = nullptr;
  for (Job* job : pool.jobs)
    if (job->has_work() && (!best || job->active < best->active)) best = job;
  return best;
}

void run_one(Job& job, Machine& machine, std::unique_lock<std::mutex>& lock) {
  Job::Slot& slot = *std::find_if(job.slots.begin(), job.slots.end(),
                                  [](const Job::Slot& candidate) { return !candidate.busy; });
  const uint64_t workgroup = job.next++;
  slot.busy = true;
  slot.workgroup = workgroup;
  slot.stop.store(false, std::memory_order_relaxed);
  ++job.active;
  lock.unlock();

  Launch launch = job.launch;
  launch.stop = &slot.stop;
  const uint64_t columns = launch.grid[0], rows = launch.grid[1];
  Counters counters;
  std::exception_ptr failure;
  try {
    machine.run_workgroup(launch, static_cast<uint32_t>(workgroup % columns),
                          static_cast<uint32_t>(workgroup / columns % rows),
                          static_cast<uint32_t>(workgroup / columns / rows), counters);
  } catch (...) {
    failure = std::current_exception();
  }

  lock.lock();
  slot.busy = false;
  --job.active;
  job.counters += counters;
  // A workgroup that was told to stop reports just that; the cause is elsewhere.
  if (!failure)
    ++job.done;
  else if (!slot.stop.load(std::memory_order_relaxed) && workgroup < job.failed_workgroup) {
    if (!job.failure) job.failed_at = std::chrono::steady_clock::now();
    job.failed_workgroup = workgroup;
    job.failure = failure;
    job.stop_above(workgroup);
  }
  if (job.is_finished()) job.finished.notify_all();
}

void work(Pool* pool) {
  Machine machine;
  std::unique_lock lock(locks().pool);
  while (true) {
    if (Job* job = pick(*pool))
      run_one(*job, machine, lock);
    else
      pool->work.wait(lock);
  }
}

}  // namespace

Job::Job(const Launch& launch, unsigned max_workers)
    : launch(launch), total(uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2]),
      slots(std::max<uint64_t>(1, std::min<uint64_t>(max_workers, total))) {}

void Job::stop_above(uint64_t workgroup) {
  for (Slot& slot : slots)
    if (slot.busy && slot.workgroup > workgroup) slot.stop.store(true, std::memory_order_relaxed);
}

void Job::cancel() {
  cancelled = true;
  for (Slot& slot : slots) slot.stop.store(true, std::memory_order_relaxed);
}

void submit(Job& job) {
  Pool& current = pool();
  // Signals are for the program's own threads.
  sigset_t all, previous;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &previous);
  while (current.workers < job.slots.size()) {
    try {
      std::thread(work, &current).detach();
      ++current.workers;
    } catch (const std::system_error&) {
      if (current.workers) break;
      pthread_sigmask(SIG_SETMASK, &previous, nullptr);
      throw;
    }
  }
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  current.jobs.push_back(&job);
  current.work.notify_all();
}

void withdraw(Job& job) {
  std::vector<Job*>& jobs = pool().jobs;
  jobs.erase(std::remove(jobs.begin(), jobs.end(), &job), jobs.end());
}

}  // namespace gfx942
