// SPDX-License-Identifier: Apache-2.0
// Messages of a process whose token is bound to ranks affect these ranks, and
// others only if they say the same.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collector/testing/edits_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using testing::FollowingRank;
using ::testing::HasSubstr;
using testing::kOff;
using testing::kOn;
using testing::kTensor;

class BoundRanksTest : public testing::EditsFixture {
 protected:
  // Returns the holder of a token of these ranks.
  static Peer Of(const std::string& name, int64_t first, int64_t last) {
    Peer peer;
    peer.anonymous = false;
    peer.principal = Principal::Of(Role::kAgent, name);
    peer.principal.run = "run";
    peer.principal.ranks = {{first, last}};
    return peer;
  }
  static Peer OfRank(int64_t rank) {
    return Of(absl::StrCat("rank", rank), rank, rank);
  }

  void Fire(const FollowingRank& rank, const std::string& rule) {
    v1::AgentEvent event;
    event.mutable_fired()->set_rule(rule);
    event.mutable_fired()->set_step(rank.step);
    control_->agents().OnEvent(rank.session, event);
  }
  void Differ(const FollowingRank& rank) {
    v1::AgentEvent event;
    event.mutable_difference()->set_step(rank.step);
    event.mutable_difference()->set_plan_epoch(rank.in_force.epoch());
    control_->agents().OnEvent(rank.session, event);
  }
  std::vector<std::string> OutcomesOf(v1::Event::Kind kind) {
    std::vector<std::string> out;
    for (const v1::Event& event : events_->List("run", 0, 1000))
      if (event.kind() == kind) out.push_back(event.outcome());
    return out;
  }
  static int CountShips(FollowingRank* rank) {
    int count = 0;
    for (const v1::Directive& d : rank->inbox) count += d.has_ship_flight();
    return count;
  }
};

TEST_F(BoundRanksTest, AnEditBecomesTheRunsWhenEveryTokensRanksHaveReadIt) {
  FollowingRank a, b, c;
  Join(0, &a, kOff, OfRank(0));
  Join(1, &b, kOff, OfRank(1));
  Join(2, &c, kOff, OfRank(2));
  Run({&a, &b, &c}, 2);
  Edit(a, kTensor);
  Run({&a, &b, &c});
  EXPECT_FALSE(a.in_force.enabled());
  Edit(b, kTensor);
  Run({&a, &b, &c});
  EXPECT_FALSE(b.in_force.enabled());
  Edit(c, kTensor);
  Run({&a, &b, &c});
  EXPECT_TRUE(a.in_force.enabled());
  EXPECT_EQ(a.in_force.epoch(), 2u) << "one plan for all";
  EXPECT_EQ(a.in_force.SerializeAsString(), b.in_force.SerializeAsString());
  EXPECT_EQ(a.in_force.SerializeAsString(), c.in_force.SerializeAsString());
  EXPECT_THAT(Outcomes(),
              ElementsAre(HasSubstr("nothing changes before rank 1, rank 2 "
                                    "read the same"),
                          HasSubstr("was edited: OK: 3/3 ranks")));
}

TEST_F(BoundRanksTest, OneRankAloneSwitchesNobody) {
  FollowingRank a, b;
  Join(0, &a, kOn, Of("alice", 0, 3));
  Join(5, &b, kOn, Of("bob", 5, 5));
  Run({&a, &b}, 2);
  const uint64_t epoch = Config().epoch();
  Edit(b, kTensor, "", uint64_t{1} << 60);
  Run({&a, &b});
  Edit(b, "", "broken", uint64_t{1} << 60);
  Run({&a, &b});
  EXPECT_EQ(Config().epoch(), epoch);
  EXPECT_TRUE(a.in_force.enabled());
  EXPECT_EQ(a.in_force.config_json(), kOn);
  EXPECT_EQ(Config().config_fault(), "");
  EXPECT_THAT(
      Outcomes(),
      ElementsAre(HasSubstr("nothing changes before rank 0 reads the same")));
  EXPECT_THAT(OutcomesOf(v1::Event::KIND_ERROR),
              ElementsAre(HasSubstr("such a file, too")));
  EXPECT_THAT(Audited(),
              ElementsAre(HasSubstr(": WAITING: for the same of rank 0"),
                          HasSubstr(": WAITING: for the same of rank 0")));
  // The other rank's file is invalid, too.
  Edit(a, "", "broken otherwise");
  Run({&a, &b});
  EXPECT_FALSE(a.in_force.enabled());
  EXPECT_THAT(Config().config_fault(), HasSubstr("broken otherwise"));
}

TEST_F(BoundRanksTest, RanksOfOneTokenNeedNobody) {
  FollowingRank a, b;
  Join(0, &a, kOff, Of("alice", 0, 3));
  Join(1, &b, kOff, Of("alice", 0, 3));
  Run({&a, &b}, 2);
  Edit(b, kTensor);
  Run({&a, &b});
  EXPECT_TRUE(a.in_force.enabled());
}

TEST_F(BoundRanksTest, ATokenOfTheSameNameForOtherRanksIsAnother) {
  FollowingRank a, b;
  Join(0, &a, kOff, Of("job", 0, 0));
  Join(1, &b, kOff, Of("job", 1, 1));
  Run({&a, &b}, 2);
  Edit(b, kTensor);
  Run({&a, &b});
  EXPECT_FALSE(a.in_force.enabled());
}

