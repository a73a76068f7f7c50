#include "code_object.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "hip_error.hpp"
#include "loader_rules.hpp"

namespace gfx942 {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kMaxKernargBytes = 1 << 20;

[[noreturn]] void invalid(const std::string& message) {
  throw HipError(hipErrorInvalidImage, "code object: " + message);
}

uint64_t page_up(uint64_t bytes) {
  return (bytes + kPage - 1) & ~(kPage - 1);
}

template <typename T>
T load(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

KernelMetadata read_kernel(const MessagePack& entry) {
  using Type = MessagePack::Type;
  KernelMetadata kernel;
  const MessagePack* name = entry.find(".name", Type::kString);
  const MessagePack* symbol = entry.find(".symbol", Type::kString);
  if (!name || !symbol) invalid("metadata: a kernel has no .name or no .symbol");
  kernel.name = name->text;
  kernel.symbol = symbol->text;
  kernel.kernarg_bytes = entry.number(".kernarg_segment_size", 0, kMaxKernargBytes);
  kernel.group_bytes = entry.number(".group_segment_fixed_size", 0);
  kernel.private_bytes = entry.number(".private_segment_fixed_size", 0);
  kernel.max_flat_workgroup_size = static_cast<uint32_t>(entry.number(".max_flat_workgroup_size", 1024));
  kernel.vgprs = static_cast<uint32_t>(entry.number(".vgpr_count", 0));
  kernel.agprs = static_cast<uint32_t>(entry.number(".agpr_count", 0));
  kernel.sgprs = static_cast<uint32_t>(entry.number(".sgpr_count", 0));
  if (const MessagePack* dynamic_stack = entry.find(".uses_dynamic_stack", Type::kBoolean)) {
    kernel.dynamic_stack_given = true;
    kernel.dynamic_stack = dynamic_stack->integer;
  }
  if (const MessagePack* required = entry.find(".reqd_workgroup_size", Type::kArray)) {
    if (required->items.size() != 3) invalid("metadata: .reqd_workgroup_size of " + kernel.name);
    for (int i = 0; i < 3; ++i) {
      const MessagePack& extent = required->items[static_cast<size_t>(i)];
      if (extent.type != Type::kInteger || extent.integer < 0 || extent.integer > 1024)
        invalid("metadata: .reqd_workgroup_size of " + kernel.name);
      kernel.required_workgroup_size[static_cast<size_t>(i)] = static_cast<uint32_t>(extent.integer);
    }
  }
  if (const MessagePack* arguments = entry.find(".args", Type::kArray)) {
    kernel.arguments_listed = true;
    for (const MessagePack& item : arguments->items) {
      KernelArgument argument;
      const MessagePack* kind = item.find(".value_kind", Type::kString);
      argument.offset = item.number(".offset", UINT64_MAX, 1 << 20);
      argument.bytes = item.number(".size", UINT64_MAX, 1 << 20);
      if (!kind || argument.offset == UINT64_MAX || argument.bytes == UINT64_MAX)
        invalid("metadata: an argument of " + kernel.name + " lacks .offset, .size or .value_kind");
      argument.value_kind = kind->text;
      if (argument.offset + argument.bytes > kernel.kernarg_bytes)
        invalid("metadata: an argument of " + kernel.name + " ends at byte " +
                std::to_string(argument.offset + argument.bytes) + " of a " +
                std::to_string(kernel.kernarg_bytes) + "-byte argument segment");
      kernel.arguments.push_back(std::move(argument));
    }
  }
  return kernel;
}

}  // namespace

uint64_t KernelMetadata::explicit_bytes() const {
  uint64_t end = 0;
  for (const KernelArgument& argument : arguments)
    if (!argument.hidden()) end = std::max(end, argument.offset + argument.bytes);
  return arguments_listed ? end : kernarg_bytes;
}

std::vector<KernelMetadata> read_kernels(const ElfFile& elf) {
  std::vector<KernelMetadata> kernels;
  std::set<std::string> known;
  try {
    if (const MessagePack* list = elf.metadata.find("amdhsa.kernels", MessagePack::Type::kArray))
      for (const MessagePack& entry : list->items) {
        kernels.push_back(read_kernel(entry));
        if (!known.insert(kernels.back().symbol).second)
          invalid("metadata: kernel " + kernels.back().name + " is listed twice");
      }
  } catch (const HipError&) {
    throw;
  } catch (const std::runtime_error& error) {
    invalid(error.what());
  }
  for (const ElfFile::Symbol& symbol : elf.symbols) {
    const std::string& name = symbol.name;
    if (!symbol.defined() || name.size() <= 3 || name.compare(name.size() - 3, 3, ".kd") != 0) continue;
    if (!known.insert(name).second) continue;
    KernelMetadata kernel;
    kernel.name = name.substr(0, name.size() - 3);
    kernel.symbol = name;
    kernels.push_back(std::move(kernel));
  }
  return kernels;
}

KernelDescriptor read_descriptor(const uint8_t* bytes) {
  KernelDescriptor out;
  out.group_segment_fixed_size = load<uint32_t>(bytes);
  out.private_segment_fixed_size = load<uint32_t>(bytes + 4);
  out.kernarg_size = load<uint32_t>(bytes + 8);
  out.kernel_code_entry_byte_offset = load<int64_t>(bytes + 16);
  out.compute_pgm_rsrc3 = load<uint32_t>(bytes + 44);
  out.compute_pgm_rsrc1 = load<uint32_t>(bytes + 48);
  out.compute_pgm_rsrc2 = load<uint32_t>(bytes + 52);
  out.kernel_code_properties = load<uint16_t>(bytes + 56);
  out.kernarg_preload = load<uint16_t>(bytes + 58);
  return out;
}

Mapping::Mapping(uint64_t bytes, uint64_t alignment) : bytes_(bytes) {
  alignment = std::max(alignment, kPage);
  const uint64_t usable = std::max(page_up(bytes), kPage);
  reserved_bytes_ = usable + alignment + 2 * kPage;
  void* reserved =
      usable < bytes || reserved_bytes_ < usable
          ? MAP_FAILED
          : mmap(nullptr, reserved_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED)
    throw HipError(hipErrorOutOfMemory, "cannot map " + std::to_string(bytes) + " bytes of host memory");
  reserved_ = static_cast<uint8_t*>(reserved);
  const uint64_t first = reinterpret_cast<uint64_t>(reserved_) + kPage;
  begin_ = reserved_ + kPage + ((alignment - first % alignment) % alignment);
  if (mprotect(begin_, usable, PROT_READ | PROT_WRITE) != 0) {
    munmap(reserved_, reserved_bytes_);
    throw HipError(hipErrorOutOfMemory, "cannot commit " + std::to_string(bytes) + " bytes of host memory");
  }
}

Mapping::~Mapping() {
  munmap(reserved_, reserved_bytes_);
}

LoadedModule::LoadedModule(const std::vector<uint8_t>& file) {
  const ElfFile elf = read_elf(file);
  check_elf(elf);
  check_metadata(elf);
  map_segments(elf, file);
  relocate(elf);
  load_kernels(elf);
}

void LoadedModule::map_segments(const ElfFile& elf, const std::vector<uint8_t>& file) {
  const uint64_t first = elf.segments.front().address & ~(kPage - 1);
  const uint64_t end = elf.segments.back().address + elf.segments.back().memory_bytes;
  uint64_t alignment = kPage;
  for (const ElfFile::Segment& segment : elf.segments) alignment = std::max(alignment, segment.alignment);
  // Addresses keep their residue modulo the largest alignment.
  const uint64_t lead = first % alignment;
  memory_ = std::make_unique<Mapping>(lead + (end - first), alignment);
  bias_ = reinterpret_cast<uint64_t>(memory_->begin()) + lead - first;
  for (const ElfFile::Segment& segment : elf.segments) {
    const uint64_t address = bias_ + segment.address;
    if (segment.file_bytes)
      std::memcpy(reinterpret_cast<uint8_t*>(address), file.data() + segment.offset, segment.file_bytes);
    regions_.push_back({address, address + segment.memory_bytes, segment.writable,
                        segment.executable ? "code"
                        : segment.writable ? "module variables"
                                           : "module constants"});
  }
}

void LoadedModule::relocate(const ElfFile& elf) {
  for (const ElfFile::Relocation& relocation : elf.relocations) {
    const uint64_t addend = static_cast<uint64_t>(relocation.addend);
    uint64_t value = bias_ + addend, bytes = 4;
    if (relocation.type != kRelocationRelative64) value += elf.symbols[relocation.symbol].address;
    switch (relocation.type) {
    case kRelocationRelative64:
    case kRelocationAbs64: bytes = 8; break;
    case kRelocationAbs32Hi: value >>= 32; break;
    case kRelocationAbs32:
      require(value <= UINT32_MAX, "the value of the 32-bit relocation at " + hex(relocation.address),
              hex(value), "what 32 bits hold");
      break;
    default: break;  // kRelocationAbs32Lo
    }
    std::memcpy(reinterpret_cast<uint8_t*>(bias_ + relocation.address), &value, bytes);
  }
}

void LoadedModule::load_kernels(const ElfFile& elf) {
  std::map<const ElfFile::Segment*, std::shared_ptr<const Program>> programs;
  std::map<std::string, const ElfFile::Symbol*> descriptors;
  for (const ElfFile::Symbol& symbol : elf.symbols) {
    if (!symbol.defined() || symbol.name.empty()) continue;
    if (symbol.name.size() > 3 && symbol.name.compare(symbol.name.size() - 3, 3, ".kd") == 0)
      descriptors[symbol.name] = &symbol;
    else if (symbol.type == kSymbolObject && elf.segment_of(symbol.address, symbol.bytes))
      globals_[symbol.name] = {reinterpret_cast<uint8_t*>(bias_ + symbol.address), symbol.bytes};
  }
  for (KernelMetadata& metadata : read_kernels(elf)) {
    const auto found = descriptors.find(metadata.symbol);
    require(found != descriptors.end(), ".symbol of kernel " + metadata.name, "'" + metadata.symbol + "'",
            "the dynamic symbol of a kernel descriptor, NAME.kd");
    const uint64_t address = found->second->address;
    const uint8_t* descriptor = reinterpret_cast<const uint8_t*>(bias_ + address);
    check_descriptor(descriptor, metadata, elf.code_object_version);
    auto function = std::make_unique<Function>();
    Kernel& kernel = function->kernel;
    kernel.name = metadata.name;
    kernel.descriptor = read_descriptor(descriptor);
    kernel.descriptor_address = bias_ + address;
    kernel.load_bias = bias_;
    kernel.code_object_version = static_cast<uint32_t>(elf.code_object_version);
    const uint64_t entry = address + static_cast<uint64_t>(kernel.descriptor.kernel_code_entry_byte_offset);
    const ElfFile::Segment* code = elf.segment_of(entry, 4);
    const std::string entry_of = "the entry of kernel " + metadata.name;
    require(entry % 256 == 0, entry_of, hex(entry), "a multiple of 256");
    require(code && code->executable && entry - code->address < code->file_bytes, entry_of, hex(entry),
            "an address in the file's part of an executable segment");
    kernel.entry = bias_ + entry;
    std::shared_ptr<const Program>& program = programs[code];
    if (!program) {
      const uint64_t base = bias_ + code->address;
      program = make_program(reinterpret_cast<const uint8_t*>(base), code->file_bytes, base);
    }
    kernel.program = program;

    function->metadata = std::move(metadata);
    functions_[function->kernel.name] = std::move(function);
  }
}

const Function* LoadedModule::function(const std::string& name) const {
  auto found = functions_.find(name);
  if (found == functions_.end() && name.size() > 3 && name.compare(name.size() - 3, 3, ".kd") == 0)
    found = functions_.find(name.substr(0, name.size() - 3));
  return found == functions_.end() ? nullptr : found->second.get();
}

const LoadedModule::Global* LoadedModule::global(const std::string& name) const {
  const auto found = globals_.find(name);
  return found == globals_.end() ? nullptr : &found->second;
}

std::string LoadedModule::kernel_names() const {
  std::string names;
  for (const auto& [name, function] : functions_) names += (names.empty() ? "" : ", ") + name;
  return names.empty() ? "none" : names;
}

}  // namespace gfx942
