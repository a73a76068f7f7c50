// A HIP library without a device: it records calls as JSON lines and fails where it is told to.
//
// Controls (stub_set): "fail.<function>" = error code, "capturing.<stream>" = status, "<function>.ms" = time
// a call takes, "warp_size", "compute_units", "raise" = signal raised inside the next launch. The current
// device is thread-local, as HIP's is. -DSIMULATOR adds the simulator's optional functions.
#include <chrono>
#include <csignal>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "device/arguments.hpp"
#include "device/skip_split_arguments.hpp"
#include "device/varlen_arguments.hpp"
#include "hip_abi.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

std::mutex g_mutex;
std::vector<std::string> g_log;
std::map<std::string, long> g_settings;
std::string g_text;
thread_local int t_device = 0;
thread_local hipError_t t_last_error = hipSuccess;
int (*g_interrupt)() = nullptr;

long setting(const std::string& name, long otherwise) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  const auto found = g_settings.find(name);
  return found == g_settings.end() ? otherwise : found->second;
}

// Records the call and gives the result it is set to have.
hipError_t called(const std::string& function, const std::string& fields = "") {
  {
    const std::lock_guard<std::mutex> lock(g_mutex);
    g_log.push_back("{\"function\": \"" + function + "\", \"device\": " + std::to_string(t_device) + fields +
                    "}");
  }
  if (const long ms = setting(function + ".ms", 0))
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
  const auto error = static_cast<hipError_t>(setting("fail." + function, 0));
  if (error) t_last_error = error;
  return error;
}

std::string field(const char* name, const std::string& value) {
  return std::string(", \"") + name + "\": " + value;
}
std::string field(const char* name, const void* value) {
  return field(name, std::to_string(reinterpret_cast<uintptr_t>(value)));
}

std::string list(const liteattention_rocm::TensorStrides& s) {
  return "[" + std::to_string(s.batch) + ", " + std::to_string(s.head) + ", " + std::to_string(s.row) + "]";
}

std::string arguments_text(const liteattention_rocm::ForwardArguments& a) {
  std::ostringstream out;
  out.precision(9);
  out << "{\"query\": " << reinterpret_cast<uintptr_t>(a.query)
      << ", \"key\": " << reinterpret_cast<uintptr_t>(a.key)
      << ", \"value\": " << reinterpret_cast<uintptr_t>(a.value)
      << ", \"out\": " << reinterpret_cast<uintptr_t>(a.out)
      << ", \"lse\": " << reinterpret_cast<uintptr_t>(a.lse)
      << ", \"query_strides\": " << list(a.query_strides) << ", \"key_strides\": " << list(a.key_strides)
      << ", \"value_strides\": " << list(a.value_strides) << ", \"out_strides\": " << list(a.out_strides)
      << ", \"seqlen_q\": " << a.seqlen_q << ", \"seqlen_kv\": " << a.seqlen_kv << ", \"heads\": " << a.heads
      << ", \"heads_per_kv_head\": " << a.heads_per_kv_head << ", \"scale\": " << a.scale
      << ", \"scale_log2e\": " << a.scale_log2e << ", \"query_sign_mask\": " << a.query_sign_mask << "}";
  return out.str();
}

std::string arguments_text(const liteattention_rocm::SkipArguments& a) {
  const auto& base = static_cast<const liteattention_rocm::ForwardArguments&>(a);
  std::ostringstream out;
  out << "{\"forward\": " << arguments_text(base)
      << ", \"read_list\": " << reinterpret_cast<uintptr_t>(a.read_list)
      << ", \"write_list\": " << reinterpret_cast<uintptr_t>(a.write_list)
      << ", \"order\": " << reinterpret_cast<uintptr_t>(a.order) << ", \"threshold\": \"" << a.threshold
      << "\", \"words\": " << a.words << ", \"backward\": " << a.backward
      << ", \"votes_count\": " << a.votes_count << "}";
  return out.str();
}

