// SPDX-License-Identifier: Apache-2.0
// Config files that are edited while the job runs: order, equal content,
// faults.

#include "collector/testing/edits_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

using testing::FollowingRank;
using testing::kOff;
using testing::kOn;
using testing::kTensor;

class EditsTest : public testing::EditsFixture {};

TEST_F(EditsTest, WhatCameOfAnEditIsAudited) {
  FollowingRank a, b;
  Join(0, &a);
  Join(1, &b);
  Run({&a, &b}, 2);
  Edit(a, kOn);
  EXPECT_THAT(Audited(), IsEmpty());
  // During the switch two more edits arrive, of which one is never tried.
  Edit(b, kTensor);
  EXPECT_THAT(Audited(), ::testing::ElementsAre(HasSubstr(": WAITING")));
  Edit(b, kOff);
  EXPECT_THAT(
      Audited(),
      ::testing::ElementsAre(
          ::testing::AllOf(HasSubstr(kTensor), HasSubstr(": SUPERSEDED")),
          ::testing::AllOf(HasSubstr(kOff), HasSubstr(": WAITING"))));
  Run({&a, &b}, 20);
  EXPECT_THAT(Audited(), ::testing::ElementsAre(
                             ::testing::AllOf(HasSubstr("rank 0, "),
                                              HasSubstr(": OK: 2/2 ranks")),
                             ::testing::AllOf(HasSubstr("rank 1, "),
                                              HasSubstr(": OK: 2/2 ranks"))));
  // Refused, too late, and cancelled.
  Edit(a, "{");
  Run({&a, &b});
  EXPECT_THAT(Audited(), ::testing::ElementsAre(HasSubstr(": REFUSED: ")));
  Operator(true);
  Run({&a, &b});
  Edit(a, kTensor, "", /*seen=*/1);
  EXPECT_THAT(Audited(), ::testing::ElementsAre(HasSubstr(
                             "not applied: read before the operator's plan")));
  b.silent = true;
  Edit(a, kOn);
  Answer(&a);
  Operator(true);
  EXPECT_THAT(Audited(), ::testing::ElementsAre(HasSubstr(": CANCELLED")));
}

TEST_F(EditsTest, TheFirstRanksConfigSaysWhereItComesFrom) {
  FollowingRank rank;
  Join(3, &rank);
  EXPECT_EQ(Config().source(), v1::PlanSpec::SOURCE_FIRST_RANK);
  EXPECT_EQ(Config().source_detail(), "rank 3, /work/config.json");
}

TEST_F(EditsTest, AnEditOfOneRankIsThePlanOfAllFromOneStep) {
  FollowingRank a, b;
  Join(0, &a);
  Join(1, &b);
  Run({&a, &b}, 3);
  Edit(b, kTensor);
  Run({&a, &b});
  EXPECT_TRUE(a.in_force.enabled());
  EXPECT_EQ(a.in_force.epoch(), 2u);
  EXPECT_EQ(a.in_force.SerializeAsString(), b.in_force.SerializeAsString());
  EXPECT_EQ(a.in_force.config_json(), kTensor);
  EXPECT_EQ(Config().source(), v1::PlanSpec::SOURCE_FILE);
  EXPECT_EQ(Config().source_detail(), "rank 1, /work/config.json");
  EXPECT_THAT(Outcomes(),
              ::testing::ElementsAre(HasSubstr("was edited: OK: 2/2 ranks")));
  Edit(b, kOff);
  Run({&a, &b});
  EXPECT_FALSE(a.in_force.enabled());
}

TEST_F(EditsTest, TheSameEditSeenByManyRanksIsOnePlan) {
  FollowingRank a, b, c;
  Join(0, &a);
  Join(1, &b);
  Join(2, &c);
  Run({&a, &b, &c}, 2);
  Edit(a, kOn);
  // Another dump_path and another order of members: still the same edit.
  Edit(b, R"({"dump_path": "of_b", "dump_enable": true})");
  Run({&a, &b, &c});
  Edit(c, kOn);
  Run({&a, &b, &c});
  EXPECT_EQ(Config().epoch(), 2u);
  EXPECT_TRUE(c.in_force.enabled());
}

TEST_F(EditsTest, ASlowRanksReadingIsNoEditAfterTheOperatorSpoke) {
  FollowingRank a, b;
  Join(0, &a);
  Join(1, &b);
  Run({&a, &b}, 2);
  Edit(a, kOn);
  Run({&a, &b});
  Operator(false);
  Run({&a, &b});
  EXPECT_FALSE(a.in_force.enabled());
  // It has received the operator's plan and reads the file only now.
  Edit(b, kOn);
  Run({&a, &b});
  EXPECT_FALSE(b.in_force.enabled());
  EXPECT_EQ(Config().source(), v1::PlanSpec::SOURCE_OPERATOR);
  EXPECT_EQ(Config().source_detail(), "anna");
}

