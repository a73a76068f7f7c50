#include "unwritten.hpp"

#include <algorithm>

namespace gfx942 {

UnwrittenMemory& UnwrittenMemory::instance() {
  static UnwrittenMemory* instance = new UnwrittenMemory;
  return *instance;
}

void UnwrittenMemory::add(uint64_t begin, uint64_t bytes) {
  if (!bytes) return;
  remove(begin, bytes);
  const std::lock_guard lock(mutex_);
  ranges_[begin] = begin + bytes;
  empty_ = false;
}

void UnwrittenMemory::remove(uint64_t begin, uint64_t bytes) {
  if (!bytes || empty()) return;
  const uint64_t end = begin + bytes;
  const std::lock_guard lock(mutex_);
  auto place = ranges_.upper_bound(begin);
  if (place != ranges_.begin() && std::prev(place)->second > begin) --place;
  while (place != ranges_.end() && place->first < end) {
    const auto [first, last] = *place;
    place = ranges_.erase(place);
    if (first < begin) ranges_[first] = begin;
    if (last > end) {
      ranges_[end] = last;
      break;
    }
  }
  empty_ = ranges_.empty();
}

void UnwrittenMemory::forget() {
  if (empty()) return;
  const std::lock_guard lock(mutex_);
  ranges_.clear();
  empty_ = true;
}

uint64_t UnwrittenMemory::find(uint64_t begin, uint64_t bytes) const {
  if (empty()) return begin + bytes;
  const std::lock_guard lock(mutex_);
  auto place = ranges_.upper_bound(begin);
  if (place != ranges_.begin() && std::prev(place)->second > begin) return begin;
  return place == ranges_.end() ? begin + bytes : std::min(place->first, begin + bytes);
}

}  // namespace gfx942
