// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/session/plan_switcher.h"

#include <memory>
#include <string>

#include "common/config/plan_digest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;

v1::PlanSpec Spec(uint64_t epoch, int64_t step, bool enabled = true,
                  int64_t for_steps = 0) {
  v1::PlanSpec spec;
  spec.set_epoch(epoch);
  spec.set_config_json(R"({"dump_path": "d"})");
  spec.set_enabled(enabled);
  spec.set_effective_at_step(step);
  spec.set_for_steps(for_steps);
  return spec;
}

class PlanSwitcherTest : public ::testing::Test {
 protected:
  bool Enabled(int64_t step) {
    applied_.reset();
    return gate_.BeginStep(step, &applied_).enabled;
  }
  PlanSwitcher gate_;
  std::optional<v1::PlanApplied> applied_;
};

TEST_F(PlanSwitcherTest, ACommittedPlanTakesEffectOnItsStep) {
  Enabled(3);
  EXPECT_TRUE(gate_.Prepare(Spec(1, 5)).accepted());
  EXPECT_FALSE(gate_.Commit(1).has_value());
  EXPECT_FALSE(Enabled(4));
  EXPECT_TRUE(Enabled(5));
  ASSERT_TRUE(applied_.has_value());
  EXPECT_EQ(applied_->epoch(), 1u);
  EXPECT_EQ(applied_->step(), 5);
  EXPECT_TRUE(Enabled(6));
  EXPECT_FALSE(applied_.has_value()) << "reported once";
}

TEST_F(PlanSwitcherTest, AnIdleStepIsEnteredUntilAPlanIsDue) {
  Enabled(3);
  EXPECT_TRUE(gate_.BeginIdleStep(4));
  EXPECT_EQ(gate_.step(), 4);
  EXPECT_FALSE(gate_.Prepare(Spec(1, 4)).accepted()) << "the step has passed";
  EXPECT_TRUE(gate_.Prepare(Spec(1, 6)).accepted());
  EXPECT_FALSE(gate_.Commit(1).has_value());
  EXPECT_TRUE(gate_.BeginIdleStep(5));
  EXPECT_FALSE(gate_.BeginIdleStep(6));
  EXPECT_EQ(gate_.step(), 5) << "it was not entered";
  EXPECT_TRUE(Enabled(6));
  EXPECT_FALSE(gate_.BeginIdleStep(7)) << "dumping is on";
}

TEST_F(PlanSwitcherTest, AnEditThatEnablesEndsIdleSteps) {
  Enabled(3);
  gate_.Edit(std::make_shared<Plan>(), /*enabled=*/true, /*at_once=*/true);
  EXPECT_FALSE(gate_.BeginIdleStep(4));
}

TEST_F(PlanSwitcherTest, OneThatCannotRecordRefusesPlansThatEnableIt) {
  gate_.RefuseRecording("it runs compiled graphs", /*only_apis=*/false);
  EXPECT_FALSE(gate_.Prepare(Spec(1, 5)).accepted());
  EXPECT_EQ(gate_.Prepare(Spec(1, 5)).reason(), "it runs compiled graphs");
  EXPECT_TRUE(gate_.Prepare(Spec(2, 5, false)).accepted());
}

TEST_F(PlanSwitcherTest, OneThatRecordsModulesAloneRefusesPlansWithApis) {
  gate_.RefuseRecording("level L0 only", /*only_apis=*/true);
  EXPECT_EQ(gate_.Prepare(Spec(1, 5)).reason(), "level L0 only");
  v1::PlanSpec modules = Spec(2, 5);
  modules.set_config_json(R"({"dump_path": "d", "level": "L0"})");
  EXPECT_TRUE(gate_.Prepare(modules).accepted());
  EXPECT_FALSE(gate_.Commit(2).has_value());
  EXPECT_TRUE(Enabled(5));
  // Consent is not required for a plan that the run had before this process.
  gate_.Adopt(Spec(3, 6));
  EXPECT_FALSE(Enabled(6));
}

