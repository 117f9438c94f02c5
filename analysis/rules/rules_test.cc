// SPDX-License-Identifier: Apache-2.0

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "analysis/rules/parameter_tree.h"
#include "analysis/rules/rule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe::analysis {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr size_t kSteps = 20;

// Two ranks, four layers with a weight: own and reduced gradients, parameters
// and updates.
class RulesTest : public ::testing::Test {
 protected:
  RulesTest() {
    for (size_t i = 0; i < kSteps; ++i) {
      norms_.steps.push_back(static_cast<int64_t>(i));
    }
    for (int layer = 0; layer < 4; ++layer) {
      const std::string weight = absl::StrCat("l", layer, ".weight.0.debug.");
      const std::string own =
          absl::StrCat("Module.l", layer, ".Linear.parameters_grad.0.weight");
      Add(&norms_, own, 1.1, 0.9);
      Add(&norms_, absl::StrCat("Parameter.", weight, "grad"), 1, 1);
      Add(&norms_, absl::StrCat("Parameter.", weight, "param"), 3, 3);
      Add(&norms_, absl::StrCat("Update.", weight, "update"), 0.1, 0.1);
    }
  }
  static void Add(ScanInput* input, const std::string& name, double largest,
                  double smallest) {
    ScanSeries series;
    series.name = name;
    for (size_t i = 0; i < kSteps; ++i)
      series.cells.push_back({largest, smallest, 2, 0, 0, 1});
    input->values.push_back(std::move(series));
  }
  ScanCell& At(ScanInput* input, const std::string& name, size_t step) {
    for (ScanSeries& series : input->values) {
      if (series.name == name) return series.cells[step];
    }
    ADD_FAILURE() << name;
    return input->values[0].cells[0];
  }
  std::vector<RuleFinding> Find(absl::string_view name) {
    const RuleInput input = {&norms_};
    std::vector<RuleFinding> all;
    for (const auto& rule : AllRules()) {
      EXPECT_TRUE(rule->CanJudge(input)) << rule->name();
      const std::vector<RuleFinding> found = rule->Look(input);
      if (rule->name() == name) {
        all = found;
      } else {
        EXPECT_THAT(found, IsEmpty()) << rule->name();
      }
    }
    return all;
  }
  ScanInput norms_;
};

TEST_F(RulesTest, ASoundRunKeepsThem) { EXPECT_THAT(Find(""), IsEmpty()); }

TEST_F(RulesTest, AParameterThatTheOptimizerDoesNotOwn) {
  for (size_t i = 0; i < kSteps; ++i) {
    At(&norms_, "Parameter.l2.weight.0.debug.grad", i).count = 0;
    At(&norms_, "Update.l2.weight.0.debug.update", i) = {0, 0, 2, 0, 0, 1};
  }
  const auto found = Find("update-zero");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].name, "Parameter.l2.weight.0.debug.param");
  EXPECT_EQ(found[0].step, 0);
}

TEST_F(RulesTest, AnOptimizerOfFewParametersIsOnlyWorthALook) {
  for (const char* const parameter : {"l1", "l2", "l3"}) {
    const std::string weight = absl::StrCat(parameter, ".weight.0.debug.");
    for (size_t i = 0; i < kSteps; ++i) {
      At(&norms_, absl::StrCat("Parameter.", weight, "grad"), i).count = 0;
      At(&norms_, absl::StrCat("Update.", weight, "update"), i).count = 0;
    }
  }
  const auto found = Find("update-zero");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_EQ(found[0].others, 2);
}

TEST_F(RulesTest, AnOptimizerOfTheHeadAloneIsSound) {
  const auto train = [&](const std::string& last) {
    norms_.values.clear();
    for (const std::string& layer :
         {std::string("l0"), std::string("l1"), last})
      Add(&norms_, absl::StrCat("Module.", layer, ".L.parameters_grad.0.w"), 1,
          1);
    Add(&norms_, absl::StrCat("Parameter.", last, ".w.0.debug.grad"), 1, 1);
    Add(&norms_, absl::StrCat("Update.", last, ".w.0.debug.update"), 1, 1);
  };
  train("l3");
  EXPECT_THAT(Find("update-zero"), SizeIs(1));
  train("head");
  EXPECT_THAT(Find("update-zero"), IsEmpty());
}

