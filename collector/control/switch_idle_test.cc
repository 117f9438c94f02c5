// SPDX-License-Identifier: Apache-2.0
// Ranks that begin no step: a server without requests.
#include <iterator>

#include "absl/strings/str_cat.h"
#include "collector/testing/switch_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::FakeRank;
using ::testing::HasSubstr;

class SwitchIdleTest : public testing::SwitchFixture {
 protected:
  void SetUp() override {
    SwitchFixture::SetUp();
    for (int r = 0; r < 2; ++r) Join(r, &ranks_[r]);
    // A step after a pause is as long as the pause.
    for (const int64_t step : {17, 18, 19, 20}) {
      clock_.Advance(step == 19 ? absl::Minutes(1) : absl::Milliseconds(100));
      for (FakeRank& rank : ranks_) BeginStep(&rank, step);
    }
  }
  void DeliverAll() {
    for (int i = 0; i < 4; ++i) {
      for (FakeRank& rank : ranks_) Deliver(&rank);
    }
  }
  // Whenever it begins.
  void ExpectTheirNextStep(int64_t step) {
    ASSERT_TRUE(result_.has_value() && result_->ok());
    EXPECT_EQ((*result_)->summary(),
              absl::StrCat("2/2 ranks will switch at step ", step,
                           ": waits for the next step (ranks are idle)"));
    EXPECT_TRUE((*result_)->waits());
    Wait(absl::Hours(1));
    for (FakeRank& rank : ranks_) {
      BeginStep(&rank, step);
      EXPECT_EQ(rank.applied_at, step);
    }
  }
  void Wait(absl::Duration time) {
    clock_.Advance(time);
    control_->Tick();
  }

  FakeRank ranks_[2];
};

TEST_F(SwitchIdleTest, TheirNextStepIsTheFirstAndNobodyWaitsForIt) {
  Wait(absl::Seconds(5));
  Enable();
  DeliverAll();
  Wait(absl::Milliseconds(100));
  EXPECT_FALSE(result_.has_value()) << "the commit may come too late";
  Wait(absl::Milliseconds(500));
  ExpectTheirNextStep(21);
}

TEST_F(SwitchIdleTest, OneThatMovesMeanwhileMeansALaterStep) {
  Wait(absl::Seconds(5));
  Enable();
  BeginStep(&ranks_[0], 21);
  DeliverAll();
  for (FakeRank& rank : ranks_)
    EXPECT_GT(rank.prepared->effective_at_step(), 21);
  for (int64_t step = 21; step < 40 && !result_.has_value(); ++step) {
    DeliverAll();
    for (FakeRank& rank : ranks_) BeginStep(&rank, step);
    Wait(absl::Milliseconds(100));
  }
  ASSERT_TRUE(result_.has_value() && result_->ok());
  EXPECT_THAT((*result_)->summary(), HasSubstr("2/2 ranks at step"));
  EXPECT_EQ(ranks_[0].applied_at, ranks_[1].applied_at);
}

// Enabled between its last answer and the two seconds after which it is idle.
TEST_F(SwitchIdleTest, WhoComesToRestBeforeTheStepSwitchesAtHisNext) {
  Wait(absl::Milliseconds(300));
  Enable();
  DeliverAll();
  EXPECT_EQ(ranks_[0].prepared->effective_at_step(), 22);
  EXPECT_TRUE(ranks_[0].committed);
  Wait(absl::Milliseconds(1600));
  DeliverAll();
  EXPECT_EQ(ranks_[0].prepared->effective_at_step(), 22);
  Wait(absl::Milliseconds(200));
  DeliverAll();
  Wait(absl::Milliseconds(600));
  ExpectTheirNextStep(21);
}

TEST_F(SwitchIdleTest, WhoGoesOnAfterAMomentOfRestSwitchesAsEver) {
  Wait(absl::Milliseconds(300));
  Enable();
  DeliverAll();
  for (int64_t step = 21; step < 40 && !result_.has_value(); ++step) {
    for (FakeRank& rank : ranks_) BeginStep(&rank, step);
    Wait(absl::Milliseconds(100));
    DeliverAll();
  }
  ASSERT_TRUE(result_.has_value() && result_->ok());
  EXPECT_EQ((*result_)->summary(), "2/2 ranks at step 22");
}