TEST_F(PlanSwitcherTest, SaysWhichPlanItApplied) {
  EXPECT_EQ(gate_.plan_digest(), "");
  Enabled(3);
  EXPECT_TRUE(gate_.Prepare(Spec(1, 5)).accepted());
  EXPECT_FALSE(gate_.Commit(1).has_value());
  Enabled(5);
  ASSERT_TRUE(applied_.has_value());
  EXPECT_EQ(applied_->plan_digest(), PlanDigest(Spec(1, 9)));
  EXPECT_EQ(gate_.plan_digest(), applied_->plan_digest());
  EXPECT_NE(applied_->plan_digest(), PlanDigest(Spec(2, 5)));
  EXPECT_NE(applied_->plan_digest(), PlanDigest(Spec(1, 5, false)));
}

TEST_F(PlanSwitcherTest, APlanWithAFieldOfANewerVersionIsRefused) {
  v1::PlanSpec spec = Spec(1, 5);
  spec.GetReflection()->MutableUnknownFields(&spec)->AddVarint(4000, 1);
  const v1::PlanPrepared answer = gate_.Prepare(spec);
  EXPECT_FALSE(answer.accepted());
  EXPECT_THAT(answer.reason(),
              HasSubstr("fields that this agent does not know"));
  gate_.Adopt(spec);
  Enabled(6);
  EXPECT_EQ(gate_.epoch(), 0u);
}

TEST_F(PlanSwitcherTest, APassedStepIsRefused) {
  Enabled(5);
  const v1::PlanPrepared answer = gate_.Prepare(Spec(1, 5));
  EXPECT_FALSE(answer.accepted());
  EXPECT_EQ(answer.current_step(), 5);
  EXPECT_THAT(answer.reason(), HasSubstr("step 5 has passed"));
}

TEST_F(PlanSwitcherTest, WithoutItsCommitAPlanIsNeverApplied) {
  Enabled(0);
  ASSERT_TRUE(gate_.Prepare(Spec(1, 2)).accepted());
  EXPECT_FALSE(Enabled(2));
  const auto late = gate_.Commit(1);
  ASSERT_TRUE(late.has_value());
  EXPECT_FALSE(late->accepted());
  EXPECT_FALSE(Enabled(3));
}

TEST_F(PlanSwitcherTest, AnAbortedPlanIsForgotten) {
  Enabled(0);
  ASSERT_TRUE(gate_.Prepare(Spec(1, 2)).accepted());
  gate_.Abort(1);
  EXPECT_TRUE(gate_.Commit(1).has_value());
  ASSERT_TRUE(gate_.Prepare(Spec(2, 3)).accepted());
  gate_.Abort(1);  // of another epoch: no effect
  EXPECT_FALSE(gate_.Commit(2).has_value());
  EXPECT_TRUE(Enabled(3));
}

TEST_F(PlanSwitcherTest, APlanWhoseCommitCameTooLateIsAdoptedAtTheNextStep) {
  Enabled(0);
  ASSERT_TRUE(gate_.Prepare(Spec(1, 2)).accepted());
  EXPECT_FALSE(Enabled(2));
  ASSERT_TRUE(gate_.Commit(1).has_value());
  gate_.Adopt(Spec(1, 2));
  EXPECT_TRUE(Enabled(3));
  ASSERT_TRUE(applied_.has_value());
  EXPECT_EQ(applied_->epoch(), 1u);
  EXPECT_EQ(applied_->step(), 3);
}

TEST_F(PlanSwitcherTest, AnAttemptThatIsCalledOffTouchesNothingAgreedOn) {
  Enabled(0);
  ASSERT_TRUE(gate_.Prepare(Spec(1, 5)).accepted());
  ASSERT_FALSE(gate_.Commit(1).has_value());
  ASSERT_TRUE(gate_.Prepare(Spec(2, 4)).accepted());
  gate_.Abort(2);
  EXPECT_FALSE(Enabled(4));
  EXPECT_TRUE(Enabled(5));
  EXPECT_EQ(applied_->epoch(), 1u);
}

// Ranks receive the second plan before or after the first one's step: all
// record the same steps.
TEST_F(PlanSwitcherTest, TwoPlansThatWaitTakeEffectEachOnItsStep) {
  Enabled(0);
  ASSERT_TRUE(gate_.Prepare(Spec(1, 5)).accepted());
  ASSERT_FALSE(gate_.Commit(1).has_value());
  ASSERT_TRUE(gate_.Prepare(Spec(2, 7, false)).accepted());
  ASSERT_FALSE(gate_.Commit(2).has_value());
  EXPECT_FALSE(gate_.Commit(1).has_value()) << "agreed on already";
  std::string seen;
  for (int64_t step = 4; step < 9; ++step) seen += Enabled(step) ? '1' : '0';
  EXPECT_EQ(seen, "01100");
}

