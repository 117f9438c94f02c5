// SPDX-License-Identifier: Apache-2.0
// Rules of gradients, averages and schedules on a small training that is computed
// here, with and without their fault.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "analysis/rules/rank_rule.h"
#include "analysis/testing/rank_cells.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe::analysis {
namespace {

using testing::CellOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr size_t kOriginSteps = 16;
constexpr size_t kParameters = 6;
constexpr size_t kSize = 48;

using Vector = std::vector<float>;

// What happens to a rank's tensors, for a fault.
struct Tensors {
  std::vector<Vector> own, taken, average, weight;
};

class OriginRulesTest : public ::testing::Test {
 protected:
  // between: behind the reduction and before the optimizer's step, of each rank.
  using Between = std::function<void(size_t step, size_t rank, Tensors*)>;

  void Train(size_t ranks, const Between& between) {
    input_ = {};
    std::vector<Tensors> of_ranks(ranks);
    for (size_t i = 0; i < kOriginSteps; ++i)
      input_.steps.push_back(static_cast<int64_t>(i));
    for (size_t r = 0; r < ranks; ++r) {
      input_.ranks.emplace_back().rank = static_cast<int64_t>(r);
      for (size_t p = 0; p < kParameters; ++p) {
        of_ranks[r].weight.push_back(Noise(p, 99, 99));
        of_ranks[r].average.emplace_back(kSize, 0.F);
      }
      of_ranks[r].own = of_ranks[r].taken = of_ranks[r].average;
    }
    for (size_t i = 0; i < kOriginSteps; ++i) {
      for (size_t p = 0; p < kParameters; ++p) {
        Vector sum(kSize, 0.F);
        for (size_t r = 0; r < ranks; ++r) {
          Tensors& t = of_ranks[r];
          t.own[p] = Noise(p, i, r);
          for (size_t k = 0; k < kSize; ++k)
            sum[k] += t.own[p][k] / static_cast<float>(ranks);
        }
        for (Tensors& t : of_ranks) t.taken[p] = sum;
      }
      for (size_t r = 0; r < ranks; ++r) {
        Tensors& t = of_ranks[r];
        for (size_t p = 0; p < kParameters; ++p)
          Set(r, Used(p), i, CellOf(t.weight[p]));
        if (between) between(i, r, &t);
        for (size_t p = 0; p < kParameters; ++p) Step(r, i, p, &t);
      }
    }
  }
  void Training(const std::string& name, size_t step, double value) {
    for (size_t r = 0; r < input_.ranks.size(); ++r)
      Set(r, absl::StrCat("Training.0.debug.", name), step,
          {true, std::fabs(value), value, value, value});
  }
  void Set(size_t rank, const std::string& name, size_t step,
           const RankCell& cell) {
    std::vector<RankCell>& cells = input_.ranks[rank].values[name];
    cells.resize(kOriginSteps);
    cells[step] = cell;
  }
  // No other rule that is sure finds anything, but those that `beside` names.
  std::vector<RankFinding> Find(absl::string_view name,
                                absl::string_view beside = "") const {
    std::vector<RankFinding> out;
    for (const auto& rule : AllRankRules()) {
      if (!rule->CanJudge(input_)) continue;
      std::vector<RankFinding> found = rule->Look(input_);
      EXPECT_TRUE(found.empty() || rule->has_judged()) << rule->name();
      if (rule->name() == name) {
        out = std::move(found);
        continue;
      }
      for (const RankFinding& one : found) {
        EXPECT_TRUE(rule->name() == beside || !one.exact)
            << rule->name() << ": " << one.what;
      }
    }
    return out;
  }
  static Vector Noise(size_t a, size_t b, size_t c) {
    return testing::Noise<float>(a + 131 * (b + 257 * c), kSize);
  }
  RankInput input_;
  // A step in which the optimizer is not called.
  size_t left_out_ = kOriginSteps;
  // Of the gradient in the average.
  float factor_ = 0.1F;