TEST(ParameterTreeTest, WhatIsEndOfModelOfAModel) {
  EXPECT_TRUE(IsEndOfModel({"classifier.6.weight", "classifier.6.bias"},
                           {"features.0.weight", "classifier.3.weight"}));
  EXPECT_TRUE(IsEndOfModel({"m.layers.10.up", "m.layers.11.up", "lm_head.w"},
                           {"m.embed.w", "m.layers.2.up", "m.layers.9.up"}));
  // Others are behind them, beside them, or in them.
  EXPECT_FALSE(IsEndOfModel({"layers.0.up"}, {"layers.1.up", "layers.2.up"}));
  EXPECT_FALSE(IsEndOfModel({"encoder.w"}, {"decoder.up.w", "decoder.down.w"}));
  EXPECT_FALSE(
      IsEndOfModel({"blocks.1.bias"}, {"blocks.0.bias", "blocks.1.w"}));
}

// A run has such steps after a change of its configuration.
TEST_F(RulesTest, StepsWithoutAnOptimizerSayNothingOfIt) {
  // The parameters of another program, recorded for too few steps to be judged.
  for (int layer = 4; layer < 20; ++layer) {
    const std::string own =
        absl::StrCat("Module.l", layer, ".Linear.parameters_grad.0.weight");
    Add(&norms_, own, 1, 1);
    for (size_t i = 2; i < kSteps; ++i) At(&norms_, own, i).count = 0;
  }
  ScanInput as_recorded = norms_;
  // The task that records no optimizer, in all steps.
  for (ScanSeries& series : norms_.values) {
    if (absl::StartsWith(series.name, "Module.")) continue;
    for (ScanCell& cell : series.cells) cell.count = 0;
  }
  EXPECT_THAT(Find("update-zero"), IsEmpty());
  // In some steps; one layer is of no optimizer, and has its gradient alone.
  norms_ = std::move(as_recorded);
  for (ScanSeries& series : norms_.values) {
    if (absl::StartsWith(series.name, "Module.")) continue;
    const bool is_left = absl::StrContains(series.name, ".l2.");
    if (is_left) series.cells.clear();
    for (size_t i = 0; i < series.cells.size(); i += 2)
      series.cells[i].count = 0;
  }
  const auto found = Find("update-zero");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].name, "Module.l2.Linear.parameters_grad.0.weight");
  EXPECT_EQ(found[0].step, 1);
  EXPECT_THAT(found[0].what, HasSubstr("in each of 10 steps"));
  EXPECT_EQ(found[0].others, 0);
}

// It is seen in the first step, where all its tensors are without a gradient.
TEST_F(RulesTest, AnOptimizerOfOtherTensorsAlone) {
  Add(&norms_, "Training.0.debug.loss", 2, 2);
  for (ScanSeries& series : norms_.values) {
    if (absl::EndsWith(series.name, ".grad"))
      for (ScanCell& cell : series.cells) cell.count = 0;
    if (!absl::StartsWith(series.name, "Update.")) continue;
    for (ScanCell& cell : series.cells) cell = ScanCell();
    series.cells[0] = {0, 0, 2, 0, 0, 1};
  }
  for (ScanSeries& series : norms_.values) {
    if (!absl::EndsWith(series.name, ".param")) continue;
    for (size_t i = 1; i < kSteps; ++i) series.cells[i].count = 0;
  }
  const auto found = Find("update-zero");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_TRUE(found[0].exact);
  EXPECT_THAT(found[0].what, HasSubstr("in each of 20 steps"));
}

