#include "host/kernels.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <new>

namespace liteattention_rocm {
namespace {

constexpr int kWaveSize = 64;

struct Library {
  HipLibrary hip;
  std::array<std::atomic<const LoadedKernels*>, kMaxDevices> kernels{};
};

// Entries are published once and never freed, so that readers need no lock.
std::array<std::atomic<Library*>, kMaxHipLibraries> g_libraries{};

// Serialises writers. The interpreter's lock is never taken while this one is held.
std::mutex g_load_mutex;

// A thread that held the mutex at a fork doesn't exist in the child. What it guards is published atomically
// and is whole at any moment, so the child starts with a fresh one.
[[maybe_unused]] const int g_at_fork =
    pthread_atfork(nullptr, nullptr, [] { new (&g_load_mutex) std::mutex; });

Library& library_at(int number) {
  Library* library = number >= 0 && number < kMaxHipLibraries
                         ? g_libraries[number].load(std::memory_order_acquire)
                         : nullptr;
  if (!library)
    throw std::invalid_argument("hip is " + std::to_string(number) + ", allowed are results of open_hip");
  return *library;
}

const LoadedKernels& same_architecture(const LoadedKernels& kernels, std::string_view arch, int device) {
  if (base_architecture(kernels.arch) != base_architecture(arch))
    throw std::invalid_argument("arch is '" + std::string(arch) + "', but device " + std::to_string(device) +
                                " was loaded as '" + kernels.arch + "'");
  return kernels;
}

void refuse_capture(const HipLibrary& hip, hipStream_t stream, int device) {
  // The legacy stream (0, or 1 by name) can't capture, and asking it disturbs captures elsewhere.
  if (reinterpret_cast<uintptr_t>(stream) <= 1) return;
  hipStreamCaptureStatus status = hipStreamCaptureStatusNone;
  hip.check(hip.stream_is_capturing(stream, &status), "hipStreamIsCapturing");
  if (status != hipStreamCaptureStatusNone)
    throw std::runtime_error("the kernels of device " + std::to_string(device) +
                             " aren't loaded, and loading is illegal while the stream is capturing: call "
                             "liteattention_rocm.prepare(device) before the capture");
}

int attribute(const HipLibrary& hip, hipDeviceAttribute_t which, int device, const char* name) {
  int value = 0;
  if (const hipError_t error = hip.device_get_attribute(&value, which, device))
    hip.fail(error,
             "hipDeviceGetAttribute(" + std::string(name) + ", device " + std::to_string(device) + ")");
  return value;
}

std::unique_ptr<LoadedKernels> load(const HipLibrary& hip, int device, std::string_view arch,
                                    int compute_units) {
  const CodeObject& object = find_code_object(arch);
  hip.check(hip.init(0), "hipInit");
  const CurrentDevice current(hip, device);

  // Attribute numbers have moved between HIP versions: the one value that is known tells.
  const int wave_size = attribute(hip, hipDeviceAttributeWarpSize, device, "warp size");
  if (wave_size != kWaveSize)
    throw std::runtime_error("device " + std::to_string(device) + " of " + hip.path +
                             " reports a warp size of " + std::to_string(wave_size) + ", " +
                             object.architecture + " has 64: unknown HIP version?");
  if (compute_units == 0)
    compute_units = attribute(hip, hipDeviceAttributeMultiprocessorCount, device, "multiprocessor count");

  auto kernels = std::make_unique<LoadedKernels>();
  kernels->arch = arch;
  kernels->device.compute_units = compute_units;
  hipModule_t module = nullptr;
  if (const hipError_t error = hip.module_load_data(&module, object.image))
    hip.fail(error, "hipModuleLoadData(kernels for " + std::string(object.architecture) + ", device " +
                        std::to_string(device) + ")");
  const auto find = [&](hipFunction_t& function, const char* name) {
    const hipError_t error = hip.module_get_function(&function, module, name);
    if (error == hipSuccess) return;
    try {
      hip.fail(error, "hipModuleGetFunction(" + std::string(name) + ")");
    } catch (...) {
      (void)hip.module_unload(module);
      throw;
    }
  };
  for (size_t i = 0; i < kForwardKernels.size(); ++i) {
    find(kernels->forward[i], kForwardKernels[i]);
    find(kernels->pingpong[i], kPingpongKernels[i]);
    find(kernels->aiter_exact[i], kAiterExactKernels[i]);
    find(kernels->forward_split[i], kForwardSplitKernels[i]);
    find(kernels->pingpong_split[i], kPingpongSplitKernels[i]);
    find(kernels->merge[i], kMergeKernels[i]);
    find(kernels->skip_forward[i], kSkipKernels[i]);
    find(kernels->skip_pingpong[i], kSkipPingpongKernels[i]);
    find(kernels->skip_forward_split[i], kSkipSplitKernels[i]);
    find(kernels->skip_pingpong_split[i], kSkipPingpongSplitKernels[i]);
    find(kernels->skip_merge[i], kSkipMergeKernels[i]);
    find(kernels->varlen[i], kVarlenKernels[i]);
  }
  find(kernels->skip_order, kOrderKernel);
  find(kernels->skip_pieces, kPiecesKernel);
  return kernels;
}

}  // namespace

int open_hip(const std::string& path) {
  auto library = std::make_unique<Library>();
  library->hip = open_hip_library(path);
  const std::lock_guard<std::mutex> lock(g_load_mutex);
  for (int number = 0; number < kMaxHipLibraries; ++number) {
    const Library* other = g_libraries[number].load(std::memory_order_relaxed);
    if (!other) {
      g_libraries[number].store(library.release(), std::memory_order_release);
      return number;
    }
    if (other->hip.handle == library->hip.handle) {
      dlclose(library->hip.handle);  // only the count that this opening added
      return number;
    }
  }
  dlclose(library->hip.handle);
  throw std::runtime_error("more than " + std::to_string(kMaxHipLibraries) + " HIP libraries in one process");
}

const HipLibrary& hip_library(int number) {
  return library_at(number).hip;
}

const LoadedKernels& load_kernels(int library_number, int device, std::string_view arch, int compute_units,
                                  std::optional<hipStream_t> stream) {
  Library& library = library_at(library_number);
  if (device < 0 || device >= kMaxDevices)
    throw std::invalid_argument("device is " + std::to_string(device) + ", allowed are 0 to " +
                                std::to_string(kMaxDevices - 1));
  if (compute_units < 0)
    throw std::invalid_argument("compute_units is " + std::to_string(compute_units) +
                                ", allowed are counts, and 0 to ask the device");
  std::atomic<const LoadedKernels*>& slot = library.kernels[device];
  if (const LoadedKernels* kernels = slot.load(std::memory_order_acquire))
    return kernels->arch == arch ? *kernels : same_architecture(*kernels, arch, device);

  (void)find_code_object(arch);  // refused before HIP is asked anything
  const std::lock_guard<std::mutex> lock(g_load_mutex);
  if (const LoadedKernels* kernels = slot.load(std::memory_order_relaxed))
    return same_architecture(*kernels, arch, device);
  if (stream) refuse_capture(library.hip, *stream, device);
  slot.store(load(library.hip, device, arch, compute_units).release(), std::memory_order_release);
  return *slot.load(std::memory_order_relaxed);
}

}  // namespace liteattention_rocm
