// SPDX-License-Identifier: Apache-2.0
#include "analysis/scan/scan.h"

#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "analysis/scan/trainings.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe::analysis {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr size_t kSteps = 60;
constexpr size_t kFault = 40;

ScanCell Of(double largest, double smallest, uint32_t ranks = 4) {
  return {largest, smallest, ranks, 0, 3, 1};
}

// A training run of four ranks: norms fall and vary; parameters and their
// reduced gradients are equal on all ranks, activations are not.
class ScanTest : public ::testing::Test {
 protected:
  ScanTest() {
    for (size_t i = 0; i < kSteps; ++i) {
      input_.steps.push_back(static_cast<int64_t>(10 * i));
    }
    for (const char* name :
         {"Module.a.Linear.forward.0.output.0",
          "Module.b.Linear.forward.0.output.0",
          "Parameter.a.weight.0.debug.grad", "Parameter.a.bias.0.debug.grad",
          "Parameter.b.weight.0.debug.grad", "Parameter.b.bias.0.debug.grad",
          "Parameter.a.weight.0.debug.exp_avg",
          "Update.a.weight.0.debug.update"}) {
      ScanSeries series;
      series.name = name;
      std::lognormal_distribution<double> wander(0, 0.1);
      for (size_t i = 0; i < kSteps; ++i) {
        const double norm =
            std::exp(-0.02 * static_cast<double>(i)) * wander(random_);
        series.cells.push_back(series.name[0] == 'M'
                                   ? Of(norm * 1.1, norm * 0.9)
                                   : Of(norm, norm));
      }
      input_.values.push_back(std::move(series));
    }
  }

  ScanCell& At(size_t value, size_t step = kFault) {
    return input_.values[value].cells[step];
  }
  std::vector<ScanFinding> Find() { return Scan(input_, ScanOptions()); }
  ScanFinding One(ScanKind kind) {
    const std::vector<ScanFinding> found = Find();
    EXPECT_THAT(found, SizeIs(1));
    if (found.empty()) return {};
    EXPECT_EQ(found[0].kind, kind) << ScanKindText(found[0].kind);
    return found[0];
  }

  std::mt19937 random_{7};
  ScanInput input_;
};

TEST_F(ScanTest, ASoundRunHasNoFinding) { EXPECT_THAT(Find(), IsEmpty()); }

TEST_F(ScanTest, TheFirstThatIsNotFiniteAndItsRank) {
  for (size_t value : {1, 2}) {
    At(value).largest = std::numeric_limits<double>::quiet_NaN();
    At(value).non_finite = 1;
  }
  const ScanFinding found = One(ScanKind::kNonFinite);
  EXPECT_EQ(found.name, "Module.b.Linear.forward.0.output.0");
  EXPECT_EQ(found.step, 400);
  EXPECT_EQ(found.rank, 3);
  EXPECT_EQ(found.others, 1);
}

TEST_F(ScanTest, WhatIsInABufferBeforeItReceivesIsNoFinding) {
  At(0) = Of(INFINITY, INFINITY);
  At(0).non_finite = 4;
  EXPECT_THAT(Find(), SizeIs(1));
  At(0, kFault + 9) = Of(1e30, 1e30);
  input_.values[0].name = "Distributed.batch_isend_irecv.0.forward.input.0.1";
  EXPECT_THAT(Find(), IsEmpty());
}

TEST_F(ScanTest, AMoveOfAllRanksIsOneFindingWithWhatIsUsual) {
  for (size_t value : {2, 4}) {
    for (size_t step = kFault; step < kSteps; ++step)
      At(value, step) =
          Of(1000 * At(value, step).largest, 1000 * At(value, step).smallest);
  }
  const ScanFinding found = One(ScanKind::kMove);
  EXPECT_EQ(found.name, "Parameter.a.weight.0.debug.grad");
  EXPECT_EQ(found.step, 400);
  EXPECT_EQ(found.rank, -1);
  EXPECT_GT(found.now / found.before, 300);
  EXPECT_EQ(found.others, 1);
}

