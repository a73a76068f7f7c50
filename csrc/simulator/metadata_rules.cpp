// The schema: LLVM's AMDGPU user guide, "Code Object V3 Metadata" to "Code Object V6 Metadata".
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>

#include "hip_error.hpp"
#include "loader_rules.hpp"

namespace gfx942 {
namespace {

using Type = MessagePack::Type;

const char* type_name(Type type) {
  switch (type) {
  case Type::kNil: return "nil";
  case Type::kBoolean: return "a boolean";
  case Type::kInteger: return "an integer";
  case Type::kFloat: return "a float";
  case Type::kString: return "a string";
  case Type::kBinary: return "binary";
  case Type::kArray: return "an array";
  case Type::kMap: return "a map";
  }
  return "?";
}

struct Rule {
  const char* key;
  Type type;
  bool required;
  // Integers and the integers of an array lie in [lowest, highest]; an array has `count` elements of type
  // `element`, 0: any number.
  int64_t lowest = 0, highest = UINT32_MAX;
  size_t count = 0;
  Type element = Type::kInteger;
  const char* words = nullptr;  // the values of an enumeration, separated by '|'
};

constexpr int64_t kAnyBytes = UINT32_MAX;
constexpr char kAccess[] = "read_only|write_only|read_write";

constexpr Rule kRootRules[] = {
    {"amdhsa.version", Type::kArray, true, 0, 255, 2},
    {"amdhsa.target", Type::kString, false},
    {"amdhsa.printf", Type::kArray, false, 0, 0, 0, Type::kString},
    {"amdhsa.kernels", Type::kArray, true, 0, 0, 0, Type::kMap},
};

constexpr Rule kKernelRules[] = {
    {".name", Type::kString, true},
    {".symbol", Type::kString, true},
    {".language", Type::kString, false, 0, 0, 0, Type::kNil, "OpenCL C|OpenCL C++|HCC|HIP|OpenMP|Assembler"},
    {".language_version", Type::kArray, false, 0, 255, 2},
    {".args", Type::kArray, false, 0, 0, 0, Type::kMap},
    {".reqd_workgroup_size", Type::kArray, false, 1, 1024, 3},
    {".workgroup_size_hint", Type::kArray, false, 0, UINT32_MAX, 3},
    {".vec_type_hint", Type::kString, false},
    {".device_enqueue_symbol", Type::kString, false},
    {".kernarg_segment_size", Type::kInteger, true, 0, 1 << 20},
    {".kernarg_segment_align", Type::kInteger, true, 1, 4096},
    {".group_segment_fixed_size", Type::kInteger, true, 0, 65536},
    {".private_segment_fixed_size", Type::kInteger, true, 0, 1 << 20},
    {".wavefront_size", Type::kInteger, true, 64, 64},
    {".sgpr_count", Type::kInteger, true, 0, 112},
    {".vgpr_count", Type::kInteger, true, 0, 512},
    {".agpr_count", Type::kInteger, false, 0, 256},
    {".max_flat_workgroup_size", Type::kInteger, true, 1, 1024},
    {".sgpr_spill_count", Type::kInteger, false},
    {".vgpr_spill_count", Type::kInteger, false},
    {".uniform_work_group_size", Type::kInteger, false, 0, 1},
    {".uses_dynamic_stack", Type::kBoolean, false},
    {".kind", Type::kString, false, 0, 0, 0, Type::kNil, "normal|init|fini"},
    {".max_num_work_groups_x", Type::kInteger, false},
    {".max_num_work_groups_y", Type::kInteger, false},
    {".max_num_work_groups_z", Type::kInteger, false},
};

constexpr Rule kArgumentRules[] = {
    {".name", Type::kString, false},
    {".type_name", Type::kString, false},
    {".size", Type::kInteger, true, 0, 1 << 20},
    {".offset", Type::kInteger, true, 0, 1 << 20},
    {".value_kind", Type::kString, true},
    {".pointee_align", Type::kInteger, false, 1, kAnyBytes},
    {".address_space", Type::kString, false, 0, 0, 0, Type::kNil,
     "private|global|constant|local|generic|region"},
    {".access", Type::kString, false, 0, 0, 0, Type::kNil, kAccess},
    {".actual_access", Type::kString, false, 0, 0, 0, Type::kNil, kAccess},
    {".is_const", Type::kBoolean, false},
    {".is_restrict", Type::kBoolean, false},
    {".is_volatile", Type::kBoolean, false},
    {".is_pipe", Type::kBoolean, false},
};

// Bytes of an argument of that kind, 0: any; bytes from the begin of the implicit arguments, -1: explicit.
struct Kind {
  uint64_t bytes;
  int v5_offset = -1, v4_offset = -1;
};
const std::map<std::string, Kind>& kinds() {
  static const std::map<std::string, Kind> all = {
      {"by_value", {0}},
      {"global_buffer", {8}},
      {"dynamic_shared_pointer", {4}},
      {"sampler", {8}},
      {"image", {8}},
      {"pipe", {8}},
      {"queue", {8}},
      {"hidden_block_count_x", {4, 0}},
      {"hidden_block_count_y", {4, 4}},
      {"hidden_block_count_z", {4, 8}},
      {"hidden_group_size_x", {2, 12}},
      {"hidden_group_size_y", {2, 14}},
      {"hidden_group_size_z", {2, 16}},
      {"hidden_remainder_x", {2, 18}},
      {"hidden_remainder_y", {2, 20}},
      {"hidden_remainder_z", {2, 22}},
      {"hidden_global_offset_x", {8, 40, 0}},
      {"hidden_global_offset_y", {8, 48, 8}},
      {"hidden_global_offset_z", {8, 56, 16}},
      {"hidden_grid_dims", {2, 64}},
      {"hidden_printf_buffer", {8, 72, 24}},
      {"hidden_hostcall_buffer", {8, 80, 24}},
      {"hidden_multigrid_sync_arg", {8, 88, 48}},
      {"hidden_heap_v1", {8, 96}},
      {"hidden_default_queue", {8, 104, 32}},
      {"hidden_completion_action", {8, 112, 40}},
      {"hidden_dynamic_lds_size", {4, 120}},
      {"hidden_private_base", {4, 192}},
      {"hidden_shared_base", {4, 196}},
      {"hidden_queue_ptr", {8, 200}},
      {"hidden_none", {0}},
  };
  return all;
}

bool one_of(const std::string& value, const char* words) {
  const std::string list = std::string("|") + words + "|";
  return list.find("|" + value + "|") != std::string::npos;
}

std::string listed(const char* words) {
  std::string text(words);
  for (size_t at; (at = text.find('|')) != std::string::npos;) text.replace(at, 1, ", ");
  return text;
}

void check_value(const std::string& where, const MessagePack& value, const Rule& rule) {
  require(value.type == rule.type, where, std::string(type_name(value.type)), type_name(rule.type));
  const auto in_range = [&](const MessagePack& number) {
    require(number.integer >= rule.lowest && number.integer <= rule.highest, where,
            std::to_string(number.integer),
            rule.lowest == rule.highest
                ? std::to_string(rule.lowest)
                : std::to_string(rule.lowest) + " to " + std::to_string(rule.highest));
  };
  if (rule.type == Type::kInteger) in_range(value);
  if (rule.words) require(one_of(value.text, rule.words), where, "'" + value.text + "'", listed(rule.words));
  if (rule.type != Type::kArray) return;
  if (rule.count)
    require(value.items.size() == rule.count, where, "an array of " + std::to_string(value.items.size()),
            std::to_string(rule.count) + " elements");
  for (const MessagePack& item : value.items) {
    require(item.type == rule.element, "an element of " + where, std::string(type_name(item.type)),
            type_name(rule.element));
    if (rule.element == Type::kInteger) in_range(item);
  }
}

// Keys that no rule names are left alone: producers add their own.
template <size_t kCount>
void check_map(const std::string& of, const MessagePack& map, const Rule (&rules)[kCount]) {
  std::set<std::string> seen;
  for (const auto& [key, value] : map.entries)
    require(seen.insert(key).second, key + of, std::string("given twice"), "each key once");
  for (const Rule& rule : rules) {
    const auto found = std::find_if(map.entries.begin(), map.entries.end(),
                                    [&](const auto& entry) { return entry.first == rule.key; });
    if (found != map.entries.end())
      check_value(rule.key + of, found->second, rule);
    else
      require(!rule.required, rule.key + of, std::string("missing"), std::string(type_name(rule.type)));
  }
}

uint64_t integer(const MessagePack& map, const char* key) {
  const MessagePack* found = map.find(key, Type::kInteger);
  return found ? static_cast<uint64_t>(found->integer) : 0;
}

std::string text(const MessagePack& map, const char* key) {
  const MessagePack* found = map.find(key, Type::kString);
  return found ? found->text : std::string();
}

void check_arguments(const std::string& kernel, const MessagePack& entry, int code_object_version) {
  const MessagePack* arguments = entry.find(".args", Type::kArray);
  if (!arguments) return;
  const uint64_t segment = integer(entry, ".kernarg_segment_size");
  struct Span {
    uint64_t begin, end;
    size_t index;
  };
  std::vector<Span> spans;
  uint64_t explicit_end = 0;
  for (size_t i = 0; i < arguments->items.size(); ++i) {
    const MessagePack& argument = arguments->items[i];
    const std::string of = " of argument " + std::to_string(i) + kernel;
    check_map(of, argument, kArgumentRules);
    const std::string kind_name = text(argument, ".value_kind");
    const auto kind = kinds().find(kind_name);
    require(
        kind != kinds().end(), ".value_kind" + of, "'" + kind_name + "'",
        "by_value, global_buffer, dynamic_shared_pointer, sampler, image, pipe, queue and the hidden_ kinds "
        "of the user guide");
    const uint64_t offset = integer(argument, ".offset"), bytes = integer(argument, ".size");
    if (kind->second.bytes)
      require(bytes == kind->second.bytes, ".size" + of, bytes,
              std::to_string(kind->second.bytes) + " for " + kind_name);
    require(offset + bytes <= segment, ".offset" + of, offset,
            "so that its " + std::to_string(bytes) + " bytes end within .kernarg_segment_size, " +
                std::to_string(segment));
    if (kind->second.bytes) {
      const uint64_t aligned = kind->second.bytes;
      require(offset % aligned == 0, ".offset" + of, offset,
              "a multiple of " + std::to_string(aligned) + " for " + kind_name);
    }
    if (kind_name.compare(0, 7, "hidden_") != 0) explicit_end = std::max(explicit_end, offset + bytes);
    if (bytes) spans.push_back({offset, offset + bytes, i});
  }
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < spans.size(); ++i)
    require(spans[i].begin >= spans[i - 1].end,
            ".offset of argument " + std::to_string(spans[i].index) + kernel, spans[i].begin,
            std::to_string(spans[i - 1].end) + " or more, where argument " +
                std::to_string(spans[i - 1].index) + " ends");
  const uint64_t implicit = (explicit_end + 7) / 8 * 8;
  for (size_t i = 0; i < arguments->items.size(); ++i) {
    const MessagePack& argument = arguments->items[i];
    const std::string kind_name = text(argument, ".value_kind");
    const Kind& kind = kinds().at(kind_name);
    const int place = code_object_version >= 5 ? kind.v5_offset : kind.v4_offset;
    if (kind_name.compare(0, 7, "hidden_") != 0 || kind_name == "hidden_none") continue;
    const std::string of = " of argument " + std::to_string(i) + kernel;
    require(place >= 0, ".value_kind" + of, "'" + kind_name + "'",
            "the hidden_ kinds of code object V" + std::to_string(code_object_version));
    require(integer(argument, ".offset") == implicit + static_cast<uint64_t>(place), ".offset" + of,
            integer(argument, ".offset"),
            std::to_string(implicit + static_cast<uint64_t>(place)) + " for " + kind_name +
                ", behind the explicit arguments");
  }
}

void check_kernel(const MessagePack& entry, int code_object_version) {
  const std::string kernel = " of kernel " + text(entry, ".name");
  check_map(kernel, entry, kKernelRules);
  const uint64_t align = integer(entry, ".kernarg_segment_align");
  require(!(align & (align - 1)), ".kernarg_segment_align" + kernel, align, "a power of two");
  const uint64_t vgprs = integer(entry, ".vgpr_count"), agprs = integer(entry, ".agpr_count");
  require(agprs <= vgprs, ".agpr_count" + kernel, agprs,
          "at most .vgpr_count, " + std::to_string(vgprs) + ", which counts them in");
  if (const MessagePack* extents = entry.find(".reqd_workgroup_size", Type::kArray)) {
    int64_t items = 1;
    for (const MessagePack& extent : extents->items) items *= extent.integer;
    const uint64_t limit = integer(entry, ".max_flat_workgroup_size");
    require(static_cast<uint64_t>(items) <= limit, "the product of .reqd_workgroup_size" + kernel,
            static_cast<uint64_t>(items), "at most .max_flat_workgroup_size, " + std::to_string(limit));
  }
  check_arguments(kernel, entry, code_object_version);
}

// Whether a target, e.g. amdgcn-amd-amdhsa--gfx942:sramecc+, says what e_flags say.
void check_target(const std::string& target, uint32_t flags) {
  const std::string processor = (flags & 0xFF) == 0x4C ? "gfx942" : "gfx9-4-generic";
  std::string expected = processor;
  if (const uint32_t sramecc = flags & 0xC00; sramecc >= 0x800)
    expected += sramecc == 0xC00 ? ":sramecc+" : ":sramecc-";
  if (const uint32_t xnack = flags & 0x300; xnack >= 0x200)
    expected += xnack == 0x300 ? ":xnack+" : ":xnack-";
  // ARCHITECTURE-amd-amdhsa-ENVIRONMENT-PROCESSOR; the loader itself goes by e_flags.
  constexpr char kSystem[] = "-amd-amdhsa-";
  const size_t system = target.find(kSystem);
  const size_t dash = system == std::string::npos ? system : target.find('-', system + sizeof kSystem - 1);
  require(dash != std::string::npos && target.substr(dash + 1) == expected, "amdhsa.target",
          "'" + target + "'", "amdgcn-amd-amdhsa--" + expected + ", as in e_flags " + hex(flags));
}

}  // namespace

