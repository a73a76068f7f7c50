// Which memory kernels may touch: registrations of host memory and allocations of this library.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "code_object.hpp"
#include "machine.hpp"

namespace gfx942 {

constexpr uint64_t kDeviceMemoryBytes = uint64_t{192} << 30;  // HBM of an MI300X

enum class MemoryKind { kUnknown, kDevice, kHost, kRegistered };

struct MemoryRange {
  MemoryKind kind = MemoryKind::kUnknown;
  uint64_t begin = 0, bytes = 0;
  bool writable = true;
};

class DeviceMemory {
 public:
  static DeviceMemory& instance();

  // Memory with inaccessible guard pages around it, page-aligned, filled with 0xFF (NaN as float and bf16)
  // up to kPoisonedBytes: it is uninitialised on a device. Throws HipError(hipErrorOutOfMemory).
  void* allocate(uint64_t bytes, MemoryKind kind);
  // False when `address` is no such allocation. A running launch keeps the memory until it ends.
  bool release(void* address, MemoryKind kind);

  // Registrations may overlap and repeat. Each origin takes back its own.
  enum class Origin { kExtension, kHip };  // gfx942sim_register_memory, hipHostRegister
  void register_range(const void* address, uint64_t bytes, const std::string& label, bool writable,
                      Origin origin);
  bool unregister_range(const void* address, Origin origin);  // the latest; false when there is none
  bool is_registered(const void* address, Origin origin) const;

  void add_module(const std::shared_ptr<const LoadedModule>& module);
  void remove_module(const LoadedModule* module);

  // The allocation, module variable or registration that contains `address`; an allocation goes first.
  MemoryRange lookup(const void* address) const;
  uint64_t allocated_bytes() const;

  // All regions, and what keeps their memory alive.
  struct Snapshot {
    std::vector<Region> regions;
    std::vector<std::shared_ptr<const void>> owners;
  };
  Snapshot snapshot() const;

 private:
  struct Allocation {
    std::shared_ptr<Mapping> memory;
    uint64_t bytes;
    MemoryKind kind;
  };
  struct Registration {
    uint64_t bytes;
    std::string label;
    bool writable;
    Origin origin;
  };
  std::map<uint64_t, Allocation> allocations_;
  std::map<uint64_t, std::vector<Registration>> registrations_;  // the latest last
  std::map<const LoadedModule*, std::shared_ptr<const LoadedModule>> modules_;
  uint64_t allocated_ = 0;
};

}  // namespace gfx942
