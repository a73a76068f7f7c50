#include "device_memory.hpp"

#include <algorithm>
#include <cstring>

#include "hip_error.hpp"
#include "locks.hpp"
#include "unwritten.hpp"

namespace gfx942 {
namespace {

// Larger allocations stay zero, so that reserving much costs no host memory.
constexpr uint64_t kPoisonedBytes = uint64_t{256} << 20;

}  // namespace

DeviceMemory& DeviceMemory::instance() {
  static DeviceMemory* instance = new DeviceMemory;
  return *instance;
}

void* DeviceMemory::allocate(uint64_t bytes, MemoryKind kind) {
  if (bytes > kDeviceMemoryBytes - std::min(kDeviceMemoryBytes, allocated_bytes()))
    throw HipError(hipErrorOutOfMemory, std::to_string(bytes) + " bytes exceed the device's free memory");
  auto memory = std::make_shared<Mapping>(bytes, 4096);
  if (bytes <= kPoisonedBytes) std::memset(memory->begin(), 0xFF, bytes);
  std::lock_guard lock(locks().memory);
  uint8_t* begin = memory->begin();
  if (kind == MemoryKind::kDevice) UnwrittenMemory::instance().add(reinterpret_cast<uint64_t>(begin), bytes);
  allocations_[reinterpret_cast<uint64_t>(begin)] = {std::move(memory), bytes, kind};
  allocated_ += bytes;
  return begin;
}

bool DeviceMemory::release(void* address, MemoryKind kind) {
  std::shared_ptr<Mapping> memory;  // unmapped after the lock is gone
  std::lock_guard lock(locks().memory);
  const auto found = allocations_.find(reinterpret_cast<uint64_t>(address));
  if (found == allocations_.end() || found->second.kind != kind) return false;
  memory = std::move(found->second.memory);
  UnwrittenMemory::instance().remove(found->first, found->second.bytes);
  allocated_ -= found->second.bytes;
  allocations_.erase(found);
  return true;
}

void DeviceMemory::register_range(const void* address, uint64_t bytes, const std::string& label,
                                  bool writable, Origin origin) {
  std::lock_guard lock(locks().memory);
  registrations_[reinterpret_cast<uint64_t>(address)].push_back({bytes, label, writable, origin});
}

bool DeviceMemory::unregister_range(const void* address, Origin origin) {
  std::lock_guard lock(locks().memory);
  const auto found = registrations_.find(reinterpret_cast<uint64_t>(address));
  if (found == registrations_.end()) return false;
  std::vector<Registration>& stack = found->second;
  for (size_t i = stack.size(); i-- > 0;) {
    if (stack[i].origin != origin) continue;
    UnwrittenMemory::instance().remove(found->first, stack[i].bytes);
    stack.erase(stack.begin() + static_cast<std::ptrdiff_t>(i));
    if (stack.empty()) registrations_.erase(found);
    return true;
  }
  return false;
}

bool DeviceMemory::is_registered(const void* address, Origin origin) const {
  std::lock_guard lock(locks().memory);
  const auto found = registrations_.find(reinterpret_cast<uint64_t>(address));
  return found != registrations_.end() &&
         std::any_of(found->second.begin(), found->second.end(),
                     [&](const Registration& registration) { return registration.origin == origin; });
}

void DeviceMemory::add_module(const std::shared_ptr<const LoadedModule>& module) {
  std::lock_guard lock(locks().memory);
  modules_[module.get()] = module;
}

void DeviceMemory::remove_module(const LoadedModule* module) {
  std::lock_guard lock(locks().memory);
  modules_.erase(module);
}

MemoryRange DeviceMemory::lookup(const void* pointer) const {
  const uint64_t address = reinterpret_cast<uint64_t>(pointer);
  std::lock_guard lock(locks().memory);
  auto allocation = allocations_.upper_bound(address);
  if (allocation != allocations_.begin()) {
    --allocation;
    if (address - allocation->first < std::max<uint64_t>(allocation->second.bytes, 1))
      return {allocation->second.kind, allocation->first, allocation->second.bytes, true};
  }
  for (const auto& [key, module] : modules_)
    for (const Region& region : module->regions())
      if (address >= region.begin && address < region.end)
        return {MemoryKind::kDevice, region.begin, region.end - region.begin, region.writable};
  MemoryRange best;
  for (const auto& [begin, stack] : registrations_) {
    if (begin > address) break;
    for (const Registration& registration : stack)
      if (address - begin < registration.bytes &&
          (best.kind == MemoryKind::kUnknown || begin + registration.bytes > best.begin + best.bytes))
        best = {MemoryKind::kRegistered, begin, registration.bytes, registration.writable};
  }
  return best;
}

uint64_t DeviceMemory::allocated_bytes() const {
  std::lock_guard lock(locks().memory);
  return allocated_;
}

DeviceMemory::Snapshot DeviceMemory::snapshot() const {
  std::lock_guard lock(locks().memory);
  Snapshot out;
  for (const auto& [begin, allocation] : allocations_) {
    out.regions.push_back({begin, begin + allocation.bytes, true,
                           allocation.kind == MemoryKind::kDevice ? "hipMalloc" : "hipHostMalloc"});
    out.owners.push_back(allocation.memory);
  }
  for (const auto& [key, module] : modules_) {
    out.regions.insert(out.regions.end(), module->regions().begin(), module->regions().end());
    out.owners.push_back(module);
  }
  for (const auto& [begin, stack] : registrations_)
    for (const Registration& registration : stack)
      out.regions.push_back({begin, begin + registration.bytes, registration.writable, registration.label});
  return out;
}

}  // namespace gfx942
