// SPDX-License-Identifier: Apache-2.0
// Each rule on a run that has its fault, and on its sound twin.
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "analysis/rules/rank_rule.h"
#include "analysis/rules/testing/rank_input_fixture.h"
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

constexpr size_t kRankSteps = 16;
constexpr size_t kLayers = 5;

// A number of its own for each place, the same in each run.
double Noise(size_t a, size_t b, size_t c = 0) {
  return std::sin(static_cast<double>(12 * a + 7 * b * b + 131 * c + 1));
}
RankCell Cell(double norm, double mean) {
  return {true, norm, mean, norm / 3 + 1e-5 * mean, -norm / 3.1};
}
std::string Weight(size_t layer) { return absl::StrCat("l", layer, ".weight"); }
std::string OfParameter(const std::string& parameter, const char* what) {
  return absl::StrCat("Parameter.", parameter, ".0.debug.", what);
}
std::string Own(size_t layer, size_t micro = 0) {
  return absl::StrCat("Module.l", layer, ".Linear.parameters_grad.", micro,
                      ".weight");
}

class RankRulesTest : public RankInputFixture {
 protected:
  // Data parallel: equal parameters, gradients that are averaged.
  explicit RankRulesTest(size_t ranks = 2)
      : RankInputFixture(kRankSteps, ranks) {
    for (size_t r = 0; r < ranks; ++r) {
      RankSeries& rank = input_.ranks[r];
      for (size_t layer = 0; layer < kLayers; ++layer) {
        for (size_t i = 0; i < kRankSteps; ++i) {
          rank.values[OfParameter(Weight(layer), "param")].push_back(
              Cell(3 + 0.01 * Noise(layer, i), 0.1 * Noise(layer, 3)));
          rank.values[absl::StrCat("Module.l", layer,
                                   ".Linear.forward.0.parameters.weight")]
              .push_back(rank.values[OfParameter(Weight(layer), "param")][i]);
          rank.values[Own(layer)].push_back(OwnGradient(layer, i, r));
        }
      }
    }
    Reduce([](size_t, size_t) { return 1.0; });
  }
  static RankCell OwnGradient(size_t layer, size_t step, size_t rank) {
    return Cell(1 + 0.2 * Noise(layer, step, rank),
                0.02 * Noise(rank, step, layer) + 0.01);
  }
  // factor: of layer and step.
  void Reduce(const std::function<double(size_t, size_t)>& factor) {
    for (size_t layer = 0; layer < kLayers; ++layer) {
      for (size_t i = 0; i < kRankSteps; ++i) {
        double mean = 0, norm = 0;
        for (const RankSeries& rank : input_.ranks) {
          mean += rank.values.at(Own(layer))[i].mean /
                  static_cast<double>(input_.ranks.size());
          norm = std::max(norm, rank.values.at(Own(layer))[i].norm);
        }
        for (RankSeries& rank : input_.ranks) {
          std::vector<RankCell>& cells =
              rank.values[OfParameter(Weight(layer), "grad")];
          cells.resize(kRankSteps);
          cells[i] = Cell(norm * factor(layer, i), mean * factor(layer, i));
        }
      }
    }
  }
  // No rule but `name` finds anything.
  std::vector<RankFinding> Find(absl::string_view name) const {
    std::vector<RankFinding> out;
    for (const auto& rule : AllRankRules()) {
      EXPECT_FALSE(rule->needs().empty() || rule->cost().empty() ||
                   rule->twin().empty());
      if (!rule->CanJudge(input_)) continue;
      std::vector<RankFinding> found = rule->Look(input_);
      EXPECT_TRUE(found.empty() || rule->has_judged()) << rule->name();
      if (rule->name() == name) {
        out = std::move(found);
      } else {
        EXPECT_THAT(found, IsEmpty())
            << rule->name() << ": " << (found.empty() ? "" : found[0].what);
      }
    }
    return out;
  }
};

class OneRankTest : public RankRulesTest {
 protected:
  OneRankTest() : RankRulesTest(1) {}
};

class FourRanksTest : public RankRulesTest {
 protected:
  FourRanksTest() : RankRulesTest(4) {}
};

