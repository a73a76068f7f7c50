// The gfx942sim_* functions: what the library offers beyond HIP.
#include <algorithm>
#include <cstring>

#include "device_memory.hpp"
#include "hip_call.hpp"
#include "launch.hpp"
#include "options.hpp"
#include "static_proof.hpp"
#include "unwritten.hpp"

namespace gfx942 {
namespace {

size_t deliver(const std::string& text, char* buffer, size_t size) {
  if (buffer && size) {
    const size_t copied = std::min(size - 1, text.size());
    std::memcpy(buffer, text.data(), copied);
    buffer[copied] = 0;
  }
  return text.size() + 1;
}

// A failure is the text "{}" and an error to look up.
template <typename Body>
size_t deliver_text(const char* function, char* buffer, size_t size, Body&& body) noexcept {
  size_t needed = 0;
  guarded(function, [&] { needed = deliver(body(), buffer, size); });
  return needed ? needed : deliver("{}", buffer, size);
}

}  // namespace
}  // namespace gfx942

using namespace gfx942;

#pragma GCC visibility push(default)
extern "C" {

int gfx942sim_register_memory(const void* pointer, size_t bytes, const char* label, int writable) {
  return guarded(__func__, [&] {
    if (bytes) require_pointer(pointer, "pointer");  // an empty tensor may have any address
    if (bytes > UINT64_MAX - reinterpret_cast<uint64_t>(pointer))
      refuse_value("bytes is " + std::to_string(bytes));
    DeviceMemory::instance().register_range(pointer, bytes, label ? label : "registered memory",
                                            writable != 0, DeviceMemory::Origin::kExtension);
  });
}

int gfx942sim_unregister_memory(const void* pointer) {
  return guarded(__func__, [&] {
    if (!DeviceMemory::instance().unregister_range(pointer, DeviceMemory::Origin::kExtension))
      throw HipError(hipErrorHostMemoryNotRegistered,
                     hex(reinterpret_cast<uint64_t>(pointer)) + " is not registered");
  });
}

int gfx942sim_declare_unwritten(const void* pointer, size_t bytes) {
  return guarded(__func__, [&] {
    if (bytes) require_pointer(pointer, "pointer");
    if (bytes > UINT64_MAX - reinterpret_cast<uint64_t>(pointer))
      refuse_value("bytes is " + std::to_string(bytes));
    UnwrittenMemory::instance().add(reinterpret_cast<uint64_t>(pointer), bytes);
  });
}

const char* gfx942sim_last_error() {
  return last_failure_message();
}

int gfx942sim_set_option(const char* name, const char* value) {
  return guarded(__func__, [&] {
    require_pointer(name, "name");
    require_pointer(value, "value");
    set_option(name, value);
  });
}

size_t gfx942sim_statistics_json(char* buffer, size_t size) {
  return deliver_text(__func__, buffer, size, [] { return statistics_json(); });
}

void gfx942sim_reset_statistics() {
  reset_statistics();
  forget_executed_addresses();
  forget_findings();
}

size_t gfx942sim_executed_json(char* buffer, size_t size) {
  return deliver_text(__func__, buffer, size, [] {
    std::string text;
    for (const uint64_t address : executed_addresses())
      text += (text.empty() ? "[" : ",") + std::to_string(address);
    return text.empty() ? "[]" : text + "]";
  });
}

size_t gfx942sim_findings_json(char* buffer, size_t size) {
  return deliver_text(__func__, buffer, size, [] {
    std::string text;
    for (const Finding& finding : findings())
      text += std::string(text.empty() ? "[" : ",\n") + "{\"check\":" + json_string(finding.check) +
              ",\"kernel\":" + json_string(finding.kernel) +
              ",\"address\":" + std::to_string(finding.address) +
              ",\"message\":" + json_string(finding.message) +
              ",\"occurrences\":" + std::to_string(finding.occurrences) + "}";
    return text.empty() ? "[]" : text + "]";
  });
}

size_t gfx942sim_proof_json(const void* code_object, size_t bytes, const char* kernel, const char* mutation,
                            char* buffer, size_t size) {
  return deliver_text(__func__, buffer, size, [&] {
    require_pointer(code_object, "code_object");
    require_pointer(kernel, "kernel");
    require_pointer(mutation, "mutation");
    return proof_json(static_cast<const uint8_t*>(code_object), bytes, kernel, mutation);
  });
}

size_t gfx942sim_coverage_json(char* buffer, size_t size) {
  return deliver_text(__func__, buffer, size, [] { return coverage_json(); });
}

size_t gfx942sim_disassemble_json(const void* code_object, size_t bytes, char* buffer, size_t size) {
  return deliver_text(__func__, buffer, size, [&] {
    require_pointer(code_object, "code_object");
    return disassemble_json(static_cast<const uint8_t*>(code_object), bytes);
  });
}

void gfx942sim_set_interrupt_callback(int (*callback)()) {
  set_interrupt_callback(callback);
}

}  // extern "C"
#pragma GCC visibility pop