TEST_F(PlanSwitcherTest, ANewerPlanWithAnEarlierStepOvertakes) {
  Enabled(0);
  ASSERT_TRUE(gate_.Prepare(Spec(1, 7)).accepted());
  ASSERT_FALSE(gate_.Commit(1).has_value());
  ASSERT_TRUE(gate_.Prepare(Spec(2, 5, false)).accepted());
  ASSERT_FALSE(gate_.Commit(2).has_value());
  for (int64_t step = 1; step < 9; ++step) EXPECT_FALSE(Enabled(step)) << step;
  EXPECT_EQ(gate_.epoch(), 2u);
}

TEST_F(PlanSwitcherTest, ForStepsEndsByItself) {
  Enabled(0);
  ASSERT_TRUE(gate_.Prepare(Spec(1, 2, true, 3)).accepted());
  gate_.Commit(1);
  std::string seen;
  for (int64_t step = 1; step < 8; ++step) seen += Enabled(step) ? '1' : '0';
  EXPECT_EQ(seen, "0111000");
}

TEST_F(PlanSwitcherTest, FromTheFirstStepWhateverItsNumber) {
  for (const bool welcome : {true, false}) {
    PlanSwitcher gate;
    v1::PlanSpec spec = Spec(1, 0, true, 3);
    spec.set_from_first_step(true);
    if (welcome) {
      gate.Adopt(spec);
    } else {
      ASSERT_TRUE(gate.Prepare(spec).accepted());
      gate.Commit(1);
    }
    std::string seen;
    std::optional<v1::PlanApplied> applied;
    for (int64_t step = 1000; step < 1005; ++step)
      seen += gate.BeginStep(step, &applied).enabled ? '1' : '0';
    EXPECT_EQ(seen, "11100");
    EXPECT_EQ(applied->step(), 1000);
  }
}

TEST_F(PlanSwitcherTest, OldEpochsAndBadConfigsAreRefused) {
  Enabled(0);
  gate_.Adopt(Spec(5, 0));
  EXPECT_TRUE(Enabled(1));
  EXPECT_THAT(gate_.Prepare(Spec(5, 9)).reason(), HasSubstr("epoch 5"));
  v1::PlanSpec bad = Spec(6, 9);
  bad.set_config_json("{");
  EXPECT_THAT(gate_.Prepare(bad).reason(), HasSubstr("JSON"));
  EXPECT_TRUE(Enabled(9)) << "the old plan stays";
}

TEST_F(PlanSwitcherTest, TheLocalPlanYieldsToTheCollectors) {
  gate_.SetLocal(std::make_shared<Plan>(), true);
  EXPECT_TRUE(Enabled(0));
  gate_.Adopt(Spec(1, 0, false));
  EXPECT_FALSE(Enabled(1));
  gate_.SetLocal(std::make_shared<Plan>(), true);
  EXPECT_FALSE(Enabled(2));
}

std::shared_ptr<const Plan> PlanOf(Task task) {
  auto plan = std::make_shared<Plan>();
  plan->task = task;
  return plan;
}

v1::PlanSpec FileSpec(uint64_t epoch, int64_t step, bool enabled) {
  v1::PlanSpec spec = Spec(epoch, step, enabled);
  spec.set_source(v1::PlanSpec::SOURCE_FILE);
  return spec;
}

TEST_F(PlanSwitcherTest, AnEditAtOnceBeatsThePlanInForceInTheNextStep) {
  gate_.Adopt(Spec(1, 0, false));
  EXPECT_FALSE(Enabled(0));
  gate_.Edit(PlanOf(Task::kTensor), true, /*at_once=*/true);
  const ActivePlan active = gate_.BeginStep(1, &applied_);
  EXPECT_TRUE(active.enabled);
  EXPECT_EQ(active.epoch, 0u) << "the process' own plan";
  EXPECT_EQ(active.plan->task, Task::kTensor);
  gate_.Edit(PlanOf(Task::kTensor), false, true);
  EXPECT_FALSE(Enabled(2));
  gate_.Edit(PlanOf(Task::kTensor), std::nullopt, true);
  EXPECT_FALSE(Enabled(3)) << "a file that does not say changes nothing";
}