// Linear layers that are no blocks, one micro batch, no cross entropy, no clipping:
// rules on these say nothing, and are not said to be kept.
TEST_F(RankRulesTest, ARuleWithoutItsSubjectHasNotJudged) {
  std::vector<std::string> idle, busy;
  for (const auto& rule : AllRankRules()) {
    if (!rule->CanJudge(input_)) continue;
    EXPECT_THAT(rule->Look(input_), IsEmpty()) << rule->name();
    (rule->has_judged() ? busy : idle).emplace_back(rule->name());
  }
  EXPECT_THAT(idle, UnorderedElementsAre("micro-batches-lost", "clip-uneven",
                                         "clip-norm", "tied-weights-part",
                                         "frozen-moves", "average-inverted",
                                         "parts-not-scaled", "follower-parts",
                                         "micro-batches-scaled",
                                         "update-undone", "part-not-sent"));
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

TEST_F(RankRulesTest, OneRanksGradientIsTooLargeBeforeTheReduction) {
  for (size_t i = 8; i < kRankSteps; ++i) {
    for (size_t r = 0; r < 2; ++r)
      At(r, OfParameter(Weight(2), "grad"), i).mean +=
          0.01 * At(1, Own(2), i).mean / 2;
  }
  const auto found = Find("gradient-not-mean");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 8);
  EXPECT_EQ(found[0].rank, 1);
  EXPECT_EQ(found[0].name, "Parameter.l2.weight.0.debug.grad");
  EXPECT_THAT(found[0].what, HasSubstr("1.01 times"));
}

TEST_F(RankRulesTest, ClippingIsOneFactorForAll) {
  Reduce([](size_t, size_t step) { return 0.5 + 0.01 * Noise(step, 1); });
  EXPECT_THAT(Find(""), IsEmpty());
}

TEST_F(OneRankTest, ParametersThatTheClippingLeavesOut) {
  Reduce([](size_t layer, size_t) { return layer == 3 ? 1.0 : 0.5; });
  const auto found = Find("clip-uneven");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact) << "it may be meant";
  EXPECT_EQ(found[0].name, "Parameter.l3.weight.0.debug.grad");
}

// Layers 0 and 1 are sharded, the others copies: the norm of the model counts
// the copies once.
TEST_F(RankRulesTest, TheNormOfAClippingCountsCopiesTwice) {
  const auto clip = [&](double copies) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      double square = 0;
      for (size_t layer = 0; layer < kLayers; ++layer) {
        for (size_t r = 0; r < 2; ++r) {
          At(r, OfParameter(Weight(layer), "param"), i).norm =
              layer < 2 ? 3 + 0.1 * static_cast<double>(r) : 3;
          At(r,
             absl::StrCat("Module.l", layer,
                          ".Linear.forward.0.parameters.weight"),
             i) = At(r, OfParameter(Weight(layer), "param"), i);
          At(r, Own(layer), i) = OwnGradient(layer, i, layer < 2 ? r : 0);
          const double norm = At(r, Own(layer), i).norm;
          square += norm * norm * (layer < 2 ? 1 : copies / 2);
        }
      }
      const double factor = 0.1 / std::sqrt(square);
      for (size_t layer = 0; layer < kLayers; ++layer) {
        for (size_t r = 0; r < 2; ++r) {
          const RankCell& own = At(r, Own(layer), i);
          At(r, OfParameter(Weight(layer), "grad"), i) =
              Cell(own.norm * factor, own.mean * factor);
        }
      }
    }
  };
  clip(1);
  EXPECT_THAT(Find(""), IsEmpty());
  clip(2);
  const auto found = Find("clip-norm");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].what, HasSubstr("counts what the ranks hold copies of"));
  // Shards that begin alike, and the norm of all of them.
  for (size_t layer = 2; layer < kLayers; ++layer) {
    for (size_t i = 1; i < kRankSteps; ++i) {
      RankCell& held = At(1, OfParameter(Weight(layer), "param"), i);
      held.mean += 0.01;
      At(1,
         absl::StrCat("Module.l", layer, ".Linear.forward.0.parameters.weight"),
         i) = held;
    }
  }
  EXPECT_THAT(Find(""), IsEmpty());
}

TEST_F(OneRankTest, MicroBatchesThatAreLost) {
  const auto accumulate = [&](bool grows) {
    for (size_t layer = 0; layer < kLayers; ++layer) {
      for (size_t i = 0; i < kRankSteps; ++i) {
        for (size_t k = 0; k < 4; ++k) {
          const double size = grows ? std::sqrt(static_cast<double>(k + 1)) : 1;
          At(0, Own(layer, k), i) =
              Cell(size * (1 + 0.1 * Noise(layer, i, k)), 0.01);
        }
        At(0, OfParameter(Weight(layer), "grad"), i) = At(0, Own(layer, 3), i);
      }
    }
  };
  accumulate(true);
  EXPECT_THAT(Find(""), IsEmpty());
  accumulate(false);
  EXPECT_THAT(Find("micro-batches-lost"), SizeIs(1));
  // Losses of two kinds, as those of a discriminator.
  for (size_t i = 0; i < kRankSteps; ++i) {
    for (size_t k = 0; k < 4; ++k)
      Training(0, absl::StrCat("loss.", k), i,
               1 + 0.1 * static_cast<double>(k));
  }
  EXPECT_THAT(Find(""), IsEmpty());
  for (size_t i = 0; i < kRankSteps; ++i) {
    for (size_t k = 0; k < 4; ++k)
      Training(0, absl::StrCat("loss.", k), i, 1 + 0.1 * Noise(k, i));
  }
  EXPECT_THAT(Find("micro-batches-lost"), SizeIs(1));
  // A generator's parameters have one backward a step.
  for (size_t i = 0; i < kRankSteps; ++i)
    At(0, "Module.made.Linear.parameters_grad.0.weight", i) = Cell(1, 0.01);
  EXPECT_THAT(Find(""), IsEmpty());
}

