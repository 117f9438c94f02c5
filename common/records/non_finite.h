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

// Which kinds of numbers that are not finite some values hold.
struct NonFinite {
  bool nan = false;
  bool positive = false;
  bool negative = false;

  bool infinite() const { return positive || negative; }
  bool any() const { return nan || infinite(); }
  void Add(double number);
  void Join(const NonFinite& other);
  // "NaN", "+Infinity and -Infinity"; empty when all is finite.
  std::string Text() const;
};

// What was recorded of one tensor.
struct TensorNumbers {
  std::optional<double> max, min, mean, norm;
  std::optional<double> elements;
};

// By Max and Min alone: the mean of both infinities is NaN in a tensor that
// holds none, and a norm may be infinite because it overflowed.
NonFinite NonFiniteOf(const TensorNumbers& tensor);

struct CallNumbers {
  NonFinite inputs;      // tensors
  NonFinite constants;   // numbers among the arguments
  NonFinite parameters;  // of a module
  NonFinite outputs;
  bool has_output = false;  // a tensor came out
  // An input tensor has no element.
  bool empty_input = false;
  // An input may be an additive mask: it holds two values, 0 and one far from
  // it, or the lowest number of a dtype.
  bool mask_input = false;
  // An input holds zeros and ones alone.
  bool zero_one_input = false;

  void AddInput(const TensorNumbers& tensor);
  void AddOutput(const TensorNumbers& tensor);
};

enum class MadeNonFinite {
  kNothing,
  // An infinity that an argument, or an empty set, asked for.
  kMeant,
  // An infinity that is usually meant (the logarithm of a mask, the sum of two
  // masks). It is a fault when a NaN is made of it outside of a softmax.
  kPerhapsMeant,
  kInfinity,
  kNan,
};

// What the call of this name made that it was not given.
MadeNonFinite WhatCallMade(absl::string_view entry, const CallNumbers& call);

// Whether a NaN that this call makes of infinities is its own: a softmax, whose
// row is masked altogether.
bool TakesMasks(absl::string_view entry);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_RECORDS_NON_FINITE_H_
