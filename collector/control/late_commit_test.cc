// SPDX-License-Identifier: Apache-2.0
// Commits that come too late for some of the ranks.
#include "absl/strings/str_cat.h"
#include "collector/testing/switch_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using testing::FakeRank;
using ::testing::HasSubstr;

using LateCommitTest = testing::SwitchFixture;

// No rank silently stays on the old plan: a late rank is named and gets the
// plan at its next step, and the result waits for that.
TEST_F(LateCommitTest, ACommitThatIsLateForSomeReachesThemAtTheirNextStep) {
  FakeRank ranks[2];
  for (int r = 0; r < 2; ++r) Join(r, &ranks[r]);
  for (FakeRank& rank : ranks) BeginStep(&rank, 10);
  Enable();
  for (FakeRank& rank : ranks) Deliver(&rank);
  ASSERT_TRUE(ranks[0].prepared.has_value());
  const int64_t first = ranks[0].prepared->effective_at_step();
  ranks[0].step = first;
  for (FakeRank& rank : ranks) Deliver(&rank);
  EXPECT_TRUE(ranks[0].inbox.empty()) << "it may yet be late for all";
  BeginStep(&ranks[1], first);
  EXPECT_FALSE(result_.has_value()) << "rank 0 has not followed";
  EXPECT_THAT(ExplainedSwitch(&ranks[0]), HasSubstr("did not follow to epoch"));
  while (!ranks[0].inbox.empty()) Deliver(&ranks[0]);
  BeginStep(&ranks[0], first + 1);
  ASSERT_TRUE(result_.has_value() && result_->ok());
  EXPECT_EQ((*result_)->attempts(), 1u);
  EXPECT_EQ((*result_)->summary(),
            absl::StrCat("1/2 ranks at step ", first,
                         "; the commit came too late for rank 0 at step ",
                         first + 1));
  EXPECT_EQ((*result_)->ranks(0).state(), v1::RankSwitch::STATE_APPLIED);
  EXPECT_EQ((*result_)->ranks(0).applied_step(), first + 1);
  EXPECT_EQ(ranks[0].epoch, ranks[1].epoch);
  EXPECT_EQ(ExplainedSwitch(&ranks[0]), "");
  EXPECT_THAT(SwitchEvents(),
              ElementsAre(HasSubstr("did not follow"), HasSubstr("late")));
}

TEST_F(LateCommitTest, ARankThatIsLateWhenNobodyWaitsFollowsAllTheSame) {
  FakeRank ranks[2];
  for (int r = 0; r < 2; ++r) Join(r, &ranks[r]);
  for (FakeRank& rank : ranks) BeginStep(&rank, 10);
  v1::SwitchOptions options;
  options.set_no_wait(true);
  Enable(options);
  for (FakeRank& rank : ranks) Deliver(&rank);
  ASSERT_TRUE(result_.has_value() && result_->ok());
  ASSERT_TRUE(ranks[0].prepared.has_value());
  const int64_t first = ranks[0].prepared->effective_at_step();
  ranks[0].step = first;
  for (FakeRank& rank : ranks) Deliver(&rank);
  while (!ranks[0].inbox.empty()) Deliver(&ranks[0]);
  BeginStep(&ranks[1], first);
  BeginStep(&ranks[0], first + 1);
  EXPECT_EQ(ranks[0].epoch, (*result_)->epoch());
  EXPECT_EQ(ranks[1].epoch, (*result_)->epoch());
  EXPECT_THAT(SwitchEvents(),
              ElementsAre(HasSubstr("did not follow"), HasSubstr("late")));
}

// The plan is agreed on and saved: whatever happens to a further attempt, the
// run records it, and all ranks get it.
TEST_F(LateCommitTest, LateForAllAndThenSilenceLeavesNobodyBehind) {
  FakeRank ranks[2];
  for (int r = 0; r < 2; ++r) Join(r, &ranks[r]);
  for (FakeRank& rank : ranks) BeginStep(&rank, 10);
  Enable();
  for (FakeRank& rank : ranks) Deliver(&rank);
  ASSERT_TRUE(ranks[0].prepared.has_value());
  const uint64_t agreed = ranks[0].prepared->epoch();
  const int64_t first = ranks[0].prepared->effective_at_step();
  for (FakeRank& rank : ranks) rank.step = first;
  for (FakeRank& rank : ranks) Deliver(&rank);
  // In the second attempt rank 1 does not answer.
  clock_.Advance(absl::Seconds(11));
  control_->Tick();
  ASSERT_TRUE(result_.has_value() && result_->ok());
  for (FakeRank& rank : ranks) {
    while (!rank.inbox.empty()) Deliver(&rank);
    BeginStep(&rank, first + 1);
    EXPECT_EQ(rank.epoch, agreed);
  }
  EXPECT_EQ(control_->plans().GetConfig("run")->epoch(), agreed);
}

}  // namespace
}  // namespace rankprobe