 private:
  static std::string Used(size_t p) {
    return absl::StrCat("Module.l", p, ".Linear.forward.0.parameters.weight");
  }
  void Step(size_t r, size_t i, size_t p, Tensors* t) {
    const auto of = [&](const char* what) {
      return absl::StrCat("Parameter.l", p, ".weight.0.debug.", what);
    };
    Set(r, absl::StrCat("Module.l", p, ".Linear.parameters_grad.0.weight"), i,
        CellOf(t->own[p]));
    Set(r, of("grad"), i, CellOf(t->taken[p]));
    Set(r, of("param"), i, CellOf(t->weight[p]));
    if (i > 0) Set(r, of("exp_avg"), i, CellOf(t->average[p]));
    for (size_t k = 0; k < kSize && i != left_out_; ++k) {
      t->average[p][k] += factor_ * (t->taken[p][k] - t->average[p][k]);
      t->weight[p][k] -= 0.01F * t->average[p][k];
    }
  }
};

TEST_F(OriginRulesTest, ASoundTrainingKeepsThem) {
  for (const size_t ranks : {1, 2, 4}) {
    Train(ranks, nullptr);
    EXPECT_THAT(Find(""), IsEmpty());
    // Clipped in each step by another factor.
    Train(ranks, [](size_t step, size_t /*rank*/, Tensors* t) {
      for (Vector& taken : t->taken) {
        for (float& x : taken) x *= 1 / (1.F + static_cast<float>(step % 3));
      }
    });
    EXPECT_THAT(Find(""), IsEmpty());
  }
}

TEST_F(OriginRulesTest, TheAverageOfOneParameterIsRestored) {
  Vector kept;
  Train(2, [&](size_t step, size_t /*rank*/, Tensors* t) {
    if (step == 4) kept = t->average[3];
    if (step == 11) t->average[3] = kept;
  });
  const auto found = Find("state-not-continued");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 11);
  EXPECT_EQ(found[0].name, "Parameter.l3.weight.0.debug.exp_avg");
}

TEST_F(OriginRulesTest, AnOptimizerThatClipsHasNoLostState) {
  // In three steps the average takes a third of what is recorded.
  Train(1, nullptr);
  RankSeries& rank = input_.ranks[0];
  for (size_t p = 0; p < kParameters; ++p) {
    for (const size_t i : {3U, 7U, 8U}) {
      RankCell& grad = rank.values[absl::StrCat("Parameter.l", p,
                                                ".weight.0.debug.grad")][i];
      RankCell& own = rank.values[absl::StrCat(
          "Module.l", p, ".Linear.parameters_grad.0.weight")][i];
      for (RankCell* const cell : {&grad, &own}) {
        cell->mean *= 3;
        cell->norm *= 3;
      }
    }
  }
  EXPECT_THAT(Find("state-not-continued"), IsEmpty());
}

TEST_F(OriginRulesTest, AStepThatIsLeftOutLosesNoState) {
  left_out_ = 9;
  Train(2, nullptr);
  EXPECT_THAT(Find("state-not-continued"), IsEmpty());
}

TEST_F(OriginRulesTest, AFactorThatIsChangedIsNoLostStateForSure) {
  Train(2, [&](size_t step, size_t /*rank*/, Tensors*) {
    factor_ = step < 13 ? 0.1F : 0.2F;
  });
  for (const RankFinding& one : Find("state-not-continued"))
    EXPECT_FALSE(one.exact) << one.what;
  EXPECT_THAT(Find("state-not-continued"), SizeIs(1));
}

TEST_F(OriginRulesTest, TheGradientIsOfTheStepBefore) {
  std::vector<std::vector<Vector>> before(2);
  Train(2, [&](size_t step, size_t rank, Tensors* t) {
    std::vector<Vector> now = t->taken;
    if (step > 0) t->taken = before[rank];
    before[rank] = std::move(now);
  });
  const auto found = Find("gradient-stale");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 1);
  // A step that is numbered before the optimizer: the forward behind it has
  // another weight.
  for (RankSeries& rank : input_.ranks) {
    for (auto& [name, cells] : rank.values) {
      if (name.find(".forward.") == std::string::npos) continue;
      for (RankCell& cell : cells) cell.norm *= 1.01;
    }
  }
  EXPECT_THAT(Find("gradient-stale"), IsEmpty());
}

