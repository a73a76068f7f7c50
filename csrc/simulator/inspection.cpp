// What the simulator knows about instructions and code objects, as JSON.
#include <algorithm>
#include <cstring>

#include "code_object.hpp"
#include "hip_error.hpp"
#include "instruction_table.hpp"
#include "program.hpp"
#include "statistics.hpp"

namespace gfx942 {
namespace {

const char* encoding_name(Encoding encoding) {
  switch (encoding) {
  case Encoding::kSop1: return "SOP1";
  case Encoding::kSop2: return "SOP2";
  case Encoding::kSopc: return "SOPC";
  case Encoding::kSopk: return "SOPK";
  case Encoding::kSopp: return "SOPP";
  case Encoding::kSmem: return "SMEM";
  case Encoding::kVop1: return "VOP1";
  case Encoding::kVop2: return "VOP2";
  case Encoding::kVopc: return "VOPC";
  case Encoding::kVop3: return "VOP3";
  case Encoding::kVop3b: return "VOP3B";
  case Encoding::kVop3p: return "VOP3P";
  case Encoding::kMfma: return "MFMA";
  case Encoding::kDs: return "DS";
  case Encoding::kMubuf: return "MUBUF";
  case Encoding::kMtbuf: return "MTBUF";
  case Encoding::kFlat: return "FLAT";
  case Encoding::kGlobal: return "GLOBAL";
  case Encoding::kScratch: return "SCRATCH";
  }
  return "?";
}

const char* category_name(Category category) {
  switch (category) {
  case Category::kScalar: return "scalar";
  case Category::kScalarMemory: return "scalar_memory";
  case Category::kVector: return "vector";
  case Category::kTranscendental: return "transcendental";
  case Category::kMatrix: return "matrix";
  case Category::kLds: return "lds";
  case Category::kVectorMemory: return "vector_memory";
  case Category::kControl: return "control";
  case Category::kWait: return "wait";
  case Category::kBarrier: return "barrier";
  }
  return "?";
}

std::string instruction_json(const uint8_t* code, uint64_t available, uint64_t address, uint64_t& size) {
  // The decoder reads whole dwords, at most five of them; a copy keeps it inside the segment.
  uint32_t words[5] = {};
  const uint64_t bytes = std::min<uint64_t>(available, sizeof words);
  std::memcpy(words, code, bytes);
  Instruction instruction;
  std::string reason, text, op = "null", category = "null";
  bool executed = false;
  if (decode(words, bytes, address, instruction, reason)) {
    size = instruction.size;
    text = disassemble(instruction);
    op = json_string(op_info(instruction.op).name);
    category = json_string(category_name(op_info(instruction.op).category));
    executed = is_executed(reinterpret_cast<const uint8_t*>(words), size);
  } else {
    size = 4;
    text = ".long " + hex(words[0]) + "  // " + reason;
  }
  return "{\"address\":" + std::to_string(address) + ",\"size\":" + std::to_string(size) +
         ",\"text\":" + json_string(text) + ",\"op\":" + op + ",\"category\":" + category +
         ",\"executed\":" + (executed ? "true" : "false") + "}";
}

}  // namespace

std::string coverage_json() {
  std::string text = "[";
  for (size_t i = 1; i < static_cast<size_t>(Op::kCount); ++i) {
    const Op op = static_cast<Op>(i);
    text += std::string(i > 1 ? "," : "") + "{\"name\":" + json_string(op_info(op).name) + ",\"encodings\":[";
    const char* separator = "";
    for (const Form& form : instruction_row(op).forms) {
      if (form.variant == Form::Variant::kNone) continue;
      text += std::string(separator) + "\"" +
              (form.variant == Form::Variant::kSdwa  ? "SDWA"
               : form.variant == Form::Variant::kDpp ? "DPP"
                                                     : encoding_name(form.encoding)) +
              "\"";
      separator = ",";
    }
    text += std::string("],\"implemented\":") + (is_implemented(op) ? "true" : "false");
    if (op_info(op).category == Category::kMatrix && is_implemented(op))
      text += std::string(",\"arithmetic\":\"") + exact_arithmetic(op) + "\"";
    text += "}";
  }
  return text + "]";
}

std::string disassemble_json(const uint8_t* code_object, uint64_t bytes) {
  const std::vector<uint8_t> file = copy_image(code_object, bytes);
  const ElfFile elf = read_elf(file);
  std::string text = "{\"kernels\":[";
  const char* separator = "";
  for (const KernelMetadata& kernel : read_kernels(elf)) {
    const auto symbol =
        std::find_if(elf.symbols.begin(), elf.symbols.end(), [&](const ElfFile::Symbol& candidate) {
          return candidate.defined() && candidate.type == kSymbolFunction && candidate.name == kernel.name;
        });
    if (symbol == elf.symbols.end()) continue;
    text += separator + std::string("{\"name\":") + json_string(kernel.name) +
            ",\"address\":" + std::to_string(symbol->address) + ",\"size\":" + std::to_string(symbol->bytes) +
            "}";
    separator = ",";
  }
  text += "],\"instructions\":[";
  separator = "";
  for (const ElfFile::Segment& segment : elf.segments) {
    if (!segment.executable) continue;
    uint64_t size = 0;
    for (uint64_t at = 0; segment.file_bytes - at >= 4; at += std::min(size, segment.file_bytes - at)) {
      text += separator + instruction_json(file.data() + segment.offset + at, segment.file_bytes - at,
                                           segment.address + at, size);
      separator = ",\n";
    }
  }
  return text + "]}";
}

}  // namespace gfx942
