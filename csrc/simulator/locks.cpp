#include "locks.hpp"

#include <pthread.h>

#include <atomic>

namespace gfx942 {
namespace {

std::atomic<unsigned> generation{0};

void before_fork() {
  Locks& all = locks();
  all.handles.lock();
  all.memory.lock();
  all.pool.lock();
  all.statistics.lock();
  all.options.lock();
}

void after_fork() {
  Locks& all = locks();
  all.options.unlock();
  all.statistics.unlock();
  all.pool.unlock();
  all.memory.unlock();
  all.handles.unlock();
}

void in_child() {
  generation.fetch_add(1, std::memory_order_relaxed);
  after_fork();
}

}  // namespace

Locks& locks() {
  static Locks* instance = [] {
    pthread_atfork(before_fork, after_fork, in_child);
    return new Locks;
  }();
  return *instance;
}

unsigned fork_generation() {
  return generation.load(std::memory_order_relaxed);
}

}  // namespace gfx942