// The step after the pause begins when the earlier one is offered.
TEST_F(SwitchIdleTest, WhatWasAgreedOnStaysForWhoGoesOnMeanwhile) {
  Wait(absl::Milliseconds(300));
  Enable();
  DeliverAll();
  const v1::PlanSpec agreed = *ranks_[0].prepared;
  ASSERT_EQ(agreed.effective_at_step(), 22);
  Wait(absl::Milliseconds(2000));
  for (FakeRank& rank : ranks_) {
    BeginStep(&rank, 21);
    // Refused; the earlier commit stays valid, as it does in an agent.
    Deliver(&rank);
    rank.prepared = agreed;
    rank.committed = true;
  }
  EXPECT_FALSE(result_.has_value());
  control_->WaitForSaves();
  EXPECT_EQ((*store_->LoadPlan("run"))->epoch(), agreed.epoch());
  Wait(absl::Milliseconds(100));
  for (FakeRank& rank : ranks_) {
    BeginStep(&rank, 22);
    EXPECT_EQ(rank.applied_at, 22);
  }
  ASSERT_TRUE(result_.has_value() && result_->ok());
  EXPECT_EQ((*result_)->summary(), "2/2 ranks at step 22");
  EXPECT_EQ((*result_)->epoch(), agreed.epoch());
}

// Its last steps were too fast to report each of them.
TEST_F(SwitchIdleTest, WhoIsFurtherThanHeToldSwitchesAtHisNextAsWell) {
  Wait(absl::Milliseconds(300));
  for (FakeRank& rank : ranks_) rank.step = 23;
  Enable();
  DeliverAll();
  DeliverAll();
  EXPECT_GT(ranks_[0].prepared->effective_at_step(), 24);
  Wait(absl::Milliseconds(2100));
  DeliverAll();
  Wait(absl::Milliseconds(600));
  ASSERT_TRUE(result_.has_value() && result_->ok());
  EXPECT_EQ((*result_)->effective_at_step(), 24);
  EXPECT_TRUE((*result_)->waits());
}

TEST_F(SwitchIdleTest, AStepOfASecondIsNoPause) {
  // Each of the last eight took a second.
  for (int64_t step = 21; step < 30; ++step) {
    clock_.Advance(absl::Seconds(1));
    for (FakeRank& rank : ranks_) {
      v1::AgentEvent event;
      event.mutable_progress()->set_step(step);
      event.mutable_progress()->set_last_step_ns(1000000000);
      control_->agents().OnEvent(rank.session, event);
      rank.step = step;
    }
  }
  Wait(absl::Milliseconds(2500));
  Enable();
  DeliverAll();
  Wait(absl::Milliseconds(2500));
  EXPECT_EQ(ranks_[0].prepared->effective_at_step(), 31);
  EXPECT_FALSE(result_.has_value());
  for (const int64_t step : {30, 31}) {
    for (FakeRank& rank : ranks_) BeginStep(&rank, step);
  }
  ASSERT_TRUE(result_.has_value() && result_->ok());
  EXPECT_EQ((*result_)->summary(), "2/2 ranks at step 31");
}

// Its plan is the run's, from a step that it reaches long after the switch.
TEST_F(SwitchIdleTest, AServerThatIsStartedAgainIsSaidToSwitchLater) {
  Wait(absl::Seconds(5));
  Enable();
  DeliverAll();
  Wait(absl::Milliseconds(600));
  for (FakeRank& rank : ranks_) {
    DeliverAll();
    BeginStep(&rank, 21);
    ASSERT_EQ(rank.applied_at, 21);
  }
  v1::AgentEvent event;
  event.mutable_progress()->set_step(21);
  event.mutable_progress()->set_dumping(true);
  control_->agents().OnEvent(ranks_[0].session, event);
  control_->agents().Disconnected(ranks_[0].session, "killed");
  control_->agents().Disconnected(ranks_[1].session, "killed");
  const v1::ListEventsResponse gone = control_->ListEvents({});
  EXPECT_EQ(gone.events().rbegin()->detail(), "killed");
  EXPECT_EQ(std::next(gone.events().rbegin())->detail(),
            "killed; it was recording: what it has not sent of this step is "
            "lost if it does not come back");
  FakeRank again;
  Join(0, &again, 200);
  const auto listed = control_->agents().List("run");
  for (const v1::AgentInfo& agent : listed.agents()) {
    const bool is_new = agent.identity().incarnation() == 200;
    EXPECT_EQ(agent.has_switches_at_step(), is_new) << agent.DebugString();
    if (is_new) EXPECT_EQ(agent.switches_at_step(), 21);
  }
  const v1::ListEventsResponse events = control_->ListEvents({});
  EXPECT_THAT(events.events().rbegin()->detail(),
              HasSubstr("switches dumping on at its step 21"));
}

