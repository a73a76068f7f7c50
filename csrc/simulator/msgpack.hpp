// A strict reader of MessagePack, the encoding of AMDGPU metadata notes.
// Format: https://github.com/msgpack/msgpack/blob/master/spec.md
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gfx942 {

struct MessagePack {
  enum class Type { kNil, kBoolean, kInteger, kFloat, kString, kBinary, kArray, kMap };
  Type type = Type::kNil;
  int64_t integer = 0;  // also of kBoolean; unsigned values above INT64_MAX are refused
  double real = 0;
  std::string text;  // kString, kBinary
  std::vector<MessagePack> items;
  std::vector<std::pair<std::string, MessagePack>> entries;  // maps with string keys only

  // The entry of that key and type, or nullptr.
  const MessagePack* find(const char* key, Type wanted) const;
  // The integer entry of that key, or `fallback` when absent; throws std::runtime_error when negative,
  // above `limit` or not an integer.
  uint64_t number(const char* key, uint64_t fallback, uint64_t limit = UINT32_MAX) const;
};

// Decodes one value that fills `bytes` exactly; throws std::runtime_error on anything else.
MessagePack read_message_pack(const uint8_t* begin, uint64_t bytes);

}  // namespace gfx942