TEST_F(OneRankTest, GradientsThatAreAddedUpIn16Bits) {
  for (size_t layer = 0; layer < kLayers; ++layer) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      At(0, Own(layer, 1), i) = At(0, Own(layer), i);
      RankCell& taken = At(0, OfParameter(Weight(layer), "grad"), i);
      taken = Cell(1.7, 0.02);
      taken.largest = std::floor(taken.largest * 256) / 256;
      taken.smallest = -0.25;
    }
  }
  const auto found = Find("gradient-rounded");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_TRUE(found[0].exact);
}

TEST_F(OneRankTest, GradientsThatAreNotSetToZero) {
  for (size_t layer = 0; layer < kLayers; ++layer) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      RankCell& own = At(0, Own(layer), i);
      if (i > 0) {
        const RankCell& before =
            At(0, OfParameter(Weight(layer), "grad"), i - 1);
        own = Cell(own.norm * 0.3 + before.norm, own.mean + before.mean);
      }
      At(0, OfParameter(Weight(layer), "grad"), i) = own;
    }
  }
  EXPECT_THAT(Find("gradients-not-zeroed"), SizeIs(1));
}

// Two optimizers: those of the generator of a GAN.
TEST_F(OneRankTest, GradientsOfOneModelThatAreNotSetToZero) {
  RankSeries& rank = input_.ranks[0];
  const auto add = [&](bool is_zeroed) {
    for (size_t layer = 0; layer < kLayers; ++layer) {
      std::vector<RankCell> cells;
      for (size_t i = 0; i < kRankSteps; ++i) {
        RankCell own = OwnGradient(layer, i, 1);
        if (i > 0 && !is_zeroed)
          own = Cell(own.norm * 0.3 + cells.back().norm,
                     own.mean + cells.back().mean);
        cells.push_back(own);
      }
      // The first step ends with the other optimizer, before this backward.
      cells[0] = RankCell();
      rank.values[absl::StrCat("Module.1.l", layer,
                               ".Linear.parameters_grad.0.weight")] = cells;
      rank.values[OfParameter(absl::StrCat("1.", Weight(layer)), "grad")] =
          cells;
    }
  };
  add(/*is_zeroed=*/true);
  EXPECT_THAT(Find(""), IsEmpty());
  add(/*is_zeroed=*/false);
  const auto found = Find("gradients-not-zeroed");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].name, "Parameter.1.l0.weight.0.debug.grad");
  EXPECT_THAT(found[0].what, HasSubstr("of 5 parameters, 1.*, each step's"));
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

TEST_F(OneRankTest, AMeanOfTheMeansOfMicroBatches) {
  const auto weigh = [&](bool by_all) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      for (size_t k = 0; k < 4; ++k) {
        const double tokens = 48.0 - 12.0 * static_cast<double>(k);
        Training(0, absl::StrCat("loss_tokens.", k), i, tokens);
        Training(0, absl::StrCat("loss.", k), i, 1);
        Training(0, absl::StrCat("token_weight.", k), i,
                 by_all ? 1.0 / 120 : 0.25 / tokens);
      }
    }
  };
  weigh(true);
  EXPECT_THAT(Find(""), IsEmpty());
  weigh(false);
  const auto found = Find("tokens-weigh-unequally");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].what, HasSubstr("48"));
  // One backward of four losses.
  for (size_t k = 0; k < 4; ++k)
    input_.ranks[0].values.erase(absl::StrCat("Training.0.debug.loss.", k));
  for (size_t i = 0; i < kRankSteps; ++i) Training(0, "loss", i, 4);
  EXPECT_THAT(Find(""), IsEmpty());
}

TEST_F(RankRulesTest, ASumOverRanksThatIsNotDivided) {
  for (size_t i = 0; i < kRankSteps; ++i) {
    for (size_t r = 0; r < 2; ++r) {
      Training(r, "loss_tokens", i, 48);
      Training(r, "token_weight", i, 1.0 / 48);
      Training(r, "loss", i, 1 + 0.1 * Noise(r, i));
    }
  }
  EXPECT_THAT(Find(""), IsEmpty());
  Reduce([](size_t, size_t) { return 2.0; });
  const auto found = Find("gradient-multiple");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_THAT(found[0].what, HasSubstr("not divided"));
}

