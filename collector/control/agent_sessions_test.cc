// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collector/control/control_plane.h"
#include "collector/testing/control_fixture.h"
#include "common/config/plan_digest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

const std::string kSecret(32, 's'), kOther(32, 'o');

class SessionsTest : public testing::ControlFixture {
 protected:
  void Restart(const ControlPlane::Options& options) {
    control_ = std::make_unique<ControlPlane>(options, store_.get(),
                                              store_.get(), &clock_);
  }

  static v1::Hello HelloOf(int64_t rank, uint64_t incarnation,
                           const std::string& secret = kSecret) {
    v1::Hello hello;
    *hello.mutable_identity() = testing::MakeIdentity("run", rank, incarnation);
    hello.set_protocol(1);
    hello.set_incarnation_secret(secret);
    return hello;
  }
  static Peer Holder(const Principal& principal) {
    Peer peer;
    peer.anonymous = false;
    peer.principal = principal;
    return peer;
  }
  // The peer with an agent's token.
  static Principal Agent(const std::string& bindings) {
    const auto table = TokenTable::Parse(
        absl::StrCat("agent a aaaaaaaaaaaaaaaa ", bindings, "\n"));
    EXPECT_TRUE(table.ok()) << table.status();
    return *table->Find("aaaaaaaaaaaaaaaa");
  }
  absl::StatusOr<AgentSessions::Admission> Admit(const v1::Hello& hello,
                                                 const Peer& peer = {}) {
    return control_->agents().Admit(
        hello, [this](const v1::Directive& d) { inbox_.push_back(d); }, peer);
  }
  absl::StatusCode Code(const v1::Hello& hello, const Peer& peer = {}) {
    return Admit(hello, peer).status().code();
  }

  std::vector<v1::Directive> inbox_;
};

TEST_F(SessionsTest, IdsAreNotToBeGuessedAndThePrincipalsOwn) {
  const Principal alice = Principal::Of(Role::kAgent, "alice"),
                  bob = Principal::Of(Role::kAgent, "bob");
  const auto first = Admit(HelloOf(0, 1), Holder(alice));
  const auto second = Admit(HelloOf(1, 2), Holder(alice));
  ASSERT_TRUE(first.ok() && second.ok());
  const std::string id = first->welcome.session_id();
  EXPECT_THAT(id, SizeIs(32));
  EXPECT_NE(id.substr(0, 8), second->welcome.session_id().substr(0, 8));
  const auto found = control_->gate().Find(id, alice);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->identity.rank(), 0);
  EXPECT_EQ(found->principal, "alice");
  EXPECT_TRUE(absl::IsNotFound(control_->gate().Find(id, bob).status()));
  Principal bound = alice;
  bound.run = "run";
  EXPECT_TRUE(absl::IsNotFound(control_->gate().Find(id, bound).status()))
      << "another token of the same name";
}

