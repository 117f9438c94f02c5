// SPDX-License-Identifier: Apache-2.0
// Rules over ranks and replicas: each on a run that has its fault, and on its
// sound twin.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "analysis/rules/rank_rule.h"
#include "analysis/rules/testing/ranks_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe::analysis {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

// Linear layers that are no blocks, one micro batch, no cross entropy, no clipping:
// rules on these say nothing, and are not said to be kept.
TEST_F(RankRulesTest, ARuleWithoutItsSubjectHasNotJudged) {
  std::vector<std::string> idle, busy;
  for (const auto& rule : AllRankRules()) {
    if (!rule->CanJudge(input_)) continue;
    EXPECT_THAT(rule->Look(input_), IsEmpty()) << rule->name();
    (rule->has_judged() ? busy : idle).emplace_back(rule->name());
  }
  EXPECT_THAT(
      idle,
      UnorderedElementsAre(
          "micro-batches-lost", "clip-uneven", "clip-norm", "tied-weights-part",
          "frozen-moves", "average-inverted", "parts-not-scaled",
          "follower-parts", "micro-batches-scaled", "layer-gives-zeros",
          "update-undone", "part-not-sent", "output-constant",
          "gradients-vanish", "input-rescaled", "evaluation-input"));
  EXPECT_THAT(busy, IsSupersetOf({"gradients-not-zeroed", "gradient-rounded",
                                  "weight-after-forward", "gradient-stale",
                                  "gradient-not-mean"}));
}

TEST_F(RankRulesTest, ASoundRunKeepsThem) { EXPECT_THAT(Find(""), IsEmpty()); }

TEST_F(OneRankTest, ASoundRunKeepsThem) { EXPECT_THAT(Find(""), IsEmpty()); }

TEST_F(RankRulesTest, ReplicasHoldTheSameParameters) {
  EXPECT_THAT(ReplicasOf(input_), ElementsAre(ElementsAre(0, 1)));
  At(1, OfParameter(Weight(2), "param"), 0).norm = 9;
  EXPECT_THAT(ReplicasOf(input_), ElementsAre(ElementsAre(0), ElementsAre(1)));
}

TEST_F(FourRanksTest, ABufferAndAGradientThatPart) {
  for (size_t r = 0; r < 4; ++r) {
    for (size_t i = 0; i < kRankSteps; ++i)
      At(r, "Buffer.router.bias.0.debug.buffer", i) = Cell(0.1, 0.01);
  }
  EXPECT_THAT(Find(""), IsEmpty());
  At(2, "Buffer.router.bias.0.debug.buffer", 7).mean = 0.02;
  auto found = Find("buffer-parts");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 7);
  EXPECT_EQ(found[0].rank, 2);
  At(2, "Buffer.router.bias.0.debug.buffer", 7).mean = 0.01;
  At(3, OfParameter(Weight(1), "grad"), 9).norm *= 1.0001;
  found = Find("reduced-gradient-parts");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].rank, 3);
}

TEST_F(FourRanksTest, ABufferThatEachRankUpdatesAlone) {
  const auto fill = [&](const std::string& name, auto norm_of) {
    for (size_t r = 0; r < 4; ++r) {
      for (size_t i = 0; i < kRankSteps; ++i)
        At(r, name, i) = Cell(norm_of(r, i), 0.01);
    }
  };
  const auto own = [](size_t r, size_t i) { return 2 + 0.1 * Noise(r, i); };
  fill("Buffer.norm.mean.0.debug.buffer", own);
  const auto found = Find("buffer-parts");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_THAT(found[0].what, HasSubstr("each has its own"));
  // A part of each rank that stays; the same on all; sent in each forward.
  fill("Buffer.norm.mean.0.debug.buffer",
       [](size_t r, size_t) { return 2 + 0.1 * static_cast<double>(r); });
  EXPECT_THAT(Find(""), IsEmpty());
  fill("Buffer.norm.mean.0.debug.buffer",
       [&](size_t, size_t i) { return own(0, i); });
  fill("Buffer.module.norm.mean.0.debug.buffer", own);
  fill("Buffer.norm.running_var.0.debug.buffer", own);
  EXPECT_THAT(Find(""), IsEmpty());
}

