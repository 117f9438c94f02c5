// SPDX-License-Identifier: Apache-2.0
#include "analysis/layout/own_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace rankprobe::analysis {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const char kMoe[] = "Module.moe.Experts.forward.0";

// A tensor whose elements all have this value.
TensorPart Filled(std::vector<int64_t> shape, double value,
                  const std::string& dtype = "torch.float32") {
  TensorPart out;
  out.dtype = dtype;
  out.shape = std::move(shape);
  out.stats[kMax] = out.stats[kMin] = PartNumber{value, ""};
  return out;
}

class OwnValuesTest : public ::testing::Test {
 protected:
  // A tensor that is `part` on one rank and empty on the others, joined.
  std::string Why(const std::string& place, const TensorPart& part,
                  const TensorPart& whole) {
    return own_.Why(place, {part}, &part.stats, &whole);
  }
  // The layout passes weights of 1 to its experts and multiplies by them later.
  void TakeOtherWeights() {
    own_.Begin("Tensor.reshape.0.forward", kMoe);
    const TensorPart ones = Filled({3, 1}, 1);
    EXPECT_THAT(own_.Why(".input_args.0", {ones}, nullptr, &ones),
                HasSubstr("inside of experts"));
    EXPECT_THAT(Why(".output.0", Filled({3}, 1), Filled({4}, 0.5)),
                HasSubstr("inside of experts"));
  }

  OwnValues own_;
};

TEST_F(OwnValuesTest, WhatIsMadeOfThemIsTheirs) {
  TakeOtherWeights();
  own_.Begin("Tensor.mul.0.forward", kMoe);
  EXPECT_THAT(Why(".input_args.0", Filled({3, 2}, 7), Filled({3, 2}, 8)),
              IsEmpty());
  // Sorted by a call that is not recorded.
  EXPECT_THAT(Why(".input_args.1", Filled({3}, 1), Filled({3}, 0.5)),
              HasSubstr("computed"));
  EXPECT_THAT(Why(".output.0", Filled({3, 2}, 7), Filled({3, 2}, 8)),
              HasSubstr("computed"));
  // Their gradients are local, but not that of the other factor.
  own_.Begin("Tensor.mul.0.backward", "Module.moe.Experts.backward.0");
  EXPECT_THAT(Why(".input.0", Filled({3, 2}, 7), Filled({3, 2}, 8)),
              HasSubstr("computed"));
  EXPECT_THAT(Why(".output.0", Filled({3, 2}, 7), Filled({3, 2}, 8)),
              IsEmpty());
  EXPECT_THAT(Why(".output.1", Filled({3}, 7), Filled({3}, 8)),
              HasSubstr("computed"));
}

TEST_F(OwnValuesTest, OtherExpertsAndOtherModulesHaveTheirOwn) {
  TakeOtherWeights();
  own_.Begin("Tensor.mul.0.forward", "Module.next.Experts.forward.0");
  EXPECT_THAT(Why(".input_args.0", Filled({3}, 1), Filled({3}, 0.5)),
              IsEmpty());
  TakeOtherWeights();
  own_.Begin("Tensor.mul.0.forward", "");
  EXPECT_THAT(Why(".input_args.0", Filled({3}, 1), Filled({3}, 0.5)),
              IsEmpty());
  EXPECT_THAT(own_.Why(".input_args.1", {Filled({3}, 1)}, nullptr, nullptr),
              IsEmpty());
  EXPECT_THAT(own_.WhyNumber(".input_args.2", false), IsEmpty());
}

TEST_F(OwnValuesTest, WholeNumbersCountExpertsAndTokens) {
  const auto ids = [](double value) {
    return Filled({4}, value, "torch.int64");
  };
  own_.Begin("Tensor.index_select.0.forward", kMoe);
  EXPECT_THAT(Why(".input_args.0", Filled({4, 2}, 7), Filled({4, 2}, 7)),
              IsEmpty());
  EXPECT_THAT(Why(".input_args.1", ids(1), ids(3)), HasSubstr("counts"));
  EXPECT_THAT(own_.WhyNumber(".input_args.2", true), IsEmpty());
  EXPECT_THAT(own_.WhyNumber(".input_args.3", false), HasSubstr("counts"));
  // These values select tokens, so different ones are a difference.
  EXPECT_THAT(Why(".output.0", Filled({4, 2}, 7), Filled({4, 2}, 8)),
              IsEmpty());
  // Equal numbers are compared.
  own_.Begin("Tensor.div.0.forward", kMoe);
  EXPECT_THAT(Why(".input_args.0", ids(3), ids(3)), IsEmpty());
  // The only inputs were numbers of experts.
  own_.Begin("Tensor.float.0.forward", kMoe);
  EXPECT_THAT(Why(".input_args.0", ids(1), ids(3)), HasSubstr("counts"));
  EXPECT_THAT(Why(".output.0", Filled({4}, 1), Filled({4}, 3)),
              HasSubstr("computed"));
}

TEST_F(OwnValuesTest, OfAWeightIsKnownWhereItLies) {
  TakeOtherWeights();
  own_.Begin("Tensor.mul.0.forward", kMoe);
  TensorPart weight = Filled({3}, 1);
  weight.mesh = DeviceMesh{{2}, {0, 1}};
  EXPECT_THAT(Why(".input_args.0", weight, Filled({3}, 0.5)), IsEmpty());
}

}  // namespace
}  // namespace rankprobe::analysis
