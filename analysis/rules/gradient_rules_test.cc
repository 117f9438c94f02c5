// SPDX-License-Identifier: Apache-2.0
// Rules on gradients, clipping and micro batches: each on a run that has its
// fault, and on its sound twin.
#include <cmath>
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

// A loss with weights is the second model, and the first one is clipped.
TEST_F(OneRankTest, AModelThatIsNotClipped) {
  Reduce([](size_t layer, size_t) { return layer == 3 ? 1.0 : 0.5; });
  const auto rename = [&](size_t layer, const std::string& model) {
    const std::string parameter = absl::StrCat(model, ".weight");
    for (const char* const what : {"param", "grad"}) {
      auto node =
          input_.ranks[0].values.extract(OfParameter(Weight(layer), what));
      node.key() = OfParameter(parameter, what);
      input_.ranks[0].values.insert(std::move(node));
    }
    for (const char* const what : {"parameters_grad", "forward.0.parameters"}) {
      const std::string middle = absl::StrCat(
          ".Linear.", what, what[0] == 'p' ? ".0.weight" : ".weight");
      auto node = input_.ranks[0].values.extract(
          absl::StrCat("Module.l", layer, middle));
      node.key() = absl::StrCat("Module.", model, middle);
      input_.ranks[0].values.insert(std::move(node));
    }
  };
  for (const size_t layer : {0, 1, 2, 4})
    rename(layer, absl::StrCat("0.l", layer));
  rename(3, "1");
  EXPECT_THAT(Find(""), IsEmpty());
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
  Reduce([](size_t, size_t) { return 4.0; });
  ASSERT_THAT(Find("gradient-multiple"), SizeIs(1));
  EXPECT_THAT(Find("gradient-multiple")[0].what,
              HasSubstr("multiplied by the number of ranks"));
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

}  // namespace
}  // namespace rankprobe::analysis
