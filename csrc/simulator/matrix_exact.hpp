// The matrix core's own arithmetic, bit for bit.
//
// Source: "MMA-Sim: Bit-Accurate Reference Model of Tensor Cores and Matrix Cores" (arXiv:2511.10909) and its
// PyPI package `mmasim`, model CDNA3. For bf16, float16 and xf32, products are added in groups, k ascending;
// D of a group is C of the next:
//   1. Products are exact. The exponent of one is the sum of its operands' exponents, of which subnormal
//      numbers have their format's lowest. Zero products have none. A magnitude of 2^128 or more counts as
//      infinity.
//   2. Each product is truncated at 24 fractional bits relative to the group's largest exponent e; their sum
//      is exact.
//   3. With E = max(e, exponent of C), that sum is floored at 32 fractional bits relative to E, and C at 24.
//   4. Their exact sum is floored at 31 fractional bits relative to its own exponent, which is at least -126,
//      and rounded to float32, to nearest even. An exact zero is +0.
//   5. A NaN among the operands, infinity * 0 and infinity - infinity give 0x7FFFFFFF.
// Formats of 8 bits have no step 1 beyond exact products. Step 2 is done for even and for odd k apart; e is
// the larger of both exponents, and both sums are floored at 24 fractional bits relative to it and added. A C
// whose exponent is more than 25 below E counts as zero.
// float32 and float64 are chains of fused multiply-adds, k ascending, rounded to nearest even.
#pragma once

#include <cstdint>

namespace gfx942 {

// D = A * B + C for 16x16x16 (size 16) or 32x32x8 (size 32); A and B hold bf16 or float16. Pointers are to
// rows of 64 lanes, in the registers' layout: two for A and B, four or sixteen for C and D. D may overlap the
// others. A constant C is one row. The host's floating-point mode doesn't matter.
void exact_product(bool brain_float, int size, uint32_t* d, const uint32_t* a, const uint32_t* b,
                   const uint32_t* c, bool constant_c);

}  // namespace gfx942
