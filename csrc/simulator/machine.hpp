// The seam between the front of the simulator (code objects, HIP functions, dispatch) and the machine
// that executes one workgroup.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "instruction.hpp"

namespace gfx942 {

// What a launch, a load or a decode fails with. The message is complete: kernel, workgroup, wave,
// instruction text, its address in the code object, and what is wrong.
struct SimulatorError : std::runtime_error {
  enum class Kind { kBadCodeObject, kUnknownInstruction, kBadAddress, kCheck, kInterrupted, kUnsupported };
  SimulatorError(Kind kind, const std::string& message) : std::runtime_error(message), kind(kind) {}
  Kind kind;
};

// Memory that kernels may touch: registered host memory, device allocations, loaded segments.
// A snapshot is immutable and shared by all workgroups of a launch. Device addresses are host addresses.
struct Region {
  uint64_t begin = 0, end = 0;
  bool writable = true;
  std::string label;
};
class AddressSpace {
 public:
  explicit AddressSpace(std::vector<Region> regions);  // sorted by the constructor
  // A region that wholly contains [address, address + bytes), or nullptr. Regions may overlap; of several
  // that contain the access a writable one is returned if there is one.
  const Region* find(uint64_t address, uint64_t bytes) const;
  const std::vector<Region>& regions() const { return regions_; }

 private:
  // Between two neighbouring bounds the same regions apply; of those only the two that reach furthest matter.
  struct Interval {
    uint32_t any, writable;  // index in regions_, or kNone
  };
  std::vector<Region> regions_;
  std::vector<uint64_t> bounds_;  // ascending; interval i is [bounds_[i], bounds_[i + 1])
  std::vector<Interval> intervals_;
};

// The executable segment of a code object, decoded once, shared between launches and threads.
class Program;
std::shared_ptr<const Program> make_program(const uint8_t* code, uint64_t bytes, uint64_t base_address);
// `base_address` is where the segment lies in (host) memory, so that s_getpc and pc-relative loads work.

struct KernelDescriptor {  // 64-byte .kd, decoded
  uint32_t group_segment_fixed_size = 0, private_segment_fixed_size = 0, kernarg_size = 0;
  int64_t kernel_code_entry_byte_offset = 0;
  uint32_t compute_pgm_rsrc1 = 0, compute_pgm_rsrc2 = 0, compute_pgm_rsrc3 = 0;
  uint16_t kernel_code_properties = 0;
  uint16_t kernarg_preload = 0;
};

struct Kernel {
  std::string name;
  std::shared_ptr<const Program> program;
  uint64_t entry = 0;      // address of the first instruction
  uint64_t load_bias = 0;  // address minus ELF virtual address; subtract it when printing addresses
  KernelDescriptor descriptor;
  uint64_t descriptor_address = 0;
  uint32_t code_object_version = 5;
};

enum class MatrixArithmetic : uint8_t { kFloat32, kExact };

struct Checks {
  bool waits = true;        // reading or overwriting a register with a load still outstanding
  bool wait_states = true;  // matrix results touched too early, and the rules of hazards.hpp
  // The rest runs under observation, which is many times slower.
  bool races = false;          // unordered accesses to the same bytes of LDS or memory
  bool uninitialised = false;  // contents never written that reach a store, an address, a branch or EXEC
  bool bounds = false;         // buffers whose own extent leaves registered memory
  bool resources = false;      // registers beyond what the kernel descriptor allocates
  bool observe() const { return races || uninitialised || bounds || resources; }
};

// One change to a kernel, made as it executes.
struct Mutation {
  enum class Kind : uint8_t {
    kNone,
    kSkip,   // the instruction is left out and takes no time
    kVmcnt,  // `amount` is added to the counter of an s_waitcnt that it does not leave open
    kLgkmcnt,
    kM0,       // `amount` is added to M0 once the instruction has executed
    kRecords,  // `amount` is added to num_records of the buffer that the instruction uses
    kExec,  // once the instruction has executed, EXEC loses its highest lane (amount < 0) or gains all lanes
  };
  Kind kind = Kind::kNone;
  uint64_t address = 0;  // of the instruction, in the ELF file
  int64_t amount = 0;
};

// When the contents of a load appear in its destination: at once, at the wait that covers it, or at random in
// between, in an order that the hardware allows and with waves taking random turns.
enum class Delivery : uint8_t { kEarly, kLate, kRandom };

// What the checks under observation know about a launch, shared by its workgroups.
struct LaunchObservation;

struct Counters {
  uint64_t instructions = 0;               // wave instructions executed
  std::array<uint64_t, 10> by_category{};  // indexed by Category
  uint64_t workgroups = 0, waves = 0;
  uint64_t bytes_loaded = 0, bytes_stored = 0;  // vector memory, in-bounds lanes
  Counters& operator+=(const Counters& other);
};

struct Launch {
  const Kernel* kernel = nullptr;
  const AddressSpace* memory = nullptr;
  std::array<uint32_t, 3> grid{1, 1, 1};   // workgroups
  std::array<uint32_t, 3> block{1, 1, 1};  // work-items
  uint32_t dynamic_lds = 0;                // bytes
  uint64_t kernarg_address = 0;            // host address of the complete kernel-argument segment
  uint64_t dispatch_packet_address = 0;    // 64-byte AQL kernel_dispatch_packet, for kernels that ask for it
  uint64_t implicit_queue_address = 0;
  MatrixArithmetic matrix = MatrixArithmetic::kExact;
  Checks checks;
  Mutation mutation;
  Delivery delivery = Delivery::kEarly;
  uint64_t delivery_seed = 0;
  bool collect_findings = false;             // under observation: list what the checks find and go on
  LaunchObservation* observation = nullptr;  // null: not observed
  struct WorkgroupTrace* trace = nullptr;    // where the workgroup that runs is recorded
  struct TimeStamps* stamps = nullptr;       // what the chip's clocks say; null: they count wait states
  const std::atomic<bool>* stop = nullptr;   // polled: true ends the launch with kInterrupted
};

// Executes one workgroup to its end. One Machine per host thread; it is reused between workgroups so that
// register files are allocated once.
class Machine {
 public:
  Machine();
  ~Machine();
  void run_workgroup(const Launch& launch, uint32_t x, uint32_t y, uint32_t z, Counters& counters);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// For a launch that is checked, mutated or delivers late; null where none of that is asked for.
std::shared_ptr<LaunchObservation> observe(const Launch& launch);
// What the checks of observed launches that collect have found since it was last forgotten, each kind of
// finding at an instruction once.
struct Finding {
  std::string check;  // waits, wait_states, ...
  std::string kernel;
  uint64_t address = 0;  // in the ELF file
  std::string message;   // of the first occurrence
  uint64_t occurrences = 0;
};
std::vector<Finding> findings();
void forget_findings();

// ELF addresses of the instructions that observed launches have executed since they were last forgotten,
// ascending.
std::vector<uint64_t> executed_addresses();
void forget_executed_addresses();

// Mnemonics that the executor implements, for the coverage command.
bool is_implemented(Op op);
// Whether the executor takes the instruction that `code` begins with in the very form it has there.
bool is_executed(const uint8_t* code, uint64_t bytes);

}  // namespace gfx942