class MicroBatchesTest : public OneRankTest {
 protected:
  // Two micro batches a step, of other targets each.
  void Weigh(double first, double second) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      for (size_t k = 0; k < 2; ++k) {
        Training(0, absl::StrCat("loss_tokens.", k), i, 48);
        Training(0, absl::StrCat("loss.", k), i, k == 0 ? first : second);
        Training(0, absl::StrCat("target_checksum.", k), i,
                 checksum_ + static_cast<double>(10 * i + k * apart_));
        Training(0, absl::StrCat("token_weight.", k), i,
                 (k == 0 ? first : second) / 48);
      }
    }
  }
  double checksum_ = 100;
  size_t apart_ = 1;
};

TEST_F(MicroBatchesTest, WhatClippingHides) {
  // Clipped in each step, and in every second one.
  for (const size_t every : {1UL, 2UL}) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      double square = 0;
      for (size_t layer = 0; layer < kLayers; ++layer) {
        const double norm = At(0, Own(layer), i).norm;
        square += norm * norm;
      }
      const double factor = i % every == 0 ? 1 / std::sqrt(square) : 1;
      for (size_t layer = 0; layer < kLayers; ++layer) {
        const RankCell own = i % every == 0
                                 ? At(0, Own(layer), i)
                                 : Cell(0.2 + 0.01 * Noise(layer, i), 0.02);
        At(0, Own(layer), i) = own;
        At(0, OfParameter(Weight(layer), "grad"), i) =
            Cell(own.norm * factor, own.mean * factor);
      }
    }
    Weigh(0.5, 0.5);
    EXPECT_THAT(Find(""), IsEmpty());
    Weigh(1, 1);
    const auto found = Find("gradient-multiple");
    ASSERT_THAT(found, SizeIs(1)) << every;
    EXPECT_FALSE(found[0].exact);
    EXPECT_THAT(found[0].what, HasSubstr("before the clipping"));
  }
}

TEST_F(MicroBatchesTest, OneThatWeighsMoreThanAnother) {
  Weigh(0.75, 0.25);
  EXPECT_THAT(Find("micro-batch-weights"), SizeIs(1));
  // Two losses of one batch.
  apart_ = 0;
  Weigh(0.75, 0.25);
  EXPECT_THAT(Find(""), IsEmpty());
}

TEST_F(OneRankTest, ClippingOfGradientsWithTheirScale) {
  const auto clip = [&](double factor_of_norm) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      const double scale = i < 8 ? 1024 : 2048;
      Training(0, "loss_scale", i, scale);
      double square = 0;
      for (size_t layer = 0; layer < kLayers; ++layer) {
        const RankCell own = OwnGradient(layer, i, 0);
        At(0, Own(layer), i) = Cell(own.norm * scale, own.mean * scale);
        square += own.norm * own.norm;
      }
      const double norm = factor_of_norm > 0 ? factor_of_norm : 1 / scale;
      for (size_t layer = 0; layer < kLayers; ++layer) {
        const RankCell own = OwnGradient(layer, i, 0);
        const double factor = norm / std::sqrt(square);
        At(0, OfParameter(Weight(layer), "grad"), i) =
            Cell(own.norm * factor, own.mean * factor);
      }
    }
  };
  clip(0.1);
  EXPECT_THAT(Find(""), IsEmpty());
  clip(0);
  const auto found = Find("clip-scaled");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_TRUE(found[0].exact);
}

TEST_F(OneRankTest, GradientsThatKeepTheirScale) {
  const auto fill = [&](double taken_scale) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      Training(0, "loss_scale", i, 1024);
      for (size_t layer = 0; layer < kLayers; ++layer) {
        const RankCell own = OwnGradient(layer, i, 0);
        At(0, Own(layer), i) = Cell(own.norm * 1024, own.mean * 1024);
        At(0, OfParameter(Weight(layer), "grad"), i) =
            Cell(own.norm * taken_scale, own.mean * taken_scale);
      }
    }
  };
  fill(1);
  EXPECT_THAT(Find(""), IsEmpty());
  fill(1024);
  const auto found = Find("gradient-scaled");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
}

