#include "static_proof.hpp"

#include <algorithm>
#include <deque>
#include <map>

#include "code_object.hpp"
#include "hazards.hpp"
#include "hip_error.hpp"
#include "options.hpp"
#include "path_facts.hpp"
#include "statistics.hpp"
#include "traits.hpp"

namespace gfx942 {

namespace {

// How many later accesses of a counter are certain to have been issued behind an access that may be pending.
constexpr uint8_t kNotPending = 255, kManyLater = 64;

// More ways to arrive at one instruction than these are not told apart.
constexpr unsigned kMostContexts = 16;

struct Edge {
  uint32_t to;
  unsigned extra_states;  // that the branch costs where it is taken
  bool taken;
};

class Graph {
 public:
  Graph(const Kernel& kernel) : program_(*kernel.program), bias_(kernel.load_bias) {
    const Step* entry = program_.at(kernel.entry + (kernel.descriptor.kernarg_preload & 0x7F ? 256 : 0));
    if (!entry) return;
    first_ = entry - entry->index;
    visit(entry->index);
    entry_ = entry->index;
  }

  const Program& program() const { return program_; }
  bool complete() const { return complete_; }
  uint32_t entry() const { return entry_; }
  const Step& step(uint32_t index) const { return first_[index]; }
  const Instruction& instruction(uint32_t index) const { return program_.instructions()[index]; }
  const std::map<uint32_t, std::vector<Edge>>& successors() const { return successors_; }
  const std::vector<Edge>& predecessors(uint32_t index) const {
    static const std::vector<Edge> kNone;
    const auto found = predecessors_.find(index);
    return found == predecessors_.end() ? kNone : found->second;
  }
  std::string text(uint32_t index) const {
    return "\"" + disassemble(instruction(index)) + "\" at " + hex(instruction(index).address - bias_);
  }

 private:
  void visit(uint32_t entry) {
    std::deque<uint32_t> left{entry};
    while (!left.empty()) {
      const uint32_t index = left.front();
      left.pop_front();
      if (successors_.count(index)) continue;
      std::vector<Edge>& out = successors_[index];
      const Instruction& instruction = program_.instructions()[index];
      const Op op = instruction.op;
      if (op == Op::S_ENDPGM || op == Op::S_ENDPGM_SAVED) continue;
      if (op == Op::kInvalid || op == Op::S_SETPC_B64 || op == Op::S_SWAPPC_B64 || op == Op::S_CALL_B64 ||
          op == Op::S_CBRANCH_G_FORK || op == Op::S_CBRANCH_I_FORK || op == Op::S_CBRANCH_JOIN ||
          op == Op::S_TRAP) {
        complete_ = false;
        continue;
      }
      const std::string name = op_info(op).name;
      const bool conditional = name.compare(0, 9, "s_cbranch") == 0;
      if (conditional || op == Op::S_BRANCH) {
        const auto* target = reinterpret_cast<const Step*>(first_[index].src[0]);
        if (target)
          out.push_back({target->index, kTakenBranchStates - kBranchStates, true});
        else
          complete_ = false;
      }
      if (op != Op::S_BRANCH) out.push_back({index + 1, 0, false});
      for (const Edge& edge : out) {
        predecessors_[edge.to].push_back({index, edge.extra_states, edge.taken});
        left.push_back(edge.to);
      }
    }
  }

  const Program& program_;
  uint64_t bias_;
  const Step* first_ = nullptr;
  bool complete_ = true;
  uint32_t entry_ = 0;
  std::map<uint32_t, std::vector<Edge>> successors_, predecessors_;
};

bool is_counted(Effect effect) {
  return effect != Effect::kNone && effect != Effect::kMatrix;
}
bool uses_vmcnt(Effect effect) {
  return effect == Effect::kVectorMemory || effect == Effect::kFlat;
}
bool uses_lgkmcnt(Effect effect) {
  return is_counted(effect) && effect != Effect::kVectorMemory;
}
bool in_order(Effect effect) {
  return effect == Effect::kVectorMemory || effect == Effect::kLds;
}

// Which accesses may be pending before each instruction: two entries per access, vmcnt and lgkmcnt.
class PendingAccesses {
 public:
  PendingAccesses(const Graph& graph, const Mutation& mutation, uint32_t mutated) : graph_(graph) {
    for (const auto& [index, edges] : graph.successors())
      if (is_counted(effect(index))) {
        number_[index] = accesses_.size();
        accesses_.push_back(index);
      }
    arrive(graph.entry(), {}, State(2 * accesses_.size(), kNotPending));
    while (!left_.empty()) {
      const auto [index, facts] = left_.front();
      left_.pop_front();
      State state = before_.at(index).at(facts);
      transfer(state, index, mutation, index == mutated);
      PathFacts passed = facts;
      passed.pass(graph.instruction(index), graph.program().traits(graph.step(index)));
      const std::vector<Edge>& edges = graph.successors().at(index);
      const auto taken = facts.taken(graph.instruction(index));
      for (const Edge& edge : edges) {
        PathFacts known = passed;
        if (edges.size() > 1) {
          if (taken && *taken != edge.taken) continue;
          known.learn(graph.instruction(index), edge.taken);
        }
        arrive(edge.to, known, state);
      }
    }
  }