TEST_F(BoundRanksTest, ARankThatBroughtTheFileOrHasGoneIsNotWaitedFor) {
  FollowingRank a, b, c;
  Join(0, &a, kOff, OfRank(0));
  Join(1, &b, kTensor, OfRank(1));
  Join(2, &c, kOff, OfRank(2));
  Run({&a, &b, &c}, 2);
  Edit(a, kTensor);
  Run({&a, &b, &c});
  EXPECT_FALSE(a.in_force.enabled());
  control_->agents().Disconnected(c.session, "gone");
  Run({&a, &b});
  EXPECT_TRUE(a.in_force.enabled());
  EXPECT_TRUE(b.in_force.enabled());
}

TEST_F(BoundRanksTest, WhatWasTakenBackIsNotMadeThePlanLater) {
  FollowingRank a, b;
  Join(0, &a, kOff, OfRank(0));
  Join(1, &b, kOff, OfRank(1));
  Run({&a, &b}, 2);
  Edit(a, kTensor);
  Edit(a, kOff);
  control_->agents().Disconnected(b.session, "gone");
  Run({&a});
  EXPECT_FALSE(a.in_force.enabled());
}

TEST_F(BoundRanksTest, AnEditIsAsOldAsItsFirstReading) {
  FollowingRank a, b;
  Join(0, &a, kOff, OfRank(0));
  Join(1, &b, kOff, OfRank(1));
  Run({&a, &b}, 2);
  Edit(a, kTensor);
  Operator(false);
  Run({&a, &b});
  ASSERT_TRUE(result_.has_value() && result_->ok());
  Edit(b, kTensor);
  Run({&a, &b});
  EXPECT_FALSE(a.in_force.enabled());
  EXPECT_THAT(Outcomes(), ::testing::Contains(HasSubstr(
                              "not applied: read before the operator's plan")));
}

// Also on an open port.
TEST_F(BoundRanksTest, NobodyHasSeenAPlanThatHeWasNotSent) {
  FollowingRank rank, late;
  Join(0, &rank);
  Run({&rank}, 2);
  Operator(true);
  // Welcomed with the previous plan.
  Join(1, &late);
  Edit(late, R"({"dump_path": "d", "dump_enable": false, "level": "L0"})", "",
       uint64_t{1} << 60);
  Run({&rank, &late});
  EXPECT_TRUE(rank.in_force.enabled());
  EXPECT_EQ(Config().source(), v1::PlanSpec::SOURCE_OPERATOR);
  EXPECT_THAT(
      Outcomes(),
      ElementsAre("dumping on, by anna: in force as plan 2",
                  HasSubstr("not applied: read before the operator's plan")));
}

TEST_F(BoundRanksTest, ARuleThatFiresReachesTheRanksOfTheToken) {
  v1::SetTriggersRequest triggers;
  triggers.set_run("run");
  triggers.mutable_spec()->mutable_flight()->set_steps(3);
  v1::TriggerRule& nan = *triggers.mutable_spec()->add_rules();
  nan.set_name("nan");
  nan.mutable_non_finite();
  nan.set_for_steps(100);
  nan.set_max_fires(1);
  v1::TriggerRule& wide = *triggers.mutable_spec()->add_rules();
  wide = nan;
  wide.set_name("wide");
  wide.set_reaches_all_ranks(true);
  v1::TriggerRule& still = *triggers.mutable_spec()->add_rules();
  still.set_name("silence");
  still.mutable_silence()->set_after_ms(1000000);
  ASSERT_TRUE(control_->triggers().Set(triggers).ok());
  FollowingRank a, b, c;
  Join(0, &a, kOff, Of("alice", 0, 3));
  Join(5, &b, kOff, Of("bob", 5, 6));
  Join(6, &c, kOff, Of("bob", 5, 6));
  Run({&a, &b, &c}, 2);
  Fire(b, "silence");
  EXPECT_THAT(OutcomesOf(v1::Event::KIND_TRIGGER_FIRED), ElementsAre())
      << "that is the collector's to say";
  Fire(b, "nan");
  EXPECT_EQ(CountShips(&a), 0);
  EXPECT_EQ(CountShips(&c), 1);
  Run({&a, &b, &c});
  EXPECT_FALSE(a.in_force.enabled());
  EXPECT_TRUE(b.in_force.enabled());
  EXPECT_TRUE(c.in_force.enabled());
  EXPECT_THAT(
      OutcomesOf(v1::Event::KIND_TRIGGER_FIRED),
      ElementsAre(::testing::AllOf(HasSubstr("flight recorder of 2 ranks"),
                                   HasSubstr("the ranks of its token"),
                                   HasSubstr("reaches_all_ranks"))));
  // It has only used up its own cool-down.
  Fire(a, "nan");
  Run({&a, &b, &c});
  EXPECT_TRUE(a.in_force.enabled());
  EXPECT_EQ(b.in_force.cause(), "nan");
  Fire(b, "wide");
  EXPECT_EQ(CountShips(&a), 1);
}

TEST_F(BoundRanksTest, DifferencesOfATokenEndTheDumpOfItsRanks) {
  const std::string config =
      R"({"task": "tensor", "dump_path": "d", "tensor": {"summary_mode":
          "md5", "bench_path": "run:good", "diff_nums": 2}})";
  FollowingRank a, b;
  Join(0, &a, config, Of("alice", 0, 3));
  Join(5, &b, config, Of("bob", 5, 5));
  Run({&a, &b}, 2);
  Differ(a);
  for (int i = 0; i < 5; ++i) Differ(b);
  Run({&a, &b});
  EXPECT_TRUE(a.in_force.enabled());
  EXPECT_FALSE(b.in_force.enabled());
  EXPECT_TRUE(Config().enabled());
  Differ(a);
  Run({&a, &b});
  EXPECT_FALSE(a.in_force.enabled());
}

}  // namespace
}  // namespace rankprobe