TEST_F(OneRankTest, ASoftmaxOverAnotherDimension) {
  const auto set = [&](double wrong, double causal) {
    for (size_t i = 0; i < 3; ++i) {
      Training(0, "softmax_dims.0", i, wrong);
      Training(0, "softmax_dims.1", i, causal);
      Training(0, "softmax_dims.2", i, 4);
    }
  };
  set(0, 0);
  EXPECT_THAT(Find(""), IsEmpty());
  set(4, 4);
  auto found = Find("softmax-dimension");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_TRUE(found[0].exact);
  set(1, 0);
  found = Find("softmax-dimension");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
}

TEST_F(OneRankTest, InvertedSettings) {
  const auto set = [&](double p, double momentum) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      for (const char* const name : {"in_eval.0", "in_eval.2"})
        Training(0, name, i, 0);
      Training(0, "in_eval.1", i, 6);
      Training(0, "drop_probability", i, p);
      Training(0, "norm_momentum", i, momentum);
    }
  };
  set(0.5, 0.1);
  EXPECT_THAT(Find(""), IsEmpty());
  set(0.9, 0.1);
  auto found = Find("dropout-inverted");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_THAT(found[0].what, HasSubstr("p = 0.1"));
  set(0.5, 0.99);
  found = Find("momentum-inverted");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].what, HasSubstr("Is 0.01 meant"));
}

TEST_F(OneRankTest, AModelThatStaysInEvaluation) {
  const auto sleep = [&](size_t first, size_t end, double asleep, double root) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      const bool is = i >= first && i < end;
      Training(0, "in_eval.0", i, is ? asleep : 0);
      Training(0, "in_eval.1", i, 6);
      Training(0, "in_eval.2", i, is ? root : 0);
    }
  };
  sleep(0, 0, 0, 0);
  EXPECT_THAT(Find(""), IsEmpty());
  // A part that is frozen, and two steps.
  sleep(4, kRankSteps, 5, 0);
  EXPECT_THAT(Find(""), IsEmpty());
  sleep(4, kRankSteps, 6, 0);
  EXPECT_THAT(Find(""), IsEmpty());
  sleep(4, 6, 6, 1);
  EXPECT_THAT(Find(""), IsEmpty());
  sleep(4, 9, 6, 1);
  auto found = Find("model-in-eval");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 4);
  EXPECT_TRUE(found[0].exact);
  sleep(0, kRankSteps, 6, 1);
  found = Find("model-in-eval");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
}

// Blocks of two parameters, the second of which is in question.
class BlocksTest : public OneRankTest {
 protected:
  BlocksTest() {
    for (size_t layer = 0; layer < 4; ++layer) {
      Use(layer, "one", {"param", "grad"}, true);
      Use(layer, "two", {"param", "grad"}, true);
    }
  }
  static std::string Of(size_t layer, const std::string& part) {
    return absl::StrCat("blocks.", layer, ".", part, ".weight");
  }
  void Use(size_t layer, const std::string& part,
           const std::vector<const char*>& values, bool is_updated) {
    const RankCell cell = Cell(1, 0.1 + 0.01 * static_cast<double>(layer));
    const std::string parameter = Of(layer, part);
    const auto fill = [&](const std::string& name) {
      input_.ranks[0].values[name].assign(kRankSteps, cell);
    };
    for (const char* const all : {"param", "grad"})
      input_.ranks[0].values.erase(OfParameter(parameter, all));
    const std::string update =
        absl::StrCat("Update.", parameter, ".0.debug.update");
    input_.ranks[0].values.erase(update);
    fill(absl::StrCat("Module.blocks.", layer, ".", part,
                      ".Linear.forward.0.parameters.weight"));
    for (const char* const value : values) fill(OfParameter(parameter, value));
    if (is_updated) fill(update);
  }
};

TEST_F(BlocksTest, ABranchThatIsDetached) {
  EXPECT_THAT(Find(""), IsEmpty());
  Use(1, "two", {"param"}, true);
  auto found = Find("gradient-missing");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_TRUE(found[0].exact);
  EXPECT_EQ(found[0].name, "Parameter.blocks.1.two.weight.0.debug.param");
  // Nobody may use what the last block computes there.
  Use(1, "two", {"param", "grad"}, true);
  Use(3, "two", {"param"}, true);
  found = Find("gradient-missing");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  // Nobody takes the second of two tensors that it gives.
  for (size_t i = 0; i < kRankSteps; ++i)
    At(0, "Module.blocks.3.Block.forward.0.output.1", i) = Cell(2, 0.3);
  EXPECT_THAT(Find("gradient-missing"), IsEmpty());
  // In all blocks.
  for (size_t layer = 0; layer < 4; ++layer) Use(layer, "two", {"param"}, true);
  found = Find("gradient-missing");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_EQ(found[0].others, 3);
  // Most of what the optimizer holds, in all blocks; frozen blocks are no fault.
  for (size_t layer = 0; layer < 4; ++layer) Use(layer, "one", {"param"}, true);
  found = Find("gradient-missing");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_EQ(found[0].others, 7);
  EXPECT_THAT(found[0].what, HasSubstr("8 of the 13 parameters"));
  for (const char* const part : {"one", "two"})
    for (size_t layer = 0; layer < 4; ++layer) Use(layer, part, {}, false);
  EXPECT_THAT(Find(""), IsEmpty());
}