TEST_F(OriginRulesTest, AllTakeTheGradientOfOneRank) {
  std::vector<Vector> sent;
  Train(4, [&](size_t /*step*/, size_t rank, Tensors* t) {
    if (rank == 0) sent = t->own;
    t->taken = sent;
  });
  const auto found = Find("gradient-of-one-rank");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 0);
  EXPECT_EQ(found[0].rank, 0);
}

TEST_F(OriginRulesTest, OneStepWithEqualMeansIsChance) {
  Train(1, [](size_t step, size_t /*rank*/, Tensors* t) {
    // Not exchanged in one step, which is the same for the means.
    if (step != 3) std::swap(t->taken[1], t->taken[4]);
  });
  EXPECT_THAT(Find("gradient-exchanged"), SizeIs(1));
}

TEST_F(OriginRulesTest, TwoParametersExchangeTheirGradients) {
  for (const size_t ranks : {1, 2}) {
    Train(ranks, [](size_t /*step*/, size_t /*rank*/, Tensors* t) {
      std::swap(t->taken[1], t->taken[4]);
    });
    const auto found = Find("gradient-exchanged");
    ASSERT_THAT(found, SizeIs(1));
    EXPECT_THAT(found[0].what, HasSubstr("backward left in l4.weight"));
    EXPECT_EQ(found[0].others, 1U);
  }
}

TEST_F(OriginRulesTest, GradientsAreZeroBeforeTheOptimizer) {
  Train(1, [](size_t /*step*/, size_t /*rank*/, Tensors* t) {
    for (Vector& taken : t->taken) taken.assign(kSize, 0.F);
  });
  auto found = Find("gradient-lost");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_TRUE(found[0].exact);
  // Of one parameter it may be meant.
  Train(1, [](size_t /*step*/, size_t /*rank*/, Tensors* t) {
    t->taken[2].assign(kSize, 0.F);
  });
  found = Find("gradient-lost");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  // That is no clipping, which would leave something.
  Train(1, [](size_t /*step*/, size_t /*rank*/, Tensors* t) {
    for (size_t p = 1; p < kParameters; ++p) t->taken[p].assign(kSize, 0.F);
  });
  EXPECT_THAT(Find("clip-uneven"), IsEmpty());
  Train(1, [](size_t /*step*/, size_t /*rank*/, Tensors* t) {
    t->taken[2].assign(kSize, 0.F);
  });
  // A backward behind the optimizer's step.
  for (size_t i = 0; i < kOriginSteps; ++i) {
    const std::string own = "Module.l2.Linear.parameters_grad.";
    Set(0, own + "1.weight", i, input_.ranks[0].values[own + "0.weight"][i]);
    Set(0, own + "0.weight", i, {true, 0, 0, 0, 0});
  }
  EXPECT_THAT(Find("gradient-lost"), IsEmpty());
}

TEST_F(OriginRulesTest, OneGradientIsReducedTwice) {
  Train(4, [](size_t /*step*/, size_t /*rank*/, Tensors* t) {
    for (float& x : t->taken[5]) x *= 4;
  });
  const auto found = Find("gradient-factor-unlike");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_THAT(found[0].what, HasSubstr("summed over the ranks twice"));
}

TEST_F(OriginRulesTest, RanksHaveOtherLearningRates) {
  Train(2, nullptr);
  for (size_t i = 0; i < kOriginSteps; ++i) {
    Training("lr", i, 0.1);
    Training("loss_scale", i, 1024);
  }
  EXPECT_THAT(Find(""), IsEmpty());
  Set(1, "Training.0.debug.lr", 7, {true, 0.2, 0.2, 0.2, 0.2});
  Set(1, "Training.0.debug.loss_scale", 9, {true, 512, 512, 512, 512});
  const auto rates = Find("learning-rate-parts", "loss-scale-parts");
  ASSERT_THAT(rates, SizeIs(1));
  EXPECT_EQ(rates[0].step, 7);
  const auto scales = Find("loss-scale-parts", "learning-rate-parts");
  ASSERT_THAT(scales, SizeIs(1));
  EXPECT_EQ(scales[0].step, 9);
}

