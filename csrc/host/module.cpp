// Python binding: addresses, strides and a stream go in as integers, so that no torch ABI is involved.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdlib>

#include "device/skip_split_arguments.hpp"
#include "host/bound.hpp"
#include "host/code_objects.hpp"
#include "host/forward.hpp"
#include "host/kernels.hpp"
#include "host/plan.hpp"
#include "host/skip.hpp"
#include "host/skip_plan.hpp"
#include "host/varlen.hpp"

namespace py = pybind11;
using namespace liteattention_rocm;

namespace {

// Runs `work` without the interpreter's lock. An exception that Python holds afterwards is the cause of the
// failure (Ctrl-C, seen by check_signals during a simulated launch) and takes precedence.
template <typename Work>
void without_gil(Work&& work) {
  try {
    const py::gil_scoped_release release;
    work();
  } catch (const HipError&) {
    if (PyErr_Occurred()) throw py::error_already_set();
    throw;
  }
}

// Called by the simulator from the launching thread, which holds no lock of ours.
int check_signals() {
  const PyGILState_STATE state = PyGILState_Ensure();
  const int raised = PyErr_Occurred() || PyErr_CheckSignals() != 0;
  PyGILState_Release(state);
  return raised;
}

void set_interrupt_check(int hip) {
  if (const auto install = hip_library(hip).simulator_set_interrupt_callback) install(check_signals);
}

ForwardCall forward_call(uint64_t query, uint64_t key, uint64_t value, uint64_t out, uint64_t lse,
                         int64_t batch, int64_t heads, int64_t kv_heads, int64_t seqlen_q, int64_t seqlen_kv,
                         const Strides& query_strides, const Strides& key_strides,
                         const Strides& value_strides, const Strides& out_strides, double scale, int rounding,
                         uint64_t stream, std::string_view kernel = "", int64_t pieces = 1,
                         uint64_t workspace = 0, int64_t workspace_bytes = 0) {
  if (rounding < 0 || rounding >= static_cast<int>(kForwardKernels.size()))
    throw std::invalid_argument("rounding is " + std::to_string(rounding) +
                                ", allowed are 0 (rtne), 1 (rtna) and 2 (rtz)");
  return {{batch, heads, kv_heads, seqlen_q, seqlen_kv},
          query,
          key,
          value,
          out,
          lse,
          query_strides,
          key_strides,
          value_strides,
          out_strides,
          scale,
          static_cast<RoundMode>(rounding),
          stream,
          dense_kernel(kernel),
          pieces,
          workspace,
          workspace_bytes};
}

void py_forward(int hip, int device, std::string_view arch, int compute_units, uint64_t query, uint64_t key,
                uint64_t value, uint64_t out, uint64_t lse, int64_t batch, int64_t heads, int64_t kv_heads,
                int64_t seqlen_q, int64_t seqlen_kv, const Strides& query_strides, const Strides& key_strides,
                const Strides& value_strides, const Strides& out_strides, double scale, int rounding,
                uint64_t stream, std::string_view kernel, int64_t pieces, uint64_t workspace,
                int64_t workspace_bytes) {
  const ForwardCall call = forward_call(query, key, value, out, lse, batch, heads, kv_heads, seqlen_q,
                                        seqlen_kv, query_strides, key_strides, value_strides, out_strides,
                                        scale, rounding, stream, kernel, pieces, workspace, workspace_bytes);
  without_gil([&] { forward(hip, device, arch, compute_units, call); });
}

BoundForward py_bind_forward(int hip, int device, std::string arch, int compute_units, int64_t batch,
                             int64_t heads, int64_t kv_heads, int64_t seqlen_q, int64_t seqlen_kv,
                             const Strides& query_strides, const Strides& key_strides,
                             const Strides& value_strides, const Strides& out_strides, double scale,
                             int rounding, std::string_view kernel, int64_t pieces) {
  const ForwardCall call =
      forward_call(0, 0, 0, 0, 0, batch, heads, kv_heads, seqlen_q, seqlen_kv, query_strides, key_strides,
                   value_strides, out_strides, scale, rounding, 0, kernel, pieces);
  return {hip, device, std::move(arch), compute_units, call};
}

void py_skip_forward(int hip, int device, std::string_view arch, int compute_units, uint64_t query,
                     uint64_t key, uint64_t value, uint64_t out, uint64_t lse, int64_t batch, int64_t heads,
                     int64_t kv_heads, int64_t seqlen_q, int64_t seqlen_kv, const Strides& query_strides,
                     const Strides& key_strides, const Strides& value_strides, const Strides& out_strides,
                     double scale, int rounding, uint64_t stream, uint64_t read_list, uint64_t write_list,
                     uint64_t order, double threshold, bool backward, bool votes_count,
                     std::string_view kernel, int64_t pieces, int64_t visited, uint64_t workspace,
                     int64_t workspace_bytes) {
  const SkipCall call{forward_call(query, key, value, out, lse, batch, heads, kv_heads, seqlen_q, seqlen_kv,
                                   query_strides, key_strides, value_strides, out_strides, scale, rounding,
                                   stream, kernel, pieces, workspace, workspace_bytes),
                      read_list,
                      write_list,
                      order,
                      threshold,
                      backward,
                      votes_count,
                      visited};
  without_gil([&] { skip_forward(hip, device, arch, compute_units, call); });
}

void py_varlen_forward(int hip, int device, std::string_view arch, int compute_units, uint64_t query,
                       uint64_t key, uint64_t value, uint64_t out, uint64_t lse, int64_t heads,
                       int64_t kv_heads, int64_t total_q, int64_t total_k, const Strides& query_strides,
                       const Strides& key_strides, const Strides& value_strides, const Strides& out_strides,
                       double scale, int rounding, uint64_t stream, uint64_t cu_seqlens_q,
                       uint64_t cu_seqlens_k, int64_t sequences, int64_t max_seqlen_q) {
  const VarlenCall call{forward_call(query, key, value, out, lse, 1, heads, kv_heads, total_q, total_k,
                                     query_strides, key_strides, value_strides, out_strides, scale, rounding,
                                     stream),
                        cu_seqlens_q, cu_seqlens_k, sequences, max_seqlen_q};
  without_gil([&] { varlen_forward(hip, device, arch, compute_units, call); });
}

py::dict launch_entry(const std::string& kernel, const Launch& launch, int threads) {
  py::dict entry;
  entry["kernel"] = kernel;
  entry["grid"] = py::make_tuple(launch.grid[0], launch.grid[1], launch.grid[2]);
  entry["block"] = py::make_tuple(threads, 1, 1);
  entry["first_batch"] = launch.first_batch;
  return entry;
}

// Unless told otherwise, a kernel that is asked for by name runs unsplit.
int64_t pieces_or_default(const std::optional<int64_t>& pieces, std::string_view kernel) {
  return pieces.value_or(kernel.empty() ? 0 : 1);
}

py::dict py_plan(int64_t batch, int64_t heads, int64_t kv_heads, int64_t seqlen_q, int64_t seqlen_kv,
                 int compute_units, std::string_view kernel, std::optional<int64_t> pieces) {
  const Problem problem{batch, heads, kv_heads, seqlen_q, seqlen_kv};
  const Plan plan(problem, DeviceProperties{compute_units}, dense_kernel(kernel),
                  pieces_or_default(pieces, kernel));
  const std::string name = kernel_traits(plan.kernel()).name;
  py::list launches;
  if (plan.split()) {
    launches.append(launch_entry(name + "_split", plan.split_launch(), plan.threads()));
    launches.append(launch_entry("merge", plan.merge_launch(), kMergeThreads));
  } else {
    for (int64_t i = 0; i < plan.launch_count(); ++i)
      launches.append(launch_entry(name, plan.launch(i), plan.threads()));
  }
  py::dict result;
  result["kernel"] = name;
  result["modelled_clocks"] = plan.modelled_clocks();
  result["grid"] = py::make_tuple(plan.query_tiles(), heads, batch);
  result["block"] = py::make_tuple(plan.threads(), 1, 1);
  result["launches"] = launches;
  result["kv_tiles"] = plan.kv_tiles();
  result["pieces"] = plan.split() ? plan.split()->pieces : 1;
  result["split_blocks"] = plan.split() ? plan.split()->split_blocks : 0;
  result["whole_blocks"] = plan.split() ? plan.split()->whole_blocks : plan.workgroups();
  result["workspace_bytes"] = plan.workspace_bytes();
  result["workgroups"] = plan.workgroups();
  result["workgroups_per_compute_unit"] = plan.workgroups_per_compute_unit();
  result["occupancy"] = plan.occupancy();
  return result;
}

py::dict py_skip_plan(int64_t batch, int64_t heads, int64_t kv_heads, int64_t seqlen_q, int64_t seqlen_kv,
                      int compute_units, std::string_view kernel, int64_t pieces, int64_t visited) {
  const SkipPlan plan({batch, heads, kv_heads, seqlen_q, seqlen_kv}, {compute_units},
                      dense_kernel(kernel).value_or(DenseKernel::kForward), pieces, visited);
  const Plan& unsplit = plan.unsplit();
  const std::string name = std::string("skip_") + kernel_traits(unsplit.kernel()).name;
  py::list launches;
  if (plan.split()) {
    launches.append(launch_entry("skip_pieces", plan.pieces_launch(), kListPieceThreads));
    launches.append(launch_entry(name + "_split", plan.split_launch(), unsplit.threads()));
    launches.append(launch_entry("skip_merge", plan.merge_launch(), kMergeThreads));
  } else {
    for (int64_t i = 0; i < unsplit.launch_count(); ++i)
      launches.append(launch_entry(name, unsplit.launch(i), unsplit.threads()));
  }
  py::dict result;
  result["modelled_clocks"] = plan.modelled_clocks();
  result["launches"] = launches;
  result["pieces"] = plan.split() ? plan.split()->pieces : 1;
  result["split_blocks"] = plan.split() ? plan.split()->split_blocks : 0;
  result["whole_blocks"] = plan.split() ? plan.split()->whole_blocks : unsplit.workgroups();
  result["workspace_bytes"] = plan.workspace_bytes();
  return result;
}

int64_t py_workspace_bytes(int64_t batch, int64_t heads, int64_t kv_heads, int64_t seqlen_q,
                           int64_t seqlen_kv, int compute_units, std::string_view kernel, int64_t pieces) {
  return Plan({batch, heads, kv_heads, seqlen_q, seqlen_kv}, {compute_units}, dense_kernel(kernel), pieces)
      .workspace_bytes();
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  module.doc() = "Embedded code objects, launch plans, and launches through a HIP library.";

  module.def(
      "open_hip", &open_hip, py::arg("path"), py::call_guard<py::gil_scoped_release>(),
      "Opens the HIP library at `path` and gives its number, the same for the same library. '' is ROCm's: "
      "the copy that torch is linked with, else the first copy loaded, else libamdhip64.so, .so.7, .so.6. "
      "RuntimeError names a missing library or function.");
  module.def(
      "library_path", [](int hip) { return hip_library(hip).path; }, py::arg("hip"),
      "File of the library that open_hip gave the number for.");
  module.def(
      "is_simulator", [](int hip) { return hip_library(hip).simulator_last_error != nullptr; },
      py::arg("hip"), "Whether that library is the gfx942 simulator.");
  module.def(
      "environment",
      [](const char* name) -> py::object {
        const char* value = std::getenv(name);
        return value ? py::reinterpret_steal<py::object>(PyUnicode_DecodeFSDefault(value)) : py::none();
      },
      py::arg("name"), "A variable of the environment, or None: os.environ.get without its cost.");
  module.def("set_interrupt_check", &set_interrupt_check, py::arg("hip"),
             "Lets Ctrl-C end a simulated launch. Does nothing for other libraries.");
  module.def(
      "prepare",
      [](int hip, int device, std::string_view arch, int compute_units) {
        without_gil([&] { load_kernels(hip, device, arch, compute_units, std::nullopt); });
      },
      py::arg("hip"), py::arg("device"), py::arg("arch"), py::arg("compute_units"),
      "Loads the kernels for a device unless they are loaded. compute_units 0: asked of the device.");
  module.def(
      "forward", &py_forward, py::arg("hip"), py::arg("device"), py::arg("arch"), py::arg("compute_units"),
      py::arg("query"), py::arg("key"), py::arg("value"), py::arg("out"), py::arg("lse"), py::arg("batch"),
      py::arg("heads"), py::arg("kv_heads"), py::arg("seqlen_q"), py::arg("seqlen_kv"),
      py::arg("query_strides"), py::arg("key_strides"), py::arg("value_strides"), py::arg("out_strides"),
      py::arg("scale"), py::arg("rounding"), py::arg("stream"), py::arg("kernel") = "", py::arg("pieces") = 1,
      py::arg("workspace") = 0, py::arg("workspace_bytes") = 0,
      "Launches forward attention on `stream` and returns. Tensors are bf16 addresses, aligned to 16 bytes, "
      "with strides (batch, head, row) in elements, multiples of 8; lse is float32 [batch, heads, seqlen_q] "
      "or 0. rounding: 0 rtne, 1 rtna, 2 rtz. kernel: forward, pingpong, aiter_exact (scale > 0), or empty "
      "for the plan's choice among the first two. "
      "pieces: 1, KV is not split; 0, where the plan says so; more, every query block in so many. workspace: "
      "address of workspace_bytes device bytes, aligned to 16, for partial results; at least what the "
      "function workspace_bytes says. "
      "ValueError: an argument the kernel can't take, before "
      "anything is launched. RuntimeError: HIP refused, or the kernels aren't loaded and the stream is "
      "capturing.");
  py::class_<BoundForward>(module, "BoundForward",
                           "A forward call that is complete but for its addresses and stream; takes what "
                           "forward takes.")
      .def(py::init(&py_bind_forward), py::arg("hip"), py::arg("device"), py::arg("arch"),
           py::arg("compute_units"), py::arg("batch"), py::arg("heads"), py::arg("kv_heads"),
           py::arg("seqlen_q"), py::arg("seqlen_kv"), py::arg("query_strides"), py::arg("key_strides"),
           py::arg("value_strides"), py::arg("out_strides"), py::arg("scale"), py::arg("rounding"),
           py::arg("kernel") = "", py::arg("pieces") = 1)
      .def_property_readonly("workspace_bytes", &BoundForward::workspace_bytes,
                             "What launch needs for partial results.")
      .def(
          "launch",
          [](const BoundForward& call, uint64_t query, uint64_t key, uint64_t value, uint64_t out,
             uint64_t lse, uint64_t workspace, uint64_t stream) {
            without_gil([&] { call.launch({query, key, value, out, lse, workspace}, stream); });
          },
          py::arg("query"), py::arg("key"), py::arg("value"), py::arg("out"), py::arg("lse"),
          py::arg("workspace"), py::arg("stream"),
          "As forward. Simulated launches may touch these tensors meanwhile, and store to out, lse and the "
          "workspace of workspace_bytes.");
  module.def(
      "skip_forward", &py_skip_forward, py::arg("hip"), py::arg("device"), py::arg("arch"),
      py::arg("compute_units"), py::arg("query"), py::arg("key"), py::arg("value"), py::arg("out"),
      py::arg("lse"), py::arg("batch"), py::arg("heads"), py::arg("kv_heads"), py::arg("seqlen_q"),
      py::arg("seqlen_kv"), py::arg("query_strides"), py::arg("key_strides"), py::arg("value_strides"),
      py::arg("out_strides"), py::arg("scale"), py::arg("rounding"), py::arg("stream"), py::arg("read_list"),
      py::arg("write_list"), py::arg("order"), py::arg("threshold"), py::arg("backward"),
      py::arg("votes_count"), py::arg("kernel") = "", py::arg("pieces") = 1, py::arg("visited") = 0,
      py::arg("workspace") = 0, py::arg("workspace_bytes") = 0,
      "As forward, but visits the KV tiles of read_list, in order or backward, and ORs into write_list the "
      "tiles that are not negligible by `threshold` (log2 units, below 0 or +Inf). Lists are uint32 [batch, "
      "heads, query tiles, words], bit i of word w for KV tile 32·w + i, other bits 0. order: uint32 [batch, "
      "heads, query tiles], the query tile that each workgroup takes, or 0. "
      "kernel: forward or empty, or pingpong, whose workgroups take three query tiles: order is then uint32 "
      "[batch, heads, ceil(query tiles / 3)]. pieces, visited: as skip_plan's, with whose workspace_bytes.");
  module.def(
      "varlen_forward", &py_varlen_forward, py::arg("hip"), py::arg("device"), py::arg("arch"),
      py::arg("compute_units"), py::arg("query"), py::arg("key"), py::arg("value"), py::arg("out"),
      py::arg("lse"), py::arg("heads"), py::arg("kv_heads"), py::arg("total_q"), py::arg("total_k"),
      py::arg("query_strides"), py::arg("key_strides"), py::arg("value_strides"), py::arg("out_strides"),
      py::arg("scale"), py::arg("rounding"), py::arg("stream"), py::arg("cu_seqlens_q"),
      py::arg("cu_seqlens_k"), py::arg("sequences"), py::arg("max_seqlen_q"),
      "As forward, but over packed sequences, in one launch: sequence i has the rows from entry i of "
      "cu_seqlens_q and cu_seqlens_k, int32 [sequences + 1], up to entry i + 1. lse is float32 [heads, "
      "total_q] or 0. A sequence without keys gets zeros and a log-sum-exp of -inf.");
  module.def(
      "skip_order",
      [](int hip, int device, std::string_view arch, int compute_units, uint64_t list, uint64_t counts,
         uint64_t order, int64_t heads, int64_t query_tiles, int64_t words, uint64_t stream, int64_t merged) {
        const OrderCall call{heads, query_tiles, words, merged, list, counts, order, stream};
        without_gil([&] { skip_order(hip, device, arch, compute_units, call); });
      },
      py::arg("hip"), py::arg("device"), py::arg("arch"), py::arg("compute_units"), py::arg("list"),
      py::arg("counts"), py::arg("order"), py::arg("heads"), py::arg("query_tiles"), py::arg("words"),
      py::arg("stream"), py::arg("merged") = 1,
      "Counts the tiles that any of `merged` consecutive rows of a skip list, uint32 [heads, query_tiles, "
      "words], lists, and orders these groups of each head by falling count. counts, order: uint32 [heads, "
      "ceil(query_tiles / merged)].");
  module.def("plan", &py_plan, py::arg("batch"), py::arg("heads"), py::arg("kv_heads"), py::arg("seqlen_q"),
             py::arg("seqlen_kv"), py::arg("compute_units"), py::arg("kernel") = "",
             py::arg("pieces") = py::none(),
             "What forward would launch: the kernel and its modelled clocks on the busiest compute unit; the "
             "query blocks as (query tiles, heads, batch), block in work-items; the launches; how many query "
             "blocks are whole, how many are split in how many pieces, and the bytes of their workspace; and "
             "how the blocks, unsplit, spread over the compute units. pieces: as forward's; None: 0, or 1 "
             "where a kernel is named.");
  module.def(
      "skip_plan", &py_skip_plan, py::arg("batch"), py::arg("heads"), py::arg("kv_heads"),
      py::arg("seqlen_q"), py::arg("seqlen_kv"), py::arg("compute_units"), py::arg("kernel") = "forward",
      py::arg("pieces") = 0, py::arg("visited") = 0,
      "What skip_forward would launch: as plan's result. pieces: 1, no walk is split; 0, where that pays "
      "for dense attention over `visited` KV tiles, what a workgroup visits in the mean (0: all); more, "
      "every walk in so many. Clocks are those of dense kernels.");
  module.def("workspace_bytes", &py_workspace_bytes, py::arg("batch"), py::arg("heads"), py::arg("kv_heads"),
             py::arg("seqlen_q"), py::arg("seqlen_kv"), py::arg("compute_units"), py::arg("kernel") = "",
             py::arg("pieces") = 0, "Device memory that forward needs for partial results.");
  module.def(
      "code_object",
      [](std::string_view arch) {
        const CodeObject& object = find_code_object(arch);
        return py::bytes(static_cast<const char*>(object.image), object.bytes);
      },
      py::arg("arch"), "The embedded code object (ELF) for an architecture.");
  module.def(
      "calibration_code_object",
      [](std::string_view arch) {
        const CodeObject& object = find_calibration_object(arch);
        return py::bytes(static_cast<const char*>(object.image), object.bytes);
      },
      py::arg("arch"), "The embedded code object (ELF) of the kernels that measure a device.");
  module.def(
      "observed_code_object",
      [](std::string_view arch) {
        const CodeObject& object = find_observed_object(arch);
        return py::bytes(static_cast<const char*>(object.image), object.bytes);
      },
      py::arg("arch"), "The embedded code object (ELF) of the kernels that store what they compute.");
  module.def(
      "architectures",
      [] {
        py::list names;
        for (const CodeObject& object : code_objects()) names.append(object.architecture);
        return names;
      },
      "Architectures with an embedded code object.");
  module.def(
      "kernel_names",
      [] {
        std::vector<std::string> names;
        for (const auto* group :
             {&kForwardKernels, &kForwardSplitKernels, &kSkipKernels, &kMergeKernels, &kPingpongKernels,
              &kPingpongSplitKernels, &kSkipPingpongKernels, &kVarlenKernels, &kAiterExactKernels,
              &kSkipSplitKernels, &kSkipPingpongSplitKernels, &kSkipMergeKernels})
          names.insert(names.end(), group->begin(), group->end());
        names.insert(names.end(), {kOrderKernel, kPiecesKernel});
        return names;
      },
      "Kernels of every code object, each family by rounding.");
}
