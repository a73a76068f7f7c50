// Decodes the 32-bit words on standard input (hexadecimal) and prints one JSON object for each instruction.
#include <cstdio>
#include <vector>

#include "instruction.hpp"

using namespace gfx942;

namespace {

void print_operand(const char* name, const Operand& operand) {
  std::printf("\"%s\":[%d,%d,%d,\"%llx\"],", name, int(operand.kind), operand.index, operand.dwords,
              static_cast<unsigned long long>(operand.value));
}

void print_ranges(const char* name, const VectorRange* ranges, unsigned count, const char* end) {
  std::printf("\"%s\":[", name);
  for (unsigned i = 0; i < count; ++i)
    std::printf("%s[%d,%d]", i ? "," : "", ranges[i].first, ranges[i].count);
  std::printf("]%s", end);
}

}  // namespace

int main() {
  std::vector<uint32_t> words;
  for (unsigned word; std::scanf("%x", &word) == 1;) words.push_back(word);
  for (size_t i = 0; i < words.size();) {
    Instruction in;
    std::string reason;
    if (!decode(&words[i], (words.size() - i) * 4, i * 4, in, reason)) {
      std::printf("{\"size\":4,\"reason\":\"%s\"}\n", reason.c_str());
      ++i;
      continue;
    }
    std::printf("{\"size\":%d,\"offset\":%d,", in.size, in.offset);
    print_operand("dst", in.dst);
    print_operand("sdst", in.sdst);
    static const char* const kNames[] = {"src0", "src1", "src2", "src3"};
    for (unsigned k = 0; k < 4; ++k) print_operand(kNames[k], in.src[k]);
    print_ranges("reads", in.reads.data(), in.read_count, ",");
    print_ranges("writes", in.writes.data(), in.write_count, "}\n");
    i += in.size / 4;
  }
}