TEST_F(BlocksTest, AnEncoderThatIsDetached) {
  const auto fill = [&](const std::string& name, double mean) {
    for (size_t i = 0; i < kRankSteps; ++i)
      At(0, name, i) = Cell(2, mean + 0.1 * Noise(i, 5));
  };
  for (const char* const value : {"param", "update"}) {
    fill(absl::StrCat(value[0] == 'u' ? "Update." : "Parameter.",
                      "encoder.conv.weight.0.debug.", value),
         0.3);
  }
  fill("Module.encoder.conv.Conv2d.forward.0.parameters.weight", 0.3);
  fill("Module.encoder.act.ReLU.forward.0.output.0", 0.4);
  // Nobody takes what it makes.
  EXPECT_THAT(Find("gradient-missing"), IsEmpty());
  // In a later call, as a discriminator takes what a generator makes.
  fill("Module.blocks.0.one.Linear.forward.2.input.0", 0.4);
  const auto found = Find("gradient-missing");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_THAT(found[0].what, HasSubstr("no parameter of encoder has"));
}

TEST_F(BlocksTest, ABlockThatIsFrozen) {
  for (const char* const part : {"one", "two"}) Use(0, part, {}, false);
  EXPECT_THAT(Find(""), IsEmpty());
  for (const char* const part : {"one", "two"})
    Use(0, part, {"param", "grad"}, true);
  // Held by the optimizer, and not.
  Use(2, "one", {"param"}, false);
  Use(2, "two", {}, false);
  const auto found = Find("block-frozen");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_EQ(found[0].others, 1);
}

// x + two(norm(x)) in a block.
class ResidualTest : public OneRankTest {
 protected:
  ResidualTest() {
    for (size_t i = 0; i < kRankSteps; ++i) {
      const double x = 0.3 + 0.1 * Noise(i, 1), f = 0.2 + 0.1 * Noise(i, 2);
      Put("blocks.1.Block.forward.0.input.0", i, Cell(4, x));
      Put("blocks.1.norm.Norm.forward.0.input.0", i, Cell(4, x));
      Put("blocks.1.norm.Norm.forward.0.output.0", i, Cell(3, 0.01));
      Put("blocks.1.two.Linear.forward.0.input.0", i, Cell(3, 0.01));
      Put("blocks.1.two.Linear.forward.0.output.0", i, Cell(2, f));
      Put("blocks.1.Block.forward.0.output.0", i, Cell(5, x + f));
      Put("blocks.1.Block.backward.0.input.0", i, Cell(0.5, 0.02));
      Put("blocks.1.two.Linear.backward.0.input.0", i, Cell(0.5, 0.02));
      Put("blocks.1.norm.Norm.backward.0.output.0", i, Cell(0.1, 0.003));
      Put("blocks.1.Block.backward.0.output.0", i, Cell(0.55, 0.023));
    }
  }
  void Put(const std::string& name, size_t step, const RankCell& cell) {
    At(0, absl::StrCat("Module.", name), step) = cell;
  }
};

TEST_F(ResidualTest, OneThatIsDetached) {
  EXPECT_THAT(Find(""), IsEmpty());
  for (size_t i = 0; i < kRankSteps; ++i)
    Put("blocks.1.Block.backward.0.output.0", i, Cell(0.1, 0.003));
  const auto found = Find("residual-detached");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_TRUE(found[0].exact);
  EXPECT_EQ(found[0].name, "Module.blocks.1.norm.Norm.backward.0.output.0");
  // A layer without a residual.
  for (size_t i = 0; i < kRankSteps; ++i) {
    Put("blocks.1.Block.forward.0.output.0", i,
        Cell(5, 0.2 + 0.1 * Noise(i, 2)));
  }
  EXPECT_THAT(Find(""), IsEmpty());
}

TEST_F(ResidualTest, AShortcutThatIsAModule) {
  for (size_t i = 0; i < kRankSteps; ++i) {
    const RankCell x = At(0, "Module.blocks.1.Block.forward.0.input.0", i);
    const RankCell gradient =
        At(0, "Module.blocks.1.Block.backward.0.output.0", i);
    Put("blocks.1.shortcut.Identity.forward.0.input.0", i, x);
    Put("blocks.1.shortcut.Identity.forward.0.output.0", i, x);
    Put("blocks.1.shortcut.Identity.backward.0.output.0", i, gradient);
  }
  EXPECT_THAT(Find(""), IsEmpty());
}