std::string arguments_text(const liteattention_rocm::SkipSplitArguments& a) {
  const auto& base = static_cast<const liteattention_rocm::ForwardArguments&>(a);
  std::ostringstream out;
  out << "{\"forward\": " << arguments_text(base)
      << ", \"partials\": " << reinterpret_cast<uintptr_t>(a.partials)
      << ", \"query_tiles\": " << a.query_tiles << ", \"whole_blocks\": " << a.whole_blocks
      << ", \"split_blocks\": " << a.split_blocks << ", \"pieces\": " << a.pieces
      << ", \"fragments\": " << a.fragments << ", \"read_list\": " << reinterpret_cast<uintptr_t>(a.read_list)
      << ", \"write_list\": " << reinterpret_cast<uintptr_t>(a.write_list)
      << ", \"order\": " << reinterpret_cast<uintptr_t>(a.order) << ", \"threshold\": \"" << a.threshold
      << "\", \"words\": " << a.words << ", \"backward\": " << a.backward
      << ", \"votes_count\": " << a.votes_count
      << ", \"list_pieces\": " << reinterpret_cast<uintptr_t>(a.list_pieces)
      << ", \"piece_lists\": " << reinterpret_cast<uintptr_t>(a.piece_lists)
      << ", \"votes\": " << reinterpret_cast<uintptr_t>(a.votes) << ", \"lists\": " << a.lists << "}";
  return out.str();
}

std::string arguments_text(const liteattention_rocm::VarlenArguments& a) {
  std::ostringstream out;
  std::string forward = arguments_text(static_cast<const liteattention_rocm::ForwardArguments&>(a));
  forward.pop_back();
  out << forward << ", \"cu_seqlens_q\": " << reinterpret_cast<uintptr_t>(a.cu_seqlens_q)
      << ", \"cu_seqlens_k\": " << reinterpret_cast<uintptr_t>(a.cu_seqlens_k) << "}";
  return out.str();
}

std::string arguments_text(const liteattention_rocm::SplitArguments& a) {
  std::ostringstream out;
  std::string forward = arguments_text(static_cast<const liteattention_rocm::ForwardArguments&>(a));
  forward.pop_back();
  out << forward << ", \"partials\": " << reinterpret_cast<uintptr_t>(a.partials) << "}";
  return out.str();
}

std::string arguments_text(const liteattention_rocm::OrderArguments& a) {
  std::ostringstream out;
  out << "{\"list\": " << reinterpret_cast<uintptr_t>(a.list)
      << ", \"counts\": " << reinterpret_cast<uintptr_t>(a.counts)
      << ", \"order\": " << reinterpret_cast<uintptr_t>(a.order) << ", \"query_tiles\": " << a.query_tiles
      << ", \"words\": " << a.words << ", \"merged\": " << a.merged << "}";
  return out.str();
}

// The arguments of a kernel by its name; empty where their size is not what the kernel takes.
std::string arguments_text(const std::string& kernel, const void* arguments, size_t bytes) {
  const auto text = [&](const auto& typed) { return bytes == sizeof typed ? arguments_text(typed) : ""; };
  if (kernel == "attention_skip_order")
    return text(*static_cast<const liteattention_rocm::OrderArguments*>(arguments));
  if (kernel.find("varlen") != std::string::npos)
    return text(*static_cast<const liteattention_rocm::VarlenArguments*>(arguments));
  if (kernel.find("skip") != std::string::npos && bytes == sizeof(liteattention_rocm::SkipSplitArguments))
    return text(*static_cast<const liteattention_rocm::SkipSplitArguments*>(arguments));
  if (kernel.find("skip") != std::string::npos)
    return text(*static_cast<const liteattention_rocm::SkipArguments*>(arguments));
  if (kernel.find("split") != std::string::npos || kernel.find("merge") != std::string::npos)
    return text(*static_cast<const liteattention_rocm::SplitArguments*>(arguments));
  return text(*static_cast<const liteattention_rocm::ForwardArguments*>(arguments));
}

// Module and function handles carry what they stand for.
struct Function {
  std::string name;
  int device;
};

}  // namespace

EXPORT const char* stub_log() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  g_text.clear();
  for (const std::string& line : g_log) g_text += line + "\n";
  return g_text.c_str();
}
EXPORT void stub_clear() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  g_log.clear();
}
EXPORT void stub_set(const char* name, long value) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  g_settings[name] = value;
}
EXPORT int stub_current_device() {
  return t_device;
}
EXPORT int stub_last_error() {
  return t_last_error;
}

