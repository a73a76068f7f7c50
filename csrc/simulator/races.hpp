// Races: accesses to the same byte of which one writes and that nothing orders.
//
// Within a workgroup two accesses of different waves are ordered when an s_barrier lies between the end of
// the one and the issue of the other. An access lasts from its issue to the s_waitcnt that covers it, so one
// that is in flight across a barrier is part of both epochs. Between workgroups nothing but messages orders:
// caches of different XCDs are not coherent within a kernel. A message is a store or read-modify-write of
// device scope, behind a completed buffer_wbl2 sc1 where plain stores are to be covered (those of device
// scope need only have completed), that a load of device scope or a read-modify-write meets; plain loads see
// what it covers behind a buffer_inv sc1 that follows the end of that load.
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
  uint32_t group = 0;  // number of the workgroup in its launch, plus 1; 0: none
  uint32_t epoch = 0, step = 0;
  uint32_t serial = 0;  // counts the wave's memory instructions
  int16_t lane = 0;
  uint8_t wave = 0;
  Scope scope = Scope::kWave;
  uint8_t bytes = 0, byte = 0;  // of the element, and which of them this is
  bool compares = false;        // a compare-and-swap

  bool same_wave(const Touch& other) const { return group == other.group && wave == other.wave; }
  bool same_element(const Touch& other) const { return bytes == other.bytes && byte == other.byte; }
};

// The latest writer, and two readers such that any writer who conflicts with a reader conflicts with one of
// them.
struct ByteHistory {
  Touch write, read[2];
};

// The bytes of an aligned dword share a history for as long as they are accessed together.
struct DwordHistory {
  ByteHistory whole;
  std::unique_ptr<std::array<ByteHistory, 4>> bytes;
};

// What a wave has made visible to the device when it sends a message: its own accesses up to a serial number,
// and those of the other waves of its workgroup in earlier epochs.
struct Release {
  uint32_t group = 0;
  uint8_t wave = 0;
  uint32_t serial = 0, epoch = 0;              // of accesses of device scope
  uint32_t plain_serial = 0, plain_epoch = 0;  // of all, written back from the caches
  bool covers(const Touch& before, uint32_t reader_group) const;
};

// A message as a wave of the receiving workgroup has met it.
struct Acquire {
  Release from;
  uint8_t wave = 0;
  uint32_t epoch = 0;
  uint64_t serial = 0;       // of the load
  bool invalidated = false;  // and the caches have been since
};

// Kept by each workgroup.
using Acquires = std::vector<Acquire>;

// What a wave has written back from the caches.
struct WriteBack {
  uint64_t serial = 0;  // of buffer_wbl2; 0: none
  uint32_t epoch = 0;
};

// LDS of one workgroup. Epochs of successive workgroups never meet, so nothing is cleared between them.
class LdsRaces {
 public:
  void resize(size_t bytes) {
    if (dwords_.size() < (bytes + 3) / 4) dwords_.resize((bytes + 3) / 4);
  }
  void access(Wave& wave, const Step& step, const std::vector<LaneRange>& ranges, Access kind,
              uint32_t epoch);

 private:
  std::vector<DwordHistory> dwords_;
};

// Memory of one launch, shared by the threads that execute its workgroups.
class MemoryRaces {
 public:
  // `serial`: of the access among the wave's memory instructions.
  void access(Wave& wave, const Step& step, const std::vector<LaneRange>& ranges, Access kind, uint32_t epoch,
              uint64_t serial);
  // Messages of an access of device scope: sent before it executes, received once it has.
  void send(Wave& wave, const InstructionTraits& traits, const std::vector<LaneRange>& ranges,
            uint32_t epoch);
  void receive(Wave& wave, const std::vector<LaneRange>& ranges, uint32_t epoch, uint64_t serial);
  // To be held from the sending or executing of such an access to its receiving: a load that does not see a
  // value must not receive its message.
  std::unique_lock<std::mutex> order() { return std::unique_lock(order_); }

 private:
  static constexpr uint64_t kPage = 1024;  // bytes
  using Page = std::array<DwordHistory, kPage / 4>;
  std::mutex mutex_, order_;
  std::unordered_map<uint64_t, std::unique_ptr<Page>> pages_;
  std::unordered_map<uint64_t, std::vector<Release>> messages_;  // by address
};

// buffer_inv sc1.
void invalidate_caches(Wave& wave, uint32_t epoch);

}  // namespace gfx942