TEST_F(OriginRulesTest, AScheduleBeginsAgain) {
  Train(1, nullptr);
  const auto fill = [&](const std::function<double(size_t)>& rate) {
    for (size_t i = 0; i < kOriginSteps; ++i) Training("lr", i, rate(i));
  };
  // Falls; stays; falls and rises again by the same course.
  fill([](size_t i) { return std::pow(0.8, static_cast<double>(i)); });
  EXPECT_THAT(Find("schedule-restarts"), IsEmpty());
  fill([](size_t) { return 0.1; });
  EXPECT_THAT(Find("schedule-restarts"), IsEmpty());
  fill(
      [](size_t i) { return 1 + std::cos(static_cast<double>(i) * M_PI / 4); });
  EXPECT_THAT(Find("schedule-restarts"), IsEmpty());
  fill([](size_t i) { return std::pow(0.8, static_cast<double>(i % 9)); });
  const auto found = Find("schedule-restarts");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 9);
  EXPECT_FALSE(found[0].exact);
  // Warm restarts, at the end of a cycle.
  fill([](size_t i) {
    return 0.03 + std::cos(static_cast<double>(i % 8) * M_PI / 16);
  });
  EXPECT_THAT(Find("schedule-restarts"), SizeIs(1));
  fill([](size_t i) {
    return 1.02 + std::cos(static_cast<double>(i % 8) * M_PI / 8);
  });
  EXPECT_THAT(Find("schedule-restarts"), IsEmpty());
}

TEST_F(OriginRulesTest, AScheduleTurnsBack) {
  Train(1, nullptr);
  const auto fill = [&](const std::function<double(double)>& rate) {
    for (size_t i = 0; i < kOriginSteps; ++i)
      Training("lr", i, rate(static_cast<double>(i)));
  };
  const auto cosine = [](double i, double end) {
    return 1 + std::cos(i * M_PI / end);
  };
  // Down to the end; with a warm-up; triangles from below; a jump; a turn that is
  // not down at 0.
  fill([&](double i) { return cosine(i, 15); });
  EXPECT_THAT(Find("schedule-turns-back"), IsEmpty());
  fill([&](double i) { return i < 4 ? i / 2 : cosine(i - 4, 11); });
  EXPECT_THAT(Find("schedule-turns-back"), IsEmpty());
  fill([](double i) { return 0.01 + std::fabs(std::remainder(i, 8)); });
  EXPECT_THAT(Find("schedule-turns-back"), IsEmpty());
  fill([&](double i) { return cosine(std::fmod(i, 8), 8); });
  EXPECT_THAT(Find("schedule-turns-back"), IsEmpty());
  fill([&](double i) { return 1 + cosine(i, 6); });
  EXPECT_THAT(Find("schedule-turns-back"), IsEmpty());
  fill([&](double i) { return cosine(i, 6); });
  const auto found = Find("schedule-turns-back");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 6);
  EXPECT_FALSE(found[0].exact);
}

TEST_F(OriginRulesTest, EpochsHaveOneOrder) {
  Train(1, nullptr);
  const auto fill = [&](const std::function<size_t(size_t)>& batch) {
    for (size_t i = 0; i < kOriginSteps; ++i) {
      Training("loss_tokens", i, 64);
      Training("target_checksum", i, 1000.0 + static_cast<double>(batch(i)));
    }
  };
  fill([](size_t i) { return i; });
  EXPECT_THAT(Find("batches-in-one-order"), IsEmpty());
  // The second epoch backwards.
  fill([](size_t i) { return i < 8 ? i : 15 - i; });
  EXPECT_THAT(Find("batches-in-one-order"), IsEmpty());
  fill([](size_t i) { return i % 8; });
  const auto found = Find("batches-in-one-order");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 8);
  fill([](size_t) { return 5; });
  EXPECT_THAT(Find("batches-in-one-order"), IsEmpty());
}

TEST_F(OriginRulesTest, ALossOfProbabilities) {
  Train(1, nullptr);
  for (size_t i = 0; i < kOriginSteps; ++i) Training("loss", i, 3);
  EXPECT_THAT(Find("loss-of-probabilities"), IsEmpty());
  for (const double kind : {0, 1, 2, 3, 4, 5, 6}) {
    Training("loss_of_probabilities", 2, kind);
    const auto found = Find("loss-of-probabilities");
    ASSERT_THAT(found, SizeIs(kind == 0 ? 0 : 1));
    if (kind == 0) continue;
    EXPECT_EQ(found[0].step, 2);
    EXPECT_EQ(found[0].exact, kind != 4);
  }
}

