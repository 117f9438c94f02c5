// SPDX-License-Identifier: Apache-2.0
#include "common/records/non_finite.h"

#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace rankprobe {
namespace {

// The lowest numbers of float16, and of bfloat16 and wider types.
constexpr double kLowestHalf = -65504;
constexpr double kLowestWide = -3.38e38;
// Attention scores are far from this.
constexpr double kLeastMask = 1e4;
// Rounding error of a norm in float32.
constexpr double kRounding = 1e-4;

// "log" for "Torch.log.2.forward"; empty for modules.
absl::string_view OperationOf(absl::string_view entry) {
  const size_t first = entry.find('.');
  if (first == absl::string_view::npos) return "";
  const absl::string_view prefix = entry.substr(0, first);
  if (prefix == "Module" || prefix == "Cell") return "";
  const absl::string_view rest = entry.substr(first + 1);
  return rest.substr(0, rest.find('.'));
}

bool IsLogarithm(absl::string_view operation) {
  return operation == "log" || operation == "log_" || operation == "log2" ||
         operation == "log10";
}

// Reductions with segments or targets that may be empty: their initial value is
// infinite.
bool ReducesByIndex(absl::string_view operation) {
  return operation == "scatter_reduce" || operation == "scatter_reduce_" ||
         operation == "index_reduce" || operation == "index_reduce_" ||
         operation == "segment_reduce";
}

// The other number in a tensor that contains only 0 and one other number: if
// all numbers are between 0 and c, the sum of squares is c times the sum only
// if each of them is 0 or c.
std::optional<double> OtherThanZero(const TensorNumbers& tensor) {
  if (!tensor.max.has_value() || !tensor.min.has_value()) return std::nullopt;
  if (*tensor.max != 0 && *tensor.min != 0) return std::nullopt;
  const double other = *tensor.max != 0 ? *tensor.max : *tensor.min;
  if (!std::isfinite(other) || other == 0) return std::nullopt;
  // Integers and booleans have neither Mean nor Norm.
  if (!tensor.mean.has_value() || !tensor.norm.has_value()) {
    return *tensor.max == 1 ? std::optional(other) : std::nullopt;
  }
  if (!tensor.elements.has_value()) return std::nullopt;
  const double by_sum = other * *tensor.mean * *tensor.elements;
  const double by_squares = *tensor.norm * *tensor.norm;
  // The squares of the lowest float32 overflow in float32.
  if (!std::isfinite(by_squares)) return std::nullopt;
  return std::fabs(by_sum - by_squares) <= kRounding * std::fabs(by_squares)
             ? std::optional(other)
             : std::nullopt;
}

}  // namespace

void NonFinite::Add(double number) {
  if (std::isnan(number)) {
    nan = true;
  } else if (std::isinf(number)) {
    (number > 0 ? positive : negative) = true;
  }
}

void NonFinite::Join(const NonFinite& other) {
  nan = nan || other.nan;
  positive = positive || other.positive;
  negative = negative || other.negative;
}

std::string NonFinite::Text() const {
  std::string out = nan ? "NaN" : "";
  if (positive) absl::StrAppend(&out, out.empty() ? "" : " and ", "+Infinity");
  if (negative) absl::StrAppend(&out, out.empty() ? "" : " and ", "-Infinity");
  return out;
}

NonFinite NonFiniteOf(const TensorNumbers& tensor) {
  NonFinite out;
  if (tensor.max.has_value()) out.Add(*tensor.max);
  if (tensor.min.has_value()) out.Add(*tensor.min);
  return out;
}

void CallNumbers::AddInput(const TensorNumbers& tensor) {
  inputs.Join(NonFiniteOf(tensor));
  if (tensor.elements.has_value() && *tensor.elements == 0) empty_input = true;
  if (const auto other = OtherThanZero(tensor); other.has_value()) {
    if (*other == 1) zero_one_input = true;
    if (std::fabs(*other) >= kLeastMask) mask_input = true;
  }
  if (tensor.min.has_value() && std::isfinite(*tensor.min) &&
      (*tensor.min <= kLowestWide || *tensor.min == kLowestHalf)) {
    mask_input = true;
  }
}

void CallNumbers::AddOutput(const TensorNumbers& tensor) {
  outputs.Join(NonFiniteOf(tensor));
}

MadeNonFinite WhatCallMade(absl::string_view entry, const CallNumbers& call) {
  NonFinite given = call.inputs;
  given.Join(call.parameters);
  if (call.outputs.nan)
    return given.nan ? MadeNonFinite::kNothing : MadeNonFinite::kNan;
  // An infinity of the inputs is passed on, possibly with another sign.
  if (!call.outputs.infinite() || given.any()) return MadeNonFinite::kNothing;
  if (call.constants.infinite() || call.empty_input)
    return MadeNonFinite::kMeant;
  const absl::string_view operation = OperationOf(entry);
  if (ReducesByIndex(operation)) return MadeNonFinite::kPerhapsMeant;
  if (!call.outputs.positive &&
      (call.mask_input || (call.zero_one_input && IsLogarithm(operation)))) {
    return MadeNonFinite::kPerhapsMeant;
  }
  return MadeNonFinite::kInfinity;
}

bool TakesMasks(absl::string_view entry) {
  const absl::string_view operation = OperationOf(entry);
  if (operation.empty()) return absl::StrContains(entry, ".Softmax.");
  return absl::StrContains(operation, "softmax") ||
         absl::StrContains(operation, "attention") || operation == "logsumexp";
}

}  // namespace rankprobe
