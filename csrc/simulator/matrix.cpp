#include <cmath>
#include <cstring>
#include <type_traits>

#include "matrix_exact.hpp"
#include "vector.hpp"

#define KERNELS "matrix.inl"
#include "vector_targets.inl"

namespace gfx942 {

// Passes of 4 cycles, as LLVM's scheduling model for gfx940 has them.
uint8_t matrix_passes(Op op) {
  switch (op) {
  case Op::V_MFMA_F32_4X4X1_16B_F32:
  case Op::V_MFMA_F32_4X4X4_16B_F16:
  case Op::V_MFMA_F32_4X4X4_16B_BF16:
  case Op::V_MFMA_I32_4X4X4_16B_I8: return 2;
  case Op::V_MFMA_F32_32X32X1_2B_F32:
  case Op::V_MFMA_F32_32X32X2_F32:
  case Op::V_MFMA_F32_32X32X4_2B_F16:
  case Op::V_MFMA_F32_32X32X4_2B_BF16:
  case Op::V_MFMA_I32_32X32X4_2B_I8: return 16;
  case Op::V_MFMA_F32_16X16X16_BF16:
  case Op::V_MFMA_F32_16X16X16_F16:
  case Op::V_MFMA_I32_16X16X32_I8:
  case Op::V_MFMA_F32_16X16X8_XF32:
  case Op::V_MFMA_F64_4X4X4_4B_F64:
  case Op::V_MFMA_F32_16X16X32_BF8_BF8:
  case Op::V_MFMA_F32_16X16X32_BF8_FP8:
  case Op::V_MFMA_F32_16X16X32_FP8_BF8:
  case Op::V_MFMA_F32_16X16X32_FP8_FP8: return 4;
  default: return 8;
  }
}

bool is_xdl(Op op) {
  switch (op) {
  case Op::V_MFMA_F32_32X32X1_2B_F32:
  case Op::V_MFMA_F32_16X16X1_4B_F32:
  case Op::V_MFMA_F32_4X4X1_16B_F32:
  case Op::V_MFMA_F32_32X32X2_F32:
  case Op::V_MFMA_F32_16X16X4_F32:
  case Op::V_MFMA_F64_16X16X4_F64:
  case Op::V_MFMA_F64_4X4X4_4B_F64: return false;
  default: return true;
  }
}

const char* exact_arithmetic(Op op) {
  if (!is_xdl(op)) return "fused";
  return std::strncmp(op_info(op).name, "v_mfma_i32", 10) ? "core" : "integer";
}

void install_matrix(HandlerTable& table) {
  install_for_host(table);
}

}  // namespace gfx942
