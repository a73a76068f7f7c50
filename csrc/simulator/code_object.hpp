// Code objects: kernels and their metadata, and a loaded copy in host memory.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "elf.hpp"
#include "machine.hpp"

namespace gfx942 {

struct KernelArgument {
  uint64_t offset = 0, bytes = 0;
  std::string value_kind;
  bool hidden() const { return value_kind.compare(0, 7, "hidden_") == 0; }
};

// One entry of the metadata's amdhsa.kernels.
struct KernelMetadata {
  std::string name, symbol;  // symbol: of the kernel descriptor
  std::vector<KernelArgument> arguments;
  bool arguments_listed = false;
  uint64_t kernarg_bytes = 0, group_bytes = 0, private_bytes = 0;
  uint32_t max_flat_workgroup_size = 1024;
  std::array<uint32_t, 3> required_workgroup_size{};  // zeros: any
  uint32_t vgprs = 0, agprs = 0, sgprs = 0;           // vgprs: the whole unified count

  bool dynamic_stack = false, dynamic_stack_given = false;

  // End of the last argument that the caller provides.
  uint64_t explicit_bytes() const;
};
// Kernels in the order of the metadata, then those that have a descriptor only.
std::vector<KernelMetadata> read_kernels(const ElfFile& elf);

// The 64-byte kernel descriptor at `bytes`.
KernelDescriptor read_descriptor(const uint8_t* bytes);

// Memory obtained from mmap with inaccessible pages before and after it.
class Mapping {
 public:
  // `alignment`: a power of two. Throws HipError(hipErrorOutOfMemory).
  Mapping(uint64_t bytes, uint64_t alignment);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  uint8_t* begin() const { return begin_; }
  uint64_t bytes() const { return bytes_; }

 private:
  uint8_t* reserved_;
  uint64_t reserved_bytes_;
  uint8_t* begin_;
  uint64_t bytes_;
};

class LoadedModule;

struct Function {
  Kernel kernel;
  KernelMetadata metadata;
};

// A code object in memory: segments mapped, relocations applied, program decoded.
class LoadedModule {
 public:
  struct Global {
    uint8_t* address;
    uint64_t bytes;
  };

  explicit LoadedModule(const std::vector<uint8_t>& file);

  // nullptr when there is no such kernel. Accepts the kernel's name or its descriptor's symbol.
  const Function* function(const std::string& name) const;
  const Global* global(const std::string& name) const;
  std::string kernel_names() const;  // comma-separated, for messages
  const std::vector<Region>& regions() const { return regions_; }

 private:
  void map_segments(const ElfFile& elf, const std::vector<uint8_t>& file);
  void relocate(const ElfFile& elf);
  void load_kernels(const ElfFile& elf);

  std::unique_ptr<Mapping> memory_;
  uint64_t bias_ = 0;  // host address minus ELF address
  std::vector<Region> regions_;
  std::map<std::string, std::unique_ptr<Function>> functions_;
  std::map<std::string, Global> globals_;
};

}  // namespace gfx942
