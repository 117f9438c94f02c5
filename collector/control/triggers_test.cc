// SPDX-License-Identifier: Apache-2.0
// ControlPlane with triggers, events and Explain; ranks are in memory.
#include <string>
#include <vector>

#include "collector/control/control_plane.h"
#include "collector/testing/control_fixture.h"
#include "collector/testing/frames.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

struct Rank {
  std::string session;
  v1::Welcome welcome;
  std::vector<v1::Directive> inbox;

  size_t Count(v1::Directive::DirectiveCase kind) const {
    size_t count = 0;
    for (const v1::Directive& d : inbox)
      count += d.directive_case() == kind ? 1 : 0;
    return count;
  }
};

class TriggersTest : public testing::ControlFixture {
 protected:
  void Join(int64_t rank, Rank* fake) {
    v1::Hello hello;
    *hello.mutable_identity() = testing::MakeIdentity("run", rank, 100 + rank);
    hello.set_protocol(1);
    hello.set_incarnation_secret(std::string(32, 's'));
    hello.set_step(-1);
    hello.set_config_json(R"({"dump_path": "d", "dump_enable": false})");
    auto admission = control_->agents().Admit(
        hello, [fake](const v1::Directive& d) { fake->inbox.push_back(d); });
    ASSERT_TRUE(admission.ok()) << admission.status();
    fake->welcome = admission->welcome;
    fake->session = admission->welcome.session_id();
  }

  void Step(const Rank& rank, int64_t step) {
    v1::AgentEvent event;
    event.mutable_progress()->set_step(step);
    control_->agents().OnEvent(rank.session, event);
  }

  void Fire(const Rank& rank, int64_t step, const std::string& entry) {
    v1::AgentEvent event;
    event.mutable_fired()->set_rule("nan");
    event.mutable_fired()->set_step(step);
    event.mutable_fired()->set_entry(entry);
    control_->agents().OnEvent(rank.session, event);
  }

  static v1::TriggerSpec NanSpec() {
    v1::TriggerSpec spec;
    spec.mutable_flight()->set_steps(4);
    v1::TriggerRule* rule = spec.add_rules();
    rule->set_name("nan");
    rule->mutable_non_finite();
    rule->set_for_steps(3);
    return spec;
  }

  uint64_t Set(const v1::TriggerSpec& spec) {
    v1::SetTriggersRequest request;
    request.set_run("run");
    *request.mutable_spec() = spec;
    const auto ranks = control_->triggers().Set(request);
    EXPECT_TRUE(ranks.ok()) << ranks.status();
    return ranks.value_or(0);
  }

  std::vector<v1::Event> Events(v1::Event::Kind kind) {
    std::vector<v1::Event> found;
    for (const v1::Event& event : events_->List("run", 0, 1000)) {
      if (event.kind() == kind) found.push_back(event);
    }
    return found;
  }
};

TEST_F(TriggersTest, TriggersReachConnectedRanksLateOnesAndRestarts) {
  Rank early, late;
  Join(0, &early);
  EXPECT_EQ(Set(NanSpec()), 1u);
  ASSERT_EQ(early.Count(v1::Directive::kTriggers), 1u);
  EXPECT_EQ(early.inbox[0].triggers().rules(0).level(), "mix")
      << "with defaults";
  Join(1, &late);
  EXPECT_EQ(late.welcome.triggers().flight().steps(), 4u);
  Restart();
  EXPECT_EQ(control_->triggers().Get("run")->rules(0).name(), "nan");
  Rank again;
  Join(0, &again);
  EXPECT_TRUE(again.welcome.has_triggers());
  EXPECT_TRUE(absl::IsNotFound(control_->triggers().Get("other").status()));
}

TEST_F(TriggersTest, AFiredRuleShipsEveryFlightRecorderAndRaisesTheLevelOnce) {
  Rank ranks[3];
  for (int r = 0; r < 3; ++r) Join(r, &ranks[r]);
  Set(NanSpec());
  for (Rank& rank : ranks) Step(rank, 7);
  Fire(ranks[1], 7, "Module.bad");
  for (const Rank& rank : ranks) {
    EXPECT_EQ(rank.Count(v1::Directive::kShipFlight), 1u);
    ASSERT_EQ(rank.Count(v1::Directive::kPrepare), 1u);
    const v1::PlanSpec& plan = rank.inbox.back().prepare().plan();
    EXPECT_TRUE(plan.enabled());
    EXPECT_EQ(plan.for_steps(), 3);
    EXPECT_EQ(plan.cause(), "nan");
    EXPECT_THAT(plan.config_json(), HasSubstr("\"tensor\""));
  }
  Fire(ranks[0], 7, "Module.later");
  EXPECT_EQ(ranks[0].Count(v1::Directive::kShipFlight), 1u);
  const auto fired = Events(v1::Event::KIND_TRIGGER_FIRED);
  ASSERT_THAT(fired, SizeIs(2));
  EXPECT_EQ(fired[0].entry(), "Module.bad");
  EXPECT_EQ(fired[0].identity().rank(), 1);
  EXPECT_THAT(fired[0].outcome(),
              HasSubstr("tensors at level mix for 3 steps"));
  EXPECT_THAT(fired[1].outcome(), HasSubstr("nothing more"));
}

