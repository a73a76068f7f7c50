// HIP's memory functions. Device addresses are host addresses, so copies are plain ones; everything is
// synchronous, which is a legal order for the Async variants.
#include <algorithm>
#include <cstring>

#include "device_memory.hpp"
#include "hip_call.hpp"
#include "unwritten.hpp"

namespace gfx942 {
namespace {

using Origin = DeviceMemory::Origin;

std::string describe(const void* pointer, uint64_t bytes) {
  return std::to_string(bytes) + " bytes at " + hex(reinterpret_cast<uint64_t>(pointer));
}

// `must_be_known`: the pointer is said to be a device's. A host pointer can't be checked, unless it lies in
// memory that is known here.
void check_range(const char* role, const void* pointer, uint64_t bytes, bool must_be_known, bool written) {
  if (!pointer) refuse_value(std::string(role) + " is null");
  const MemoryRange range = DeviceMemory::instance().lookup(pointer);
  if (range.kind == MemoryKind::kUnknown) {
    if (must_be_known)
      refuse_value(std::string(role) + ": " + describe(pointer, bytes) +
                   " is no device memory; allocate it with hipMalloc, or register it");
    return;
  }
  if (bytes > range.begin + range.bytes - reinterpret_cast<uint64_t>(pointer))
    refuse_value(std::string(role) + ": " + describe(pointer, bytes) + " exceeds the memory there, " +
                 describe(reinterpret_cast<const void*>(range.begin), range.bytes));
  if (written && !range.writable && range.kind == MemoryKind::kDevice)
    refuse_value(std::string(role) + ": " + describe(pointer, bytes) + " is code or constant memory");
}

void copy(void* destination, const void* source, uint64_t bytes, hipMemcpyKind kind) {
  if (kind < hipMemcpyHostToHost || kind > hipMemcpyDefault)
    throw HipError(hipErrorInvalidMemcpyDirection, "kind " + std::to_string(kind) + "; allowed are 0 to 4");
  if (!bytes) return;
  check_range("destination", destination, bytes,
              kind == hipMemcpyHostToDevice || kind == hipMemcpyDeviceToDevice, true);
  check_range("source", source, bytes, kind == hipMemcpyDeviceToHost || kind == hipMemcpyDeviceToDevice,
              false);
  std::memmove(destination, source, bytes);
  UnwrittenMemory::instance().remove(reinterpret_cast<uint64_t>(destination), bytes);
}

template <typename T>
void fill(void* destination, T value, uint64_t count) {
  if (count > UINT64_MAX / sizeof(T)) refuse_value("count " + std::to_string(count));
  if (!count) return;
  if (reinterpret_cast<uint64_t>(destination) % sizeof(T))
    refuse_value("destination " + hex(reinterpret_cast<uint64_t>(destination)) + " is not aligned to " +
                 std::to_string(sizeof(T)));
  check_range("destination", destination, count * sizeof(T), true, true);
  std::fill_n(static_cast<T*>(destination), count, value);
  UnwrittenMemory::instance().remove(reinterpret_cast<uint64_t>(destination), count * sizeof(T));
}

void* allocate(uint64_t bytes, MemoryKind kind) {
  return bytes ? DeviceMemory::instance().allocate(bytes, kind) : nullptr;
}

void release(void* address, MemoryKind kind, const char* allocator) {
  if (address && !DeviceMemory::instance().release(address, kind))
    refuse_value(hex(reinterpret_cast<uint64_t>(address)) + " is not from " + allocator + ", or was freed");
}

}  // namespace
}  // namespace gfx942

using namespace gfx942;

