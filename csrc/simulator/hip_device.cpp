// HIP's device queries, streams and events. Every call is synchronous, so a stream is always idle and an
// event that was recorded has happened.
#include <algorithm>
#include <chrono>
#include <climits>
#include <map>
#include <memory>
#include <mutex>

#include "device_memory.hpp"
#include "hip_call.hpp"
#include "locks.hpp"
#include "options.hpp"
#include "timing.hpp"

struct ihipStream_t {};

struct ihipEvent_t {
  unsigned flags;
  bool recorded = false;
  std::chrono::steady_clock::time_point time{};
};

namespace gfx942 {
namespace {

constexpr int kHipVersion = 70100000;  // 7.1: major · 10^7 + minor · 10^5 + patch

template <typename T>
std::map<T*, std::unique_ptr<T>>& live() {
  static auto* instance = new std::map<T*, std::unique_ptr<T>>;
  return *instance;
}

template <typename T>
T* add(std::unique_ptr<T> object) {
  std::lock_guard lock(locks().handles);
  T* handle = object.get();
  live<T>()[handle] = std::move(object);
  return handle;
}

// Call with the handles locked.
ihipEvent_t& find_event(hipEvent_t event) {
  if (!live<ihipEvent_t>().count(event))
    throw HipError(hipErrorInvalidHandle,
                   "event " + hex(reinterpret_cast<uint64_t>(event)) + " does not exist");
  return *event;
}

void check_event(hipEvent_t event) {
  std::lock_guard lock(locks().handles);
  find_event(event);
}

void check_device(int device) {
  if (device != 0)
    throw HipError(hipErrorInvalidDevice, "device " + std::to_string(device) + "; the one device is 0");
}

// Figures of an MI300X: "CDNA 3 architecture" white paper and what ROCm reports for it.
int attribute_value(hipDeviceAttribute_t attribute) {
  const Options current = options();
  switch (static_cast<int>(attribute)) {
  case hipDeviceAttributeClockRate: return 2100000;
  case hipDeviceAttributeConcurrentKernels: return 1;
  case hipDeviceAttributeL2CacheSize: return 4 << 20;
  case hipDeviceAttributeComputeCapabilityMajor: return 9;
  case hipDeviceAttributeComputeCapabilityMinor: return 4;
  case hipDeviceAttributeMaxBlocksPerMultiProcessor: return 2;
  case hipDeviceAttributeMaxBlockDimX:
  case hipDeviceAttributeMaxBlockDimY:
  case hipDeviceAttributeMaxBlockDimZ:
  case hipDeviceAttributeMaxThreadsPerBlock: return 1024;
  case hipDeviceAttributeMaxGridDimX: return INT_MAX;
  case hipDeviceAttributeMaxGridDimY:
  case hipDeviceAttributeMaxGridDimZ: return 65536;
  case hipDeviceAttributeMaxThreadsPerMultiProcessor: return 2048;
  case hipDeviceAttributeMemoryBusWidth: return 8192;
  case hipDeviceAttributeMemoryClockRate: return 1300000;
  case hipDeviceAttributeMultiprocessorCount:
  case hipDeviceAttributePhysicalMultiProcessorCount: return current.compute_units;
  case hipDeviceAttributeNumberOfXccs: return current.xcds;
  case hipDeviceAttributePciBusId:
  case hipDeviceAttributePciDeviceId:
  case hipDeviceAttributePciDomainId: return 0;
  case hipDeviceAttributeMaxRegistersPerBlock: return 65536;
  case hipDeviceAttributeMaxRegistersPerMultiprocessor: return 131072;
  case hipDeviceAttributeMaxSharedMemoryPerBlock:
  case hipDeviceAttributeSharedMemPerBlockOptin:
  case hipDeviceAttributeSharedMemPerMultiprocessor:
  case hipDeviceAttributeMaxSharedMemoryPerMultiprocessor: return 65536;
  case hipDeviceAttributeTotalGlobalMem: return INT_MAX;  // hipMemGetInfo has the full number
  case hipDeviceAttributeWarpSize: return 64;
  case hipDeviceAttributeClockInstructionRate:
  case hipDeviceAttributeWallClockRate: return 100000;
  case 0:   // EccEnabled
  case 6:   // ComputeMode: default
  case 10:  // CooperativeLaunch
  case 16:  // Integrated
  case 18:  // KernelExecTimeout
  case 24:  // ManagedMemory
  case 88:  // MemoryPoolsSupported
    return 0;
  case 3:   // CanMapHostMemory
  case 4:   // CanUseHostPointerForRegisteredMem
  case 85:  // UnifiedAddressing
  case 90:  // HostRegisterSupported
    return 1;
  default: refuse_value("device attribute " + std::to_string(attribute) + " is not simulated");
  }
}

}  // namespace

void check_stream(hipStream_t stream) {
  // The default stream, and the handles hipStreamLegacy and hipStreamPerThread.
  if (reinterpret_cast<uintptr_t>(stream) <= 2) return;
  std::lock_guard lock(locks().handles);
  if (!live<ihipStream_t>().count(stream))
    throw HipError(hipErrorInvalidHandle,
                   "stream " + hex(reinterpret_cast<uint64_t>(stream)) + " does not exist");
}

}  // namespace gfx942

