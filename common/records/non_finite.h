// SPDX-License-Identifier: Apache-2.0
// NaN and infinities among the values of one call, and whether the call made
// them. An infinity that the program intends is not a fault: a mask, a fill
// with a constant, the maximum of an empty tensor. Analyses and triggers all
// use this rule. Plain values, pure functions.
#ifndef RANKPROBE_COMMON_RECORDS_NON_FINITE_H_
#define RANKPROBE_COMMON_RECORDS_NON_FINITE_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace rankprobe {

// Kinds of non-finite numbers that occur in some values.
struct NonFinite {
  bool nan = false;
  bool positive = false;
  bool negative = false;

  bool infinite() const { return positive || negative; }
  bool any() const { return nan || infinite(); }
  void Add(double number);
  void Join(const NonFinite& other);
  // "NaN", "+Infinity and -Infinity"; empty if all values are finite.
  std::string Text() const;
};

// Recorded statistics of one tensor.
struct TensorNumbers {
  std::optional<double> max, min, mean, norm;
  std::optional<double> elements;
};

// Uses only Max and Min: the mean of both infinities is NaN in a tensor without
// NaN, and a norm may be infinite because it overflowed.
NonFinite NonFiniteOf(const TensorNumbers& tensor);

struct CallNumbers {
  NonFinite inputs;      // tensors
  NonFinite constants;   // numbers among the arguments
  NonFinite parameters;  // of a module
  NonFinite outputs;
  // An input tensor has no elements.
  bool empty_input = false;
  // An input may be an additive mask: it has two values, 0 and one far from it,
  // or the lowest number of a dtype.
  bool mask_input = false;
  // An input has only zeros and ones.
  bool zero_one_input = false;

  void AddInput(const TensorNumbers& tensor);
  void AddOutput(const TensorNumbers& tensor);
};

enum class MadeNonFinite {
  kNothing,
  // An infinity that an argument, or an empty set, caused on purpose.
  kMeant,
  // An infinity that is usually intended (the logarithm of a mask, the sum of
  // two masks). It is a fault if it becomes a NaN outside of a softmax.
  kPerhapsMeant,
  kInfinity,
  kNan,
};

// Returns what a call of this name produced that was not in its inputs.
MadeNonFinite WhatCallMade(absl::string_view entry, const CallNumbers& call);

// Whether a NaN that this call makes from infinities is expected: a softmax,
// whose row is masked completely.
bool TakesMasks(absl::string_view entry);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_RECORDS_NON_FINITE_H_
