#include "vector.hpp"

#define KERNELS "vector_compare.inl"
#include "vector_targets.inl"

namespace gfx942 {

void install_vector_compare(HandlerTable& table) {
  install_for_host(table);
}

}  // namespace gfx942
