// SPDX-License-Identifier: Apache-2.0
// Rules on objectives, modes and updates: each on a run that has its fault, and
// on its sound twin.
#include <cmath>

#include "analysis/rules/rank_rule.h"
#include "analysis/rules/testing/rank_input_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe::analysis {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr size_t kNumberOfSteps = 12;

class ObjectiveRulesTest : public RankInputFixture {
 protected:
  explicit ObjectiveRulesTest(size_t ranks = 1)
      : RankInputFixture(kNumberOfSteps, ranks) {
    Each("loss", 2);
  }
  void Each(const std::string& name, double value) {
    for (size_t i = 0; i < kNumberOfSteps; ++i) Training(0, name, i, value);
  }
  // No rule but `name` finds anything.
  std::vector<RankFinding> Find(absl::string_view name) const {
    std::vector<RankFinding> out;
    for (const auto& rule : AllRankRules()) {
      if (!rule->CanJudge(input_)) continue;
      std::vector<RankFinding> found = rule->Look(input_);
      EXPECT_TRUE(found.empty() || rule->has_judged()) << rule->name();
      if (rule->name() == name) {
        out = std::move(found);
      } else if (rule->name() != "loss-constant") {
        EXPECT_THAT(found, IsEmpty()) << rule->name();
      }
    }
    return out;
  }
  // The only finding of `name`.
  RankFinding One(absl::string_view name) const {
    const std::vector<RankFinding> found = Find(name);
    EXPECT_THAT(found, SizeIs(1));
    return found.empty() ? RankFinding() : found[0];
  }
};

TEST_F(ObjectiveRulesTest, TermsWithTheWrongSign) {
  Training(0, "inverted_term", 1, 0);
  EXPECT_THAT(Find("term-inverted"), IsEmpty());
  for (const auto& [kind, text] :
       {std::pair(1., "a divergence grows"), std::pair(2., "entropy")}) {
    Training(0, "inverted_term", 1, kind);
    const RankFinding found = One("term-inverted");
    EXPECT_EQ(found.step, 1);
    EXPECT_FALSE(found.exact);
    EXPECT_THAT(found.what, HasSubstr(text));
  }
}

TEST_F(ObjectiveRulesTest, PairsThatAreNormalizedOverTheSamples) {
  Training(0, "pair_targets", 1, 3);
  const RankFinding found = One("pair-targets");
  EXPECT_THAT(found.what, HasSubstr("F.normalize(dim=0)"));
}

class TwoRanksOfPairsTest : public ObjectiveRulesTest {
 protected:
  TwoRanksOfPairsTest() : ObjectiveRulesTest(2) {}
};

TEST_F(TwoRanksOfPairsTest, LabelsWithoutTheRanksPlace) {
  const auto train = [&](double other_labels, double lowest) {
    for (size_t r = 0; r < 2; ++r) {
      for (size_t i = 0; i < kNumberOfSteps; ++i) {
        Training(r, "loss_tokens", i, 16);
        Training(r, "guessing_loss", i, std::log(32));
        Training(r, "target_checksum", i, r == 0 ? 77 : other_labels);
        Training(r, "loss", i,
                 r == 0 ? 3 - 0.1 * static_cast<double>(i)
                        : lowest + 0.01 * static_cast<double>(i));
      }
    }
  };
  train(77, 4);
  const RankFinding found = One("labels-of-one-rank");
  EXPECT_TRUE(found.exact);
  EXPECT_EQ(found.rank, 1);
  // Labels of its own; its features come first; samples of one rank.
  train(78, 4);
  EXPECT_THAT(Find("labels-of-one-rank"), IsEmpty());
  train(77, 2);
  EXPECT_THAT(Find("labels-of-one-rank"), IsEmpty());
  train(77, 4);
  for (size_t i = 0; i < kNumberOfSteps; ++i)
    Training(0, "guessing_loss", i, std::log(16));
  EXPECT_THAT(Find("labels-of-one-rank"), IsEmpty());
}

TEST_F(ObjectiveRulesTest, CastsOfEarlierWeights) {
  Training(0, "stale_casts.0", 1, 0);
  Training(0, "stale_casts.1", 1, 8);
  EXPECT_THAT(Find("cast-stale"), IsEmpty());
  Training(0, "stale_casts.0", 1, 8);
  const RankFinding found = One("cast-stale");
  EXPECT_TRUE(found.exact);
  EXPECT_THAT(found.what, HasSubstr("8 of 8 layers"));
}

TEST_F(ObjectiveRulesTest, ScaleOfImages) {
  const auto images = [&](double least, double most, double are_integers) {
    Training(0, "image_range.0", 0, least);
    Training(0, "image_range.1", 0, most);
    Training(0, "image_range.2", 0, are_integers);
    return Find("input-scale");
  };
  EXPECT_THAT(images(0, 1, 0), IsEmpty());
  EXPECT_THAT(images(0, 1, 1), IsEmpty()) << "black and white";
  EXPECT_THAT(images(-2.1, 2.6, 0), IsEmpty());
  EXPECT_THAT(images(-123, 151, 1), IsEmpty()) << "less a mean";
  EXPECT_THAT(images(0, 20, 1), IsEmpty()) << "classes";
  EXPECT_THAT(images(0, 250.5, 0), IsEmpty());
  EXPECT_THAT(images(0, 1e-4, 0), IsEmpty());
  auto found = images(0, 255, 1);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].what, HasSubstr("not divided by 255"));
  found = images(0, 1 / 255., 0);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_THAT(found[0].what, HasSubstr("twice"));
}

