// HIP's errors, modules and launches.
#include <algorithm>
#include <fstream>
#include <map>
#include <mutex>

#include "device_memory.hpp"
#include "hip_call.hpp"
#include "launch.hpp"
#include "locks.hpp"

namespace gfx942 {
namespace {

thread_local hipError_t last_error = hipSuccess;
thread_local std::string last_message;

struct ErrorText {
  hipError_t code;
  const char *name, *text;
};
constexpr ErrorText kErrors[] = {
#define ENTRY(name, text) {name, #name, text}
    ENTRY(hipSuccess, "no error"),
    ENTRY(hipErrorInvalidValue, "invalid argument"),
    ENTRY(hipErrorOutOfMemory, "out of memory"),
    ENTRY(hipErrorNotInitialized, "not initialized"),
    ENTRY(hipErrorDeinitialized, "deinitialized"),
    ENTRY(hipErrorInvalidConfiguration, "invalid launch configuration"),
    ENTRY(hipErrorInvalidSymbol, "invalid device symbol"),
    ENTRY(hipErrorInvalidDevicePointer, "invalid device pointer"),
    ENTRY(hipErrorInvalidMemcpyDirection, "invalid copy direction"),
    ENTRY(hipErrorInvalidDeviceFunction, "invalid device function"),
    ENTRY(hipErrorNoDevice, "no such device"),
    ENTRY(hipErrorInvalidDevice, "invalid device number"),
    ENTRY(hipErrorInvalidImage, "invalid code object"),
    ENTRY(hipErrorInvalidContext, "invalid context"),
    ENTRY(hipErrorNoBinaryForGpu, "no code object for this device"),
    ENTRY(hipErrorInvalidKernelFile, "invalid kernel file"),
    ENTRY(hipErrorFileNotFound, "file not found"),
    ENTRY(hipErrorSharedObjectSymbolNotFound, "symbol of a shared object not found"),
    ENTRY(hipErrorSharedObjectInitFailed, "initialisation of a shared object failed"),
    ENTRY(hipErrorOperatingSystem, "operating system call failed"),
    ENTRY(hipErrorInvalidHandle, "invalid handle"),
    ENTRY(hipErrorIllegalState, "illegal state"),
    ENTRY(hipErrorNotFound, "name not found"),
    ENTRY(hipErrorNotReady, "not ready"),
    ENTRY(hipErrorIllegalAddress, "illegal memory access by a kernel"),
    ENTRY(hipErrorLaunchOutOfResources, "launch exceeds the device's resources"),
    ENTRY(hipErrorLaunchTimeOut, "launch timed out"),
    ENTRY(hipErrorHostMemoryAlreadyRegistered, "host memory is already registered"),
    ENTRY(hipErrorHostMemoryNotRegistered, "host memory is not registered"),
    ENTRY(hipErrorLaunchFailure, "launch failed"),
    ENTRY(hipErrorNotSupported, "not supported"),
    ENTRY(hipErrorStreamCaptureUnsupported, "not permitted while a stream captures"),
    ENTRY(hipErrorStreamCaptureInvalidated, "stream capture was invalidated"),
    ENTRY(hipErrorStreamCaptureImplicit, "implicit dependency on a capturing stream"),
    ENTRY(hipErrorUnknown, "unknown error"),
#undef ENTRY
};

const ErrorText& error_text(hipError_t code) {
  for (const ErrorText& entry : kErrors)
    if (entry.code == code) return entry;
  return kErrors[std::size(kErrors) - 1];
}

// Live handles. A running launch holds its module, so unloading one meanwhile is safe.
struct Handles {
  std::map<const void*, std::shared_ptr<const LoadedModule>> modules;
  std::map<const void*, std::shared_ptr<const LoadedModule>> functions;  // to the module they belong to
};

Handles& handles() {
  static Handles* instance = new Handles;
  return *instance;
}

std::shared_ptr<const LoadedModule> find_module(hipModule_t module) {
  std::lock_guard lock(locks().handles);
  const auto found = handles().modules.find(module);
  if (found == handles().modules.end()) throw HipError(hipErrorInvalidHandle, "no such module");
  return found->second;
}

std::shared_ptr<const Function> find_function(const void* function) {
  std::lock_guard lock(locks().handles);
  const auto found = handles().functions.find(function);
  if (found == handles().functions.end()) throw HipError(hipErrorInvalidHandle, "no such function");
  return {found->second, static_cast<const Function*>(function)};
}

hipModule_t add_module(const std::vector<uint8_t>& file) {
  const auto module = std::make_shared<const LoadedModule>(file);
  DeviceMemory::instance().add_module(module);
  std::lock_guard lock(locks().handles);
  handles().modules[module.get()] = module;
  return reinterpret_cast<hipModule_t>(const_cast<LoadedModule*>(module.get()));
}

uint64_t free_dynamic_lds(const Function& function) {
  return 65536 - std::min<uint64_t>(65536, function.metadata.group_bytes);
}

}  // namespace

hipError_t record_failure(const char* function, hipError_t code, const char* message) noexcept {
  last_error = code;
  try {
    last_message = std::string(function) + ": " + error_text(code).name + ": " + message;
  } catch (const std::bad_alloc&) {
    last_message.clear();
  }
  return code;
}

const char* last_failure_message() noexcept {
  return last_message.c_str();
}

}  // namespace gfx942