TEST_F(OriginRulesTest, ALossOfAllPairs) {
  Train(1, nullptr);
  for (size_t i = 0; i < kOriginSteps; ++i) Training("loss", i, 3);
  EXPECT_THAT(Find("loss-broadcast"), IsEmpty());
  for (const double kind : {0, 1, 2, 3}) {
    Training("loss_broadcast.0", 1, kind);
    Training("loss_broadcast.1", 1, 16);
    const auto found = Find("loss-broadcast");
    ASSERT_THAT(found, SizeIs(kind > 0 ? 1 : 0));
    if (kind == 0) continue;
    EXPECT_EQ(found[0].step, 1);
    EXPECT_TRUE(found[0].exact);
    EXPECT_THAT(found[0].what, HasSubstr("[16, 1] and [16]"));
  }
}

TEST_F(OriginRulesTest, ALayerThatGoesAlongTheBatch) {
  Train(1, nullptr);
  for (size_t i = 0; i < kOriginSteps; ++i) Training("loss", i, 3);
  EXPECT_THAT(Find("sequence-dimension"), IsEmpty());
  const auto set = [&](double kind) {
    Training("sequence_dims.0", 2, kind);
    Training("sequence_dims.1", 2, 6);
    Training("sequence_dims.2", 2, 10);
  };
  for (const double kind : {1, 2}) {
    set(kind);
    const auto found = Find("sequence-dimension");
    ASSERT_THAT(found, SizeIs(1));
    EXPECT_EQ(found[0].exact, kind == 2);
  }
  // Targets that are the next tokens along the second dimension, and others.
  set(3);
  EXPECT_THAT(Find("sequence-dimension"), IsEmpty());
  for (const double share : {0.1, 1.0}) {
    Training("target_is_input.0", 2, 0);
    Training("target_is_input.1", 2, share);
    Training("target_is_input.2", 2, 0);
    Training("target_is_input.3", 2, 0);
    EXPECT_THAT(Find("sequence-dimension"), SizeIs(share == 1 ? 1 : 0));
  }
}

// What the agent says of a graph: a value that shows nothing, and one of a fault.
TEST_F(OriginRulesTest, WhatTheGraphOfALossShows) {
  struct Case {
    const char* rule;
    const char* value;
    std::vector<double> sound, fault;
    bool exact;
    const char* said;
  };
  const std::vector<Case> cases = {
      {"padding-attended",
       "padding_attended",
       {0.001, 2},
       {0.4, 2},
       false,
       "40 %"},
      {"padding-attended",
       "padding_attended",
       {0, 2},
       {1, 2},
       true,
       "inverted"},
      {"padding-pooled", "padding_pooled", {0}, {0.4}, false, "40 %"},
      {"norm-over-places", "norms_of_places", {0}, {1}, false, "dim=-1"},
      {"view-mixes", "mixed_views", {}, {1, 2}, true, "2 places the result"},
      {"view-mixes", "mixed_views", {}, {2, 1}, true, "before an attention"},
      {"view-mixes", "mixed_views", {}, {3, 1}, false, "over the heads"},
      {"view-mixes", "mixed_views", {}, {4, 1}, true, "samples of a batch"},
      {"view-mixes", "mixed_views", {}, {6, 1}, false, "keeps no dimension"},
      {"target-unreachable",
       "unreachable_targets",
       {0.01, 0, 1},
       {0.5, 0, 1},
       false,
       "a sigmoid"},
      {"target-unreachable",
       "unreachable_targets",
       {0, -1, 1},
       {0.5, -1, 1},
       false,
       "a tanh"},
      {"target-unreachable",
       "unreachable_targets",
       {0, 0, 1e300},
       {0.5, 0, 1e300},
       false,
       "a ReLU"},
      {"layers-untrained",
       "untrained",
       {0, 0},
       {6, 3168},
       false,
       "6 parameters of 3168 numbers"},
      {"target-moves", "moving_target", {0}, {1}, false, "detach()"},
  };
  const auto set = [&](const Case& one, const std::vector<double>& values) {
    for (size_t n = 0; n < values.size(); ++n) {
      Training(values.size() == 1 ? one.value : absl::StrCat(one.value, ".", n),
               1, values[n]);
    }
  };
  for (const Case& one : cases) {
    Train(1, nullptr);
    for (size_t i = 0; i < kOriginSteps; ++i) Training("loss", i, 3);
    set(one, one.sound);
    EXPECT_THAT(Find(one.rule), IsEmpty()) << one.said;
    set(one, one.fault);
    const auto found = Find(one.rule);
    ASSERT_THAT(found, SizeIs(1)) << one.said;
    EXPECT_EQ(found[0].step, 1);
    EXPECT_EQ(found[0].exact, one.exact) << one.said;
    EXPECT_THAT(found[0].what, HasSubstr(one.said));
  }
}