TEST_F(TriggersTest, AFlaggedRequestIsAskedForAndAnsweredByAnEvent) {
  Rank rank;
  Join(0, &rank);
  Set(NanSpec());
  v1::ShipFlightRequest request;
  request.set_run("run");
  request.set_request("slow-1");
  ASSERT_TRUE(control_->triggers().ShipFlight(request).ok());
  EXPECT_EQ(rank.inbox.back().ship_flight().request(), "slow-1");
  v1::AgentEvent answer;
  answer.mutable_flagged()->set_request("slow-1");
  answer.mutable_flagged()->set_step(7);
  answer.mutable_flagged()->set_detail("cmpl-slow-1-0: 3 tokens");
  control_->agents().OnEvent(rank.session, answer);
  answer.mutable_flagged()->set_step(-1);
  control_->agents().OnEvent(rank.session, answer);
  const auto known = Events(v1::Event::KIND_TRIGGER_FIRED);
  ASSERT_THAT(known, SizeIs(1));
  EXPECT_EQ(known[0].rule(), "flag");
  EXPECT_EQ(known[0].entry(), "slow-1");
  EXPECT_EQ(known[0].step(), 7);
  const auto unknown = Events(v1::Event::KIND_ERROR);
  ASSERT_THAT(unknown, SizeIs(1));
  EXPECT_EQ(unknown[0].rule(), "flag");
  request.set_request(std::string(257, 'x'));
  EXPECT_TRUE(absl::IsInvalidArgument(
      control_->triggers().ShipFlight(request).status()));
}

TEST_F(TriggersTest, AnUnknownRuleIsNobodysBusiness) {
  Rank rank;
  Join(0, &rank);
  Fire(rank, 1, "x");
  EXPECT_THAT(Events(v1::Event::KIND_TRIGGER_FIRED), SizeIs(0));
}

TEST_F(TriggersTest, SilenceIsTold) {
  Rank rank;
  Join(0, &rank);
  v1::TriggerSpec spec;
  v1::TriggerRule* rule = spec.add_rules();
  rule->set_name("quiet");
  rule->mutable_silence()->set_after_ms(1000);
  rule->set_raise_to(v1::TriggerRule::EVIDENCE_NONE);
  Set(spec);
  Step(rank, 3);
  clock_.Advance(absl::Milliseconds(900));
  control_->Tick();
  EXPECT_THAT(Events(v1::Event::KIND_TRIGGER_FIRED), SizeIs(0));
  clock_.Advance(absl::Milliseconds(300));
  control_->Tick();
  ASSERT_THAT(Events(v1::Event::KIND_TRIGGER_FIRED), SizeIs(1));
  EXPECT_EQ(rank.Count(v1::Directive::kPrepare), 0u);
}

TEST_F(TriggersTest, TheRunsBudgetReachesEveryRank) {
  Rank first, late;
  Join(0, &first);
  v1::TriggerSpec spec;
  spec.mutable_budget()->set_bytes_per_run(1000);
  Set(spec);
  control_->gate().NoteReceived(first.session, 1500, 0);
  ASSERT_EQ(first.Count(v1::Directive::kDegrade), 1u);
  EXPECT_EQ(first.inbox.back().degrade().level(), 1u);
  Join(1, &late);
  EXPECT_EQ(late.welcome.degrade(), 1u);
  EXPECT_THAT(Events(v1::Event::KIND_DEGRADED), SizeIs(1));
}

TEST_F(TriggersTest, ExplainWaitsForTheRanksAndNotForever) {
  Rank ranks[2];
  for (int r = 0; r < 2; ++r) Join(r, &ranks[r]);
  Step(ranks[0], 3);
  v1::ExplainRequest request;
  request.set_run("run");
  std::optional<absl::StatusOr<v1::ExplainResponse>> answer;
  control_->explanations().Explain(request,
                                   [&](auto r) { answer = std::move(r); });
  ASSERT_FALSE(answer.has_value());
  ASSERT_EQ(ranks[0].Count(v1::Directive::kReportCalls), 1u);
  v1::AgentEvent event;
  event.mutable_calls()->set_id(ranks[0].inbox.back().report_calls().id());
  event.mutable_calls()->set_step(3);
  v1::CallTrace::Item* item =
      event.mutable_calls()->mutable_calls()->add_items();
  item->set_kind(v1::CallTrace::KIND_API);
  item->set_entry("Torch.relu.0.forward");
  control_->agents().OnEvent(ranks[0].session, event);
  EXPECT_FALSE(answer.has_value()) << "the other has not answered";
  clock_.Advance(absl::Seconds(3));
  control_->Tick();
  ASSERT_TRUE(answer.has_value() && answer->ok());
  ASSERT_EQ((*answer)->ranks_size(), 2);
  EXPECT_EQ((*answer)->ranks(0).calls_size(), 1);
  EXPECT_EQ((*answer)->ranks(1).calls_size(), 0);

  request.set_config_json("{\"task\": \"bogus\"}");
  control_->explanations().Explain(request,
                                   [&](auto r) { answer = std::move(r); });
  EXPECT_TRUE(absl::IsInvalidArgument(answer->status()));
  request.clear_config_json();
  request.set_rank(9);
  control_->explanations().Explain(request,
                                   [&](auto r) { answer = std::move(r); });
  EXPECT_EQ((*answer)->stages(0).stage(), "connected");
}

}  // namespace
}  // namespace rankprobe
