#include "host/code_objects.hpp"

#include <stdexcept>
#include <string>

// code_objects.def has one CODE_OBJECT(architecture) per embedded image.
extern "C" {
#define CODE_OBJECT(arch) extern const unsigned char code_object_##arch##_begin[], code_object_##arch##_end[];
#include "code_objects.def"
#undef CODE_OBJECT
}

namespace liteattention_rocm {

const std::vector<CodeObject>& code_objects() {
  static const std::vector<CodeObject> objects = {
#define CODE_OBJECT(arch)                                                                                    \
  {#arch, code_object_##arch##_begin,                                                                        \
   static_cast<size_t>(code_object_##arch##_end - code_object_##arch##_begin)},
#include "code_objects.def"
#undef CODE_OBJECT
  };
  return objects;
}

std::string_view base_architecture(std::string_view arch) {
  return arch.substr(0, arch.find(':'));
}

const CodeObject& find_code_object(std::string_view arch) {
  std::string supported;
  for (const CodeObject& object : code_objects()) {
    if (base_architecture(arch) == object.architecture) return object;
    supported += (supported.empty() ? "" : ", ") + std::string(object.architecture);
  }
  throw std::runtime_error("architecture '" + std::string(arch) +
                           "' is not supported: this build has kernels for " + supported);
}

}  // namespace liteattention_rocm
