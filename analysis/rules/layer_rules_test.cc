// SPDX-License-Identifier: Apache-2.0
// Rules of what layers take and give, of targets that a loss does not know, and
// of ranks that reduce in different orders, with and without their fault.
#include <cmath>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "analysis/rules/rank_rule.h"
#include "analysis/rules/testing/ranks_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe::analysis {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(OneRankTest, ANormalizationOfOneNumber) {
  const auto norm = [&](double weight, double input) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      At(0, "Module.n.GroupNorm.forward.0.input.0", i) =
          Cell(input, input / 50 * Noise(i, 1));
      for (const char* one : {"n.weight", "n.bias"})
        At(0, OfParameter(one, "param"), i) = Cell(3 + 0.1 * Noise(i, 2), 0.1);
      At(0, OfParameter("n.weight", "grad"), i) = Cell(weight, 0);
      At(0, OfParameter("n.bias", "grad"), i) = Cell(0.5, 0.01 * Noise(i, 3));
    }
  };
  norm(0.01, 20);
  EXPECT_THAT(Find(""), IsEmpty());
  norm(1e-6, 20);
  const auto found = Find("output-constant");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_TRUE(found[0].exact);
  EXPECT_EQ(found[0].name, "Module.n.GroupNorm.forward.0.output.0");
  // It takes zeros; one step has a gradient.
  norm(0, 0);
  EXPECT_THAT(Find("output-constant"), IsEmpty());
  norm(0, 20);
  At(0, OfParameter("n.weight", "grad"), 9) = Cell(0.2, 0);
  EXPECT_THAT(Find("output-constant"), IsEmpty());
}

TEST_F(OneRankTest, ALayerThatGivesZeros) {
  const std::string given = "Module.l.lora_b.Linear.forward.0.output.0";
  for (size_t i = 0; i < kRankSteps; ++i) At(0, given, i) = Cell(0, 0);
  const auto found = Find("layer-gives-zeros");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_EQ(found[0].name, given);
  EXPECT_THAT(found[0].what, HasSubstr("l.lora_b gives zeros"));
  // It is trained, or gives zeros at first.
  At(0, given, 9) = Cell(0.1, 0);
  EXPECT_THAT(Find("layer-gives-zeros"), IsEmpty());
  At(0, given, 9) = Cell(0, 0);
  for (const char* what : {"param", "grad"}) {
    for (size_t i = 0; i < kRankSteps; ++i)
      At(0, OfParameter("l.lora_b.weight", what), i) = Cell(0.1, 0);
  }
  EXPECT_THAT(Find("layer-gives-zeros"), IsEmpty());
}

TEST_F(OneRankTest, GradientsThatVanish) {
  const auto layers = [&](const std::function<double(size_t)>& power) {
    for (size_t layer = 0; layer < 9; ++layer) {
      for (size_t i = 0; i < kRankSteps; ++i) {
        At(0, OfParameter(absl::StrCat("d.", layer, ".weight"), "grad"), i) =
            Cell(std::pow(10, power(layer)) * (2 + Noise(layer, i)), 0);
        At(0, OfParameter(absl::StrCat("d.", layer, ".weight"), "param"), i) =
            Cell(2, 0.1 + 0.01 * Noise(layer, i));
      }
    }
  };
  const auto at = [](size_t layer) { return static_cast<double>(layer) - 8; };
  layers([&](size_t layer) { return at(layer) / 4; });
  EXPECT_THAT(Find("gradients-vanish"), IsEmpty());
  // Small at once, as behind a LayerScale.
  layers([](size_t layer) { return layer < 5 ? -7 : 0; });
  EXPECT_THAT(Find("gradients-vanish"), IsEmpty());
  layers(at);
  const auto found = Find("gradients-vanish");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_THAT(found[0].name, HasSubstr("d.0.weight"));
  // Not in the same order in each step.
  for (size_t i = 0; i < kRankSteps; i += 2) {
    for (const size_t layer : {0, 2, 4, 6})
      std::swap(
          At(0, OfParameter(absl::StrCat("d.", layer, ".weight"), "grad"), i),
          At(0, OfParameter(absl::StrCat("d.", layer + 1, ".weight"), "grad"),
             i));
  }
  EXPECT_THAT(Find("gradients-vanish"), IsEmpty());
}

