// SPDX-License-Identifier: Apache-2.0
#include "common/records/non_finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace rankprobe {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TensorNumbers Numbers(double max, double min, double mean, double norm,
                      double elements) {
  return {max, min, mean, norm, elements};
}
TensorNumbers Plain() { return Numbers(1.5, -2, 0.1, 3, 4); }

// A call given `in` whose output has these extremes.
CallNumbers Call(const TensorNumbers& in, double max, double min) {
  CallNumbers call;
  call.AddInput(in);
  call.outputs = NonFiniteOf({max, min, {}, {}, {}});
  return call;
}

TEST(NonFiniteTest, ArithmeticMakesInfinitiesAndNan) {
  EXPECT_EQ(WhatCallMade("Torch.exp.0.forward", Call(Plain(), kInf, 1)),
            MadeNonFinite::kInfinity);
  EXPECT_EQ(WhatCallMade("Torch.log.0.forward", Call(Plain(), 1, -kInf)),
            MadeNonFinite::kInfinity);
  EXPECT_EQ(WhatCallMade("Torch.sqrt.0.forward", Call(Plain(), kNan, kNan)),
            MadeNonFinite::kNan);
  EXPECT_EQ(WhatCallMade("Torch.exp.0.forward", Call(Plain(), 1, 0)),
            MadeNonFinite::kNothing);
  const TensorNumbers nan = Numbers(kNan, kNan, kNan, kNan, 4);
  EXPECT_EQ(WhatCallMade("Torch.exp.0.forward", Call(nan, kNan, kNan)),
            MadeNonFinite::kNothing);
}

TEST(NonFiniteTest, AnInfinityThatWasAskedForIsMeant) {
  CallNumbers fill = Call(Plain(), 1, -kInf);
  fill.constants.Add(-kInf);
  EXPECT_EQ(WhatCallMade("Tensor.masked_fill.0.forward", fill),
            MadeNonFinite::kMeant);
  EXPECT_EQ(WhatCallMade("Torch.logsumexp.0.forward",
                         Call(Numbers(0, 0, 0, 0, 0), -kInf, -kInf)),
            MadeNonFinite::kMeant);
  // The infinity was in an input tensor: passed on.
  const TensorNumbers mask = Numbers(0, -kInf, -kInf, kInf, 16);
  EXPECT_EQ(WhatCallMade("Tensor.__add__.0.forward", Call(mask, 1, -kInf)),
            MadeNonFinite::kNothing);
  // A row that is masked completely.
  EXPECT_EQ(WhatCallMade("Torch.softmax.0.forward", Call(mask, kNan, kNan)),
            MadeNonFinite::kNan);
}

TEST(NonFiniteTest, MasksOfLowestNumbersAndLogarithmsOfMasks) {
  const double lowest = std::numeric_limits<float>::lowest();
  EXPECT_EQ(
      WhatCallMade("Tensor.__add__.0.forward",
                   Call(Numbers(0, lowest, lowest / 2, kInf, 16), 0, -kInf)),
      MadeNonFinite::kPerhapsMeant);
  // Two of four elements are -1e9, cast to float16.
  EXPECT_EQ(WhatCallMade(
                "Tensor.half.0.forward",
                Call(Numbers(0, -1e9, -5e8, std::sqrt(2) * 1e9, 4), 0, -kInf)),
            MadeNonFinite::kPerhapsMeant);
  // Three values: no mask.
  EXPECT_EQ(WhatCallMade("Tensor.half.0.forward",
                         Call(Numbers(0, -1e9, -5e8, 1.2e9, 4), 0, -kInf)),
            MadeNonFinite::kInfinity);
  const TensorNumbers ones = Numbers(1, 0, 0.5, std::sqrt(2), 4);
  EXPECT_EQ(WhatCallMade("Tensor.log.0.forward", Call(ones, 0, -kInf)),
            MadeNonFinite::kPerhapsMeant);
  EXPECT_EQ(WhatCallMade("Torch.log.0.forward",
                         Call(Numbers(3.7, 0, 1, 4, 4), 1.3, -kInf)),
            MadeNonFinite::kInfinity);
  // A division is not a logarithm, and +Infinity is not a mask.
  EXPECT_EQ(WhatCallMade("Tensor.reciprocal.0.forward", Call(ones, kInf, 1)),
            MadeNonFinite::kInfinity);
}

TEST(NonFiniteTest, Text) {
  NonFinite all;
  EXPECT_EQ(all.Text(), "");
  all.Add(kNan);
  all.Add(-kInf);
  EXPECT_EQ(all.Text(), "NaN and -Infinity");
  EXPECT_TRUE(TakesMasks("Functional.scaled_dot_product_attention.1.forward"));
  EXPECT_FALSE(TakesMasks("Tensor.__truediv__.0.forward"));
}

}  // namespace
}  // namespace rankprobe