TEST_F(SessionsTest, AReconnectNeedsTheSecret) {
  ASSERT_TRUE(Admit(HelloOf(0, 1)).ok());
  EXPECT_EQ(Code(HelloOf(0, 1, kOther)), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Code(HelloOf(0, 1, "")), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Code(HelloOf(0, 1, "short")), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Admit(HelloOf(0, 1)).ok());
  // It is kept over a restart.
  store_.reset();
  store_ = OpenStore();
  Restart({});
  EXPECT_EQ(Code(HelloOf(0, 1, kOther)), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(Admit(HelloOf(0, 1)).ok());
}

TEST_F(SessionsTest, TheOldConnectionIsEnded) {
  std::vector<absl::Status> ended;
  Peer peer;
  peer.end = [&](const absl::Status& status) { ended.push_back(status); };
  const auto old = Admit(HelloOf(0, 1), peer);
  ASSERT_TRUE(old.ok());
  ASSERT_TRUE(Admit(HelloOf(0, 1)).ok());
  ASSERT_THAT(ended, SizeIs(1));
  EXPECT_TRUE(absl::IsAborted(ended[0]));
  EXPECT_TRUE(
      absl::IsNotFound(control_->gate()
                           .Find(old->welcome.session_id(), Peer().principal)
                           .status()));
  EXPECT_EQ(control_->agents().List("run").agents_size(), 1);
}

// What a process loses at its end is in the ledger's rows, once and bounded.
TEST_F(SessionsTest, TheFarewellSaysWhatIsLost) {
  const auto session = Admit(HelloOf(0, 1));
  ASSERT_TRUE(session.ok());
  v1::AgentEvent event;
  v1::Undelivered* const left = event.mutable_goodbye()->mutable_undelivered();
  left->set_records(UINT64_MAX);
  left->set_payloads(2);
  left->set_first_step(3);
  left->set_last_step(5);
  left->set_reason("disk \x1b[31mfull");
  control_->agents().OnEvent(session->welcome.session_id(), event);
  left->set_records(1);
  control_->agents().OnEvent(session->welcome.session_id(), event);
  control_->agents().Disconnected(session->welcome.session_id(), "");
  control_->WaitForSaves();
  std::vector<v1::Undelivered> kept;
  ASSERT_TRUE(store_
                  ->ForEachIncarnation("run",
                                       [&](const auto& row) {
                                         kept.push_back(row.undelivered());
                                       })
                  .ok());
  ASSERT_THAT(kept, SizeIs(1));
  EXPECT_EQ(kept[0].records(), uint64_t{1} << 40);
  EXPECT_EQ(kept[0].payloads(), 2u);
  EXPECT_EQ(kept[0].last_step(), 5);
  EXPECT_EQ(kept[0].reason(), "disk \\x1b[31mfull");
}

// The collector reports which ranks were dumping when their connections ended
// without a goodbye, or when it was killed, and have not returned.
TEST_F(SessionsTest, WhoWasDumpingAndSaidNoGoodbyeIsKnown) {
  const auto dumps = [this](const std::string& session, bool dumping) {
    v1::AgentEvent event;
    event.mutable_progress()->set_step(4);
    event.mutable_progress()->set_dumping(dumping);
    control_->agents().OnEvent(session, event);
  };
  const auto missing = [this] {
    control_->WaitForSaves();
    std::vector<int64_t> ranks;
    EXPECT_TRUE(store_
                    ->ForEachIncarnation("run",
                                         [&](const auto& row) {
                                           if (row.dumping_in() != 0)
                                             ranks.push_back(
                                                 row.identity().rank());
                                         })
                    .ok());
    return ranks;
  };
  const auto again = [this] {
    control_.reset();
    store_.reset();
    store_ = OpenStore();
    Restart({});
  };
  std::vector<std::string> sessions;
  for (int64_t rank = 0; rank < 6; ++rank) {
    const auto admitted = Admit(HelloOf(rank, static_cast<uint64_t>(rank + 1)));
    ASSERT_TRUE(admitted.ok());
    sessions.push_back(admitted->welcome.session_id());
    if (rank > 0) dumps(sessions.back(), true);
  }
  dumps(sessions[1], false);  // switched off
  v1::AgentEvent goodbye;
  goodbye.mutable_goodbye();
  control_->agents().OnEvent(sessions[2], goodbye);
  control_->agents().Disconnected(sessions[2], "");
  control_->agents().Disconnected(sessions[3], "cut");
  EXPECT_THAT(missing(), ::testing::ElementsAre(3)) << "it said no goodbye";
  again();
  EXPECT_THAT(missing(), ::testing::ElementsAre(3, 4, 5));
  again();
  EXPECT_THAT(missing(), ::testing::ElementsAre(3, 4, 5)) << "until they come";
  // A process that reconnects and disconnects in the same way is not known
  // either.
  const auto briefly = Admit(HelloOf(3, 4));
  ASSERT_TRUE(briefly.ok());
  EXPECT_THAT(missing(), ::testing::ElementsAre(4, 5));
  control_->agents().Disconnected(briefly->welcome.session_id(), "cut");
  EXPECT_THAT(missing(), ::testing::ElementsAre(3, 4, 5));
  const auto to_part = Admit(HelloOf(3, 4));
  ASSERT_TRUE(to_part.ok());
  control_->agents().OnEvent(to_part->welcome.session_id(), goodbye);
  control_->agents().Disconnected(to_part->welcome.session_id(), "");
  EXPECT_THAT(missing(), ::testing::ElementsAre(4, 5));
  const auto back = Admit(HelloOf(4, 5));
  ASSERT_TRUE(back.ok());
  EXPECT_THAT(missing(), ::testing::ElementsAre(5));
  // If a collector ends in order, ranks cannot reconnect to it either.
  dumps(back->welcome.session_id(), true);
  control_->agents().Shutdown();
  control_->agents().Disconnected(back->welcome.session_id(), "");
  again();
  EXPECT_THAT(missing(), ::testing::ElementsAre(4, 5));
}

// Its plan names no step after its current one.
TEST_F(SessionsTest, WhoWasToRecordNoMoreIsNotMissed) {
  for (int64_t rank : {0, 1}) {
    v1::Hello hello = HelloOf(rank, static_cast<uint64_t>(rank + 1));
    hello.set_config_json(R"({"dump_path": "d", "step": [2, 3]})");
    const auto admitted = Admit(hello);
    ASSERT_TRUE(admitted.ok());
    v1::AgentEvent event;
    event.mutable_applied()->set_epoch(1);
    control_->agents().OnEvent(admitted->welcome.session_id(), event);
    event.mutable_progress()->set_step(3 + rank);
    event.mutable_progress()->set_dumping(true);
    control_->agents().OnEvent(admitted->welcome.session_id(), event);
    control_->agents().Disconnected(admitted->welcome.session_id(), "killed");
  }
  control_->WaitForSaves();
  std::vector<uint64_t> dumping;
  ASSERT_TRUE(store_
                  ->ForEachIncarnation("run",
                                       [&](const auto& row) {
                                         dumping.push_back(row.dumping_in());
                                       })
                  .ok());
  EXPECT_THAT(dumping, ::testing::ElementsAre(kCutOffLife, 0));
}

// What the process reported as lost has arrived, as its last goodbye says.
TEST_F(SessionsTest, ALaterFarewellReplacesAnEarlierOne) {
  const auto rows_with_losses = [this] {
    control_->WaitForSaves();
    int with = 0;
    EXPECT_TRUE(store_
                    ->ForEachIncarnation("run",
                                         [&](const auto& row) {
                                           with +=
                                               row.has_undelivered() ? 1 : 0;
                                         })
                    .ok());
    return with;
  };
  v1::AgentEvent event;
  event.mutable_goodbye()->mutable_undelivered()->set_records(7);
  control_->agents().OnEvent(Admit(HelloOf(0, 1))->welcome.session_id(), event);
  EXPECT_EQ(rows_with_losses(), 1);
  event.mutable_goodbye()->mutable_undelivered()->set_records(0);
  control_->agents().OnEvent(Admit(HelloOf(0, 1))->welcome.session_id(), event);
  EXPECT_EQ(rows_with_losses(), 0);
}

TEST_F(SessionsTest, WithoutASecretNobodyIsEvicted) {
  const auto old = Admit(HelloOf(0, 1, ""));
  ASSERT_TRUE(old.ok());
  EXPECT_EQ(Code(HelloOf(0, 1, "")), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Code(HelloOf(0, 1)), absl::StatusCode::kAlreadyExists);
  control_->agents().Disconnected(old->welcome.session_id(), "");
  EXPECT_TRUE(Admit(HelloOf(0, 1, "")).ok());
}

TEST_F(SessionsTest, TokensAreForTheirRunAndRanks) {
  const auto denied = absl::StatusCode::kPermissionDenied;
  EXPECT_EQ(Code(HelloOf(0, 1), Holder(Agent("run=other"))), denied);
  EXPECT_EQ(Code(HelloOf(0, 1), Holder(Agent("run=run ranks=1-3"))), denied);
  const Peer peer = Holder(Agent("run=run ranks=0,4-5"));
  EXPECT_EQ(Code(HelloOf(0, 1), peer), absl::StatusCode::kOk);
  EXPECT_EQ(Code(HelloOf(3, 3), peer), denied);
  // A rank that becomes known later is checked then.
  const auto process = Admit(HelloOf(-1, 9), peer);
  ASSERT_TRUE(process.ok());
  v1::AgentEvent event;
  event.mutable_rank_known()->set_rank(3);
  control_->agents().OnEvent(process->welcome.session_id(), event);
  ASSERT_FALSE(inbox_.empty());
  EXPECT_THAT(inbox_.back().goodbye().reason(), HasSubstr("ranks 0,4-5"));
  event.mutable_rank_known()->set_rank(4);
  control_->agents().OnEvent(process->welcome.session_id(), event);
  EXPECT_EQ(control_->gate()
                .Find(process->welcome.session_id(), peer.principal)
                ->identity.rank(),
            4);
}

TEST_F(SessionsTest, APrincipalHoldsItsShareOfTheSessions) {
  ControlPlane::Options options;
  options.max_sessions = 4;
  options.agents = 2;
  Restart(options);
  const Peer alice = Holder(Principal::Of(Role::kAgent, "alice")),
             bob = Holder(Principal::Of(Role::kAgent, "bob"));
  ASSERT_TRUE(Admit(HelloOf(0, 1), alice).ok());
  ASSERT_TRUE(Admit(HelloOf(1, 2), alice).ok());
  const absl::Status third = Admit(HelloOf(2, 3), alice).status();
  EXPECT_TRUE(absl::IsResourceExhausted(third));
  EXPECT_THAT(third.message(), HasSubstr("alice holds 2 sessions"));
  EXPECT_TRUE(Admit(HelloOf(1, 2), alice).ok()) << "a reconnect is no more";
  EXPECT_TRUE(Admit(HelloOf(5, 6), bob).ok());
  EXPECT_TRUE(Admit(HelloOf(6, 7), bob).ok());
}

// M10
TEST_F(SessionsTest, ARunLeavesSomeSessionsToOtherRuns) {
  ControlPlane::Options options;
  options.max_sessions = 16;
  Restart(options);
  for (int rank = 0; rank < 14; ++rank)
    ASSERT_TRUE(Admit(HelloOf(rank, 100 + static_cast<uint64_t>(rank))).ok());
  const absl::Status refused = Admit(HelloOf(14, 200)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(refused.message(), HasSubstr("run run holds 14 of 16 sessions"));
  EXPECT_TRUE(Admit(HelloOf(3, 103)).ok()) << "a reconnect is no more";
  v1::Hello other = HelloOf(0, 300);
  other.mutable_identity()->set_run("other");
  EXPECT_TRUE(Admit(other).ok());
}

// F1
TEST_F(SessionsTest, ARankThatFollowsAnotherPlanIsShown) {
  v1::Hello hello = HelloOf(0, 1);
  hello.set_config_json(R"({"dump_path": "d"})");
  auto admission = Admit(hello);
  ASSERT_TRUE(admission.ok()) << admission.status();
  const v1::PlanSpec plan = admission->welcome.plan();
  v1::AgentEvent applied;
  applied.mutable_applied()->set_epoch(plan.epoch());
  applied.mutable_applied()->set_step(1);
  applied.mutable_applied()->set_plan_digest(PlanDigest(plan));
  const auto say = [&] {
    control_->agents().OnEvent(admission->welcome.session_id(), applied);
    return control_->agents().List("run").agents(0).other_plan();
  };
  EXPECT_EQ(say(), "");
  v1::PlanSpec damaged = plan;
  damaged.set_config_json(R"({"dump_path": "e"})");
  applied.mutable_applied()->set_plan_digest(PlanDigest(damaged));
  EXPECT_THAT(say(), HasSubstr("another plan of epoch 1"));
  // It repeats that when it reconnects.
  hello.set_plan_epoch(plan.epoch());
  hello.set_plan_digest(PlanDigest(damaged));
  admission = Admit(hello);
  ASSERT_TRUE(admission.ok()) << admission.status();
  EXPECT_THAT(control_->agents().List("run").agents(0).other_plan(),
              HasSubstr("another plan"));
}

// M03
TEST_F(SessionsTest, RunsThatNobodyIsInAreForgottenAndComeBack) {
  ControlPlane::Options options;
  options.max_idle_runs = 8;
  Restart(options);
  const auto join = [&](int i) {
    v1::Hello hello = HelloOf(0, 100 + static_cast<uint64_t>(i));
    hello.mutable_identity()->set_run(absl::StrCat("run", i));
    hello.set_config_json(R"({"dump_path": "d"})");
    const auto admission = Admit(hello);
    EXPECT_TRUE(admission.ok()) << admission.status();
    return admission->welcome.session_id();
  };
  for (int i = 0; i < 40; ++i) {
    const std::string session = join(i);
    // A rank stays connected to the first.
    if (i > 0) control_->agents().Disconnected(session, "gone");
    clock_.Advance(absl::Milliseconds(10));
  }
  control_->Tick();
  EXPECT_EQ(control_->CountRuns(), 40u) << "not what is being used";
  clock_.Advance(absl::Seconds(31));
  // The run is named again.
  EXPECT_TRUE(control_->plans().GetConfig("run3").ok());
  control_->Tick();
  EXPECT_EQ(control_->CountRuns(), 10u) << "8, the first and the one spoken of";
  const auto config = control_->plans().GetConfig("run1");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->epoch(), 1u);
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(control_->plans().GetConfig(absl::StrCat("made up ", i)).ok());
  }
  clock_.Advance(absl::Seconds(31));
  control_->Tick();
  EXPECT_EQ(control_->CountRuns(), 9u);
}