using namespace gfx942;

#pragma GCC visibility push(default)
extern "C" {

const char* hipGetErrorName(hipError_t error) {
  return error_text(error).name;
}

const char* hipGetErrorString(hipError_t error) {
  return error_text(error).text;
}

hipError_t hipGetLastError() {
  static CallCounter counter(__func__);
  counter.count();
  const hipError_t error = last_error;
  last_error = hipSuccess;
  return error;
}

hipError_t hipPeekAtLastError() {
  return last_error;
}

hipError_t hipModuleLoadData(hipModule_t* module, const void* image) {
  HIP_CALL({
    require_pointer(module, "module");
    require_pointer(image, "image");
    *module = add_module(copy_image(image));
  });
}

hipError_t hipModuleLoadDataEx(hipModule_t* module, const void* image, unsigned, void*, void**) {
  HIP_CALL({
    require_pointer(module, "module");
    require_pointer(image, "image");
    *module = add_module(copy_image(image));
  });
}

hipError_t hipModuleLoad(hipModule_t* module, const char* path) {
  HIP_CALL({
    require_pointer(module, "module");
    require_pointer(path, "path");
    std::ifstream stream(path, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
    if (!stream.is_open() || stream.bad() || bytes.empty())
      throw HipError(hipErrorFileNotFound, std::string("cannot read ") + path);
    *module = add_module(copy_image(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()));
  });
}

hipError_t hipModuleUnload(hipModule_t module) {
  HIP_CALL({
    std::shared_ptr<const LoadedModule> loaded = find_module(module);
    DeviceMemory::instance().remove_module(loaded.get());
    std::lock_guard lock(locks().handles);
    handles().modules.erase(module);
    auto& functions = handles().functions;
    for (auto entry = functions.begin(); entry != functions.end();)
      entry = entry->second == loaded ? functions.erase(entry) : std::next(entry);
  });
}

hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t module, const char* name) {
  HIP_CALL({
    require_pointer(function, "function");
    require_pointer(name, "name");
    const std::shared_ptr<const LoadedModule> loaded = find_module(module);
    const Function* found = loaded->function(name);
    if (!found)
      throw HipError(hipErrorNotFound, std::string("no kernel '") + name +
                                           "' in this code object; it has: " + loaded->kernel_names());
    std::lock_guard lock(locks().handles);
    handles().functions[found] = loaded;
    *function = reinterpret_cast<hipFunction_t>(const_cast<Function*>(found));
  });
}

hipError_t hipModuleGetGlobal(hipDeviceptr_t* address, size_t* bytes, hipModule_t module, const char* name) {
  HIP_CALL({
    require_pointer(name, "name");
    const std::shared_ptr<const LoadedModule> loaded = find_module(module);
    const LoadedModule::Global* found = loaded->global(name);
    if (!found)
      throw HipError(hipErrorNotFound, std::string("no variable '") + name + "' in this code object");
    if (address) *address = found->address;
    if (bytes) *bytes = found->bytes;
  });
}

hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                 unsigned block_x, unsigned block_y, unsigned block_z,
                                 unsigned dynamic_lds_bytes, hipStream_t stream, void** parameters,
                                 void** extra) {
  HIP_CALL({
    const std::shared_ptr<const Function> found = find_function(function);
    check_stream(stream);
    launch_kernel(
        *found,
        {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, dynamic_lds_bytes, parameters, extra});
  });
}

