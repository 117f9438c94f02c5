// SPDX-License-Identifier: Apache-2.0
#include "common/records/unwritten.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"

namespace rankprobe {
namespace {

using Places = absl::Span<const absl::string_view>;

constexpr absl::string_view kNone[] = {"out"};
constexpr absl::string_view kFirst[] = {"0", "out"};
constexpr absl::string_view kTensor[] = {"0", "tensor", "out"};
constexpr absl::string_view kTensorList[] = {"0", "tensor_list", "out"};
constexpr absl::string_view kOutputTensor[] = {"0", "output_tensor", "out"};
constexpr absl::string_view kOutputList[] = {"0", "output_tensor_list", "out"};
constexpr absl::string_view kOutput[] = {"0", "output", "out"};
constexpr absl::string_view kGatherList[] = {"1", "gather_list", "out"};
constexpr absl::string_view kFirstOutput[] = {"0"};

// The operation of an API entry, "bernoulli_"; empty for modules and others.
absl::string_view OperationOf(absl::string_view entry) {
  const size_t first = entry.find('.');
  if (first == absl::string_view::npos) return "";
  const absl::string_view prefix = entry.substr(0, first);
  if (prefix == "Module" || prefix == "Cell" || prefix == "Optimizer")
    return "";
  const absl::string_view rest = entry.substr(first + 1);
  return rest.substr(0, rest.find('.'));
}

bool Has(Places places, absl::string_view place) {
  return std::find(places.begin(), places.end(), place) != places.end();
}

}  // namespace

bool UnwrittenPlaces::HasInput(absl::string_view place) const {
  return Has(inputs, place);
}

bool UnwrittenPlaces::HasOutput(absl::string_view place) const {
  return Has(outputs, place);
}

UnwrittenPlaces UnwrittenPlacesOf(absl::string_view entry) {
  static const auto* const kTable =
      new absl::flat_hash_map<absl::string_view, UnwrittenPlaces>{
          // These write all of the tensor that they are called on, or a
          // requested part, and read no part of it.
          {"__setitem__", {kFirst, {}}},
          {"bernoulli_", {kFirst, {}}},
          {"cauchy_", {kFirst, {}}},
          {"copy_", {kFirst, {}}},
          {"exponential_", {kFirst, {}}},
          {"fill_", {kFirst, {}}},
          {"geometric_", {kFirst, {}}},
          {"log_normal_", {kFirst, {}}},
          {"normal_", {kFirst, {}}},
          {"random_", {kFirst, {}}},
          {"set_", {kFirst, {}}},
          {"uniform_", {kFirst, {}}},
          {"zero_", {kFirst, {}}},
          // These write nothing.
          {"empty", {kNone, kFirstOutput}},
          {"empty_like", {kNone, kFirstOutput}},
          {"empty_permuted", {kNone, kFirstOutput}},
          {"empty_strided", {kNone, kFirstOutput}},
          {"empty_with_format", {kNone, kFirstOutput}},
          {"new_empty", {kFirst, kFirstOutput}},
          {"new_empty_strided", {kFirst, kFirstOutput}},
          {"resize_", {kFirst, kFirstOutput}},
          {"resize_as_", {kFirst, kFirstOutput}},
          // Collectives that fill a buffer.
          {"_all_gather_base", {kOutputTensor, {}}},
          {"_reduce_scatter_base", {kOutput, {}}},
          {"all_gather", {kTensorList, {}}},
          {"all_gather_into_tensor", {kOutputTensor, {}}},
          {"all_to_all", {kOutputList, {}}},
          {"all_to_all_single", {kOutput, {}}},
          {"gather", {kGatherList, {}}},
          {"irecv", {kTensor, {}}},
          {"recv", {kTensor, {}}},
          {"reduce_scatter", {kOutput, {}}},
          {"reduce_scatter_tensor", {kOutput, {}}},
          {"scatter", {kTensor, {}}},
      };
  const absl::string_view operation = OperationOf(entry);
  // The arguments of a backward are gradients.
  if (operation.empty() || !absl::EndsWith(entry, ".forward")) return {};
  const bool communicates = absl::StartsWith(entry, "Distributed.");
  // Torch.gather(input, 1, index) and torch.scatter fill no buffer.
  if (!communicates && (operation == "gather" || operation == "scatter"))
    return {kNone, {}};
  const auto it = kTable->find(operation);
  return it == kTable->end() ? UnwrittenPlaces{kNone, {}} : it->second;
}

bool MovesValuesOnly(absl::string_view entry) {
  static const auto* const kMovers = new absl::flat_hash_set<absl::string_view>{
      "__getitem__",      "alias",           "as_strided",
      "broadcast_to",     "chunk",           "clone",
      "contiguous",       "detach",          "detach_",
      "diagonal",         "expand",          "expand_as",
      "flatten",          "movedim",         "narrow",
      "permute",          "ravel",           "reshape",
      "reshape_as",       "select",          "split",
      "split_with_sizes", "squeeze",         "squeeze_",
      "swapaxes",         "swapdims",        "t",
      "tensor_split",     "transpose",       "transpose_",
      "unbind",           "unflatten",       "unfold",
      "unsqueeze",        "unsqueeze_",      "view",
      "view_as",          "view_as_complex", "view_as_real",
  };
  // Functional.unfold and Tensor.unfold only move values; a communication never
  // does.
  return !absl::StartsWith(entry, "Distributed.") &&
         kMovers->contains(OperationOf(entry));
}

}  // namespace rankprobe
