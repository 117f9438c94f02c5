// SPDX-License-Identifier: Apache-2.0
// diff_nums as one budget of all ranks; ranks are in memory.
#include <string>
#include <vector>

#include "collector/control/control_plane.h"
#include "collector/testing/control_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Rank {
  std::string session;
  v1::Welcome welcome;
  std::vector<v1::Directive> inbox;
  bool answers = true;
};

class ReferenceControlTest : public testing::ControlFixture {
 protected:
  void Join(int64_t rank, Rank* fake, const std::string& diff_nums) {
    v1::Hello hello;
    *hello.mutable_identity() = testing::MakeIdentity("run", rank, 100 + rank);
    hello.set_protocol(1);
    hello.set_incarnation_secret(std::string(32, 's'));
    hello.set_step(0);
    hello.set_config_json(
        R"({"task": "tensor", "dump_path": "d", "tensor": {"summary_mode":
            "md5", "bench_path": "run:good", "diff_nums": )" +
        diff_nums + "}}");
    auto admission = control_->agents().Admit(
        hello, [fake](const v1::Directive& d) { fake->inbox.push_back(d); });
    ASSERT_TRUE(admission.ok()) << admission.status();
    fake->welcome = admission->welcome;
    fake->session = admission->welcome.session_id();
  }

  void Differ(const Rank& rank, uint64_t epoch, const std::string& entry) {
    v1::AgentEvent event;
    event.mutable_difference()->set_step(3);
    event.mutable_difference()->set_entry(entry);
    event.mutable_difference()->set_plan_epoch(epoch);
    event.mutable_difference()->set_detail("output 0: md5 1, reference 2");
    control_->agents().OnEvent(rank.session, event);
  }

  // Ranks that answer accept what was prepared.
  void Answer(std::vector<Rank*> ranks) {
    for (Rank* rank : ranks) {
      while (!rank->inbox.empty()) {
        const v1::Directive directive = rank->inbox.front();
        rank->inbox.erase(rank->inbox.begin());
        if (!directive.has_prepare() || !rank->answers) continue;
        v1::AgentEvent event;
        event.mutable_prepared()->set_epoch(directive.prepare().plan().epoch());
        event.mutable_prepared()->set_current_step(0);
        event.mutable_prepared()->set_accepted(true);
        control_->agents().OnEvent(rank->session, event);
      }
    }
  }

  bool Enabled() { return control_->plans().GetConfig("run")->enabled(); }

  std::vector<v1::Event> Events(v1::Event::Kind kind) {
    std::vector<v1::Event> out;
    for (const v1::Event& event : events_->List("run", 0, 1000))
      if (event.kind() == kind) out.push_back(event);
    return out;
  }
};

TEST_F(ReferenceControlTest, DifferencesOfAllRanksSpendOneBudget) {
  Rank a, b;
  Join(0, &a, "3");
  Join(1, &b, "3");
  Differ(a, 1, "x");
  Differ(b, 1, "y");
  EXPECT_TRUE(Enabled());
  Differ(a, 0, "z");  // not yet aware of the run's plan
  Answer({&a, &b});
  EXPECT_FALSE(Enabled());
  const auto told = Events(v1::Event::KIND_DIFFERENCE);
  ASSERT_EQ(told.size(), 3u);
  EXPECT_EQ(told[1].identity().rank(), 1);
  EXPECT_EQ(told[1].step(), 3);
  EXPECT_EQ(told[1].entry(), "y");
  EXPECT_EQ(told[1].outcome(), "difference 2 of 3");
  EXPECT_THAT(told[1].detail(), HasSubstr("reference 2"));
  // A plan that an operator switches on again has a new budget.
  EXPECT_THAT(control_->plans().GetConfig("run")->config_json(),
              HasSubstr("run:good"));
}

TEST_F(ReferenceControlTest, WithoutLimitNothingEnds) {
  Rank a;
  Join(0, &a, "-1");
  for (int i = 0; i < 50; ++i) Differ(a, 1, "x");
  Answer({&a});
  EXPECT_TRUE(Enabled());
  EXPECT_EQ(Events(v1::Event::KIND_DIFFERENCE)[49].outcome(), "difference 50");
}

TEST_F(ReferenceControlTest, DifferencesOfAnUnknownPlanEndNothing) {
  Rank a;
  Join(0, &a, "1");
  Differ(a, 77, "x");
  Answer({&a});
  EXPECT_TRUE(Enabled());
  EXPECT_EQ(Events(v1::Event::KIND_DIFFERENCE).size(), 1u);
}

TEST_F(ReferenceControlTest, WaitsForASwitchInProgressAndTriesAgain) {
  Rank a;
  Join(0, &a, "1");
  a.answers = false;
  v1::SetDumpEnableRequest request;
  request.set_run("run");
  request.set_enable(true);
  request.mutable_options()->set_timeout_ms(1000);
  absl::StatusOr<v1::SwitchResult> switched = absl::UnknownError("");
  control_->plans().SetDumpEnable(
      request,
      [&](const absl::StatusOr<v1::SwitchResult>& r) { switched = r; });
  Differ(a, 1, "x");
  EXPECT_TRUE(Enabled());
  clock_.Advance(absl::Seconds(2));
  Answer({&a});
  EXPECT_TRUE(Enabled());
  a.answers = true;
  control_->Tick();  // the operator's switch has failed
  Answer({&a});
  EXPECT_FALSE(Enabled());
}

TEST_F(ReferenceControlTest, ErrorsOfAgentsAreEvents) {
  Rank a;
  Join(0, &a, "1");
  v1::AgentEvent event;
  event.mutable_error()->set_step(5);
  event.mutable_error()->set_message("no reference");
  control_->agents().OnEvent(a.session, event);
  const auto told = Events(v1::Event::KIND_ERROR);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].detail(), "no reference");
  EXPECT_EQ(told[0].step(), 5);
}

}  // namespace
}  // namespace rankprobe