TEST_F(OneRankTest, DataThatAreRescaled) {
  constexpr char kInput[] = "Module.l0.Linear.forward.0.input.0";
  const auto feed = [&](const std::function<double(size_t)>& scale) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      const double size = scale(i) * (2 + Noise(i, 5));
      At(0, kInput, i) = {true, size, 0, size, -size};
    }
  };
  feed([](size_t) { return 1; });
  EXPECT_THAT(Find(""), IsEmpty());
  for (const double factor : {1 / 255., 255.}) {
    feed([&](size_t i) { return i < 6 ? 1 : factor; });
    const auto found = Find("input-rescaled");
    ASSERT_THAT(found, SizeIs(1));
    EXPECT_FALSE(found[0].exact);
    EXPECT_EQ(found[0].step, 6);
    EXPECT_EQ(found[0].name, kInput);
  }
  // Little by little; it returns; a layer makes it.
  feed([](size_t i) { return std::pow(0.7, static_cast<double>(i)); });
  EXPECT_THAT(Find(""), IsEmpty());
  feed([](size_t i) { return i > 6 && i < 12 ? 1 / 255. : 1; });
  EXPECT_THAT(Find(""), IsEmpty());
  feed([](size_t i) { return i < 6 ? 1 : 1 / 255.; });
  At(0, "Module.l0.Linear.backward.0.output.0", 0) = Cell(1, 0);
  EXPECT_THAT(Find("input-rescaled"), IsEmpty());
}

TEST_F(OneRankTest, AnEvaluationOfOtherData) {
  const std::string conv = "Module.conv.Conv2d.";
  const auto feed = [&](double low, double high, bool is_linear) {
    for (const bool is_judged : {false, true}) {
      const std::string layer = is_linear ? "Module.l0.Linear." : conv;
      for (size_t i = 0; i < kRankSteps; ++i) {
        const double mean =
            (is_judged ? (low + high) / 2 : 0) + 0.01 * Noise(i, 4);
        At(0, absl::StrCat(layer, "forward.", is_judged ? 1 : 0, ".input.0"),
           i) = {true, 9, mean, is_judged ? high : 2.1, is_judged ? low : -2.2};
        At(0, layer + "backward.0.input.0", i) = Cell(1, 0.1 * Noise(i, 2));
        At(0, layer + "parameters_grad.0.weight", i) =
            Cell(1, 0.1 * Noise(i, 3));
      }
    }
  };
  feed(0, 1, false);
  auto found = Find("evaluation-input");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_EQ(found[0].name, conv + "forward.1.input.0");
  feed(0, 255, false);
  EXPECT_THAT(Find("evaluation-input"), SizeIs(1));
  // Means or ranges that agree.
  feed(-1, 1, false);
  EXPECT_THAT(Find(""), IsEmpty());
  feed(-1, 2.1, false);
  EXPECT_THAT(Find(""), IsEmpty());
  // A part of a range that was set aside, and data that are not normalized.
  feed(1.5, 2.2, true);
  EXPECT_THAT(Find(""), IsEmpty());
  feed(0, 90, true);
  EXPECT_THAT(Find("evaluation-input"), SizeIs(1));
}

TEST_F(OneRankTest, ARecomputationThatDiffers) {
  const auto recompute = [&](double norm, bool is_ended) {
    for (const size_t call : {0, 1}) {
      for (size_t i = 0; i < kRankSteps; ++i) {
        const auto at = [&](const std::string& module,
                            const std::string& what) -> RankCell& {
          return At(
              0, absl::StrCat("Module.b.", module, ".forward.", call, what), i);
        };
        at("Block", ".input.0") = Cell(3, 0.1 * Noise(i, 1));
        at("Block", ".output.0") = Cell(4, 0.1 * Noise(i, 2));
        at("Block", ".output.0").is_there = call == 0 || !is_ended;
        at("drop.Dropout", ".input.0") = Cell(2, 0.1 * Noise(i, 3));
        at("drop.Dropout", ".output.0") =
            Cell(call == 0 ? 5 : norm, 0.1 * Noise(i, 4));
      }
    }
  };
  recompute(5.1, true);
  const auto found = Find("recomputation-differs");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_TRUE(found[0].exact);
  EXPECT_EQ(found[0].name, "Module.b.drop.Dropout.forward.1.output.0");
  // It is the same but for rounding; a second forward with an output.
  recompute(5.00001, true);
  EXPECT_THAT(Find(""), IsEmpty());
  recompute(5.1, false);
  EXPECT_THAT(Find(""), IsEmpty());
  // One that gives a dict, or is trained.
  for (const char* const own :
       {"forward.1.output.logits", "backward.1.input.0"}) {
    recompute(5.1, true);
    for (size_t i = 0; i < kRankSteps; ++i)
      At(0, absl::StrCat("Module.b.Block.", own), i) = Cell(4, 0.1);
    EXPECT_THAT(Find("recomputation-differs"), IsEmpty());
    input_.ranks[0].values.erase(absl::StrCat("Module.b.Block.", own));
  }
}