// If dumping is enabled before any rank has connected, it uses the level of
// their config.
TEST_F(SessionsTest, ASwitchBeforeTheFirstRankTakesItsConfig) {
  for (const bool enable : {false, true}) {
    v1::SetDumpEnableRequest request;
    request.set_run("run");
    request.set_enable(enable);
    request.mutable_options()->set_for_steps(3);
    absl::Status status = absl::UnknownError("no answer");
    control_->plans().SetDumpEnable(
        request, [&](const auto& answer) { status = answer.status(); }, "op");
    ASSERT_TRUE(status.ok()) << status;
  }
  v1::Hello hello = HelloOf(0, 1);
  hello.set_config_json(
      R"({"dump_path": "d", "level": "mix", "dump_enable": false})");
  const auto first = Admit(hello);
  ASSERT_TRUE(first.ok()) << first.status();
  const v1::PlanSpec& plan = first->welcome.plan();
  EXPECT_EQ(plan.config_json(), hello.config_json());
  EXPECT_TRUE(plan.enabled());
  EXPECT_EQ(plan.for_steps(), 3);
  EXPECT_EQ(plan.source(), v1::PlanSpec::SOURCE_OPERATOR);
  // The next rank's config does not replace it.
  v1::Hello other = HelloOf(1, 2);
  other.set_config_json(R"({"dump_path": "d", "level": "L0"})");
  const auto second = Admit(other);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->welcome.plan().epoch(), plan.epoch());
  EXPECT_EQ(second->welcome.plan().config_json(), hello.config_json());
}