TEST_F(ResidualTest, AModuleThatKeepsTheMeanOrHasAResidualOfItsOwn) {
  const RankCell gradient = Cell(0.7, 0.01);
  // The block's input goes into a pooling first, or into a wrapper that adds what a
  // module registered beside it makes of it.
  for (const bool wrapper : {false, true}) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      const RankCell x = At(0, "Module.blocks.1.Block.forward.0.input.0", i);
      const RankCell sum = At(0, "Module.blocks.1.Block.forward.0.output.0", i);
      Put("blocks.1.Block.backward.0.output.0", i, gradient);
      Put("blocks.1.first.First.backward.0.output.0", i, gradient);
      Put("blocks.1.first.First.forward.0.input.0", i, x);
      Put("blocks.1.first.First.forward.0.output.0", i,
          wrapper ? sum : Cell(8, x.mean));
    }
    EXPECT_THAT(Find(""), IsEmpty()) << wrapper;
  }
  // Neither: its gradient is all that the input has, and the block adds the input.
  for (size_t i = 0; i < kRankSteps; ++i)
    Put("blocks.1.first.First.forward.0.output.0", i, Cell(8, 0.9));
  EXPECT_THAT(Find("residual-detached"), SizeIs(1));
}

TEST_F(ResidualTest, ASequenceOfOneBlockPassesItsGradientOn) {
  for (const char* const value :
       {"forward.0.input.0", "forward.0.output.0", "backward.0.input.0",
        "backward.0.output.0"}) {
    input_.ranks[0].values[absl::StrCat("Module.blocks.Sequential.", value)] =
        input_.ranks[0].values[absl::StrCat("Module.blocks.1.Block.", value)];
  }
  EXPECT_THAT(Find(""), IsEmpty());
}

TEST_F(OneRankTest, LabelsThatAreShiftedTwice) {
  const auto shares = [&](double same, double next, double after) {
    for (size_t i = 0; i < 3; ++i) {
      Training(0, "target_is_input.0", i, same);
      Training(0, "target_is_input.1", i, next);
      Training(0, "target_is_input.2", i, after);
    }
  };
  shares(0.02, 1, 0.03);
  EXPECT_THAT(Find(""), IsEmpty());
  shares(0.02, 0.05, 0.03);
  EXPECT_THAT(Find(""), IsEmpty());
  shares(0.02, 0.05, 1);
  EXPECT_THAT(Find("label-shift"), SizeIs(1));
  shares(1, 0.05, 0.02);
  EXPECT_THAT(Find("label-shift"), SizeIs(1));
}

TEST_F(OneRankTest, AttentionThatSeesWhatItPredicts) {
  const auto see = [&](double one_ahead, double later, double next_tokens) {
    for (size_t i = 0; i < 3; ++i) {
      Training(0, "attention_sees.0", i, one_ahead);
      Training(0, "attention_sees.1", i, later);
      Training(0, "attention_sees.2", i, 4);
      Training(0, "target_is_input.0", i, 0.02);
      Training(0, "target_is_input.1", i, next_tokens);
      Training(0, "target_is_input.2", i, 0.03);
      Training(0, "target_is_input.3", i, 0);
    }
  };
  see(0, 0, 1);
  EXPECT_THAT(Find(""), IsEmpty());
  // An encoder, and one beside a decoder.
  see(0, 1, 0.02);
  EXPECT_THAT(Find(""), IsEmpty());
  see(0, 0.5, 1);
  EXPECT_THAT(Find(""), IsEmpty());
  see(0, 1, 1);
  auto found = Find("attention-sees-future");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_TRUE(found[0].exact);
  EXPECT_THAT(found[0].what, HasSubstr("all 4 attention calls"));
  see(0.25, 0, 0.02);
  found = Find("attention-sees-future");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].what, HasSubstr("in 1 of 4 attention calls"));
  // A mean over the tokens, in a model of other targets and in one of the next.
  for (size_t i = 0; i < 3; ++i) Training(0, "sequence_means", i, 5);
  see(0, 0, 0.02);
  EXPECT_THAT(Find(""), IsEmpty());
  see(0, 0, 1);
  found = Find("attention-sees-future");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_THAT(found[0].what, HasSubstr("over dim=1"));
}

