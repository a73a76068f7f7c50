// Memory that nothing has written: device allocations until they are copied to, set or stored to, and what
// programs declare. What launches store is followed in those only that look for uninitialised contents; any
// other launch may have written anything.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>

namespace gfx942 {

class UnwrittenMemory {
 public:
  static UnwrittenMemory& instance();

  void add(uint64_t begin, uint64_t bytes);
  void remove(uint64_t begin, uint64_t bytes);
  void forget();
  bool empty() const { return empty_.load(std::memory_order_relaxed); }
  // The first unwritten byte of [begin, begin + bytes), or begin + bytes.
  uint64_t find(uint64_t begin, uint64_t bytes) const;

 private:
  std::map<uint64_t, uint64_t> ranges_;  // begin, end; disjoint
  mutable std::mutex mutex_;
  std::atomic<bool> empty_{true};
};

}  // namespace gfx942