TEST_F(SessionsTest, ARuleForAllRunsDoesNotKeepThemAll) {
  ControlPlane::Options options;
  options.max_idle_runs = 8;
  options.default_triggers.emplace();
  v1::TriggerRule& rule = *options.default_triggers->add_rules();
  rule.set_name("silence");
  rule.mutable_silence()->set_after_ms(1000);
  Restart(options);
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(control_->plans().GetConfig(absl::StrCat("made up ", i)).ok());
  }
  for (int second = 0; second < 32; ++second) {
    clock_.Advance(absl::Seconds(1));
    control_->Tick();
  }
  EXPECT_EQ(control_->CountRuns(), 8u);
}

// Another leaf may have agreed on plans that are unknown here, or on another
// one of the same epoch: records under them are not checked against this
// collector's plan.
TEST_F(SessionsTest, PlansOfAnotherCollectorAreNotChecked) {
  ControlPlane::Options options;
  options.one_of_several = true;
  Restart(options);
  v1::Hello first = HelloOf(0, 1);
  first.set_config_json(R"({"dump_path": "d", "rank": [0]})");
  ASSERT_TRUE(Admit(first).ok());
  EXPECT_TRUE(control_->gate().Admits(first.identity(), 0, 1));
  EXPECT_NE(control_->gate().PlanOf(first.identity(), 1), nullptr);
  // A new rank is under this run's plan, which does not select rank 1.
  const v1::Hello fresh = HelloOf(1, 2);
  ASSERT_TRUE(Admit(fresh).ok());
  EXPECT_FALSE(control_->gate().Admits(fresh.identity(), 0, 1));
  // A rank that was connected to another leaf.
  v1::Hello moved = HelloOf(2, 3);
  moved.set_plan_epoch(7);
  ASSERT_TRUE(Admit(moved).ok());
  for (const uint64_t epoch : {1, 5, 7}) {
    EXPECT_TRUE(control_->gate().Admits(moved.identity(), 0, epoch)) << epoch;
    EXPECT_EQ(control_->gate().PlanOf(moved.identity(), epoch), nullptr)
        << epoch;
  }
  // The next plan from here is newer than the one that it brought.
  v1::SetDumpEnableRequest request;
  request.set_run("run");
  request.set_enable(false);
  request.mutable_options()->set_no_wait(true);
  control_->plans().SetDumpEnable(request, [](const auto&) {});
  EXPECT_FALSE(control_->gate().Admits(moved.identity(), 0, 8));
  // An agent's report cannot use up the epochs.
  v1::Hello hostile = HelloOf(4, 4);
  hostile.set_plan_epoch(UINT64_MAX);
  ASSERT_TRUE(Admit(hostile).ok());
  v1::Hello next = HelloOf(5, 5);
  next.set_plan_epoch(UINT64_MAX);
  ASSERT_TRUE(Admit(next).ok());
}