#pragma GCC visibility push(default)
extern "C" {

struct hipPointerAttribute_t {
  int type;  // hipMemoryType: 0 unregistered, 1 host, 2 device
  int device;
  void* devicePointer;
  void* hostPointer;
  int isManaged;
  unsigned allocationFlags;
};

hipError_t hipMalloc(void** address, size_t bytes) {
  HIP_CALL({
    require_pointer(address, "address");
    *address = allocate(bytes, MemoryKind::kDevice);
  });
}

hipError_t hipFree(void* address) {
  HIP_CALL({ release(address, MemoryKind::kDevice, "hipMalloc"); });
}

hipError_t hipHostMalloc(void** address, size_t bytes, unsigned) {
  HIP_CALL({
    require_pointer(address, "address");
    *address = allocate(bytes, MemoryKind::kHost);
  });
}

hipError_t hipHostFree(void* address) {
  HIP_CALL({ release(address, MemoryKind::kHost, "hipHostMalloc"); });
}

hipError_t hipHostRegister(void* pointer, size_t bytes, unsigned flags) {
  HIP_CALL({
    require_pointer(pointer, "pointer");
    if (!bytes || bytes > UINT64_MAX - reinterpret_cast<uint64_t>(pointer))
      refuse_value("bytes is " + std::to_string(bytes));
    if (DeviceMemory::instance().is_registered(pointer, Origin::kHip))
      throw HipError(hipErrorHostMemoryAlreadyRegistered, describe(pointer, bytes));
    constexpr unsigned kReadOnly = 8;
    DeviceMemory::instance().register_range(pointer, bytes, "hipHostRegister", !(flags & kReadOnly),
                                            Origin::kHip);
  });
}

hipError_t hipHostUnregister(void* pointer) {
  HIP_CALL({
    if (!DeviceMemory::instance().unregister_range(pointer, Origin::kHip))
      throw HipError(hipErrorHostMemoryNotRegistered, hex(reinterpret_cast<uint64_t>(pointer)));
  });
}

hipError_t hipHostGetDevicePointer(void** device_pointer, void* host_pointer, unsigned) {
  HIP_CALL({
    require_pointer(device_pointer, "device_pointer");
    if (DeviceMemory::instance().lookup(host_pointer).kind == MemoryKind::kUnknown)
      refuse_value(hex(reinterpret_cast<uint64_t>(host_pointer)) + " is not registered");
    *device_pointer = host_pointer;
  });
}

hipError_t hipPointerGetAttributes(hipPointerAttribute_t* attributes, const void* pointer) {
  HIP_CALL({
    require_pointer(attributes, "attributes");
    require_pointer(pointer, "pointer");
    void* address = const_cast<void*>(pointer);
    switch (DeviceMemory::instance().lookup(pointer).kind) {
    case MemoryKind::kUnknown: *attributes = {0, -1, nullptr, address, 0, 0}; break;
    case MemoryKind::kDevice: *attributes = {2, 0, address, nullptr, 0, 0}; break;
    default: *attributes = {1, 0, address, address, 0, 0}; break;
    }
  });
}

hipError_t hipMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  HIP_CALL({
    const uint64_t used = DeviceMemory::instance().allocated_bytes();
    if (free_bytes) *free_bytes = kDeviceMemoryBytes - std::min(used, kDeviceMemoryBytes);
    if (total_bytes) *total_bytes = kDeviceMemoryBytes;
  });
}

hipError_t hipMemcpy(void* destination, const void* source, size_t bytes, hipMemcpyKind kind) {
  HIP_CALL({ copy(destination, source, bytes, kind); });
}

hipError_t hipMemcpyAsync(void* destination, const void* source, size_t bytes, hipMemcpyKind kind,
                          hipStream_t) {
  HIP_CALL({ copy(destination, source, bytes, kind); });
}

hipError_t hipMemcpyHtoD(hipDeviceptr_t destination, const void* source, size_t bytes) {
  HIP_CALL({ copy(destination, source, bytes, hipMemcpyHostToDevice); });
}

hipError_t hipMemcpyDtoH(void* destination, hipDeviceptr_t source, size_t bytes) {
  HIP_CALL({ copy(destination, source, bytes, hipMemcpyDeviceToHost); });
}

hipError_t hipMemcpyDtoD(hipDeviceptr_t destination, hipDeviceptr_t source, size_t bytes) {
  HIP_CALL({ copy(destination, source, bytes, hipMemcpyDeviceToDevice); });
}

hipError_t hipMemcpyHtoDAsync(hipDeviceptr_t destination, const void* source, size_t bytes, hipStream_t) {
  HIP_CALL({ copy(destination, source, bytes, hipMemcpyHostToDevice); });
}

hipError_t hipMemcpyDtoHAsync(void* destination, hipDeviceptr_t source, size_t bytes, hipStream_t) {
  HIP_CALL({ copy(destination, source, bytes, hipMemcpyDeviceToHost); });
}

hipError_t hipMemcpyDtoDAsync(hipDeviceptr_t destination, hipDeviceptr_t source, size_t bytes, hipStream_t) {
  HIP_CALL({ copy(destination, source, bytes, hipMemcpyDeviceToDevice); });
}

hipError_t hipMemset(void* destination, int value, size_t bytes) {
  HIP_CALL({ fill(destination, static_cast<uint8_t>(value), bytes); });
}

hipError_t hipMemsetAsync(void* destination, int value, size_t bytes, hipStream_t) {
  HIP_CALL({ fill(destination, static_cast<uint8_t>(value), bytes); });
}

hipError_t hipMemsetD8(hipDeviceptr_t destination, unsigned char value, size_t count) {
  HIP_CALL({ fill(destination, value, count); });
}

hipError_t hipMemsetD16(hipDeviceptr_t destination, unsigned short value, size_t count) {
  HIP_CALL({ fill(destination, value, count); });
}

hipError_t hipMemsetD32(hipDeviceptr_t destination, int value, size_t count) {
  HIP_CALL({ fill(destination, value, count); });
}

hipError_t hipMemsetD8Async(hipDeviceptr_t destination, unsigned char value, size_t count, hipStream_t) {
  HIP_CALL({ fill(destination, value, count); });
}

hipError_t hipMemsetD16Async(hipDeviceptr_t destination, unsigned short value, size_t count, hipStream_t) {
  HIP_CALL({ fill(destination, value, count); });
}

hipError_t hipMemsetD32Async(hipDeviceptr_t destination, int value, size_t count, hipStream_t) {
  HIP_CALL({ fill(destination, value, count); });
}

}  // extern "C"
#pragma GCC visibility pop