TEST_F(ObjectiveRulesTest, HooksOfEachStep) {
  Each("hooks", 0);
  EXPECT_THAT(Find("hooks-grow"), IsEmpty());
  Each("hooks", 3);
  EXPECT_THAT(Find("hooks-grow"), IsEmpty());
  for (size_t i = 4; i < kNumberOfSteps; ++i)
    Training(0, "hooks", i, static_cast<double>(i));
  const RankFinding found = One("hooks-grow");
  EXPECT_EQ(found.step, 3);
  EXPECT_THAT(found.what, HasSubstr("11 in the last"));
  Training(0, "hooks", 8, 3);
  EXPECT_THAT(Find("hooks-grow"), IsEmpty()) << "removed once";
}

TEST_F(ObjectiveRulesTest, AnAverageWithoutStatistics) {
  const std::string weight =
      "Module.average.bn.BatchNorm2d.forward.0.parameters.weight";
  for (size_t i = 0; i < kNumberOfSteps; ++i) {
    Training(0, "unlearned_norms.0", i, 2);
    Training(0, "unlearned_norms.1", i, 2);
  }
  const auto at = [&](size_t step, double norm) {
    At(0, weight, step) = RankCell{true, norm, 1, 1, 1};
  };
  EXPECT_THAT(Find("statistics-left"), IsEmpty()) << "no forward uses it";
  at(5, 3);
  at(10, 3);
  EXPECT_THAT(Find("statistics-left"), IsEmpty()) << "its weights stay";
  at(10, 3.1);
  const RankFinding found = One("statistics-left");
  EXPECT_FALSE(found.exact);
  EXPECT_EQ(found.name, "Module.average.bn.BatchNorm2d.forward.0.output.0");
  EXPECT_THAT(found.what, HasSubstr("2 BatchNorms"));
  Training(0, "unlearned_norms.0", kNumberOfSteps - 1, 0);
  EXPECT_THAT(Find("statistics-left"), IsEmpty()) << "copied in the end";
}

TEST_F(ObjectiveRulesTest, UpdatesThatAreRoundedAway) {
  const auto rounded = [&](double share) {
    for (size_t i = 0; i < kNumberOfSteps; ++i) {
      Training(0, "rounded_updates.0", i, share * 1000);
      Training(0, "rounded_updates.1", i, 1000);
    }
    return Find("updates-rounded");
  };
  Each("lr", 0);
  EXPECT_THAT(rounded(1), IsEmpty()) << "a learning rate of 0";
  Each("lr", 1e-5);
  EXPECT_THAT(rounded(0.5), IsEmpty());
  const auto found = rounded(0.9);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_THAT(found[0].what, HasSubstr("90 % of the numbers"));
}

TEST_F(ObjectiveRulesTest, APartnerThatIsInTheQueue) {
  Training(0, "pair_targets", 1, 4);
  const RankFinding found = One("pair-targets");
  EXPECT_FALSE(found.exact);
  EXPECT_THAT(found.what, HasSubstr("after the loss"));
}

TEST_F(ObjectiveRulesTest, LogitsOfADropout) {
  Training(0, "loss_of_probabilities", 2, 9);
  const RankFinding found = One("loss-of-probabilities");
  EXPECT_FALSE(found.exact);
  EXPECT_THAT(found.what, HasSubstr("dropout"));
}

TEST_F(ObjectiveRulesTest, AllIndicesOfEachSample) {
  Training(0, "loss_broadcast.0", 1, 4);
  Training(0, "loss_broadcast.1", 1, 32);
  const RankFinding found = One("loss-broadcast");
  EXPECT_TRUE(found.exact);
  EXPECT_THAT(found.what, HasSubstr("[:, index]"));
}

TEST_F(ObjectiveRulesTest, AMaskBehindTheSoftmax) {
  for (const auto& [name, value] :
       {std::pair("attention_sees.0", 0.), std::pair("attention_sees.1", 0.),
        std::pair("attention_sees.2", 2.), std::pair("masks_behind.0", 0.),
        std::pair("masks_behind.1", 2.)})
    Each(name, value);
  EXPECT_THAT(Find("attention-sees-future"), IsEmpty());
  Training(0, "masks_behind.0", 1, 2);
  const RankFinding found = One("attention-sees-future");
  EXPECT_EQ(found.step, 1);
  EXPECT_THAT(found.what, HasSubstr("in 2 of 2"));
}

TEST_F(ObjectiveRulesTest, AMaskOfOnePartForAllParts) {
  Training(0, "repeated_masks.0", 1, 0);
  Training(0, "repeated_masks.1", 1, 2);
  EXPECT_THAT(Find("attention-sees-future"), IsEmpty());
  Training(0, "repeated_masks.0", 1, 2);
  const RankFinding found = One("attention-sees-future");
  EXPECT_FALSE(found.exact);
  EXPECT_THAT(found.what, HasSubstr("in 2 of 2"));
}

TEST_F(ObjectiveRulesTest, LayersInBothDirections) {
  Training(0, "layers_ahead.0", 1, 0);
  Training(0, "layers_ahead.1", 1, 4);
  EXPECT_THAT(Find("attention-sees-future"), IsEmpty());
  Training(0, "layers_ahead.0", 1, 2);
  const RankFinding found = One("attention-sees-future");
  EXPECT_TRUE(found.exact);
  EXPECT_THAT(found.what, HasSubstr("in 2 of 4 recurrent"));
}

TEST_F(ObjectiveRulesTest, AWarmUpThatIsZero) {
  for (const auto& [zero, findings] :
       {std::pair<size_t, size_t>{1, 0}, {8, 1}, {kNumberOfSteps, 0}}) {
    for (size_t i = 0; i < kNumberOfSteps; ++i)
      Training(0, "lr", i, i < zero ? 0 : 0.1);
    EXPECT_THAT(Find("learning-rate-zero"), SizeIs(findings)) << zero;
  }
}

}  // namespace
}  // namespace rankprobe::analysis