TEST_F(ScanTest, RoundingHasNoCourse) {
  // A bias before a normalization.
  for (const double size : {1e-5, 1e-8}) {
    for (size_t i = 0; i < kSteps; ++i)
      At(3, i) = Of(size * (i == kFault ? 9 : 1), size * (i == kFault ? 9 : 1));
    EXPECT_THAT(Find(), SizeIs(size > 1e-7 ? 1 : 0));
  }
}

TEST_F(ScanTest, TheFallOfTheFirstStepsIsNoCourse) {
  constexpr double kFirst[] = {7.1, 4.3, 1.04, 0.87, 1.03, 2.87, 1.45, 2.78};
  for (size_t i = 0; i < std::size(kFirst); ++i)
    At(0, i) = Of(kFirst[i], kFirst[i]);
  EXPECT_THAT(Find(), IsEmpty());
  // Higher than ever.
  At(0, 5) = Of(71, 71);
  EXPECT_THAT(Find(), SizeIs(1));
}

TEST_F(ScanTest, FewNumbersDoNotShowHowFarTheyVary) {
  // Gradient norms of a sound training with one row a batch.
  const double norms[] = {0.0204, 0.0186, 0.0198, 0.0248, 0.0183,
                          0.0181, 0.0765, 0.0646, 0.0214, 0.0227};
  for (size_t i = 0; i < std::size(norms); ++i)
    At(0, i) = Of(norms[i], norms[i]);
  for (size_t i = std::size(norms); i < kSteps; ++i) At(0, i) = Of(0.02, 0.02);
  EXPECT_THAT(Find(), IsEmpty());
}

TEST_F(ScanTest, ALossOfBothSignsPassesZero) {
  ScanSeries loss;
  loss.name = "Training.0.debug.loss";
  for (const double x : {0.3, 0.1, -0.2}) loss.cells.push_back(Of(x, x));
  EXPECT_TRUE(MayPassZero(loss, loss.cells));
  loss.cells.pop_back();
  EXPECT_FALSE(MayPassZero(loss, loss.cells));
}

TEST_F(ScanTest, TheLossWandersLess) {
  for (size_t step = 0; step < kSteps; ++step) {
    const double loss = std::exp(-0.02 * static_cast<double>(step));
    At(0, step) = Of(loss, 0.99 * loss);
  }
  At(0) = Of(3 * At(0).largest, 3 * At(0).smallest);
  const auto findings_of = [this](const char* name) {
    input_.values[0].name = name;
    return Find();
  };
  EXPECT_THAT(findings_of("Training.0.debug.loss"), SizeIs(1));
  EXPECT_THAT(findings_of("Training.0.debug.loss.1"), SizeIs(1));
  EXPECT_THAT(findings_of("Module.a.Linear.forward.0.output.0"), IsEmpty());
  At(0) = Of(30 * At(0).largest, 30 * At(0).smallest);
  EXPECT_THAT(findings_of("Module.a.Linear.forward.0.output.0"), SizeIs(1));
  EXPECT_THAT(findings_of("Training.0.debug.fresh_optimizers.1"), IsEmpty());
  EXPECT_THAT(findings_of("Training.0.debug.step_seconds"), IsEmpty())
      << "of the machine, not of the training";
}

TEST_F(ScanTest, ALearningRateFallsToNothing) {
  for (const char* name :
       {"Training.0.debug.lr", "Update.a.bias.0.debug.update"}) {
    input_.values[2].name = name;
    const ScanCell usual = At(2);
    At(2) = Of(0.001 * usual.largest, 0.001 * usual.smallest);
    EXPECT_THAT(Find(), IsEmpty());
    At(2) = Of(1000 * usual.largest, 1000 * usual.smallest);
    EXPECT_EQ(One(ScanKind::kMove).name, name);
    At(2) = usual;
  }
}

TEST_F(ScanTest, ARankThatLeavesTheOthersIsNamed) {
  At(1) = Of(100 * At(1).largest, At(1).smallest);
  EXPECT_EQ(One(ScanKind::kRankMoves).rank, 3);
  At(1) = Of(1, 1e-4);
  EXPECT_EQ(One(ScanKind::kRankMoves).rank, 1);
}