// The root decides what ranks of a leaf record; the leaf decides nothing.
TEST_F(SessionsTest, RanksOfALeafAreControlledByItsRoot) {
  std::vector<v1::RelayedEvent> relayed;
  ControlPlane::Options options;
  options.one_of_several = true;
  options.relay = [&](v1::RelayedEvent event) { relayed.push_back(event); };
  Restart(options);
  v1::Hello hello = HelloOf(0, 1);
  hello.set_config_json(R"({"dump_path": "d"})");
  const auto admission = Admit(hello);
  ASSERT_TRUE(admission.ok()) << admission.status();
  EXPECT_FALSE(admission->welcome.has_plan());
  ASSERT_EQ(relayed.size(), 1u);
  EXPECT_EQ(relayed[0].event().hello().config_json(), hello.config_json());
  const std::string session = admission->welcome.session_id();
  v1::Directive adopt;
  adopt.mutable_adopt()->mutable_plan()->set_epoch(4);
  control_->agents().Say(session, adopt);
  control_->agents().Say("nobody", adopt);
  // Its plan is not known here, and is not checked.
  EXPECT_TRUE(control_->gate().Admits(hello.identity(), 3, 4));
  v1::AgentEvent edited;
  edited.mutable_config_edited()->set_config_json(R"({"dump_path": "e"})");
  control_->agents().OnEvent(session, edited);
  EXPECT_EQ(relayed.back().event().config_edited().config_json(),
            edited.config_edited().config_json());
  EXPECT_TRUE(absl::IsNotFound(control_->plans().GetConfig("run").status()));
  v1::AgentEvent progress;
  progress.mutable_progress()->set_step(9);
  control_->agents().OnEvent(session, progress);
  EXPECT_EQ(control_->agents().List("run").agents(0).step(), 9);
  control_->agents().Disconnected(session, "it broke");
  ASSERT_EQ(relayed.size(), 4u);
  EXPECT_EQ(relayed.back().gone(), "it broke");
}