TEST_F(OneRankTest, BatchesThatComeAgain) {
  const auto feed = [&](const std::function<size_t(size_t, size_t)>& batch,
                        size_t tokens = 48) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      Training(0, "guessing_loss", i, 3.9);
      for (size_t k = 0; k < 2; ++k) {
        const auto name = [&](absl::string_view what) {
          return absl::StrCat(what, ".", k);
        };
        Training(0, name("loss"), i, 1 + 0.1 * static_cast<double>(i));
        Training(0, name("loss_tokens"), i, static_cast<double>(tokens));
        Training(0, name("token_weight"), i, 0.1);
        Training(0, name("target_checksum"), i,
                 static_cast<double>(1000 + 7 * batch(i, k)));
      }
    }
  };
  feed([](size_t i, size_t k) { return 2 * i + k; });
  EXPECT_THAT(Find(""), IsEmpty());
  const auto sixth = [](size_t i, size_t k) {
    return 2 * (i == 6 ? 5 : i) + k;
  };
  feed(sixth);
  auto found = Find("batch-repeated");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 6);
  EXPECT_FALSE(found[0].exact);
  // So few targets may be the same by chance.
  feed(sixth, 4);
  EXPECT_THAT(Find(""), IsEmpty());
  // On purpose: one batch for all steps, each batch twice.
  feed([](size_t, size_t) { return 0; });
  EXPECT_THAT(Find(""), IsEmpty());
  feed([](size_t i, size_t k) { return 2 * (i / 2) + k; });
  EXPECT_THAT(Find(""), IsEmpty());
  feed([](size_t i, size_t) { return i; });
  found = Find("batch-repeated");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].what, HasSubstr("micro batches"));
  // Adversarial training: the second forward has other weights, or other data.
  const auto twice = [&](const std::string& what, double second) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      for (const size_t k : {0, 1}) {
        At(0, absl::StrCat("Module.e.Embedding.forward.", k, ".", what), i) =
            RankCell{true, k == 0 ? 3. : second, 0.1, 1, -1};
      }
    }
  };
  twice("input.0", 3);
  twice("parameters.weight", 3);
  EXPECT_THAT(Find("batch-repeated"), SizeIs(1));
  twice("parameters.weight", 3.5);
  EXPECT_THAT(Find("batch-repeated"), IsEmpty());
  twice("parameters.weight", 3);
  twice("input.0", 3.5);
  EXPECT_THAT(Find("batch-repeated"), IsEmpty());
}

TEST_F(OneRankTest, PositionsThatAreOneAfterRounding) {
  Training(0, "merged_positions.0", 1, 0);
  Training(0, "merged_positions.1", 1, 400);
  EXPECT_THAT(Find(""), IsEmpty());
  Training(0, "merged_positions.0", 2, 72);
  Training(0, "merged_positions.1", 2, 400);
  const auto found = Find("positions-merge");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 2);
  EXPECT_THAT(found[0].what, HasSubstr("72 of 400 positions"));
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

TEST_F(RankRulesTest, AParameterGroupThatStopsToLearn) {
  const auto learn = [&](size_t group, size_t first_zero, size_t end) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      const bool is_zero = i >= first_zero && i < end;
      for (size_t r = 0; r < 2; ++r)
        Training(r, absl::StrCat("lr.", group), i, is_zero ? 0 : 0.1);
    }
  };
  learn(0, kRankSteps, kRankSteps);
  learn(1, 6, kRankSteps);
  const auto found = Find("learning-rate-zero");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 6);
  EXPECT_EQ(found[0].name, "Training.0.debug.lr.1");
  EXPECT_FALSE(found[0].exact);
  EXPECT_EQ(found[0].others, 0);
  EXPECT_THAT(found[0].what, HasSubstr("group 0: 0.1"));
  // Frozen from the first step on, or for a time.
  learn(1, 0, kRankSteps);
  EXPECT_THAT(Find(""), IsEmpty());
  learn(1, 4, 8);
  EXPECT_THAT(Find(""), IsEmpty());
  // A schedule that ends for all.
  learn(0, kRankSteps - 1, kRankSteps);
  learn(1, kRankSteps - 3, kRankSteps);
  EXPECT_THAT(Find(""), IsEmpty());
}

TEST_F(OneRankTest, ALossThatIsWorseThanAGuess) {
  const auto lose = [&](double factor) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      Training(0, "loss", i, 3.9 * factor);
      Training(0, "guessing_loss", i, 3.9);
      Training(0, "loss_tokens", i, 48);
      Training(0, "token_weight", i, 1.0 / 48);
    }
  };
  lose(1.02);
  EXPECT_THAT(Find(""), IsEmpty());
  lose(1.5);
  EXPECT_THAT(Find("worse-than-guessing"), SizeIs(1));
  // Large logits at the beginning.
  Training(0, "loss", 0, 3.9 * 3);
  EXPECT_THAT(Find(""), IsEmpty());
}

}  // namespace
}  // namespace rankprobe::analysis