// A bias of one element, by its value and its norm.
TEST_F(ScanTest, ANumberThatPassesThroughZeroIsNoMove) {
  ScanSeries& bias = input_.values[6];
  bias.name = "Module.c.Linear.forward.0.parameters.bias";
  std::vector<ScanCell> means;
  for (size_t i = 0; i < kSteps; ++i) {
    const double number = 0.0403 - 0.001 * static_cast<double>(i);
    bias.cells[i] = Of(1.01 * std::fabs(number), std::fabs(number));
    means.push_back(Of(1.01 * number, number));
  }
  const ScanFinding found = One(ScanKind::kMove);
  EXPECT_EQ(found.step, 400);
  bias.passes_zero = MayPassZero(bias, means);
  EXPECT_TRUE(bias.passes_zero);
  EXPECT_THAT(Find(), IsEmpty());
  // Upwards the usual limits apply.
  At(6, 30) = Of(1, 1);
  EXPECT_EQ(One(ScanKind::kMove).step, 300);
  At(6, 30) = At(6, 29);
  // Values of each rank: one passes through 0, or moves upwards.
  At(6) = Of(0.02, 0.0001);
  EXPECT_THAT(Find(), IsEmpty());
  At(6) = Of(10, 0.02);
  EXPECT_EQ(One(ScanKind::kRankMoves).rank, 3);
}

TEST_F(ScanTest, TheRatioToANumberThatPassesThroughZeroHasNoCourse) {
  input_.values[6].name = "Update.a.weight.0.debug.ratio";
  At(6) = Of(1000, 1000);
  EXPECT_EQ(One(ScanKind::kMove).name, "Update.a.weight.0.debug.ratio");
  ASSERT_EQ(input_.values[7].name, "Update.a.weight.0.debug.update");
  input_.values[7].passes_zero = true;
  EXPECT_THAT(Find(), IsEmpty());
}

TEST_F(ScanTest, WhatHasMoreElementsOrNoMeanMoves) {
  const ScanSeries& bias = input_.values[3];
  std::vector<ScanCell> means = bias.cells;
  EXPECT_TRUE(MayPassZero(bias, means));
  // The negative value has the larger magnitude.
  means[7] = Of(0, -bias.cells[7].largest);
  EXPECT_TRUE(MayPassZero(bias, means));
  means[7] = Of(bias.cells[7].largest / 2, -bias.cells[7].largest / 2);
  EXPECT_FALSE(MayPassZero(bias, means)) << "a batch of one among others";
  means[7] = ScanCell();
  EXPECT_FALSE(MayPassZero(bias, means)) << "it is not known of one step";
  means.pop_back();
  EXPECT_FALSE(MayPassZero(bias, means));
  EXPECT_FALSE(MayPassZero(ScanSeries(), {}));
}

TEST_F(ScanTest, RanksThatPart) {
  for (size_t step = kFault; step < kSteps; ++step)
    At(5, step).smallest = std::nextafter(At(5, step).smallest, 0);
  const ScanFinding found = One(ScanKind::kRanksPart);
  EXPECT_EQ(found.name, "Parameter.b.bias.0.debug.grad");
  EXPECT_EQ(found.step, 400);
}

TEST_F(ScanTest, OneThatIsNeverAlikeWhereItsLikeAre) {
  for (size_t step = 0; step < kSteps; ++step) At(4, step).smallest *= 0.99;
  const ScanFinding found = One(ScanKind::kNotAlike);
  EXPECT_EQ(found.name, "Parameter.b.weight.0.debug.grad");
  EXPECT_EQ(found.step, 0);
}

TEST_F(ScanTest, OfWhatPartsInOneStepTheLargestDifferenceIsNamed) {
  ScanSeries first;
  first.name = "Parameter.a.bias.0.debug.grad";
  for (size_t step = 0; step < kSteps; ++step)
    first.cells.push_back(Of(2, step < kFault ? 2 : 2 - 1e-10));
  input_.values.insert(input_.values.begin(), first);
  for (size_t step = kFault; step < kSteps; ++step)
    At(6, step).smallest *= 0.994;
  const ScanFinding found = One(ScanKind::kRanksPart);
  EXPECT_EQ(found.name, "Parameter.b.bias.0.debug.grad");
  EXPECT_EQ(found.others, 1);
}