// The others differ by what the first one did to the weights before them.
TEST_F(FourRanksTest, TheLargestOfTheDeviationsOfAStepIsNamed) {
  for (size_t layer = 0; layer < kLayers; ++layer)
    At(3, OfParameter(Weight(layer), "grad"), 9).norm *= 1 + 1e-10;
  At(3, OfParameter(Weight(2), "grad"), 9).norm *= 1.006;
  const auto found = Find("reduced-gradient-parts");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].name, "Parameter.l2.weight.0.debug.grad");
  EXPECT_EQ(found[0].rank, 3);
  EXPECT_EQ(found[0].others, kLayers - 1);
  EXPECT_THAT(found[0].what, HasSubstr(" on rank 3"));
}

TEST_F(RankRulesTest, GradientsThatAreNotReduced) {
  const auto part = [&] {
    for (size_t layer = 0; layer < kLayers; ++layer) {
      for (size_t i = 0; i < kRankSteps; ++i)
        At(1, OfParameter(Weight(layer), "grad"), i) = At(1, Own(layer), i);
    }
  };
  part();
  bool found = false;
  for (const auto& rule : AllRankRules()) {
    if (rule->name() != "gradients-not-reduced") continue;
    found = true;
    EXPECT_THAT(rule->Look(input_), SizeIs(1));
    // Shards of what begins as one number are the same in the first step.
    for (size_t layer = 0; layer < kLayers; ++layer) {
      for (size_t r = 0; r < 2; ++r) {
        for (size_t i = 0; i < kRankSteps; ++i) {
          RankCell& held = At(r, OfParameter(Weight(layer), "param"), i);
          held.largest = held.smallest = 1;
        }
      }
    }
    EXPECT_THAT(rule->Look(input_), IsEmpty());
  }
  EXPECT_TRUE(found);
}

// One that DistributedDataParallel was told to ignore.
TEST_F(RankRulesTest, AParameterThatIsLeftOutOfTheReduction) {
  const auto look = [&]() -> std::vector<RankFinding> {
    for (const auto& rule : AllRankRules()) {
      if (rule->name() == "gradients-not-reduced") return rule->Look(input_);
    }
    return {};
  };
  for (size_t i = 0; i < kRankSteps; ++i)
    At(1, OfParameter(Weight(2), "grad"), i) = At(1, Own(2), i);
  EXPECT_THAT(look(), IsEmpty()) << "the weights stay the same";
  for (size_t i = 1; i < kRankSteps; ++i)
    At(1, OfParameter(Weight(2), "param"), i).norm += 0.01;
  const auto found = look();
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 0);
  EXPECT_EQ(found[0].name, "Parameter.l2.weight.0.debug.grad");
  EXPECT_THAT(found[0].what, HasSubstr("of 1 of 5 parameters: those of the "
                                       "others are; these parameters are left "
                                       "out of the reduction"));
  // In one step alone it is another fault.
  At(1, OfParameter(Weight(2), "grad"), 5) =
      At(0, OfParameter(Weight(2), "grad"), 5);
  EXPECT_THAT(look(), IsEmpty());
}

TEST_F(RankRulesTest, ARankThatClipsByItselfIsNamed) {
  for (size_t layer = 0; layer < kLayers; ++layer) {
    for (size_t i = 0; i < kRankSteps; ++i)
      At(1, OfParameter(Weight(layer), "grad"), i).norm *= 0.25;
  }
  bool found = false;
  for (const auto& rule : AllRankRules()) {
    if (rule->name() != "gradients-not-reduced") continue;
    const auto findings = rule->Look(input_);
    ASSERT_THAT(findings, SizeIs(1));
    EXPECT_EQ(findings[0].step, 0);
    EXPECT_THAT(
        findings[0].what,
        HasSubstr("those of rank 1 are 0.25 times those of rank 0: they "
                  "are reduced, and a rank clips or scales its own"));
    found = true;
  }
  EXPECT_TRUE(found);
}