TEST_F(SessionsTest, ARunIsKeptForFramesOfARankThatIsGone) {
  ControlPlane::Options options;
  options.max_idle_runs = 0;
  Restart(options);
  v1::Hello hello = HelloOf(0, 1);
  hello.set_config_json(R"({"dump_path": "d"})");
  const auto admission = Admit(hello);
  ASSERT_TRUE(admission.ok()) << admission.status();
  const std::string session = admission->welcome.session_id();
  control_->gate().NoteReceived(session, 1000, 1000);
  control_->agents().Disconnected(session, "gone");
  clock_.Advance(absl::Seconds(31));
  control_->Tick();
  EXPECT_TRUE(control_->gate().Admits(hello.identity(), 0, 1));
  control_->gate().NoteReceived(session, 0, -1000);
  clock_.Advance(absl::Seconds(31));
  control_->Tick();
  EXPECT_EQ(control_->CountRuns(), 0u);
  // An upload that outlived its session.
  control_->gate().NoteReceived(session, 1000, 1000);
  const auto config = control_->plans().GetConfig("run");
  ASSERT_TRUE(config.ok()) << "forgotten, and not read again: "
                           << config.status();
  EXPECT_EQ(config->epoch(), 1u);
}

TEST_F(SessionsTest, WhatNobodyWritesDownIsBoundedAndCounted) {
  v1::Hello hello = HelloOf(0, 1);
  hello.set_config_json(R"({"dump_path": "d", "dump_enable": false})");
  const auto admission = Admit(hello);
  ASSERT_TRUE(admission.ok()) << admission.status();
  v1::AgentEvent event;
  for (int i = 0; i < 2000; ++i) {
    event.mutable_config_edited()->set_fault(absl::StrCat("bad in way ", i));
    control_->agents().OnEvent(admission->welcome.session_id(), event);
  }
  const size_t kept = control_->audit().Take().size();
  EXPECT_EQ(kept, 1024u);
  const uint64_t dropped = control_->audit().CountDropped();
  EXPECT_GT(dropped, 900u);
  // A repeated edit at once is not logged either: the number of lines per
  // second is limited.
  event.mutable_config_edited()->set_fault("bad in another way");
  control_->agents().OnEvent(admission->welcome.session_id(), event);
  EXPECT_THAT(control_->audit().Take(), SizeIs(0));
  clock_.Advance(absl::Seconds(10));
  uint64_t lines = 0;
  for (int i = 0; i < 100; ++i) {
    event.mutable_config_edited()->set_fault(absl::StrCat("worse ", i));
    control_->agents().OnEvent(admission->welcome.session_id(), event);
    lines += control_->audit().Take().size();
  }
  EXPECT_EQ(lines, 20u);
  EXPECT_GT(control_->audit().CountDropped(), dropped + 80);
}