TEST_F(ScanTest, AMaskIsNoFindingAndANanIs) {
  for (ScanCell& cell : input_.values[0].cells) {
    cell = {HUGE_VAL, HUGE_VAL, 4, 4, 3, 1};
    cell.meant = true;
  }
  EXPECT_THAT(Find(), IsEmpty());
  EXPECT_TRUE(MayBeMask("Module.attn.Attention.forward.0.input.1", {}));
  EXPECT_FALSE(MayBeMask("Module.attn.Attention.backward.0.output.0", {}));
  EXPECT_FALSE(MayBeMask("Parameter.a.weight.0.debug.param", {}));
  // scores + mask
  EXPECT_TRUE(MayBeMask("Tensor.__add__.0.forward.input.1", {}));
  EXPECT_FALSE(MayBeMask("Tensor.__add__.0.forward.output.0", {}));
  EXPECT_TRUE(MayBeMask("Tensor.__add__.0.forward.output.0",
                        {"Tensor.__add__.0.forward"}));
  EXPECT_TRUE(MayBeMask("Tensor.masked_fill.0.forward.output.0", {}));
  EXPECT_FALSE(MayBeMask("Torch.log.0.forward.output.0", {}));
  At(0) = {NAN, NAN, 4, 1, 3, 1};
  EXPECT_EQ(One(ScanKind::kNonFinite).step, 400);
}

// Data-parallel ranks have different data; shards of a weight have different
// numbers, and so have their gradients.
TEST_F(ScanTest, OnlyWhatIsReplicatedIsComparedOverRanks) {
  for (size_t step = 0; step < kFault; ++step)
    At(0, step).smallest = At(0, step).largest;
  EXPECT_THAT(Find(), IsEmpty());
  ScanSeries shard;
  shard.name = "Parameter.b.weight.0.debug.param";
  for (size_t step = 0; step < kSteps; ++step) {
    shard.cells.push_back(Of(3, 2));
    At(4, step).smallest *= 0.99;
  }
  input_.values.push_back(shard);
  EXPECT_THAT(Find(), IsEmpty());
  // The weight is equal on all ranks, so its gradient must be, too.
  for (ScanCell& cell : input_.values.back().cells) cell = Of(2, 2);
  EXPECT_EQ(One(ScanKind::kNotAlike).name, "Parameter.b.weight.0.debug.grad");
}

TEST_F(ScanTest, ExpertsOfRanksThatExchangeTokensAreNoReplicas) {
  ScanSeries held;
  held.name = "Parameter.mlp.experts.0.weight.0.debug.param";
  for (size_t i = 0; i < kSteps; ++i)
    held.cells.push_back(i == 0 ? Of(1, 1) : Of(1.1, 1));
  input_.values.push_back(held);
  EXPECT_EQ(One(ScanKind::kRanksPart).name, held.name);
  held.name = "Distributed.all_to_all_single.0.forward.input.0";
  input_.values.push_back(held);
  EXPECT_THAT(Find(), IsEmpty());
}

TEST_F(ScanTest, APipelineWhoseStagesHoldTheCompleteModel) {
  // Two of the four ranks train the weight, so it differs from the first step
  // on.
  ScanSeries held;
  held.name = "Parameter.a.weight.0.debug.param";
  for (size_t i = 0; i < kSteps; ++i)
    held.cells.push_back(i == 0 ? Of(1, 1) : Of(1.1, 1));
  input_.values.push_back(std::move(held));
  EXPECT_EQ(One(ScanKind::kRanksPart).name, "Parameter.a.weight.0.debug.param");
  for (ScanCell& cell : input_.values[2].cells) cell.count = 2;
  EXPECT_THAT(Find(), IsEmpty());
  // One step in which all ranks have a gradient shows that they are replicas.
  At(2).count = 4;
  One(ScanKind::kRanksPart);
}