TEST_F(RankRulesTest, ReplicasThatWereNeverAlike) {
  for (size_t layer = 0; layer < kLayers; ++layer) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      RankCell& held = At(1, OfParameter(Weight(layer), "param"), i);
      held.norm += 0.1;
      At(1,
         absl::StrCat("Module.l", layer, ".Linear.forward.0.parameters.weight"),
         i) = held;
    }
  }
  EXPECT_THAT(Find("replicas-never-alike"), SizeIs(1));
}

TEST_F(OneRankTest, AWeightThatChangesBehindTheForward) {
  At(0, OfParameter(Weight(4), "param"), 6).norm += 0.1;
  const auto found = Find("weight-after-forward");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 6);
}

TEST_F(OneRankTest, APerturbationThatIsNotTakenBack) {
  for (size_t i = 0; i < kRankSteps; ++i) {
    Training(0, "fresh_optimizers.0", i, 0);
    Training(0, "fresh_optimizers.1", i, 1);
    RankCell& held = At(0, OfParameter(Weight(4), "param"), i);
    At(0, "Module.l4.Linear.forward.1.parameters.weight", i) = held;
    At(0, Own(4, 1), i) = At(0, Own(4), i);
    At(0, "Module.l4.Linear.forward.0.parameters.weight", i).norm -= 0.1;
  }
  auto found = Find("perturbation-kept");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_EQ(found[0].name, OfParameter(Weight(4), "param"));
  // A second optimizer moves it between the forwards.
  for (size_t i = 0; i < kRankSteps; ++i)
    Training(0, "fresh_optimizers.1", i, 2);
  EXPECT_THAT(Find(""), IsEmpty());
  for (size_t i = 0; i < kRankSteps; ++i) {
    Training(0, "fresh_optimizers.1", i, 1);
    At(0, OfParameter(Weight(4), "param"), i) =
        At(0, "Module.l4.Linear.forward.0.parameters.weight", i);
  }
  EXPECT_THAT(Find(""), IsEmpty()) << "it is taken back";
}

TEST_F(RankRulesTest, APartThatItsOwnerDoesNotSend) {
  for (size_t layer = 0; layer < kLayers; ++layer) {
    for (const char* what : {"param", "grad"})
      input_.ranks[layer % 2].values.erase(OfParameter(Weight(layer), what));
  }
  const auto sent = [&] {
    for (const auto& rule : AllRankRules()) {
      if (rule->name() == "part-not-sent" && rule->CanJudge(input_))
        return rule->Look(input_);
    }
    return std::vector<RankFinding>();
  };
  EXPECT_THAT(sent(), IsEmpty());
  const std::string used = "Module.l4.Linear.forward.0.parameters.weight";
  for (size_t i = 3; i < kRankSteps; ++i) At(0, used, i) = At(0, used, 2);
  const auto found = sent();
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 3);
  EXPECT_EQ(found[0].rank, 1);
  EXPECT_EQ(found[0].name, used);
  EXPECT_TRUE(found[0].exact);
  At(0, used, kRankSteps - 1) = At(1, used, kRankSteps - 1);
  EXPECT_THAT(sent(), IsEmpty()) << "sent in the end";
}

// The weights are those of an average there, and are put back for the training.
TEST_F(OneRankTest, AnEvaluationWithOtherWeightsInTheStep) {
  for (size_t layer = 0; layer < kLayers; ++layer) {
    const auto forward = [&](size_t call) -> RankCell& {
      return At(0,
                absl::StrCat("Module.l", layer, ".Linear.forward.", call,
                             ".parameters.weight"),
                6);
    };
    forward(1) = forward(0);
    forward(0).norm += 0.1;
  }
  EXPECT_THAT(Find(""), IsEmpty());
}

TEST_F(OneRankTest, TiedWeightsThatPart) {
  for (size_t i = 0; i < kRankSteps; ++i) {
    const RankCell tied = At(0, OfParameter(Weight(0), "param"), i);
    At(0, OfParameter("embed.weight", "param"), i) = tied;
    At(0, "Module.embed.Embedding.forward.0.parameters.weight", i) = tied;
  }
  EXPECT_THAT(Find(""), IsEmpty());
  for (size_t i = 5; i < kRankSteps; ++i) {
    At(0, OfParameter("embed.weight", "param"), i).norm += 0.01;
    At(0, "Module.embed.Embedding.forward.0.parameters.weight", i).norm += 0.01;
  }
  const auto found = Find("tied-weights-part");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 5);
  EXPECT_TRUE(found[0].exact);
}

