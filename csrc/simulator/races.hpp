// Races: accesses to the same byte of which one writes and that nothing orders.
//
// Within a workgroup two accesses of different waves are ordered when an s_barrier lies between the end of
// the one and the issue of the other. An access lasts from its issue to the s_waitcnt that covers it, so one
// that is in flight across a barrier is part of both epochs. Between workgroups of a launch nothing is
// ordered: caches of different XCDs are not coherent within a kernel, so that only accesses of device scope
// on both sides agree.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "access.hpp"

namespace gfx942 {

// One access as a byte remembers it.
struct Touch {
  uint64_t group = 0;  // number of the workgroup in its launch, plus 1; 0: none
  uint32_t epoch = 0, step = 0;
  uint8_t wave = 0;
  int16_t lane = 0;
  bool coherent = false;  // agrees with its like: an atomic on LDS, an access of device scope on memory

  bool same_wave(const Touch& other) const { return group == other.group && wave == other.wave; }
};

// The latest writer, and two readers such that any writer who conflicts with a reader conflicts with one of
// them.
struct ByteHistory {
  Touch write, read[2];
};

// LDS of one workgroup. Epochs of successive workgroups never meet, so nothing is cleared between them.
class LdsRaces {
 public:
  void resize(size_t bytes) {
    if (bytes_.size() < bytes) bytes_.resize(bytes);
  }
  void access(Wave& wave, const Step& step, const std::vector<LaneRange>& ranges, Access kind,
              uint32_t epoch);

 private:
  std::vector<ByteHistory> bytes_;
};

// Memory of one launch, shared by the threads that execute its workgroups.
class MemoryRaces {
 public:
  void access(Wave& wave, const Step& step, const std::vector<LaneRange>& ranges, Access kind,
              bool device_scope, uint32_t epoch);

 private:
  static constexpr uint64_t kPage = 1024;
  std::mutex mutex_;
  std::unordered_map<uint64_t, std::unique_ptr<std::array<ByteHistory, kPage>>> pages_;
};

}  // namespace gfx942
