// Matrix products of many waves, for a library that holds nothing else of the simulator.
#include "matrix_exact.cpp"

extern "C" void exact_products(bool brain_float, int size, int waves, uint32_t* d, const uint32_t* a,
                               const uint32_t* b, const uint32_t* c) {
  const int results = size * size;
  for (int i = 0; i < waves; ++i)
    gfx942::exact_product(brain_float, size, d + i * results, a + i * 128, b + i * 128, c + i * results,
                          false);
}