TEST_F(ScanTest, AParameterIsWhatTheStepBeforeLeft) {
  ScanSeries found, left;
  found.name = "Parameter.a.weight.0.debug.param";
  left.name = "Update.a.weight.0.debug.param";
  for (size_t step = 0; step < kSteps; ++step) {
    input_.steps[step] = static_cast<int64_t>(step);
    const double norm = 1 + 0.001 * static_cast<double>(step);
    found.cells.push_back(Of(norm, norm));
    left.cells.push_back(Of(norm + 0.001, norm + 0.001));
  }
  for (size_t step = 0; step + 1 < kSteps; ++step)
    left.cells[step] = found.cells[step + 1];
  input_.values.push_back(found);
  input_.values.push_back(left);
  EXPECT_THAT(Find(), IsEmpty());
  // Rounding in a program that adds a number and subtracts it again.
  const double rounded = left.cells[kFault].largest * (1 + 6e-8);
  input_.values.back().cells[kFault] = Of(rounded, rounded);
  EXPECT_THAT(Find(), IsEmpty());
  // A restored checkpoint or a flipped bit, on all ranks.
  input_.values[input_.values.size() - 2].cells[kFault] = Of(1.5, 1.5);
  input_.values.back().cells[kFault] = Of(1.6, 1.6);
  const ScanFinding changed = One(ScanKind::kChanged);
  EXPECT_EQ(changed.step, static_cast<int64_t>(kFault));
  EXPECT_EQ(changed.now, 1.5);
  // Once more, as long behind it as it is behind the first step.
  const ScanCell kept = input_.values.back().cells[kFault];
  input_.values.back().cells[kFault] =
      input_.values[input_.values.size() - 2].cells[kFault + 1];
  for (const size_t step : {kFault / 2, kFault})
    input_.values.back().cells[step - 1] = kept;
  EXPECT_THAT(Find(), IsEmpty());
  input_.values.back().cells[kFault / 2 + 4] = kept;
  One(ScanKind::kChanged);
  // A second training begins in the step before, with several updates.
  ScanSeries stepped;
  stepped.name = "Training.0.debug.fresh_optimizers.1";
  stepped.cells.assign(kSteps, Of(1, 1));
  input_.values.push_back(stepped);
  One(ScanKind::kChanged);
  for (const size_t step : {kFault / 2 - 1, kFault / 2 + 4, kFault - 1})
    input_.values.back().cells[step] = Of(6, 6);
  EXPECT_THAT(Find(), IsEmpty());
  input_.values.pop_back();
  // A program that clips its weights in each step changes them on purpose.
  for (ScanCell& cell : input_.values.back().cells) cell = Of(9, 9);
  EXPECT_THAT(Find(), IsEmpty());
}

TEST_F(ScanTest, FewStepsDoNotShowHowFarAValueVaries) {
  const auto steps = [&](double last) {
    // The bias of a norm, of a sound program, in its first steps.
    const std::vector<double> norms = {36.6, 25, 64.1, 25.8, 23.7, 23.3, 25.4};
    for (size_t i = 0; i < kSteps; ++i) {
      const double norm = i < norms.size()    ? norms[i]
                          : i == norms.size() ? last
                                              : 30;
      At(3, i) = Of(norm, norm);
    }
  };
  steps(120);
  EXPECT_THAT(Find(), IsEmpty());
  steps(300);
  One(ScanKind::kMove);
}

TEST_F(ScanTest, ABatchThatIsTrainedOnFourTimes) {
  for (size_t i = 0; i < kSteps; ++i) {
    constexpr double kOfBatches[] = {0.10, 0.046, 0.158, 0.037, 0.12, 0.08};
    const double norm = kOfBatches[i / 4 % 6] * (1 + 0.002 * (i % 4));
    At(3, i) = Of(norm, norm);
  }
  EXPECT_THAT(Find(), IsEmpty());
}

TEST_F(ScanTest, AnAverageOfGradientsThatAreSometimesZeroJumps) {
  double average = 1;
  const auto jump = [&](double gradient) {
    for (size_t i = 0; i < kSteps; ++i) {
      const bool comes = i % 15 == 14;
      At(2, i) = comes ? Of(1, 1) : Of(gradient, gradient);
      average = comes ? 1 : 0.9 * average;
      At(6, i) = At(7, i) = Of(average, average);
    }
  };
  jump(1);
  EXPECT_THAT(Find(), Not(IsEmpty()));
  jump(0);
  EXPECT_THAT(Find(), IsEmpty());
}

