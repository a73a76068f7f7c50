#include "statistics.hpp"

#include <cstdio>
#include <map>

#include "locks.hpp"

namespace gfx942 {
namespace {

struct KernelStatistics {
  uint64_t launches = 0;
  Counters counters;
  double seconds = 0;
};

std::map<std::string, KernelStatistics>& kernels() {
  static auto* instance = new std::map<std::string, KernelStatistics>;
  return *instance;
}

CallCounter* first_counter = nullptr;

void append(std::string& text, const char* key, uint64_t number) {
  text += std::string(",\"") + key + "\":" + std::to_string(number);
}

// Length of the well-formed UTF-8 sequence at `i`, or 0.
size_t utf8_length(const std::string& text, size_t i) {
  const auto byte = [&](size_t k) { return k < text.size() ? static_cast<uint8_t>(text[k]) : uint8_t{0}; };
  const uint8_t lead = byte(i);
  const size_t length = lead < 0x80   ? 1
                        : lead < 0xC2 ? 0
                        : lead < 0xE0 ? 2
                        : lead < 0xF0 ? 3
                        : lead < 0xF5 ? 4
                                      : 0;
  for (size_t k = 1; k < length; ++k)
    if ((byte(i + k) & 0xC0) != 0x80) return 0;
  // Overlong forms, surrogates and code points above U+10FFFF.
  const uint8_t second = byte(i + 1);
  if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) || (lead == 0xF0 && second < 0x90) ||
      (lead == 0xF4 && second > 0x8F))
    return 0;
  return length;
}

}  // namespace

CallCounter::CallCounter(const char* function) : function_(function) {
  std::lock_guard lock(locks().statistics);
  next_ = first_counter;
  first_counter = this;
}

void record_launch(const std::string& kernel, const Counters& counters, double seconds) {
  std::lock_guard lock(locks().statistics);
  KernelStatistics& entry = kernels()[kernel];
  ++entry.launches;
  entry.counters += counters;
  entry.seconds += seconds;
}

std::string statistics_json() {
  static constexpr const char* kCategories[] = {"scalar", "scalar_memory", "vector",        "transcendental",
                                                "matrix", "lds",           "vector_memory", "control",
                                                "wait",   "barrier"};
  std::lock_guard lock(locks().statistics);
  std::string text = "{\"kernels\":{";
  const char* separator = "";
  for (const auto& [name, entry] : kernels()) {
    text += separator + json_string(name) + ":{\"launches\":" + std::to_string(entry.launches);
    separator = ",";
    append(text, "workgroups", entry.counters.workgroups);
    append(text, "waves", entry.counters.waves);
    append(text, "instructions", entry.counters.instructions);
    for (size_t i = 0; i < entry.counters.by_category.size(); ++i)
      append(text, kCategories[i], entry.counters.by_category[i]);
    append(text, "bytes_loaded", entry.counters.bytes_loaded);
    append(text, "bytes_stored", entry.counters.bytes_stored);
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.6f", entry.seconds);
    for (char& c : seconds)
      if (c == ',') c = '.';  // some locales
    text += std::string(",\"seconds\":") + seconds + "}";
  }
  text += "},\"hip_calls\":{";
  std::map<std::string, uint64_t> calls;
  for (const CallCounter* counter = first_counter; counter; counter = counter->next_)
    if (const uint64_t count = counter->calls_.load(std::memory_order_relaxed))
      calls[counter->function_] = count;
  separator = "";
  for (const auto& [function, count] : calls) {
    text += separator + json_string(function) + ":" + std::to_string(count);
    separator = ",";
  }
  return text + "}}";
}

void reset_statistics() {
  std::lock_guard lock(locks().statistics);
  kernels().clear();
  for (CallCounter* counter = first_counter; counter; counter = counter->next_) counter->calls_.store(0);
}

std::string json_string(const std::string& text) {
  std::string out = "\"";
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text, i);
    const auto c = static_cast<uint8_t>(text[i]);
    if (!length) {
      out += "\xEF\xBF\xBD";
      ++i;
      continue;
    }
    if (c == '"' || c == '\\') {
      out += '\\';
      out += text[i];
    } else if (c < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", c);
      out += escape;
    } else {
      out.append(text, i, length);
    }
    i += length;
  }
  return out + "\"";
}

}  // namespace gfx942