TEST_F(OneRankTest, TargetsThatALossDoesNotKnow) {
  for (size_t i = 0; i < kRankSteps; ++i)
    Training(0, "loss", i, 3 - 0.1 * static_cast<double>(i));
  const char* const said[] = {"", "binary cross entropy", "expects -1 and 1",
                              "the blank"};
  for (const size_t kind : {0, 1, 2, 3}) {
    Training(0, "undefined_targets", 1, static_cast<double>(kind));
    const auto found = Find("target-unreachable");
    ASSERT_THAT(found, SizeIs(kind == 0 ? 0 : 1));
    if (kind == 0) continue;
    EXPECT_EQ(found[0].exact, kind != 2);
    EXPECT_THAT(found[0].what, HasSubstr(said[kind]));
  }
}

TEST_F(OneRankTest, BatchesOfOneClass) {
  // The class of a step; below 0: several.
  const auto feed = [&](const std::function<int(size_t)>& one,
                        double targets = 32) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      Training(0, "loss_tokens", i, targets);
      Training(0, "one_class", i, one(i) < 0 ? 0 : 1);
      Training(0, "target_checksum", i,
               one(i) < 0 ? 500 + static_cast<double>(i) : 100. + one(i));
    }
  };
  const auto sorted = [](size_t i) {
    return i % 4 == 3 ? -1 : static_cast<int>(i / 4);
  };
  feed(sorted);
  const auto found = Find("batches-of-one-class");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_THAT(found[0].what, HasSubstr("12 of 16"));
  // Shuffled; one class in all steps; in turns; few targets.
  feed([](size_t i) { return i == 5 ? 2 : -1; });
  EXPECT_THAT(Find(""), IsEmpty());
  feed([](size_t) { return 0; });
  EXPECT_THAT(Find("batches-of-one-class"), IsEmpty());
  feed([](size_t i) { return static_cast<int>(7 * i % 11); });
  EXPECT_THAT(Find("batches-of-one-class"), IsEmpty());
  feed(sorted, 4);
  EXPECT_THAT(Find("batches-of-one-class"), IsEmpty());
}

TEST_F(RankRulesTest, RanksReduceInDifferentOrders) {
  const auto exchange = [&](bool tied) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      const RankCell first = At(0, OfParameter(Weight(1), "grad"), i);
      At(1, OfParameter(Weight(1), "grad"), i) =
          At(0, OfParameter(Weight(2), "grad"), i);
      At(1, OfParameter(Weight(2), "grad"), i) = first;
      if (!tied) continue;
      for (const size_t r : {0, 1})
        At(r, OfParameter(Weight(1), "param"), i) =
            At(r, OfParameter(Weight(2), "param"), i);
    }
  };
  const auto find = [&] {
    for (const auto& rule : AllRankRules()) {
      if (rule->name() == "gradients-mismatched") return rule->Look(input_);
    }
    return std::vector<RankFinding>();
  };
  EXPECT_THAT(find(), IsEmpty());
  exchange(false);
  const auto found = find();
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_TRUE(found[0].exact);
  EXPECT_EQ(found[0].rank, 1);
  EXPECT_THAT(found[0].what, HasSubstr("l2.weight"));
  exchange(true);
  EXPECT_THAT(find(), IsEmpty());
}

TEST_F(RankRulesTest, SomeGradientsAreSumsAndOthersNot) {
  // What is reduced is the sum; the others are the same on the ranks.
  const auto fill = [&](size_t reduced, size_t rounded_away) {
    for (size_t layer = 0; layer < kLayers; ++layer) {
      for (size_t i = 0; i < kRankSteps; ++i) {
        RankCell own = OwnGradient(layer, i, 0);
        // Too small for a factor, in one step.
        own.mean = (layer >= rounded_away && i == 12 ? 1e-5 : 0.02) * own.norm;
        for (const size_t r : {0, 1}) {
          At(r, Own(layer), i) = own;
          At(r, OfParameter(Weight(layer), "grad"), i) =
              Cell(own.norm, own.mean * (layer < reduced ? 2 : 1));
        }
      }
    }
  };
  const auto find = [&] {
    for (const auto& rule : AllRankRules()) {
      if (rule->name() == "gradient-not-mean") return rule->Look(input_);
    }
    return std::vector<RankFinding>();
  };
  fill(2, 4);
  EXPECT_THAT(find(), IsEmpty());
  fill(2, 3);
  EXPECT_THAT(find(), IsEmpty());
}

TEST_F(OneRankTest, ARateThatFallsInJumps) {
  for (size_t i = 0; i < kRankSteps; ++i)
    Training(0, "lr", i, std::pow(1e-3, static_cast<double>(i / 4)));
  const auto found = Find("schedule-ends-early");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].what, HasSubstr("ReduceLROnPlateau"));
}

}  // namespace
}  // namespace rankprobe::analysis
