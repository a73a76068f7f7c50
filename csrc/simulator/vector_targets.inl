// Compiles the file that KERNELS names once per instruction set of the host and picks one at run time.
// KERNELS defines `static void install(HandlerTable&)`; this file adds install_for_host.
// Standard headers must have been included before: nothing of theirs may be compiled for a wider target.
namespace gfx942 {
namespace {

namespace baseline {
#include "vector_rows.inl"
#include KERNELS
}  // namespace baseline

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define VECTOR_TARGETS 1

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define VECTOR_AVX2 1
namespace avx2 {
#include "vector_rows.inl"
#include KERNELS
}  // namespace avx2
#undef VECTOR_AVX2
#pragma GCC pop_options

#endif

void install_for_host(HandlerTable& table) {
#ifdef VECTOR_TARGETS
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2::install(table);
#endif
  baseline::install(table);
}

}  // namespace
}  // namespace gfx942
