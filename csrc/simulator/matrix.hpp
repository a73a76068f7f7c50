// Matrix-core instructions.
#pragma once

#include <cstdint>

namespace gfx942 {

// D = A * B + C for 16x16x16 (size 16) or 32x32x8 (size 32) in the arithmetic of the matrix core: A and B hold bf16
// or float16. Pointers are to rows of 64 lanes, in the registers' layout; D may be C. A constant C is one row.
void exact_product(bool brain_float, int size, uint32_t* d, const uint32_t* a, const uint32_t* b, const uint32_t* c,
                   bool constant_c);

}  // namespace gfx942