TEST_F(ScanTest, AGradientOfActivationsThatMovesAlone) {
  input_.values[0].name = "Module.norm.Rms.backward.0.output.0";
  At(0) = Of(50, 50);
  EXPECT_THAT(Find(), IsEmpty());
  // With what is trained, or where nothing of it is recorded.
  At(3) = Of(50, 50);
  EXPECT_THAT(Find(), SizeIs(1));
  At(3) = At(3, kFault - 1);
  input_.values.resize(2);
  EXPECT_THAT(Find(), SizeIs(1));
}

TEST_F(ScanTest, WhatVanishes) {
  for (size_t step = kFault; step < kSteps; ++step) At(2, step) = Of(0, 0);
  const ScanFinding found = One(ScanKind::kVanished);
  EXPECT_EQ(found.step, 400);
  EXPECT_GT(found.before, 0);
}

TEST_F(ScanTest, ALossThatIsLearned) {
  input_.values[2].name = "Training.0.debug.loss";
  for (size_t step = 0; step < kSteps; ++step) {
    const double loss = std::pow(0.5, static_cast<double>(step));
    At(2, step) = step < kFault ? Of(loss, loss) : Of(0, 0);
  }
  for (const ScanFinding& found : Find())
    EXPECT_NE(found.kind, ScanKind::kVanished);
  for (size_t step = 0; step < kFault; ++step) At(2, step) = Of(2, 2);
  EXPECT_EQ(One(ScanKind::kVanished).step, 400);
}

TEST_F(ScanTest, StateThatIsNoMoreThere) {
  for (size_t step = 0; step < 3; ++step) At(6, step) = ScanCell();
  EXPECT_THAT(Find(), IsEmpty()) << "it comes with the first step";
  At(6) = ScanCell();
  const ScanFinding found = One(ScanKind::kNoMore);
  EXPECT_EQ(found.step, 400);
  for (ScanSeries& series : input_.values) series.cells[kFault] = ScanCell();
  EXPECT_THAT(Find(), IsEmpty()) << "nothing of the step was recorded";
}

TEST_F(ScanTest, AnOptimizerOfOtherParametersIsAnotherPhase) {
  input_.values.push_back(input_.values.back());
  input_.values.back().name = "Update.b.weight.0.debug.update";
  At(6, kSteps - 1) = ScanCell();
  EXPECT_EQ(One(ScanKind::kNoMore).step, 10 * (kSteps - 1));
  At(8, kSteps - 1) = ScanCell();
  EXPECT_THAT(Find(), IsEmpty()) << "b is not trained any more";
}

TEST_F(ScanTest, HolesExtremesAndShortRunsAreNoFindings) {
  At(3) = ScanCell();
  At(0, 0) = Of(1e308, 1e308);
  EXPECT_THAT(Find(), IsEmpty()) << "too early to know its course";
  ScanInput input;
  EXPECT_THAT(Scan(input, ScanOptions()), IsEmpty());
  input.steps = {1, 2};
  input.values.push_back({"short", {Of(1, 1)}});
  EXPECT_THAT(Scan(input, ScanOptions()), IsEmpty())
      << "fewer cells than steps";
}

TEST_F(ScanTest, AStepOfAnotherOptimizerLosesNoState) {
  // The last step is that of a second optimizer, which updates b.
  input_.values.push_back(input_.values.back());
  input_.values.back().name = "Update.b.weight.0.debug.update";
  At(6, kSteps - 1) = At(7, kSteps - 1) = ScanCell();
  EXPECT_THAT(Find(), IsEmpty());
  At(7, kSteps - 1) = At(8, kSteps - 1);
  EXPECT_EQ(One(ScanKind::kNoMore).name, "Parameter.a.weight.0.debug.exp_avg");
}

TEST_F(ScanTest, EarliestFirst) {
  At(2, 50).non_finite = 1;
  At(0, 30) = Of(1e6, 1e6);
  std::vector<std::pair<int64_t, ScanKind>> order;
  for (const ScanFinding& found : Find())
    order.emplace_back(found.step, found.kind);
  EXPECT_THAT(order, ElementsAre(std::pair(300, ScanKind::kMove),
                                 std::pair(500, ScanKind::kNonFinite)));
}

