#include "vector.hpp"

#define KERNELS "vector_packed.inl"
#include "vector_targets.inl"

namespace gfx942 {

void install_vector_packed(HandlerTable& table) {
  install_for_host(table);
}

}  // namespace gfx942
