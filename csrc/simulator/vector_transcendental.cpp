#include "vector.hpp"

#define KERNELS "vector_transcendental.inl"
#include "vector_targets.inl"

namespace gfx942 {

void install_vector_transcendental(HandlerTable& table) {
  install_for_host(table);
}

}  // namespace gfx942