void check_metadata(const ElfFile& elf) {
  const MessagePack& root = elf.metadata;
  check_map("", root, kRootRules);
  const MessagePack& version = *root.find("amdhsa.version", Type::kArray);
  const int64_t major = version.items[0].integer, minor = version.items[1].integer;
  require(major == 1 && minor <= 2, "amdhsa.version", std::to_string(major) + "." + std::to_string(minor),
          "1.0 to 1.2");
  const MessagePack* target = root.find("amdhsa.target", Type::kString);
  require(target || minor == 0, "amdhsa.target", std::string("missing"),
          "a target id in metadata of version 1.1 and later");
  if (target) check_target(target->text, elf.flags);
  std::set<std::string> names, symbols;
  for (const MessagePack& kernel : root.find("amdhsa.kernels", Type::kArray)->items) {
    check_kernel(kernel, elf.code_object_version);
    const std::string name = text(kernel, ".name"), symbol = text(kernel, ".symbol");
    require(!name.empty(), ".name of a kernel", std::string("empty"), "a name");
    require(names.insert(name).second, ".name of a kernel", "'" + name + "' twice", "each kernel once");
    require(symbols.insert(symbol).second, ".symbol of a kernel", "'" + symbol + "' twice",
            "each descriptor once");
  }
  for (const ElfFile::Symbol& symbol : elf.symbols) {
    const size_t length = symbol.name.size();
    if (symbol.defined() && length > 3 && symbol.name.compare(length - 3, 3, ".kd") == 0)
      require(symbols.count(symbol.name), "the metadata of descriptor " + symbol.name, std::string("missing"),
              "an entry of amdhsa.kernels, where ROCm looks kernels up");
  }
}

}  // namespace gfx942