TEST_F(EditsTest, AnEditReadBeforeTheOperatorSpokeLosesAndIsTold) {
  FollowingRank rank;
  Join(0, &rank);
  Run({&rank}, 2);
  Operator(true);
  Run({&rank});
  EXPECT_TRUE(rank.in_force.enabled());
  Edit(rank, R"({"dump_path": "d", "dump_enable": false, "level": "L0"})", "",
       /*seen=*/1);
  Run({&rank});
  EXPECT_TRUE(rank.in_force.enabled());
  EXPECT_THAT(Outcomes(), ::testing::Contains(HasSubstr(
                              "not applied: read before the operator's plan")));
  // An edit that was read after it wins.
  Edit(rank, kOff);
  Run({&rank});
  EXPECT_FALSE(rank.in_force.enabled());
}

TEST_F(EditsTest, AnOperatorNeedNotWaitForAnEditThatHangs) {
  FollowingRank a, b;
  Join(0, &a);
  Join(1, &b);
  Run({&a, &b}, 2);
  b.silent = true;
  Edit(a, kTensor);
  Answer(&a);
  Operator(true);
  b.silent = false;
  Run({&a, &b});
  ASSERT_TRUE(result_.has_value() && result_->ok()) << result_->status();
  EXPECT_EQ(Config().source(), v1::PlanSpec::SOURCE_OPERATOR);
  Run({&a, &b}, 30);
  EXPECT_EQ(Config().source(), v1::PlanSpec::SOURCE_OPERATOR)
      << "an edit that was called off does not come back";
}

TEST_F(EditsTest, ARankThatIsSilentForAWhileGetsTheEditLater) {
  FollowingRank a, b;
  Join(0, &a);
  Join(1, &b);
  Run({&a, &b}, 2);
  b.silent = true;
  Edit(a, kOn);
  Run({&a, &b}, 24);
  EXPECT_FALSE(a.in_force.enabled());
  b.silent = false;
  Run({&a, &b}, 24);
  EXPECT_TRUE(a.in_force.enabled());
  EXPECT_TRUE(b.in_force.enabled());
}

TEST_F(EditsTest, AnEditThatCannotBeUsedIsOffOnAllRanksUntilItIsMended) {
  FollowingRank a, b;
  Join(0, &a, kOn);
  Join(1, &b, kOn);
  Run({&a, &b}, 2);
  EXPECT_TRUE(a.in_force.enabled());
  Edit(a, "", "task: \"x\x1b[2J\" is not legal");
  Edit(b, "", "task: \"x\x1b[2J\" is not legal");
  Run({&a, &b});
  EXPECT_FALSE(a.in_force.enabled());
  EXPECT_FALSE(b.in_force.enabled());
  EXPECT_EQ(Config().epoch(), 2u) << "one fault, one plan";
  EXPECT_THAT(Config().config_fault(), HasSubstr("rank 0, /work/config.json"));
  EXPECT_THAT(Config().config_fault(), ::testing::Not(HasSubstr("\x1b")));
  EXPECT_THAT(control_->agents().List("run").agents(1).config_fault(),
              HasSubstr("is not legal"));
  Edit(b, kOn);
  Run({&a, &b});
  EXPECT_TRUE(a.in_force.enabled());
  EXPECT_THAT(Config().config_fault(), IsEmpty());
  EXPECT_THAT(control_->agents().List("run").agents(1).config_fault(),
              IsEmpty());
  EXPECT_THAT(control_->agents().List("run").agents(0).config_fault(),
              HasSubstr("is not legal"))
      << "that rank has not read it again yet";
}

TEST_F(EditsTest, AFaultCallsOffAnOlderEditThatIsBeingAgreedOn) {
  FollowingRank a, b;
  Join(0, &a);
  Join(1, &b);
  Run({&a, &b}, 2);
  b.silent = true;
  Edit(a, kTensor);
  Answer(&a);
  Edit(a, "", "broken");
  b.silent = false;
  for (int i = 0; i < 20; ++i) {
    Run({&a, &b}, 1);
    EXPECT_FALSE(a.in_force.enabled()) << "step " << a.step;
    EXPECT_FALSE(b.in_force.enabled()) << "step " << b.step;
  }
  EXPECT_THAT(Config().config_fault(), HasSubstr("broken"));
  EXPECT_THAT(Audited(), ::testing::Contains(HasSubstr(": CANCELLED")));
}

TEST_F(EditsTest, AFaultOvertakesAnEditThatIsAgreedOnAndNotInForce) {
  FollowingRank a, b;
  Join(0, &a);
  Join(1, &b);
  Run({&a, &b}, 2);
  Edit(a, kTensor);
  Answer(&a);
  Answer(&b);
  // Committed, but its step has not begun.
  ASSERT_TRUE(Config().enabled());
  const int64_t step = Config().effective_at_step();
  ASSERT_GT(step, a.step);
  Edit(a, "", "broken");
  Answer(&a);
  Answer(&b);
  EXPECT_FALSE(Config().enabled());
  EXPECT_LE(Config().effective_at_step(), step);
  for (int i = 0; i < 20; ++i) {
    Run({&a, &b}, 1);
    EXPECT_FALSE(a.in_force.enabled()) << "step " << a.step;
    EXPECT_FALSE(b.in_force.enabled()) << "step " << b.step;
  }
}

