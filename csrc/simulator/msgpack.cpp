#include "msgpack.hpp"

#include <cstring>
#include <stdexcept>

namespace gfx942 {
namespace {

constexpr int kMaxDepth = 32;

class Reader {
 public:
  Reader(const uint8_t* begin, uint64_t bytes) : cursor_(begin), end_(begin + bytes) {}

  MessagePack value(int depth) {
    if (depth > kMaxDepth) throw std::runtime_error("metadata: nested too deeply");
    const uint8_t tag = static_cast<uint8_t>(big_endian(1));
    MessagePack out;
    if (tag <= 0x7F) return integer(tag);
    if (tag <= 0x8F) return map(tag & 0xF, depth);
    if (tag <= 0x9F) return array(tag & 0xF, depth);
    if (tag <= 0xBF) return bytes(MessagePack::Type::kString, tag & 0x1F);
    if (tag >= 0xE0) return integer(static_cast<int8_t>(tag));
    switch (tag) {
    case 0xC0: return out;
    case 0xC2:
    case 0xC3:
      out.type = MessagePack::Type::kBoolean;
      out.integer = tag & 1;
      return out;
    case 0xC4: return bytes(MessagePack::Type::kBinary, big_endian(1));
    case 0xC5: return bytes(MessagePack::Type::kBinary, big_endian(2));
    case 0xC6: return bytes(MessagePack::Type::kBinary, big_endian(4));
    case 0xCA: {
      const uint32_t bits = static_cast<uint32_t>(big_endian(4));
      float narrow;
      std::memcpy(&narrow, &bits, 4);
      return real(narrow);
    }
    case 0xCB: {
      const uint64_t bits = big_endian(8);
      double wide;
      std::memcpy(&wide, &bits, 8);
      return real(wide);
    }
    case 0xCC: return integer(static_cast<int64_t>(big_endian(1)));
    case 0xCD: return integer(static_cast<int64_t>(big_endian(2)));
    case 0xCE: return integer(static_cast<int64_t>(big_endian(4)));
    case 0xCF: {
      const uint64_t number = big_endian(8);
      if (number > INT64_MAX) throw std::runtime_error("metadata: integer out of range");
      return integer(static_cast<int64_t>(number));
    }
    case 0xD0: return integer(static_cast<int8_t>(big_endian(1)));
    case 0xD1: return integer(static_cast<int16_t>(big_endian(2)));
    case 0xD2: return integer(static_cast<int32_t>(big_endian(4)));
    case 0xD3: return integer(static_cast<int64_t>(big_endian(8)));
    case 0xD9: return bytes(MessagePack::Type::kString, big_endian(1));
    case 0xDA: return bytes(MessagePack::Type::kString, big_endian(2));
    case 0xDB: return bytes(MessagePack::Type::kString, big_endian(4));
    case 0xDC: return array(big_endian(2), depth);
    case 0xDD: return array(big_endian(4), depth);
    case 0xDE: return map(big_endian(2), depth);
    case 0xDF: return map(big_endian(4), depth);
    default:
      throw std::runtime_error("metadata: MessagePack type " + std::to_string(tag) + " is not expected");
    }
  }

  bool at_end() const { return cursor_ == end_; }

 private:
  void need(uint64_t count) const {
    if (count > static_cast<uint64_t>(end_ - cursor_)) throw std::runtime_error("metadata: truncated");
  }

  uint64_t big_endian(int count) {
    need(count);
    uint64_t number = 0;
    for (int i = 0; i < count; ++i) number = number << 8 | *cursor_++;
    return number;
  }

  static MessagePack integer(int64_t number) {
    MessagePack out;
    out.type = MessagePack::Type::kInteger;
    out.integer = number;
    return out;
  }

  static MessagePack real(double number) {
    MessagePack out;
    out.type = MessagePack::Type::kFloat;
    out.real = number;
    return out;
  }

  MessagePack bytes(MessagePack::Type type, uint64_t count) {
    need(count);
    MessagePack out;
    out.type = type;
    out.text.assign(reinterpret_cast<const char*>(cursor_), count);
    cursor_ += count;
    return out;
  }

  MessagePack array(uint64_t count, int depth) {
    need(count);  // an element takes a byte at least: bounds the allocation
    MessagePack out;
    out.type = MessagePack::Type::kArray;
    for (uint64_t i = 0; i < count; ++i) out.items.push_back(value(depth + 1));
    return out;
  }

  MessagePack map(uint64_t count, int depth) {
    need(2 * count);
    MessagePack out;
    out.type = MessagePack::Type::kMap;
    for (uint64_t i = 0; i < count; ++i) {
      MessagePack key = value(depth + 1);
      if (key.type != MessagePack::Type::kString) throw std::runtime_error("metadata: a key is not a string");
      MessagePack entry = value(depth + 1);
      out.entries.emplace_back(std::move(key.text), std::move(entry));
    }
    return out;
  }

  const uint8_t* cursor_;
  const uint8_t* end_;
};

}  // namespace

const MessagePack* MessagePack::find(const char* key, Type wanted) const {
  for (const auto& [name, entry] : entries)
    if (name == key && entry.type == wanted) return &entry;
  return nullptr;
}

uint64_t MessagePack::number(const char* key, uint64_t fallback, uint64_t limit) const {
  for (const auto& [name, entry] : entries) {
    if (name != key) continue;
    if (entry.type != Type::kInteger || entry.integer < 0 || static_cast<uint64_t>(entry.integer) > limit)
      throw std::runtime_error(std::string("metadata: ") + key + " is not an integer from 0 to " +
                               std::to_string(limit));
    return static_cast<uint64_t>(entry.integer);
  }
  return fallback;
}

MessagePack read_message_pack(const uint8_t* begin, uint64_t bytes) {
  Reader reader(begin, bytes);
  MessagePack out = reader.value(0);
  if (!reader.at_end()) throw std::runtime_error("metadata: bytes follow the MessagePack value");
  return out;
}

}  // namespace gfx942