class SwitchBeforeTheFirstStepTest : public SwitchIdleTest {
 protected:
  void SetUp() override {
    SwitchFixture::SetUp();
    for (int r = 0; r < 2; ++r) {
      ranks_[r].step = -1;
      Join(r, &ranks_[r]);
    }
  }
};

TEST_F(SwitchBeforeTheFirstStepTest, TheFirstIsThatOfIdleRanks) {
  Wait(absl::Seconds(5));
  v1::SwitchOptions options;
  options.set_for_steps(3);
  Enable(options);
  DeliverAll();
  Wait(absl::Milliseconds(600));
  ASSERT_TRUE(result_.has_value() && result_->ok());
  EXPECT_EQ((*result_)->summary(),
            "2/2 ranks will switch at their first step: waits for it (ranks "
            "are idle)");
  for (FakeRank& rank : ranks_) {
    BeginStep(&rank, 0);
    EXPECT_EQ(rank.applied_at, 0);
  }
}

// A training that continues from a checkpoint.
TEST_F(SwitchBeforeTheFirstStepTest, WhateverTheNumberOfTheFirstItCounts) {
  Wait(absl::Seconds(5));
  v1::SwitchOptions options;
  options.set_for_steps(3);
  Enable(options);
  DeliverAll();
  Wait(absl::Milliseconds(600));
  const uint64_t epoch = (*result_)->epoch();
  const v1::Identity one = testing::HelloOf("run", 1, 101).identity();
  const auto admits = [&](int64_t step) {
    return control_->gate().Admits(one, step, epoch);
  };
  // The records of a step may arrive before the report that it is the first.
  EXPECT_TRUE(admits(1000));
  EXPECT_TRUE(control_->plans().GetConfig("run")->from_first_step());
  for (FakeRank& rank : ranks_) {
    BeginStep(&rank, 1000);
    EXPECT_EQ(rank.applied_at, 1000);
  }
  EXPECT_FALSE(admits(999));
  EXPECT_TRUE(admits(1000) && admits(1002));
  EXPECT_FALSE(admits(1003));
  const auto plan = control_->plans().GetConfig("run");
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->effective_at_step(), 1000);
  EXPECT_FALSE(plan->from_first_step());
  // A rank that returns later gets no steps of its own.
  FakeRank late;
  late.step = -1;
  const v1::Welcome welcome = Join(2, &late);
  EXPECT_EQ(welcome.plan().effective_at_step(), 1000);
  EXPECT_FALSE(welcome.plan().from_first_step());
}

TEST_F(SwitchBeforeTheFirstStepTest, AStepThatIsNamedIsThatStep) {
  Wait(absl::Seconds(5));
  v1::SwitchOptions options;
  options.set_at_step(5);
  options.set_for_steps(3);
  Enable(options);
  DeliverAll();
  EXPECT_FALSE(ranks_[0].prepared->from_first_step());
}

TEST_F(SwitchBeforeTheFirstStepTest, OfThoseThatHaveJustComeALaterOneIs) {
  Enable();
  DeliverAll();
  EXPECT_GT(ranks_[0].prepared->effective_at_step(), 0);
}

TEST_F(SwitchBeforeTheFirstStepTest, OneThatBeginsMeanwhileMeansALaterStep) {
  Wait(absl::Seconds(5));
  Enable();
  BeginStep(&ranks_[0], 0);
  DeliverAll();
  for (FakeRank& rank : ranks_)
    EXPECT_GT(rank.prepared->effective_at_step(), 0);
}

TEST_F(SwitchIdleTest, OneThatIsIdleBesideOneThatWorksIsWaitedFor) {
  clock_.Advance(absl::Seconds(5));
  BeginStep(&ranks_[0], 21);
  Enable();
  DeliverAll();
  EXPECT_EQ(ranks_[0].prepared->effective_at_step(), 23);
}

}  // namespace
}  // namespace rankprobe