// A program may begin with a copy on purpose.
TEST_F(OneRankTest, CopiesThatPartInTheirFirstStepAreNoFault) {
  for (size_t i = 0; i < kRankSteps; ++i) {
    RankCell other = At(0, OfParameter(Weight(0), "param"), i);
    if (i > 0) other.norm += 0.01;
    At(0, OfParameter("embed.weight", "param"), i) = other;
    At(0, "Module.embed.Embedding.forward.0.parameters.weight", i) = other;
  }
  const auto found = Find("tied-weights-part");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
}

TEST_F(FourRanksTest, AnAllReduceThatIsWrongOnOneRank) {
  const std::string in = "Distributed.all_reduce.0.forward.input.0";
  const std::string out = "Distributed.all_reduce.0.forward.output.0";
  for (size_t i = 0; i < kRankSteps; ++i) {
    double sum = 0;
    for (size_t r = 0; r < 4; ++r) {
      At(r, in, i) = Cell(1, 0.02 * Noise(r, i) + 0.1);
      sum += At(r, in, i).mean;
    }
    for (size_t r = 0; r < 4; ++r) At(r, out, i) = Cell(2, sum);
  }
  EXPECT_THAT(Find(""), IsEmpty());
  // A message that changed on its way, for all.
  for (size_t r = 0; r < 4; ++r) At(r, out, 11).mean += 0.01;
  auto found = Find("all-reduce-wrong");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 11);
  for (size_t r = 0; r < 4; ++r) At(r, out, 11).mean -= 0.01;
  for (size_t i = 3; i < kRankSteps; ++i) At(2, out, i).mean *= 0.75;
  found = Find("all-reduce-wrong");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].rank, 2);
  EXPECT_EQ(found[0].step, 3);
}

TEST_F(RankRulesTest, ARankThatLeavesOutAStepOfTheOptimizer) {
  for (size_t i = 0; i < kRankSteps; ++i) {
    for (size_t r = 0; r < 2; ++r) {
      if (i != 6 || r == 0) {
        Training(r, "loss", i, 2 + 0.1 * static_cast<double>(r + i));
        continue;
      }
      for (size_t k = 0; k < 2; ++k)
        Training(r, absl::StrCat("loss.", k), i, 2);
    }
  }
  // One more micro batch, and the same reduced gradient.
  EXPECT_THAT(Find(""), IsEmpty());
  std::vector<RankFinding> found;
  for (size_t layer = 0; layer < kLayers; ++layer)
    At(1, OfParameter(Weight(layer), "grad"), 6).norm += 0.1;
  for (const auto& rule : AllRankRules()) {
    if (rule->name() == "optimizer-step-skipped") found = rule->Look(input_);
  }
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 6);
  EXPECT_EQ(found[0].rank, 1);
  EXPECT_THAT(found[0].what, HasSubstr("rank 1 calls backward() 2 times"));
}

TEST_F(FourRanksTest, RanksThatTrainOnOneBatch) {
  const auto lose = [&](double of_rank) {
    for (size_t r = 0; r < 4; ++r) {
      for (size_t i = 0; i < kRankSteps; ++i)
        Training(r, "loss", i,
                 3 - 0.1 * static_cast<double>(i) +
                     of_rank * static_cast<double>(r));
    }
  };
  lose(0);
  EXPECT_THAT(Find(""), IsEmpty());
  for (size_t layer = 0; layer < kLayers; ++layer) {
    for (size_t r = 1; r < 4; ++r)
      input_.ranks[r].values[Own(layer)] = input_.ranks[0].values[Own(layer)];
  }
  Reduce([](size_t, size_t) { return 1.0; });
  const auto found = Find("same-batch-on-ranks");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_THAT(found[0].what, HasSubstr("ranks 0, 1, 2, 3 have"));
  // Gradients that were recorded after their reduction.
  lose(0.01);
  EXPECT_THAT(Find(""), IsEmpty());
}

}  // namespace
}  // namespace rankprobe::analysis
