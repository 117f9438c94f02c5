// SPDX-License-Identifier: Apache-2.0
// The analyses that are possible with few steps, and with steps that are not
// successive.
#include "cli/client/run_scope.h"

#include <numeric>

#include "cli/output/ledger_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

analysis::ScanInput InputOf(size_t steps, uint32_t ranks) {
  analysis::ScanInput input;
  input.steps.resize(steps);
  std::iota(input.steps.begin(), input.steps.end(), 0);
  for (const char* name :
       {"Module.fc.Linear.forward.0.output.0", "Training.0.debug.loss",
        "Update.fc.weight.0.debug.update"}) {
    analysis::ScanSeries series;
    series.name = name;
    series.cells.assign(steps, {1, 1, ranks, 0, 0, 0});
    input.values.push_back(series);
  }
  return input;
}

TEST(RunScopeTest, OneStepShowsNothingOfACourse) {
  const ScanScope scope = ScopeOf(InputOf(1, 2));
  EXPECT_THAT(scope.judged, IsEmpty());
  EXPECT_THAT(scope.unjudged,
              ElementsAre("moves (needs 6 recorded steps)",
                          "vanishes (needs 10 recorded steps)",
                          "parts (needs 2 recorded steps)",
                          "changes (needs 12 successive steps)"));
}

TEST(RunScopeTest, StepsWithOthersBetweenThemShowNoChange) {
  analysis::ScanInput input = InputOf(20, 1);
  EXPECT_THAT(ScopeOf(input).judged,
              ElementsAre("moves", "vanishes", "changes"));
  for (int64_t& step : input.steps) step *= 50;
  EXPECT_THAT(ScopeOf(input).unjudged,
              ElementsAre("changes (needs 12 successive steps)"));
  EXPECT_EQ(StepsShort(10, true, input.steps), "10 successive steps");
  EXPECT_EQ(StepsShort(10, false, input.steps), "");
}

TEST(RunScopeTest, AMonitorOfEachStepHasWhatTheProgramHas) {
  analysis::ScanInput input = InputOf(5, 1);
  EXPECT_TRUE(IsMonitoredWhole(input));
  // Words are missing in monitor.values, or steps.
  input.values.pop_back();
  EXPECT_FALSE(IsMonitoredWhole(input));
  input = InputOf(5, 1);
  input.steps[4] = 9;
  EXPECT_FALSE(IsMonitoredWhole(input));
  EXPECT_FALSE(IsMonitoredWhole(InputOf(1, 1)));
}

// Nothing more can be recorded: each step was skipped.
TEST(RunScopeTest, StepsThatAScalerSkippedHaveNoOptimizer) {
  analysis::ScanInput input = InputOf(5, 1);
  input.values.back().name = "Module.fc.Linear.parameters_grad.0.weight";
  for (analysis::ScanCell& cell : input.values.back().cells)
    cell.non_finite = 1;
  EXPECT_THAT(StepsSkippedByScaler(input), IsEmpty());
  EXPECT_FALSE(IsMonitoredWhole(input));
  input.values.push_back(input.values[1]);
  input.values.back().name = "Training.0.debug.loss_scale";
  EXPECT_THAT(StepsSkippedByScaler(input), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_TRUE(IsMonitoredWhole(input));
  input.values.push_back(input.values[1]);
  input.values.back().name = "Parameter.fc.weight.0.debug.grad";
  for (const size_t skipped : {1, 3}) input.values.back().cells[skipped] = {};
  const std::vector<int64_t> skipped = StepsSkippedByScaler(input);
  EXPECT_THAT(skipped, ElementsAre(1, 3));
  // The last step has such a gradient, and the optimizer applied it.
  EXPECT_EQ(OverflowsOfScaler(input, skipped), 0);
  input.values[2].cells[4].non_finite = 0;
  EXPECT_EQ(OverflowsOfScaler(input, skipped), 1);
  EXPECT_EQ(OverflowsOfScaler(input, {}), 0);
  // A value that is not a gradient.
  input.values[0].cells[1].non_finite = 1;
  EXPECT_EQ(OverflowsOfScaler(input, skipped), 0);
  input.values[0].cells[1].non_finite = 0;
  // The optimizer takes no further step.
  input.values.back().cells[4] = {};
  EXPECT_EQ(OverflowsOfScaler(input, skipped), 0);
}

TEST(EndedRanksTest, AProcessThatIsNotHeardOfHasItsNewestStep) {
  EndedRanks ended;
  v1::StepLedger ledger;
  for (const int64_t rank : {0, 1}) {
    ledger.set_rank(rank);
    ledger.set_incarnation(static_cast<uint64_t>(rank) + 7);
    for (const int64_t step : {11, 12}) {
      ledger.set_step(step - rank);
      ended.Add(ledger);
    }
  }
  EXPECT_EQ(ended.ToText(), "");
  ledger.set_step(-1);
  ledger.add_gaps()->set_reason("PROCESS_EXIT");
  ended.Add(ledger);
  EXPECT_EQ(ended.ToText(), "");
  ledger.add_gaps()->set_reason("NOT_HEARD_OF");
  ended.Add(ledger);
  EXPECT_EQ(ended.ToText(), "rank 1 (newest step here: 11)");
  ledger.set_rank(2);
  ledger.set_incarnation(99);
  ended.Add(ledger);
  EXPECT_EQ(ended.ToText(),
            "rank 1 (newest step here: 11), rank 2 (no step here)");
}

}  // namespace
}  // namespace rankprobe
