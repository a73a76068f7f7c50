// Where the rows of a tensor lie.
#pragma once

#include "fragments.hpp"

namespace liteattention_rocm {
namespace {

constexpr uint32_t kOutOfBounds = 0x80000000;  // beyond every buffer's size: loads give 0, stores drop

LRA_DEVICE const char* head_base(const void* tensor, const TensorStrides& strides, int batch, int head) {
  return static_cast<const char*>(tensor) + batch * strides.batch + head * strides.head;
}

// Bytes from the first row to the end of the last of `rows` rows.
LRA_DEVICE uint32_t span_bytes(int rows, uint32_t row_bytes) {
  return (rows - 1) * row_bytes + fragments::kRowBytes;
}

}  // namespace
}  // namespace liteattention_rocm
