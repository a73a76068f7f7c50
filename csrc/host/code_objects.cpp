#include "host/code_objects.hpp"

#include <stdexcept>
#include <string>

// code_objects.def, calibration_objects.def and observed_objects.def have one CODE_OBJECT(architecture) per
// embedded image.
extern "C" {
#define CODE_OBJECT(arch)                                                                                    \
  extern const unsigned char code_objects_##arch##_begin[], code_objects_##arch##_end[];
#include "code_objects.def"
#undef CODE_OBJECT
#define CODE_OBJECT(arch)                                                                                    \
  extern const unsigned char calibration_objects_##arch##_begin[], calibration_objects_##arch##_end[];
#include "calibration_objects.def"
#undef CODE_OBJECT
#define CODE_OBJECT(arch)                                                                                    \
  extern const unsigned char observed_objects_##arch##_begin[], observed_objects_##arch##_end[];
#include "observed_objects.def"
#undef CODE_OBJECT
}

namespace liteattention_rocm {
namespace {

CodeObject object(const char* architecture, const unsigned char* begin, const unsigned char* end) {
  return {architecture, begin, static_cast<size_t>(end - begin)};
}

const CodeObject& find(const std::vector<CodeObject>& objects, std::string_view arch) {
  std::string supported;
  for (const CodeObject& object : objects) {
    if (base_architecture(arch) == object.architecture) return object;
    supported += (supported.empty() ? "" : ", ") + std::string(object.architecture);
  }
  throw std::runtime_error("architecture '" + std::string(arch) +
                           "' is not supported: this build has kernels for " + supported);
}

}  // namespace

const std::vector<CodeObject>& code_objects() {
  static const std::vector<CodeObject> objects = {
#define CODE_OBJECT(arch) object(#arch, code_objects_##arch##_begin, code_objects_##arch##_end),
#include "code_objects.def"
#undef CODE_OBJECT
  };
  return objects;
}

std::string_view base_architecture(std::string_view arch) {
  return arch.substr(0, arch.find(':'));
}

const CodeObject& find_code_object(std::string_view arch) {
  return find(code_objects(), arch);
}

const CodeObject& find_calibration_object(std::string_view arch) {
  static const std::vector<CodeObject> objects = {
#define CODE_OBJECT(arch) object(#arch, calibration_objects_##arch##_begin, calibration_objects_##arch##_end),
#include "calibration_objects.def"
#undef CODE_OBJECT
  };
  return find(objects, arch);
}

const CodeObject& find_observed_object(std::string_view arch) {
  static const std::vector<CodeObject> objects = {
#define CODE_OBJECT(arch) object(#arch, observed_objects_##arch##_begin, observed_objects_##arch##_end),
#include "observed_objects.def"
#undef CODE_OBJECT
  };
  return find(objects, arch);
}

}  // namespace liteattention_rocm
