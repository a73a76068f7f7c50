#include <algorithm>

#include "machine.hpp"

namespace gfx942 {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

}  // namespace

AddressSpace::AddressSpace(std::vector<Region> regions) : regions_(std::move(regions)) {
  regions_.erase(std::remove_if(regions_.begin(), regions_.end(),
                                [](const Region& region) { return region.begin >= region.end; }),
                 regions_.end());
  std::sort(regions_.begin(), regions_.end(), [](const Region& a, const Region& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  for (const Region& region : regions_) {
    bounds_.push_back(region.begin);
    bounds_.push_back(region.end);
  }
  std::sort(bounds_.begin(), bounds_.end());
  bounds_.erase(std::unique(bounds_.begin(), bounds_.end()), bounds_.end());

  // Sweep: regions enter at their begin; a region that has ended can't be the furthest of a live set.
  const auto furthest = [&](uint32_t best, uint32_t candidate) {
    return best == kNone || regions_[candidate].end > regions_[best].end ? candidate : best;
  };
  uint32_t next = 0;
  Interval current{kNone, kNone};
  for (const uint64_t bound : bounds_) {
    if (current.any != kNone && regions_[current.any].end <= bound) current.any = kNone;
    if (current.writable != kNone && regions_[current.writable].end <= bound) current.writable = kNone;
    for (; next < regions_.size() && regions_[next].begin == bound; ++next) {
      current.any = furthest(current.any, next);
      if (regions_[next].writable) current.writable = furthest(current.writable, next);
    }
    intervals_.push_back(current);
  }
}

const Region* AddressSpace::find(uint64_t address, uint64_t bytes) const {
  const auto above = std::upper_bound(bounds_.begin(), bounds_.end(), address);
  if (above == bounds_.begin()) return nullptr;
  const Interval& interval = intervals_[static_cast<size_t>(above - bounds_.begin()) - 1];
  const auto contains = [&](uint32_t index) {
    return index != kNone && bytes <= regions_[index].end - address;
  };
  if (contains(interval.writable)) return &regions_[interval.writable];
  return contains(interval.any) ? &regions_[interval.any] : nullptr;
}

}  // namespace gfx942
