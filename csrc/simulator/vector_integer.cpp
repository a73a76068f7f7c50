#include "vector.hpp"

#define KERNELS "vector_integer.inl"
#include "vector_targets.inl"

namespace gfx942 {

void install_vector_integer(HandlerTable& table) {
  install_for_host(table);
}

}  // namespace gfx942