using namespace gfx942;

#pragma GCC visibility push(default)
extern "C" {

hipError_t hipInit(unsigned flags) {
  HIP_CALL({
    if (flags) refuse_value("flags is " + std::to_string(flags) + ", allowed: 0");
    options();
  });
}

hipError_t hipDriverGetVersion(int* version) {
  HIP_CALL({
    require_pointer(version, "version");
    *version = kHipVersion;
  });
}

hipError_t hipRuntimeGetVersion(int* version) {
  HIP_CALL({
    require_pointer(version, "version");
    *version = kHipVersion;
  });
}

hipError_t hipGetDeviceCount(int* count) {
  HIP_CALL({
    require_pointer(count, "count");
    *count = 1;
  });
}

hipError_t hipGetDevice(int* device) {
  HIP_CALL({
    require_pointer(device, "device");
    *device = 0;
  });
}

hipError_t hipSetDevice(int device) {
  HIP_CALL({ check_device(device); });
}

hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int device) {
  HIP_CALL({
    require_pointer(value, "value");
    check_device(device);
    *value = attribute_value(attribute);
  });
}

hipError_t hipDeviceGetName(char* name, int size, hipDevice_t device) {
  HIP_CALL({
    require_pointer(name, "name");
    check_device(device);
    if (size < 1) refuse_value("size is " + std::to_string(size));
    static constexpr char kName[] = "gfx942 simulator (AMD Instinct MI300X)";
    const size_t length = std::min(static_cast<size_t>(size), sizeof kName) - 1;
    std::copy_n(kName, length, name);
    name[length] = 0;
  });
}

hipError_t hipDeviceSynchronize() {
  HIP_CALL({});
}

hipError_t hipStreamCreate(hipStream_t* stream) {
  HIP_CALL({
    require_pointer(stream, "stream");
    *stream = add(std::make_unique<ihipStream_t>());
  });
}

hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags) {
  HIP_CALL({
    require_pointer(stream, "stream");
    if (flags & ~hipStreamNonBlocking) refuse_value("flags is " + std::to_string(flags) + ", allowed: 0, 1");
    *stream = add(std::make_unique<ihipStream_t>());
  });
}

hipError_t hipStreamDestroy(hipStream_t stream) {
  HIP_CALL({
    std::lock_guard lock(locks().handles);
    if (!live<ihipStream_t>().erase(stream)) throw HipError(hipErrorInvalidHandle, "no such stream");
  });
}

hipError_t hipStreamSynchronize(hipStream_t stream) {
  HIP_CALL({ check_stream(stream); });
}

hipError_t hipStreamQuery(hipStream_t stream) {
  HIP_CALL({ check_stream(stream); });
}

hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned) {
  HIP_CALL({
    check_stream(stream);
    check_event(event);
  });
}

hipError_t hipStreamIsCapturing(hipStream_t stream, hipStreamCaptureStatus* status) {
  HIP_CALL({
    require_pointer(status, "status");
    check_stream(stream);
    *status = hipStreamCaptureStatusNone;
  });
}

hipError_t hipEventCreate(hipEvent_t* event) {
  HIP_CALL({
    require_pointer(event, "event");
    *event = add(std::make_unique<ihipEvent_t>(ihipEvent_t{hipEventDefault}));
  });
}

hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned flags) {
  HIP_CALL({
    require_pointer(event, "event");
    *event = add(std::make_unique<ihipEvent_t>(ihipEvent_t{flags}));
  });
}

hipError_t hipEventDestroy(hipEvent_t event) {
  HIP_CALL({
    std::lock_guard lock(locks().handles);
    if (!live<ihipEvent_t>().erase(event)) throw HipError(hipErrorInvalidHandle, "no such event");
  });
}

hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
  HIP_CALL({
    check_stream(stream);
    std::lock_guard lock(locks().handles);
    ihipEvent_t& found = find_event(event);
    found.recorded = true;
    const Recording* recording = current_recording();
    if (recording && recording->timed)
      found.time = std::chrono::steady_clock::time_point(
          std::chrono::nanoseconds(static_cast<int64_t>(recording->nanoseconds())));
    else
      found.time = std::chrono::steady_clock::now();
  });
}

hipError_t hipEventSynchronize(hipEvent_t event) {
  HIP_CALL({ check_event(event); });
}

hipError_t hipEventQuery(hipEvent_t event) {
  HIP_CALL({ check_event(event); });
}

hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop) {
  HIP_CALL({
    require_pointer(milliseconds, "milliseconds");
    std::lock_guard lock(locks().handles);
    for (hipEvent_t event : {start, stop}) {
      const ihipEvent_t& found = find_event(event);
      if (!found.recorded || found.flags & hipEventDisableTiming)
        throw HipError(hipErrorInvalidHandle, "an event was not recorded, or has no timing");
    }
    *milliseconds = std::chrono::duration<float, std::milli>(stop->time - start->time).count();
  });
}

}  // extern "C"
#pragma GCC visibility pop
