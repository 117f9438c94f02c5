// SPDX-License-Identifier: Apache-2.0
// Ranks that begin no step: a server without requests.
#include <string>

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
    // The step behind a pause is as long as that was.
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
  ASSERT_TRUE(result_.has_value() && result_->ok());
  EXPECT_EQ((*result_)->summary(),
            "2/2 ranks will switch at step 21: waits for the next step (ranks "
            "are idle)");
  EXPECT_TRUE((*result_)->waits());
  Wait(absl::Hours(1));
  for (FakeRank& rank : ranks_) {
    BeginStep(&rank, 21);
    EXPECT_EQ(rank.applied_at, 21);
  }
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

TEST_F(SwitchIdleTest, AStepOfASecondIsNoPause) {
  // Each of the last eight took a second.
  for (int64_t step = 21; step < 30; ++step) {
    clock_.Advance(absl::Seconds(1));
    for (FakeRank& rank : ranks_) {
      v1::AgentEvent event;
      event.mutable_progress()->set_step(step);
      event.mutable_progress()->set_last_step_ns(1000000000);
      control_->OnEvent(rank.session, event);
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
            "2/2 ranks will switch at step 0: waits for the next step (ranks "
            "are idle)");
  for (FakeRank& rank : ranks_) {
    BeginStep(&rank, 0);
    EXPECT_EQ(rank.applied_at, 0);
  }
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