  const std::vector<uint32_t>& accesses() const { return accesses_; }
  bool pending(uint32_t before, size_t access) const {
    const auto contexts = before_.find(before);
    if (contexts == before_.end()) return false;
    for (const auto& [facts, state] : contexts->second)
      if (state[2 * access] != kNotPending || state[2 * access + 1] != kNotPending) return true;
    return false;
  }

 private:
  using State = std::vector<uint8_t>;

  void arrive(uint32_t index, PathFacts facts, const State& state) {
    auto& contexts = before_[index];
    if (contexts.size() >= kMostContexts && !contexts.count(facts)) facts = {};
    const auto [place, inserted] = contexts.try_emplace(facts, state);
    bool changed = inserted;
    for (size_t i = 0; i < state.size() && !inserted; ++i) {
      if (state[i] >= place->second[i]) continue;
      place->second[i] = state[i];
      changed = true;
    }
    if (changed) left_.emplace_back(index, facts);
  }

  Effect effect(uint32_t index) const { return static_cast<Effect>(graph_.step(index).effect); }

  void transfer(State& state, uint32_t index, const Mutation& mutation, bool mutated) const {
    const Op op = graph_.instruction(index).op;
    if (mutated && mutation.kind == Mutation::Kind::kSkip) return;
    if (op == Op::S_WAITCNT) {
      const auto bits = static_cast<uint32_t>(graph_.instruction(index).offset);
      int64_t limit[2] = {(bits & 0xF) | (bits >> 14 & 3) << 4, bits >> 8 & 0xF};
      if (mutated && mutation.kind == Mutation::Kind::kVmcnt) limit[0] += mutation.amount;
      if (mutated && mutation.kind == Mutation::Kind::kLgkmcnt) limit[1] += mutation.amount;
      for (size_t access = 0; access < accesses_.size(); ++access) {
        const bool ordered = in_order(effect(accesses_[access]));
        for (size_t counter = 0; counter < 2; ++counter) {
          uint8_t& later = state[2 * access + counter];
          if (later == kNotPending) continue;
          if (limit[counter] == 0 || (ordered && later >= limit[counter])) later = kNotPending;
        }
      }
      return;
    }
    const auto own = number_.find(index);
    if (own == number_.end()) return;
    const Effect issued = effect(index);
    const bool counted[2] = {uses_vmcnt(issued), uses_lgkmcnt(issued)};
    for (size_t counter = 0; counter < 2; ++counter) {
      if (!counted[counter]) continue;
      // Only what returns in order tells about what was issued before it.
      for (size_t access = 0; in_order(issued) && access < accesses_.size(); ++access) {
        uint8_t& later = state[2 * access + counter];
        if (later < kManyLater) ++later;
      }
      state[2 * own->second + counter] = 0;
    }
  }

