#include "path_facts.hpp"

#include "registers.hpp"

namespace gfx942 {

namespace {

constexpr unsigned kScc = 1000;

// The condition that a branch tests, and whether it is taken where that is zero.
struct Test {
  unsigned condition;
  bool taken_at_zero;
};
std::optional<Test> test_of(Op op) {
  switch (op) {
  case Op::S_CBRANCH_SCC0: return Test{kScc, true};
  case Op::S_CBRANCH_SCC1: return Test{kScc, false};
  case Op::S_CBRANCH_VCCZ: return Test{kVcc, true};
  case Op::S_CBRANCH_VCCNZ: return Test{kVcc, false};
  case Op::S_CBRANCH_EXECZ: return Test{kExec, true};
  case Op::S_CBRANCH_EXECNZ: return Test{kExec, false};
  default: return std::nullopt;
  }
}

bool overlaps(unsigned condition, unsigned first, unsigned count) {
  return condition != kScc && condition < first + count && first < condition + 2;
}

}  // namespace

std::optional<bool> PathFacts::is_zero(unsigned condition) const {
  for (const auto& [known, zero] : zero_)
    if (known == condition) return zero;
  return std::nullopt;
}

std::optional<bool> PathFacts::taken(const Instruction& branch) const {
  const auto test = test_of(branch.op);
  const auto zero = test ? is_zero(test->condition) : std::nullopt;
  if (!zero) return std::nullopt;
  return *zero == test->taken_at_zero;
}

void PathFacts::set(unsigned condition, bool zero) {
  zero_.emplace(condition, zero);
  for (const auto& [one, other] : equal_)
    if (one == condition) zero_.emplace(other, zero);
}

void PathFacts::learn(const Instruction& branch, bool taken) {
  if (const auto test = test_of(branch.op)) set(test->condition, taken == test->taken_at_zero);
}

void PathFacts::forget(unsigned first, unsigned count) {
  for (auto place = zero_.begin(); place != zero_.end();)
    place = overlaps(place->first, first, count) ? zero_.erase(place) : std::next(place);
  for (auto place = equal_.begin(); place != equal_.end();)
    place = overlaps(place->first, first, count) || overlaps(place->second, first, count)
                ? equal_.erase(place)
                : std::next(place);
}

void PathFacts::pass(const Instruction& instruction, const InstructionTraits& traits) {
  if (traits.writes_scc) {
    zero_.erase({kScc, false});
    zero_.erase({kScc, true});
  }
  for (unsigned s = 0; s < kScalarRegisters; ++s)
    if (traits.scalar_writes[s]) forget(s, 1);
  if (instruction.op != Op::S_MOV_B64 || instruction.dst.kind != Operand::Kind::kScalar) return;
  const Operand& source = instruction.src[0];
  const unsigned to = instruction.dst.index;
  if (source.kind == Operand::Kind::kConstant) return set(to, source.value == 0);
  if (source.kind != Operand::Kind::kScalar || source.index == to) return;
  std::set<unsigned> same{source.index};
  for (const auto& [one, other] : equal_)
    if (one == source.index) same.insert(other);
  const auto zero = is_zero(source.index);
  for (const unsigned other : same) {
    equal_.emplace(to, other);
    equal_.emplace(other, to);
  }
  if (zero) set(to, *zero);
}

}  // namespace gfx942
