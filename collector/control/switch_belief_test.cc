// SPDX-License-Identifier: Apache-2.0
// Plausibility checks of a switch on the steps that a rank reports.

#include "absl/strings/str_cat.h"
#include "collector/testing/switch_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::FakeRank;
using ::testing::HasSubstr;

class SwitchBeliefTest : public testing::SwitchFixture {
 protected:
  // Refuses each prepare with the answer that the step has passed.
  void Lie(FakeRank* rank, bool also_in_progress) {
    while (!rank->inbox.empty()) {
      const v1::Directive d = rank->inbox.front();
      rank->inbox.pop_front();
      if (!d.has_prepare()) continue;
      const int64_t step = d.prepare().plan().effective_at_step() + 1;
      if (also_in_progress) BeginStep(rank, step);
      v1::AgentEvent event;
      event.mutable_prepared()->set_epoch(d.prepare().plan().epoch());
      event.mutable_prepared()->set_current_step(step);
      control_->agents().OnEvent(rank->session, event);
    }
  }

  // Two honest ranks in step 14, with 0.1 s per step, and one that reports
  // false steps.
  void SwitchBesideALiar(bool also_in_progress,
                         const v1::SwitchOptions& options = {}) {
    for (int r = 0; r < 3; ++r) Join(r, &ranks_[r]);
    for (int64_t step = 0; step < 15; ++step) {
      clock_.Advance(absl::Milliseconds(100));
      for (FakeRank& rank : ranks_) BeginStep(&rank, step);
    }
    Enable(options);
    for (int64_t step = 15; step < 60 && !result_.has_value(); ++step) {
      for (int i = 0; i < 20; ++i) {
        for (int r = 0; r < 2; ++r) Deliver(&ranks_[r]);
        Lie(&ranks_[2], also_in_progress);
      }
      clock_.Advance(absl::Milliseconds(100));
      for (int r = 0; r < 2; ++r) BeginStep(&ranks_[r], step);
      control_->Tick();
    }
  }

  FakeRank ranks_[3];
};

TEST_F(SwitchBeliefTest, WhoPassesEachStepIsLeftOut) {
  for (const bool also_in_progress : {false, true}) {
    SCOPED_TRACE(also_in_progress);
    for (FakeRank& rank : ranks_) rank = {};
    Restart();
    SwitchBesideALiar(also_in_progress);
    ASSERT_TRUE(result_.has_value() && result_->ok());
    const v1::SwitchResult& result = **result_;
    EXPECT_EQ(result.summary(),
              absl::StrCat("2/3 ranks at step ", result.effective_at_step()));
    EXPECT_LT(result.effective_at_step(), 60) << result.DebugString();
    EXPECT_EQ(result.ranks(2).state(), v1::RankSwitch::STATE_REFUSED);
    EXPECT_THAT(result.ranks(2).reason(), HasSubstr("left out: it says"));
    if (also_in_progress) continue;
    // Its false step does not count for any rank.
    EXPECT_LT(control_->agents().List("run").agents(2).step(), 200);
  }
}

TEST_F(SwitchBeliefTest, AStepThatWasAskedForDoesNotPassByAWordOfOneRank) {
  v1::SwitchOptions options;
  options.set_at_step(50);
  for (int r = 0; r < 3; ++r) Join(r, &ranks_[r]);
  for (int64_t step = 0; step < 3; ++step) {
    clock_.Advance(absl::Seconds(100));
    for (FakeRank& rank : ranks_) BeginStep(&rank, step);
  }
  options.set_at_step(500);
  Enable(options);
  Lie(&ranks_[2], false);
  for (int i = 0; i < 2; ++i) {
    for (int r = 0; r < 2; ++r) Deliver(&ranks_[r]);
  }
  for (int r = 0; r < 2; ++r) BeginStep(&ranks_[r], 500);
  ASSERT_TRUE(result_.has_value() && result_->ok()) << result_->status();
  EXPECT_EQ((*result_)->summary(), "2/3 ranks at step 500");
}

// All at once, as after a step that compiled.
TEST_F(SwitchBeliefTest, RanksThatBecomeFasterTogetherAreBelieved) {
  for (int r = 0; r < 3; ++r) Join(r, &ranks_[r]);
  for (int64_t step = 0; step < 3; ++step) {
    clock_.Advance(absl::Seconds(100));
    for (FakeRank& rank : ranks_) BeginStep(&rank, step);
  }
  Enable();
  for (FakeRank& rank : ranks_) BeginStep(&rank, 400);
  for (int64_t step = 401; step < 430 && !result_.has_value(); ++step) {
    for (int i = 0; i < 4; ++i) {
      for (FakeRank& rank : ranks_) Deliver(&rank);
    }
    clock_.Advance(absl::Milliseconds(50));
    for (FakeRank& rank : ranks_) BeginStep(&rank, step);
  }
  ASSERT_TRUE(result_.has_value() && result_->ok()) << result_->status();
  EXPECT_THAT((*result_)->summary(), HasSubstr("3/3 ranks"));
}

TEST_F(SwitchBeliefTest, WhatGoesRoundASilentOrARefusingRankIsSaid) {
  for (int r = 0; r < 2; ++r) Join(r, &ranks_[r]);
  Enable();
  Deliver(&ranks_[0]);
  clock_.Advance(absl::Seconds(11));
  control_->Tick();
  ASSERT_TRUE(result_.has_value() && result_->ok());
  EXPECT_THAT(
      (*result_)->ranks(0).reason(),
      HasSubstr("no answer from rank 1; select the others with --ranks"));
  ranks_[1].inbox.clear();
  Enable();
  v1::AgentEvent event;
  event.mutable_prepared()->set_epoch(
      ranks_[1].inbox.front().prepare().plan().epoch());
  event.mutable_prepared()->set_reason("no memory");
  control_->agents().OnEvent(ranks_[1].session, event);
  ASSERT_TRUE(result_.has_value() && result_->ok());
  EXPECT_THAT((*result_)->ranks(0).reason(),
              HasSubstr("rank 1 refused; select the others with --ranks"));
  EXPECT_EQ((*result_)->ranks(1).reason(), "no memory");
}

}  // namespace
}  // namespace rankprobe