hipError_t hipFuncGetAttribute(int* value, hipFunction_attribute attribute, hipFunction_t function) {
  HIP_CALL({
    require_pointer(value, "value");
    const std::shared_ptr<const Function> found = find_function(function);
    const KernelMetadata& metadata = found->metadata;
    switch (attribute) {
    case HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = static_cast<int>(metadata.max_flat_workgroup_size);
      break;
    case HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = static_cast<int>(metadata.group_bytes); break;
    case HIP_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: *value = 0; break;
    case HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = static_cast<int>(metadata.private_bytes); break;
    case HIP_FUNC_ATTRIBUTE_NUM_REGS: *value = static_cast<int>(metadata.vgprs); break;
    case HIP_FUNC_ATTRIBUTE_PTX_VERSION:
    case HIP_FUNC_ATTRIBUTE_BINARY_VERSION: *value = 94; break;  // gfx9.4
    case HIP_FUNC_ATTRIBUTE_CACHE_MODE_CA: *value = 0; break;
    case HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = static_cast<int>(free_dynamic_lds(*found));
      break;
    case HIP_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = 0; break;
    default: refuse_value("function attribute " + std::to_string(attribute) + " is not known");
    }
  });
}

hipError_t hipFuncSetAttribute(const void* function, hipFuncAttribute attribute, int value) {
  HIP_CALL({
    const std::shared_ptr<const Function> found = find_function(function);
    if (attribute == hipFuncAttributePreferredSharedMemoryCarveout) return;
    if (attribute != hipFuncAttributeMaxDynamicSharedMemorySize)
      refuse_value("function attribute " + std::to_string(attribute) + " can't be set");
    if (value < 0 || static_cast<uint64_t>(value) > free_dynamic_lds(*found))
      refuse_value(std::to_string(value) + " bytes of dynamic LDS; allowed are 0 to " +
                   std::to_string(free_dynamic_lds(*found)));
  });
}

hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, hipFunction_t function,
                                                              int block_size, size_t dynamic_lds_bytes) {
  HIP_CALL({
    require_pointer(blocks, "blocks");
    const std::shared_ptr<const Function> found = find_function(function);
    if (block_size < 1 || block_size > static_cast<int>(found->metadata.max_flat_workgroup_size))
      refuse_value("block size " + std::to_string(block_size) + "; allowed are 1 to " +
                   std::to_string(found->metadata.max_flat_workgroup_size));
    // 4 SIMDs of 8 wave slots and 512 registers a lane, given out in eights; 64 KB of LDS.
    const uint64_t registers = std::max<uint64_t>(8, (found->metadata.vgprs + 7) / 8 * 8);
    const uint64_t waves = std::min<uint64_t>(8, 512 / registers) * 4;
    const uint64_t wanted_waves = (static_cast<uint64_t>(block_size) + 63) / 64;
    const uint64_t lds = found->metadata.group_bytes + dynamic_lds_bytes;
    const uint64_t by_lds = lds ? 65536 / lds : UINT64_MAX;
    *blocks = static_cast<int>(std::min(waves / wanted_waves, by_lds));
  });
}

}  // extern "C"
#pragma GCC visibility pop