TEST_F(PlanSwitcherTest, AnOperatorsListOfFunctionsOutlivesAnEdit) {
  Enabled(0);
  v1::PlanSpec spec = Spec(1, 2);
  spec.set_api_list("torch:\n- add\n");
  ASSERT_TRUE(gate_.Prepare(spec).accepted());
  ASSERT_FALSE(gate_.Commit(1).has_value());
  EXPECT_EQ(gate_.BeginStep(2, &applied_).plan->api_list, spec.api_list());
  gate_.Edit(PlanOf(Task::kTensor), true, /*at_once=*/true);
  const ActivePlan edited = gate_.BeginStep(3, &applied_);
  EXPECT_EQ(edited.plan->task, Task::kTensor);
  EXPECT_EQ(edited.plan->api_list, spec.api_list());
  spec = Spec(2, 5);
  spec.set_api_list("torch: [add]");
  const v1::PlanPrepared bad = gate_.Prepare(spec);
  EXPECT_FALSE(bad.accepted());
  EXPECT_THAT(bad.reason(), HasSubstr("line 1"));
}

TEST_F(PlanSwitcherTest, AnEditThatCannotBeUsedIsOffUntilItIsMended) {
  gate_.Adopt(Spec(1, 0, true));
  EXPECT_TRUE(Enabled(0));
  gate_.Edit(nullptr, std::nullopt, true);
  EXPECT_FALSE(Enabled(1));
  gate_.Edit(PlanOf(Task::kStatistics), true, true);
  EXPECT_TRUE(Enabled(2));
}

TEST_F(PlanSwitcherTest, AnOperatorWhoSpeaksAfterTheEditBeatsIt) {
  gate_.Adopt(Spec(1, 0, true));
  Enabled(0);
  gate_.Edit(nullptr, std::nullopt, true);
  EXPECT_FALSE(Enabled(1));
  ASSERT_TRUE(gate_.Prepare(Spec(2, 4)).accepted());
  gate_.Commit(2);
  EXPECT_FALSE(Enabled(3));
  EXPECT_TRUE(Enabled(4));
  EXPECT_EQ(applied_->epoch(), 2u);
}

TEST_F(PlanSwitcherTest, AnEditBeatsAnOperatorWhoSpokeBefore) {
  gate_.Adopt(Spec(1, 0, false));
  Enabled(0);
  ASSERT_TRUE(gate_.Prepare(Spec(2, 4)).accepted());
  gate_.Commit(2);
  gate_.Edit(PlanOf(Task::kStatistics), false, true);
  EXPECT_FALSE(Enabled(4)) << "the file spoke later";
  ASSERT_TRUE(applied_.has_value()) << "the collector does not wait for it";
  EXPECT_EQ(gate_.epoch(), 2u);
}

TEST_F(PlanSwitcherTest, PlansMadeOfFilesAreForTheOthers) {
  gate_.Adopt(Spec(1, 0, false));
  Enabled(0);
  gate_.Edit(PlanOf(Task::kTensor), true, true);
  // An edit before that one, which arrived late.
  ASSERT_TRUE(gate_.Prepare(FileSpec(2, 3, false)).accepted());
  gate_.Commit(2);
  EXPECT_TRUE(Enabled(3));
  EXPECT_EQ(applied_->epoch(), 2u);
}

TEST_F(PlanSwitcherTest, WithASharedCollectorAnEditWaitsForThePlanOfTheRun) {
  gate_.SetLocal(PlanOf(Task::kStatistics), false);
  gate_.Edit(PlanOf(Task::kStatistics), true, /*at_once=*/false);
  EXPECT_TRUE(Enabled(0)) << "no collector yet: the file is all there is";
  gate_.Adopt(Spec(1, 0, true));
  EXPECT_TRUE(Enabled(1));
  gate_.Edit(PlanOf(Task::kStatistics), false, false);
  EXPECT_TRUE(Enabled(2)) << "the collector says when";
  gate_.Edit(nullptr, std::nullopt, false);
  EXPECT_TRUE(Enabled(3));
  ASSERT_TRUE(gate_.Prepare(FileSpec(2, 5, false)).accepted());
  EXPECT_EQ(gate_.heard_epoch(), 2u);
  gate_.Commit(2);
  EXPECT_FALSE(Enabled(5));
}

}  // namespace
}  // namespace rankprobe