EXPORT hipError_t hipInit(unsigned) {
  return called("hipInit");
}
EXPORT hipError_t hipGetDevice(int* device) {
  *device = t_device;
  return called("hipGetDevice");
}
EXPORT hipError_t hipSetDevice(int device) {
  const hipError_t error = called("hipSetDevice", field("to", std::to_string(device)));
  if (!error) t_device = device;
  return error;
}
EXPORT hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int) {
  *value = attribute == hipDeviceAttributeWarpSize              ? setting("warp_size", 64)
           : attribute == hipDeviceAttributeMultiprocessorCount ? setting("compute_units", 304)
                                                                : 0;
  return called("hipDeviceGetAttribute", field("attribute", std::to_string(attribute)));
}
EXPORT hipError_t hipModuleLoadData(hipModule_t* module, const void* image) {
  const hipError_t error =
      called("hipModuleLoadData",
             field("elf", std::memcmp(image, "\177ELF", 4) == 0 ? "true" : "false") + field("image", image));
  *module = reinterpret_cast<hipModule_t>(static_cast<uintptr_t>(t_device + 1));
  return error;
}
EXPORT hipError_t hipModuleUnload(hipModule_t) {
  return called("hipModuleUnload");
}
EXPORT hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t module, const char* name) {
  *function = reinterpret_cast<hipFunction_t>(
      new Function{name, static_cast<int>(reinterpret_cast<uintptr_t>(module)) - 1});
  return called("hipModuleGetFunction", field("name", "\"" + std::string(name) + "\""));
}
EXPORT hipError_t hipModuleLaunchKernel(hipFunction_t handle, unsigned gx, unsigned gy, unsigned gz,
                                        unsigned bx, unsigned by, unsigned bz, unsigned lds,
                                        hipStream_t stream, void** parameters, void** extra) {
  const auto& function = *reinterpret_cast<const Function*>(handle);
  if (parameters || extra[0] != HIP_LAUNCH_PARAM_BUFFER_POINTER || extra[2] != HIP_LAUNCH_PARAM_BUFFER_SIZE ||
      extra[4] != HIP_LAUNCH_PARAM_END)
    return hipErrorInvalidValue;
  const std::string arguments = arguments_text(function.name, extra[1], *static_cast<size_t*>(extra[3]));
  if (arguments.empty()) return hipErrorInvalidValue;
  std::ostringstream fields;
  fields << ", \"kernel\": \"" << function.name << "\", \"loaded_on\": " << function.device << ", \"grid\": ["
         << gx << ", " << gy << ", " << gz << "], \"block\": [" << bx << ", " << by << ", " << bz
         << "], \"lds\": " << lds << field("stream", stream) << field("arguments", arguments);
  hipError_t error = called("hipModuleLaunchKernel", fields.str());
  if (const long signal = setting("raise", 0)) {
    stub_set("raise", 0);
    std::raise(static_cast<int>(signal));
  }
  if (g_interrupt && g_interrupt()) error = t_last_error = hipErrorLaunchFailure;
  return error;
}
EXPORT hipError_t hipStreamIsCapturing(hipStream_t stream, hipStreamCaptureStatus* status) {
  *status = static_cast<hipStreamCaptureStatus>(
      setting("capturing." + std::to_string(reinterpret_cast<uintptr_t>(stream)), 0));
  return called("hipStreamIsCapturing", field("stream", stream));
}
EXPORT const char* hipGetErrorName(hipError_t error) {
  return error == hipErrorLaunchFailure ? "hipErrorLaunchFailure" : "hipErrorOther";
}
EXPORT const char* hipGetErrorString(hipError_t) {
  return "what the runtime says";
}
EXPORT hipError_t hipGetLastError() {
  const hipError_t error = t_last_error;
  t_last_error = hipSuccess;
  return error;
}

#ifdef SIMULATOR
EXPORT const char* gfx942sim_last_error() {
  return "wave 3 of workgroup (1, 0, 0)";
}
EXPORT void gfx942sim_set_interrupt_callback(int (*callback)()) {
  g_interrupt = callback;
}
#endif