TEST_F(OriginRulesTest, GradientsThatAreZero) {
  const auto zero = [&](size_t parameters, bool with_weight) {
    Train(1, nullptr);
    for (size_t p = 0; p < parameters; ++p) {
      for (auto& [name, cells] : input_.ranks[0].values) {
        const bool is_gradient = absl::StrContains(name, "grad");
        const bool is_of = absl::StrContains(name, absl::StrCat("l", p, "."));
        if (is_of && (is_gradient || with_weight))
          std::fill(cells.begin(), cells.end(), RankCell{true, 0, 0, 0, 0});
      }
    }
  };
  // Unused, with a weight that is not 0; one factor that begins at 0.
  zero(3, false);
  EXPECT_THAT(Find("gradient-zero"), IsEmpty());
  zero(1, true);
  EXPECT_THAT(Find("gradient-zero"), IsEmpty());
  zero(2, true);
  auto found = Find("gradient-zero", "gradient-lost");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  zero(kParameters, false);
  for (const double loss : {0., 2.}) {
    for (size_t i = 0; i < kOriginSteps; ++i) Training("loss", i, loss);
    found = Find("gradient-zero", "gradient-lost");
    ASSERT_THAT(found, SizeIs(1));
    EXPECT_EQ(found[0].exact, loss != 0);
  }
}

TEST_F(OriginRulesTest, UnitsThatBeginAlike) {
  for (const size_t layers : {1, 2}) {
    Train(1, nullptr);
    for (size_t p = 0; p < layers; ++p) {
      for (auto& [name, cells] : input_.ranks[0].values) {
        if (absl::StrContains(name, absl::StrCat("l", p, ".")) &&
            (absl::EndsWith(name, ".debug.param") ||
             absl::EndsWith(name, "parameters.weight")))
          cells[0] = RankCell{true, 2, 0.25, 0.25, 0.25};
      }
    }
    const auto found = Find("units-alike");
    ASSERT_THAT(found, SizeIs(layers - 1));
    if (!found.empty()) EXPECT_THAT(found[0].what, HasSubstr("l0.weight"));
  }
}

TEST_F(OriginRulesTest, AScheduleEndsEarly) {
  Train(1, nullptr);
  const auto fill = [&](const std::function<double(double)>& rate) {
    for (size_t i = 0; i < kOriginSteps; ++i)
      Training("lr", i, rate(static_cast<double>(i)));
  };
  fill([](double) { return 0.1; });
  EXPECT_THAT(Find("schedule-ends-early"), IsEmpty());
  fill([](double i) { return 1 - i / 15; });
  EXPECT_THAT(Find("schedule-ends-early"), IsEmpty());
  // Ten times less in each fourth step; rises again.
  fill([](double i) { return std::pow(10, -std::floor(i / 4)); });
  EXPECT_THAT(Find("schedule-ends-early"), IsEmpty());
  fill([](double i) { return i > 4 && i < 15 ? 0 : 1; });
  EXPECT_THAT(Find("schedule-ends-early"), IsEmpty());
  fill([](double i) { return std::pow(10, -i); });
  auto found = Find("schedule-ends-early");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 2);
  EXPECT_FALSE(found[0].exact);
  fill([](double i) { return std::max(0.0, 1 - i / 6); });
  found = Find("schedule-ends-early");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 6);
}

