// Every mutex of the front that outlives a call, in one place so that fork() can hold all of them.
#pragma once

#include <mutex>

namespace gfx942 {

// Order of acquisition: top to bottom. The object is never destroyed: threads may outlive static storage.
struct Locks {
  std::mutex handles;  // modules, streams, events
  std::mutex memory;   // registrations and allocations
  std::mutex pool;     // worker threads and their queue
  std::mutex statistics;
  std::mutex options;
};
Locks& locks();

// Counts the forks that led to this process: threads of an older generation don't exist here.
unsigned fork_generation();

}  // namespace gfx942