// Two steps from now would be one step after the edit's.
TEST_F(EditsTest, AFaultIsInForceAtTheStepThatAnOlderEditHasAgreedOn) {
  FollowingRank a, b;
  Join(0, &a);
  Join(1, &b);
  Run({&a, &b}, 2);
  Edit(a, kTensor);
  for (FollowingRank* rank : {&a, &b, &a}) Answer(rank);
  ASSERT_TRUE(Config().enabled());
  const int64_t step = Config().effective_at_step();
  while (a.step + 1 < step) {
    Step(&a);
    Step(&b);
  }
  ASSERT_EQ(a.agreed.size(), 1u);
  Edit(a, "", "broken");
  for (FollowingRank* rank : {&a, &b, &a}) Answer(rank);
  EXPECT_FALSE(Config().enabled());
  EXPECT_EQ(Config().effective_at_step(), step);
  ASSERT_EQ(a.agreed.size(), 2u);
  for (int i = 0; i < 10; ++i) {
    Run({&a, &b}, 1);
    EXPECT_FALSE(a.in_force.enabled()) << "step " << a.step;
    EXPECT_FALSE(b.in_force.enabled()) << "step " << b.step;
  }
  EXPECT_EQ(a.in_force.epoch(), Config().epoch());
  EXPECT_THAT(a.agreed, IsEmpty()) << "it is not taken up again";
}

TEST_F(EditsTest, AnOperatorOverrulesAFileThatCannotBeUsed) {
  FollowingRank rank;
  Join(0, &rank, kOn);
  Run({&rank}, 2);
  Edit(rank, "{");
  Run({&rank});
  EXPECT_FALSE(rank.in_force.enabled());
  EXPECT_THAT(Config().config_fault(), HasSubstr("not valid JSON"));
  Operator(true);
  Run({&rank});
  EXPECT_TRUE(rank.in_force.enabled());
  EXPECT_THAT(Config().config_fault(), IsEmpty());
  EXPECT_THAT(control_->agents().List("run").agents(0).config_fault(),
              HasSubstr("not valid JSON"))
      << "the file is as it was";
}

TEST_F(EditsTest, AFileThatDoesNotSayLeavesTheSwitchAsItIs) {
  FollowingRank rank;
  Join(0, &rank);
  Run({&rank}, 2);
  Edit(rank, R"({"dump_path": "d", "task": "tensor"})");
  Run({&rank});
  EXPECT_FALSE(rank.in_force.enabled());
  Operator(true);
  Run({&rank});
  Edit(rank, R"({"dump_path": "d", "level": "L0"})");
  Run({&rank});
  EXPECT_TRUE(rank.in_force.enabled());
  EXPECT_EQ(Config().source(), v1::PlanSpec::SOURCE_FILE);
}

TEST_F(EditsTest, APlanOfAFileOutlivesTheCollectorAndIsNoEditAfterIt) {
  FollowingRank rank;
  Join(0, &rank);
  Run({&rank}, 2);
  Edit(rank, kTensor);
  Run({&rank});
  Restart();
  Join(0, &rank);
  EXPECT_TRUE(rank.in_force.enabled());
  EXPECT_EQ(Config().source(), v1::PlanSpec::SOURCE_FILE);
  // The agent repeats its edit, because it does not know whether it was kept.
  Edit(rank, kTensor, "", /*seen=*/1);
  Run({&rank});
  EXPECT_EQ(Config().epoch(), 2u);
}

TEST_F(EditsTest, AStepThatNobodyCanReachDoesNotHoldUpTheOthers) {
  FollowingRank a, b, c;
  Join(0, &a);
  Join(1, &b);
  Join(2, &c);
  Run({&a, &b, &c}, 2);
  c.step = int64_t{1} << 62;
  Step(&c);
  Operator(true);
  Run({&a, &b});
  ASSERT_TRUE(result_.has_value() && result_->ok()) << result_->status();
  EXPECT_LT((*result_)->effective_at_step(), 20);
  EXPECT_EQ((*result_)->attempts(), 1u);
  ASSERT_EQ((*result_)->ranks_size(), 3);
  EXPECT_EQ((*result_)->ranks(2).state(), v1::RankSwitch::STATE_REFUSED);
  EXPECT_THAT((*result_)->ranks(2).reason(), HasSubstr("left out"));
  EXPECT_TRUE(a.in_force.enabled());
  EXPECT_TRUE(b.in_force.enabled());
}

TEST(FurthestBelievable, IsThatOfTheRanksThatBelongTogether) {
  const auto furthest = SwitchRanks::FurthestBelievable;
  EXPECT_EQ(furthest({}), -1);
  EXPECT_EQ(furthest({-1, -1}), -1);
  EXPECT_EQ(furthest({-1, 5000000}), 5000000) << "set_init_step";
  EXPECT_EQ(furthest({3, 900000}), 900000);
  EXPECT_EQ(furthest({3, 4, int64_t{1} << 53}), 4);
  EXPECT_EQ(furthest({3, int64_t{1} << 53}), 3);
}

}  // namespace
}  // namespace rankprobe