TEST_F(OriginRulesTest, PaddingThatIsLearned) {
  Train(1, nullptr);
  for (size_t i = 0; i < kOriginSteps; ++i) Training("loss", i, 3);
  Training("loss_padding", 0, 0);
  EXPECT_THAT(Find("padding-in-loss"), IsEmpty());
  Training("loss_padding", 1, 0.25);
  const auto found = Find("padding-in-loss");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_THAT(found[0].what, HasSubstr("25 %"));
}

TEST_F(OriginRulesTest, APartThatABackwardBringsNothing) {
  Train(1, nullptr);
  for (auto& [name, cells] : input_.ranks[0].values) {
    if (absl::StrContains(name, "l1.") && absl::StrContains(name, "grad"))
      std::fill(cells.begin(), cells.end(), RankCell{true, 0, 0, 0, 0});
  }
  EXPECT_THAT(Find("gradient-zero"), IsEmpty());
  const std::string arrives = "Module.l1.Linear.backward.0.input.0";
  for (size_t i = 0; i < kOriginSteps; ++i)
    Set(0, arrives, i, {true, 0, 0, 0, 0});
  const auto found = Find("gradient-zero");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_EQ(found[0].name, "Parameter.l1.weight.0.debug.grad");
  // An expert without tokens, beside one that is trained; the only expert.
  const auto values = input_.ranks[0].values;
  for (const bool is_alone : {false, true}) {
    auto& named = input_.ranks[0].values;
    named.clear();
    for (const auto& [name, cells] : values) {
      std::string as = absl::StrReplaceAll(name, {{".l1.", ".experts.1."}});
      if (!is_alone) as = absl::StrReplaceAll(as, {{".l2.", ".experts.2."}});
      named[as] = cells;
    }
    EXPECT_THAT(Find("gradient-zero"), SizeIs(is_alone ? 1 : 0));
  }
  input_.ranks[0].values = values;
  // A layer whose own inputs are 0.
  Set(0, arrives, 5, {true, 1, 0, 1, -1});
  EXPECT_THAT(Find("gradient-zero"), IsEmpty());
}

TEST_F(OriginRulesTest, GradientsThatAreClippedBeforeTheirMean) {
  const auto clip = [&](double limit, bool is_before) {
    Train(2, nullptr);
    for (size_t i = 0; i < kOriginSteps; ++i) {
      std::vector<double> squares(2, 0);
      double square = 0;
      const auto own = [](size_t p) {
        return absl::StrCat("Module.l", p, ".Linear.parameters_grad.0.weight");
      };
      const auto taken = [](size_t p) {
        return absl::StrCat("Parameter.l", p, ".weight.0.debug.grad");
      };
      for (size_t p = 0; p < kParameters; ++p) {
        for (size_t r = 0; r < 2; ++r) {
          RankCell& cell = input_.ranks[r].values[own(p)][i];
          // Rank 1 has larger gradients.
          for (double* const number :
               {&cell.norm, &cell.mean, &cell.largest, &cell.smallest})
            *number *= r == 0 ? 1 : 1.5;
          squares[r] += cell.norm * cell.norm;
        }
        square += std::pow(input_.ranks[0].values[own(p)][i].norm, 2);
      }
      for (size_t p = 0; p < kParameters; ++p) {
        RankCell mean = {true, 0.1, 0, 1, -1};
        for (size_t r = 0; r < 2; ++r) {
          mean.mean += input_.ranks[r].values[own(p)][i].mean / 2 * limit /
                       std::sqrt(is_before ? squares[r] : square);
        }
        for (size_t r = 0; r < 2; ++r) Set(r, taken(p), i, mean);
      }
    }
  };
  clip(0.5, false);
  EXPECT_THAT(Find("clip-norm"), IsEmpty());
  clip(0.5, true);
  const auto found = Find("clip-norm", "gradient-not-mean");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_TRUE(found[0].exact);
  EXPECT_THAT(found[0].what, HasSubstr("to the norm 0.5 before"));
  // A limit that no norm reaches.
  clip(1e6, true);
  EXPECT_THAT(Find("clip-norm", "gradient-not-mean"), IsEmpty());
}

}  // namespace
}  // namespace rankprobe::analysis