  const Graph& graph_;
  std::vector<uint32_t> accesses_;
  std::map<uint32_t, size_t> number_;
  std::map<uint32_t, std::map<PathFacts, State>> before_;
  std::deque<std::pair<uint32_t, PathFacts>> left_;
};

bool touches_result(const Graph& graph, uint32_t index, uint32_t access) {
  const InstructionTraits &used = graph.program().traits(graph.step(index)),
                          &made = graph.program().traits(graph.step(access));
  return ((used.vector_reads | used.vector_writes) & made.vector_writes).any() ||
         ((used.scalar_reads | used.scalar_writes) & made.scalar_writes).any();
}

Proof prove_waits(const Graph& graph, const Mutation& mutation, uint32_t mutated) {
  const PendingAccesses intact(graph, {}, mutated), changed(graph, mutation, mutated);
  for (const auto& [index, edges] : graph.successors()) {
    const InstructionTraits& traits = graph.program().traits(graph.step(index));
    const bool barrier = graph.instruction(index).op == Op::S_BARRIER;
    for (size_t access = 0; access < changed.accesses().size(); ++access) {
      if (!changed.pending(index, access) || intact.pending(index, access)) continue;
      const uint32_t load = changed.accesses()[access];
      const bool transfer = graph.instruction(load).lds;
      if (touches_result(graph, index, load))
        return {false,
                "some path reaches " + graph.text(index) + " with " + graph.text(load) + " outstanding"};
      if (barrier || (transfer && traits.lds))
        return {false, "some path reaches " + graph.text(index) + " with " + graph.text(load) + " in flight"};
    }
  }
  return {true,
          "on every path other waits cover each access before its result is touched and before a barrier"};
}

// Wait states between the deleted instruction and each neighbour within reach, the fewest over all paths.
std::map<uint32_t, unsigned> distances(const Graph& graph, uint32_t from, bool forward) {
  std::map<uint32_t, unsigned> best;
  std::deque<std::pair<uint32_t, unsigned>> left;
  const auto follow = [&](uint32_t index, unsigned states) {
    const std::vector<Edge>& edges = forward ? graph.successors().at(index) : graph.predecessors(index);
    for (const Edge& edge : edges) {
      const unsigned reached = states + edge.extra_states;
      const auto [place, inserted] = best.try_emplace(edge.to, reached);
      if (!inserted && place->second <= reached) continue;
      place->second = reached;
      left.emplace_back(edge.to, reached);
    }
  };
  follow(from, 0);
  while (!left.empty()) {
    const auto [index, states] = left.front();
    left.pop_front();
    if (states > best[index] || index == from) continue;
    const unsigned behind = states + graph.step(index).wait_states;
    if (behind < kMostMatrixStates) follow(index, behind);
  }
  return best;
}

Proof prove_states(const Graph& graph, uint32_t deleted) {
  const auto before = distances(graph, deleted, false), after = distances(graph, deleted, true);
  for (const auto& [producer, states_before] : before) {
    for (const auto& [consumer, states_after] : after) {
      const unsigned states = states_before + states_after;
      if (producer == deleted || consumer == deleted || states >= kMostMatrixStates) continue;
      const StateRequirement needed =
          required_states_with_matrix(graph.program(), graph.step(producer), graph.step(consumer));
      if (states < needed.states)
        return {false, graph.text(consumer) + " would follow " + graph.text(producer) + " after " +
                           std::to_string(states) + " wait states; " + needed.reason};
    }
  }
  return {true, "on every path each pair of instructions around it keeps the wait states it needs"};
}

}  // namespace

Proof prove_equivalent(const Kernel& kernel, const Mutation& mutation) {
  const Step* mutated = kernel.program->at(mutation.address + kernel.load_bias);
  if (!mutated) return {false, "no instruction begins there"};
  const Graph graph(kernel);
  if (!graph.complete()) return {false, "the control flow is not static"};
  if (!graph.successors().count(mutated->index)) return {false, "not reachable from the kernel's entry"};
  const Op op = graph.instruction(mutated->index).op;
  const bool skip = mutation.kind == Mutation::Kind::kSkip;
  const bool wait = op == Op::S_WAITCNT;
  if (!(skip && (wait || op == Op::S_NOP)) && mutation.kind != Mutation::Kind::kVmcnt &&
      mutation.kind != Mutation::Kind::kLgkmcnt)
    return {false, "no proof is known for this mutation"};
  Proof proof{true, ""};
  if (wait) proof = prove_waits(graph, mutation, mutated->index);
  if (!proof.proven || !skip) return proof;
  const Proof states = prove_states(graph, mutated->index);
  if (!states.proven || proof.reason.empty()) return states;
  return {true, proof.reason + "; " + states.reason};
}

std::string proof_json(const uint8_t* code_object, uint64_t bytes, const std::string& kernel,
                       const std::string& mutation) {
  const LoadedModule module(copy_image(code_object, bytes));
  const Function* function = module.function(kernel);
  if (!function)
    throw HipError(hipErrorNotFound, "no kernel " + kernel + ", there are: " + module.kernel_names());
  const Proof proof = prove_equivalent(function->kernel, parse_mutation(mutation));
  return std::string("{\"proven\":") + (proof.proven ? "true" : "false") +
         ",\"reason\":" + json_string(proof.reason) + "}";
}

}  // namespace gfx942
