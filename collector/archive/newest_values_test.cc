// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/newest_values.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collector/archive/rollup.h"
#include "collector/testing/statistics_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using testing::Frames;
using ::testing::IsEmpty;
using testing::MakeIdentity;

class NewestValuesTest : public testing::StatisticsRunTest {
 protected:
  void SetUp() override {
    StatisticsRunTest::SetUp();
    // Rank 1 is ahead, and in a step that has not ended.
    Frames frames(MakeIdentity("run", 1, 3));
    AddStep(&frames, 7, 40);
    v1::RecordBatch* const open = frames.AddBatch(8);
    open->add_records()->mutable_step_begin();
    ASSERT_TRUE(store_->Commit(frames.All()).ok());
  }
  // "rank1@7 NAME Norm"
  std::vector<std::string> Ask(std::vector<std::string> patterns,
                               size_t max_values = 100) {
    const std::vector<std::string> runs = {"none", "run"};
    auto values = ReadNewestValues(store_.get(), runs, patterns, max_values,
                                   [this] { return stopped_; });
    EXPECT_TRUE(values.ok()) << values.status();
    values_ = *std::move(values);
    std::vector<std::string> out;
    for (const NewestValue& value : values_.values) {
      const NewestStep& step = values_.steps[value.step];
      out.push_back(absl::StrCat(step.process, "@", step.step, " ", value.name,
                                 " ", value.numbers[0].value_or(-1)));
    }
    return out;
  }
  void RollUp() {
    RollupMaker(store_.get()).RollUpPending([] { return false; });
  }

  NewestValues values_;
  bool stopped_ = false;
};

TEST_F(NewestValuesTest, EachRankAtItsLastStepThatHasEnded) {
  EXPECT_THAT(Ask({"fc"}), IsEmpty()) << "nothing is rolled up";
  RollUp();
  EXPECT_THAT(Ask({"*.output.*"}),
              ElementsAre("rank0@3 Module.fc.Linear.forward.0.output.0 4",
                          "rank0@3 Functional.relu.0.forward.output.0.0 2",
                          "rank0@3 Functional.relu.0.forward.output.0.1 -1",
                          "rank1@7 Module.fc.Linear.forward.0.output.0 40",
                          "rank1@7 Functional.relu.0.forward.output.0.0 20",
                          "rank1@7 Functional.relu.0.forward.output.0.1 -1"));
  EXPECT_EQ(values_.values[0].numbers[1], 2) << "Max";
  EXPECT_FALSE(values_.values[0].numbers[2].has_value()) << "no Min";
  EXPECT_TRUE(values_.complete);
  EXPECT_EQ(values_.left_out, 0u);
}

TEST_F(NewestValuesTest, OnceWhateverNumberOfPatternsMeansIt) {
  RollUp();
  EXPECT_THAT(
      Ask({"weight", "parameters_grad"}),
      ElementsAre("rank0@3 Module.fc.Linear.parameters_grad.weight 40",
                  "rank1@7 Module.fc.Linear.parameters_grad.weight 400"));
}

TEST_F(NewestValuesTest, BoundsAreHeldAndSaid) {
  RollUp();
  EXPECT_EQ(Ask({""}, 3).size(), 3u);
  EXPECT_EQ(values_.left_out, 5u);
  stopped_ = true;
  EXPECT_THAT(Ask({""}), IsEmpty());
  EXPECT_FALSE(values_.complete);
}

TEST_F(NewestValuesTest, FarBackWhereNothingWasRecordedSince) {
  Frames frames(MakeIdentity("run", 2, 4));
  AddStep(&frames, 5, 1);
  v1::RecordBatch* const open = frames.AddBatch(100000);
  open->add_records()->mutable_step_begin();
  ASSERT_TRUE(store_->Commit(frames.All()).ok());
  RollUp();
  Ask({"weight"});
  ASSERT_EQ(values_.steps.size(), 3u);
  EXPECT_EQ(values_.steps[1].process, "rank2");
  EXPECT_EQ(values_.steps[1].step, 5);
}

}  // namespace
}  // namespace rankprobe