TEST_F(RulesTest, AGroupWithoutALearningRateIsNotSaidToBeForeign) {
  Add(&norms_, "Training.0.debug.lr.0", 0.1, 0.1);
  Add(&norms_, "Training.0.debug.lr.1", 0, 0);
  Add(&norms_, "Module.l2.Linear.forward.0.parameters.weight", 3, 3);
  for (size_t i = 0; i < kSteps; ++i)
    At(&norms_, "Update.l2.weight.0.debug.update", i) = {0, 0, 2, 0, 0, 1};
  // The update of the last step is not known yet.
  At(&norms_, "Update.l2.weight.0.debug.update", kSteps - 1).count = 0;
  const auto found = Find("update-zero");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_THAT(found[0].what,
              HasSubstr("the learning rate of parameter group 1 is 0"));
}

TEST_F(RulesTest, FrozenLayersAndWarmUpsAreSound) {
  for (size_t i = 0; i < kSteps; ++i) {
    At(&norms_, "Module.l2.Linear.parameters_grad.0.weight", i) = {0, 0, 2,
                                                                   0, 0, 1};
    At(&norms_, "Update.l2.weight.0.debug.update", i) = {0, 0, 2, 0, 0, 1};
  }
  At(&norms_, "Update.l1.weight.0.debug.update", 0) = {0, 0, 2, 0, 0, 1};
  EXPECT_THAT(Find("update-zero"), IsEmpty());
}

TEST_F(RulesTest, ABiasBeforeANormalizationHasNoGradientButRounding) {
  for (size_t i = 0; i < kSteps; ++i) {
    At(&norms_, "Module.l2.Linear.parameters_grad.0.weight", i) = {
        7e-8, 5e-8, 2, 0, 0, 1};
    At(&norms_, "Update.l2.weight.0.debug.update", i) = {0, 0, 2, 0, 0, 1};
  }
  EXPECT_THAT(Find("update-zero"), IsEmpty());
}

TEST_F(RulesTest, ATiedWeightIsUpdatedByItsOtherName) {
  Add(&norms_, "Module.head.Linear.parameters_grad.0.weight", 1, 1);
  Add(&norms_, "Module.head.Linear.forward.0.parameters.weight", 4, 4);
  EXPECT_THAT(Find("update-zero"), SizeIs(1));
  Add(&norms_, "Parameter.embed.weight.0.debug.param", 4, 4);
  EXPECT_THAT(Find("update-zero"), IsEmpty());
  // An evaluation behind the last step of the optimizer.
  At(&norms_, "Parameter.embed.weight.0.debug.param", kSteps - 1).count = 0;
  EXPECT_THAT(Find("update-zero"), IsEmpty());
  At(&norms_, "Parameter.embed.weight.0.debug.param", 3).largest = 5;
  EXPECT_THAT(Find("update-zero"), SizeIs(1));
}

TEST_F(RulesTest, ATiedWeightThatASecondOptimizerHolds) {
  Add(&norms_, "Module.head.Linear.parameters_grad.0.weight", 1, 1);
  Add(&norms_, "Module.head.Linear.forward.0.parameters.weight", 4, 4);
  Add(&norms_, "Parameter.embed.weight.0.debug.param", 4, 4);
  for (size_t i = 0; i < kSteps; ++i) {
    const auto number = static_cast<double>(i);
    At(&norms_, "Module.head.Linear.forward.0.parameters.weight", i) = {
        4 + number, 4 + number, 2, 0, 0, 1};
    At(&norms_, "Parameter.embed.weight.0.debug.param", i) = {
        3 + number, 3 + number, 2, 0, 0, 1};
  }
  // The step of the first optimizer ends the step, in which nothing is held.
  EXPECT_THAT(Find("update-zero"), IsEmpty());
  At(&norms_, "Parameter.embed.weight.0.debug.param", 3).largest = 9;
  EXPECT_THAT(Find("update-zero"), SizeIs(1));
}

TEST_F(RulesTest, AGradientThatTheOptimizerFindsAsZero) {
  for (size_t i = 0; i < kSteps; ++i) {
    At(&norms_, "Update.l2.weight.0.debug.update", i) = {0, 0, 2, 0, 0, 1};
    At(&norms_, "Parameter.l2.weight.0.debug.grad", i) = {0, 0, 2, 0, 0, 1};
  }
  EXPECT_THAT(Find("update-zero"), IsEmpty());
}

}  // namespace
}  // namespace rankprobe::analysis