TEST_F(SessionsTest, OnePrincipalsFloodLeavesRoomForAnothersLines) {
  const auto admission =
      Admit(HelloOf(0, 1), Holder(Principal::Of(Role::kAgent, "alice")));
  const auto other =
      Admit(HelloOf(1, 2), Holder(Principal::Of(Role::kAgent, "bob")));
  ASSERT_TRUE(admission.ok() && other.ok());
  v1::AgentEvent event;
  for (int i = 0; i < 2000; ++i) {
    event.mutable_config_edited()->set_path(std::string(5000, 'p'));
    event.mutable_config_edited()->set_fault(
        absl::StrCat("bad in way ", i, std::string(10000, 'x')));
    control_->agents().OnEvent(admission->welcome.session_id(), event);
    for (const AuditRecord& record : control_->audit().Take())
      EXPECT_LT(record.detail.size(), 700u);
  }
  event.mutable_config_edited()->set_fault("bob's");
  control_->agents().OnEvent(other->welcome.session_id(), event);
  const std::vector<AuditRecord> audit = control_->audit().Take();
  ASSERT_FALSE(audit.empty());
  EXPECT_EQ(audit.back().actor, "bob");
}

// M03
TEST_F(SessionsTest, WhoOnlySaysHelloBeginsSoManyRunsAndNoMore) {
  ControlPlane::Options options;
  options.new_runs = 4;
  Restart(options);
  uint64_t incarnation = 100;
  const auto begin = [&](const std::string& run, const Peer& peer,
                         size_t config_bytes = 0) {
    v1::Hello hello = HelloOf(0, ++incarnation);
    hello.mutable_identity()->set_run(run);
    hello.clear_config_json();
    if (config_bytes > 0) {
      hello.set_config_json(absl::StrCat(R"({"dump_path": "d"})",
                                         std::string(config_bytes, ' ')));
    }
    const auto admission = Admit(hello, peer);
    if (admission.ok())
      control_->agents().Disconnected(admission->welcome.session_id(), "gone");
    return admission.status();
  };
  const Peer alice = Holder(Principal::Of(Role::kAgent, "alice")),
             bob = Holder(Principal::Of(Role::kAgent, "bob"));
  for (int i = 0; i < 4; ++i)
    ASSERT_TRUE(begin(absl::StrCat("run", i), alice).ok());
  const absl::Status refused = begin("run4", alice);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(refused.message(), HasSubstr("alice has begun too many runs"));
  EXPECT_THAT(*store_->ListRuns(), SizeIs(4)) << "nothing is written for it";
  EXPECT_TRUE(begin("run1", alice).ok()) << "a run that is there";
  EXPECT_TRUE(begin("run4", bob).ok());
  clock_.Advance(absl::Seconds(11));
  EXPECT_TRUE(begin("run5", alice).ok());
  EXPECT_FALSE(begin("run6", alice).ok());
  // A long plan counts as several runs.
  ASSERT_TRUE(begin("long", bob, 100 << 10).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(begin("run7", bob)));
}

TEST_F(SessionsTest, APlanThatAnAgentBringsIsNotedOnce) {
  v1::Hello hello = HelloOf(0, 1);
  hello.set_config_json(R"({"dump_path": "d"})");
  ASSERT_TRUE(Admit(hello, Holder(Principal::Of(Role::kAgent, "alice"))).ok());
  ASSERT_TRUE(Admit(HelloOf(1, 2)).ok());
  const std::vector<AuditRecord> audit = control_->audit().Take();
  ASSERT_THAT(audit, SizeIs(1));
  EXPECT_EQ(audit[0].actor, "alice");
  EXPECT_EQ(audit[0].role, "agent");
  EXPECT_EQ(audit[0].run, "run");
  EXPECT_EQ(audit[0].epoch, 1u);
  EXPECT_THAT(audit[0].detail, HasSubstr("dump_path"));
  EXPECT_THAT(control_->audit().Take(), SizeIs(0));
}

}  // namespace
}  // namespace rankprobe
