#include "host/hip.hpp"

#include <dlfcn.h>
#include <link.h>

#include <string_view>
#include <vector>

namespace liteattention_rocm {
namespace {

constexpr int kOpenFlags = RTLD_NOW | RTLD_LOCAL;

// Paths of the loaded objects whose file name starts with `prefix`, in load order.
std::vector<std::string> loaded_libraries(std::string_view prefix) {
  struct Search {
    std::string_view prefix;
    std::vector<std::string> paths;
  } search{prefix, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* context) {
        auto& search = *static_cast<Search*>(context);
        const std::string_view path = info->dlpi_name ? info->dlpi_name : "";
        const std::string_view name = path.substr(path.rfind('/') + 1);
        if (name.substr(0, search.prefix.size()) == search.prefix) search.paths.emplace_back(path);
        return 0;
      },
      &search);
  return search.paths;
}

// The runtime that torch's own HIP library is bound to: with several copies in a process only this one knows
// torch's streams.
std::string torch_hip_path() {
  for (const std::string& path : loaded_libraries("libc10_hip.so")) {
    void* torch = dlopen(path.c_str(), kOpenFlags | RTLD_NOLOAD);
    if (!torch) continue;
    Dl_info info{};
    void* symbol = dlsym(torch, "hipModuleLaunchKernel");
    const bool found = symbol && dladdr(symbol, &info) && info.dli_fname;
    std::string hip_path = found ? info.dli_fname : "";
    dlclose(torch);
    if (found) return hip_path;
  }
  return "";
}

struct Opened {
  void* handle;
  std::string path;
};

Opened open_rocm() {
  std::vector<std::string> loaded = loaded_libraries("libamdhip64.so");
  if (std::string path = torch_hip_path(); !path.empty()) loaded.insert(loaded.begin(), std::move(path));
  for (const std::string& path : loaded)
    if (void* handle = dlopen(path.c_str(), kOpenFlags | RTLD_NOLOAD)) return {handle, path};

  std::string reasons;
  for (const char* name : {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"}) {
    if (void* handle = dlopen(name, kOpenFlags)) return {handle, name};
    const char* reason = dlerror();
    reasons += std::string("\n  ") + (reason ? reason : name);
  }
  throw std::runtime_error("no HIP runtime: no copy of libamdhip64.so is loaded, and none can be opened:" +
                           reasons);
}

Opened open_path(const std::string& path) {
  if (void* handle = dlopen(path.c_str(), kOpenFlags)) return {handle, path};
  const char* reason = dlerror();
  throw std::runtime_error("cannot open HIP library " + path + ": " + (reason ? reason : "unknown reason"));
}

}  // namespace

HipLibrary open_hip_library(const std::string& path) {
  const Opened opened = path.empty() ? open_rocm() : open_path(path);
  HipLibrary hip;
  hip.handle = opened.handle;
  hip.path = opened.path;

  const auto optional = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(opened.handle, name));
    return function != nullptr;
  };
  const auto required = [&](auto& function, const char* name) {
    if (optional(function, name)) return;
    dlclose(opened.handle);
    throw std::runtime_error("HIP library " + opened.path + " has no function " + name);
  };
  required(hip.init, "hipInit");
  required(hip.get_device, "hipGetDevice");
  required(hip.set_device, "hipSetDevice");
  required(hip.device_get_attribute, "hipDeviceGetAttribute");
  required(hip.module_load_data, "hipModuleLoadData");
  required(hip.module_unload, "hipModuleUnload");
  required(hip.module_get_function, "hipModuleGetFunction");
  required(hip.module_launch_kernel, "hipModuleLaunchKernel");
  required(hip.stream_is_capturing, "hipStreamIsCapturing");
  required(hip.get_error_name, "hipGetErrorName");
  required(hip.get_error_string, "hipGetErrorString");
  required(hip.get_last_error, "hipGetLastError");
  optional(hip.simulator_last_error, "gfx942sim_last_error");
  optional(hip.simulator_set_interrupt_callback, "gfx942sim_set_interrupt_callback");
  if (optional(hip.simulator_register_memory, "gfx942sim_register_memory"))
    required(hip.simulator_unregister_memory, "gfx942sim_unregister_memory");
  return hip;
}

void HipLibrary::fail(hipError_t error, const std::string& what) const {
  // The diagnostic first: it is the last failed call's, and the calls below could be that.
  const char* diagnostic = simulator_last_error ? simulator_last_error() : nullptr;
  std::string message = what + " failed: ";
  const char* name = get_error_name(error);
  const char* text = get_error_string(error);
  message += (name ? name : "unknown error") + std::string(" (") + std::to_string(error) + ")";
  if (text && *text) message += std::string(": ") + text;
  if (diagnostic && *diagnostic) message += std::string("\n") + diagnostic;
  (void)get_last_error();
  throw HipError(message);
}

CurrentDevice::CurrentDevice(const HipLibrary& hip, int device) : hip_(hip) {
  hip_.check(hip_.get_device(&previous_), "hipGetDevice");
  if (previous_ == device) return;
  if (const hipError_t error = hip_.set_device(device))
    hip_.fail(error, "hipSetDevice(" + std::to_string(device) + ")");
  changed_ = true;
}

CurrentDevice::~CurrentDevice() {
  if (changed_) (void)hip_.set_device(previous_);
}

SimulatedAccess::SimulatedAccess(const HipLibrary& hip, uint64_t address, uint64_t bytes, const char* label,
                                 bool writable)
    : hip_(hip) {
  if (!hip.simulator_register_memory || bytes == 0) return;
  const auto* memory = reinterpret_cast<const void*>(address);
  if (const int error = hip.simulator_register_memory(memory, bytes, label, writable))
    hip.fail(static_cast<hipError_t>(error), std::string("gfx942sim_register_memory(") + label + ")");
  registered_ = memory;
}

SimulatedAccess::~SimulatedAccess() {
  if (registered_) (void)hip_.simulator_unregister_memory(registered_);
}

}  // namespace liteattention_rocm
