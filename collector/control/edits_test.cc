// Config files that are edited while the job runs: order, sameness, faults.
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collector/control/control_plane.h"
#include "collector/testing/control_fixture.h"
#include "collector/testing/frames.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kOff[] = R"({"dump_path": "d", "dump_enable": false})";
constexpr char kOn[] = R"({"dump_path": "d", "dump_enable": true})";
constexpr char kTensor[] =
    R"({"dump_path": "d", "dump_enable": true, "task": "tensor"})";

// What a rank does with directives: PlanSwitcher, in short.
struct FollowingRank {
  std::string session;
  int64_t step = 0;
  bool silent = false;
  uint64_t heard_epoch = 0;
  std::deque<v1::Directive> inbox;
  std::optional<v1::PlanSpec> prepared;
  bool committed = false;
  v1::PlanSpec in_force;
};

class EditsTest : public testing::ControlFixture {
 protected:
  void Join(int64_t rank, FollowingRank* fake,
            const std::string& config = kOff) {
    v1::Hello hello;
    *hello.mutable_identity() =
        testing::MakeIdentity("run", rank, 100 + static_cast<uint64_t>(rank));
    hello.set_protocol(1);
    hello.set_incarnation_secret(std::string(32, 's'));
    hello.set_config_json(config);
    hello.set_config_path("/work/config.json");
    hello.set_step(-1);
    auto admission = control_->Admit(
        hello, [fake](const v1::Directive& d) { fake->inbox.push_back(d); });
    ASSERT_TRUE(admission.ok()) << admission.status();
    fake->session = admission->welcome.session_id();
    fake->in_force = admission->welcome.plan();
    fake->heard_epoch = fake->in_force.epoch();
  }

  void Edit(const FollowingRank& rank, const std::string& config,
            const std::string& fault = "",
            std::optional<uint64_t> seen = std::nullopt) {
    v1::AgentEvent event;
    v1::ConfigEdited& edited = *event.mutable_config_edited();
    edited.set_config_json(config);
    edited.set_fault(fault);
    edited.set_path("/work/config.json");
    edited.set_step(rank.step);
    edited.set_seen_epoch(seen.value_or(rank.heard_epoch));
    control_->OnEvent(rank.session, event);
  }

  void Answer(FollowingRank* rank) {
    if (rank->silent) return;
    while (!rank->inbox.empty()) {
      const v1::Directive d = rank->inbox.front();
      rank->inbox.pop_front();
      if (d.has_prepare()) {
        rank->prepared = d.prepare().plan();
        rank->heard_epoch = rank->prepared->epoch();
        rank->committed = false;
        v1::AgentEvent event;
        event.mutable_prepared()->set_epoch(rank->prepared->epoch());
        event.mutable_prepared()->set_current_step(rank->step);
        event.mutable_prepared()->set_accepted(
            rank->prepared->effective_at_step() > rank->step);
        control_->OnEvent(rank->session, event);
      } else if (d.has_commit()) {
        rank->committed = true;
      } else if (d.has_abort()) {
        rank->prepared.reset();
      }
    }
  }

  void Step(FollowingRank* rank) {
    ++rank->step;
    v1::AgentEvent event;
    event.mutable_progress()->set_step(rank->step);
    event.mutable_progress()->set_last_step_ns(100000000);
    control_->OnEvent(rank->session, event);
    if (!rank->committed || !rank->prepared.has_value() ||
        rank->step < rank->prepared->effective_at_step())
      return;
    rank->in_force = *rank->prepared;
    rank->prepared.reset();
    v1::AgentEvent applied;
    applied.mutable_applied()->set_epoch(rank->in_force.epoch());
    applied.mutable_applied()->set_step(rank->step);
    control_->OnEvent(rank->session, applied);
  }

  // A few steps of all ranks, and time for the ticker.
  void Run(const std::vector<FollowingRank*>& ranks, int steps = 6) {
    for (int i = 0; i < steps; ++i) {
      for (FollowingRank* rank : ranks) Answer(rank);
      for (FollowingRank* rank : ranks) Step(rank);
      clock_.Advance(absl::Milliseconds(500));
      control_->Tick();
    }
  }

  void Operator(bool on) {
    v1::SetDumpEnableRequest request;
    request.set_run("run");
    request.set_enable(on);
    control_->SetDumpEnable(
        request,
        [this](absl::StatusOr<v1::SwitchResult> r) { result_ = std::move(r); },
        "anna");
  }

  v1::GetConfigResponse Config() { return *control_->GetConfig("run"); }
  std::vector<std::string> Outcomes() {
    v1::ListEventsRequest request;
    request.set_run("run");
    std::vector<std::string> out;
    const v1::ListEventsResponse listed = control_->ListEvents(request);
    for (const v1::Event& event : listed.events()) {
      if (event.kind() == v1::Event::KIND_SWITCHED)
        out.push_back(absl::StrCat(event.detail(), ": ", event.outcome()));
    }
    return out;
  }

  // Of the edits since the last call.
  std::vector<std::string> Audited() {
    std::vector<std::string> out;
    for (const AuditRecord& record : control_->TakeAudit()) {
      if (record.action == "ConfigEdited")
        out.push_back(absl::StrCat(record.detail, ": ", record.outcome));
    }
    return out;
  }

  std::optional<absl::StatusOr<v1::SwitchResult>> result_;
};

TEST_F(EditsTest, WhatCameOfAnEditIsAudited) {
  FollowingRank a, b;
  Join(0, &a);
  Join(1, &b);
  Run({&a, &b}, 2);
  Edit(a, kOn);
  EXPECT_THAT(Audited(), IsEmpty());
  // While it goes on two more come, of which one is never tried.
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
  // Refused, too late, and called off.
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
  // Another dump_path, another order of members: still the same edit.
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
  // It has heard of the operator and reads the file only now.
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
  // One that was read after it wins.
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
  EXPECT_THAT(control_->ListAgents("run").agents(1).config_fault(),
              HasSubstr("is not legal"));
  Edit(b, kOn);
  Run({&a, &b});
  EXPECT_TRUE(a.in_force.enabled());
  EXPECT_THAT(Config().config_fault(), IsEmpty());
  EXPECT_THAT(control_->ListAgents("run").agents(1).config_fault(), IsEmpty());
  EXPECT_THAT(control_->ListAgents("run").agents(0).config_fault(),
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
  // Committed, and its step has not come.
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
  EXPECT_THAT(control_->ListAgents("run").agents(0).config_fault(),
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
  // The agent tells its edit again, not knowing whether it was kept.
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
  const auto furthest = SwitchOperation::FurthestBelievable;
  EXPECT_EQ(furthest({}), -1);
  EXPECT_EQ(furthest({-1, -1}), -1);
  EXPECT_EQ(furthest({-1, 5000000}), 5000000) << "set_init_step";
  EXPECT_EQ(furthest({3, 900000}), 900000);
  EXPECT_EQ(furthest({3, 4, int64_t{1} << 53}), 4);
  EXPECT_EQ(furthest({3, int64_t{1} << 53}), 3);
}

}  // namespace
}  // namespace rankprobe