TEST_F(ScanTest, ALossMayBeNegative) {
  ScanSeries loss;
  loss.name = "Training.0.debug.loss";
  for (size_t i = 0; i < kSteps; ++i) {
    const double number = std::sin(static_cast<double>(i * i));
    loss.cells.push_back(Of(number, number));
  }
  loss.passes_zero = true;
  input_.values.push_back(loss);
  EXPECT_THAT(Find(), IsEmpty());
  input_.values.back().cells[kFault] = Of(-1000, -1000);
  EXPECT_EQ(One(ScanKind::kMove).name, "Training.0.debug.loss");
}

TEST_F(ScanTest, ATotalOfGradientsMovesWithItsParts) {
  ScanSeries total;
  total.name = "Training.0.debug.grad_norm";
  for (size_t i = 0; i < kSteps; ++i) total.cells.push_back(Of(2, 2));
  total.cells[kFault] = Of(40, 40);
  input_.values.push_back(total);
  EXPECT_THAT(Find(), IsEmpty());
  At(2) = Of(40, 40);
  EXPECT_EQ(One(ScanKind::kMove).others, 1);
}

TEST_F(ScanTest, WeightsThatAreAveragedNowAndThen) {
  ScanSeries weight;
  weight.name = "Parameter.a.weight.0.debug.param";
  for (size_t i = 0; i < kSteps; ++i)
    weight.cells.push_back(Of(3, i % 6 == 0 ? 3 : 2.9));
  input_.values.push_back(weight);
  EXPECT_THAT(Find(), IsEmpty());
  // A checkpoint that is loaded once.
  for (size_t i = 0; i < kSteps; ++i)
    input_.values.back().cells[i] = Of(3, i == 0 || i == 9 ? 3 : 2.9);
  One(ScanKind::kRanksPart);
}

TEST_F(ScanTest, PartsOfAWeightThatBeginAlike) {
  const auto add = [&](const char* name, double largest, double smallest) {
    ScanSeries series;
    series.name = name;
    for (size_t i = 0; i < kSteps; ++i) {
      series.cells.push_back(
          i == 0 && series.name[0] == 'P' ? Of(4, 4) : Of(largest, smallest));
    }
    input_.values.push_back(series);
  };
  add("Parameter.c.weight.0.debug.param", 4.1, 4);
  add("Parameter.c.weight.0.debug.grad", 4.1, 3);
  At(9, 0) = Of(4, 3);
  EXPECT_THAT(Find(), Not(IsEmpty()));
  add("Module.c.Part.backward.0.input.0", 1, 1);
  EXPECT_THAT(Find(), Not(IsEmpty()));
  // The ranks add up what each has of a table.
  add("Module.c.Part.forward.0.output.0", 1, 1);
  EXPECT_THAT(Find(), IsEmpty());
  for (ScanCell& cell : input_.values.back().cells) cell = Of(2, 1);
  EXPECT_THAT(Find(), Not(IsEmpty()));
  // The forward gathers the parts.
  add("Module.c.Part.forward.0.parameters.weight", 5.6, 5.6);
  EXPECT_THAT(Find(), IsEmpty());
  // A value that has not a cell for each step is not read.
  input_.values.back().cells.resize(1);
  EXPECT_THAT(Find(), Not(IsEmpty()));
}

TEST_F(ScanTest, ModelsThatAreTrainedOneAfterTheOther) {
  EXPECT_THAT(TrainingsOf(input_), SizeIs(1));
  EXPECT_EQ(LongestOf(input_, TrainingsOf(input_)).last_step,
            input_.steps.back());
  ScanSeries begins;
  begins.name = "Training.0.debug.new_training";
  begins.cells.resize(kSteps);
  for (const size_t step : {size_t{10}, kSteps - 5})
    begins.cells[step] = Of(1, 1);
  input_.values.push_back(begins);
  const std::vector<Training> trainings = TrainingsOf(input_);
  ASSERT_THAT(trainings, SizeIs(3));
  EXPECT_EQ(trainings[0].last_step, input_.steps[9]);
  EXPECT_EQ(LongestOf(input_, trainings).first_step, input_.steps[10]);
  EXPECT_EQ(LongestOf(input_, trainings).last_step, input_.steps[kSteps - 6]);
}

}  // namespace
}  // namespace rankprobe::analysis
