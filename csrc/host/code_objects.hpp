// The code objects embedded at build time, by architecture.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <vector>

namespace liteattention_rocm {

enum class RoundMode { kRtne = 0, kRtna = 1, kRtz = 2 };

// Kernels of every code object, indexed by RoundMode.
constexpr std::array<const char*, 3> kForwardKernels = {"attention_forward_rtne", "attention_forward_rtna",
                                                        "attention_forward_rtz"};
constexpr std::array<const char*, 3> kPingpongKernels = {"attention_pingpong_rtne", "attention_pingpong_rtna",
                                                         "attention_pingpong_rtz"};
constexpr std::array<const char*, 3> kAiterExactKernels = {
    "attention_aiter_exact_rtne", "attention_aiter_exact_rtna", "attention_aiter_exact_rtz"};
constexpr std::array<const char*, 3> kForwardSplitKernels = {
    "attention_forward_split_rtne", "attention_forward_split_rtna", "attention_forward_split_rtz"};
constexpr std::array<const char*, 3> kPingpongSplitKernels = {
    "attention_pingpong_split_rtne", "attention_pingpong_split_rtna", "attention_pingpong_split_rtz"};
constexpr std::array<const char*, 3> kMergeKernels = {"attention_merge_rtne", "attention_merge_rtna",
                                                      "attention_merge_rtz"};
constexpr std::array<const char*, 3> kSkipKernels = {
    "attention_skip_forward_rtne", "attention_skip_forward_rtna", "attention_skip_forward_rtz"};
constexpr std::array<const char*, 3> kSkipPingpongKernels = {
    "attention_skip_pingpong_rtne", "attention_skip_pingpong_rtna", "attention_skip_pingpong_rtz"};
constexpr std::array<const char*, 3> kSkipSplitKernels = {"attention_skip_forward_split_rtne",
                                                          "attention_skip_forward_split_rtna",
                                                          "attention_skip_forward_split_rtz"};
constexpr std::array<const char*, 3> kSkipPingpongSplitKernels = {"attention_skip_pingpong_split_rtne",
                                                                  "attention_skip_pingpong_split_rtna",
                                                                  "attention_skip_pingpong_split_rtz"};
constexpr std::array<const char*, 3> kSkipMergeKernels = {
    "attention_skip_merge_rtne", "attention_skip_merge_rtna", "attention_skip_merge_rtz"};
constexpr std::array<const char*, 3> kVarlenKernels = {"attention_varlen_rtne", "attention_varlen_rtna",
                                                       "attention_varlen_rtz"};
constexpr const char* kOrderKernel = "attention_skip_order";
constexpr const char* kPiecesKernel = "attention_skip_pieces";

struct CodeObject {
  const char* architecture;  // e.g. "gfx942"
  const void* image;         // aligned to 4096 bytes
  size_t bytes;
};

const std::vector<CodeObject>& code_objects();

// "gfx942:sramecc+:xnack-" -> "gfx942"
std::string_view base_architecture(std::string_view arch);

// The code object for `arch`, features after a colon ignored. Throws std::runtime_error naming what is
// supported.
const CodeObject& find_code_object(std::string_view arch);

// The same for the kernels of csrc/device/calibration.hip, which measure a device and serve no attention
// call.
const CodeObject& find_calibration_object(std::string_view arch);

// The same for the kernels of csrc/device/observed.hip, which store what they compute on the way.
const CodeObject& find_observed_object(std::string_view arch);

}  // namespace liteattention_rocm
