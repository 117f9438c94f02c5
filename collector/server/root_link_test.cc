// SPDX-License-Identifier: Apache-2.0
// A leaf's thread and a root's service, over loopback.
#include "collector/server/root_link.h"

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "collector/rpc/root_service.h"
#include "collector/testing/control_fixture.h"
#include "common/base/monotonic_time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

constexpr char kLeaf[] = "0123456789abcdef0123456789abcdef";

class RootLinkTest : public testing::ControlFixture {
 protected:
  void StartRoot() {
    registry_ = std::make_unique<LeafRegistry>(
        LeafRegistry::Options(),
        MonotonicNow() - absl::ToChronoNanoseconds(LeafRegistry::kSettling));
    service_ = std::make_unique<RootService>(
        registry_.get(), control_.get(), &logger_,
        std::make_shared<Authorizer>(std::nullopt, false), nullptr);
    grpc::ServerBuilder builder;
    int bound = 0;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port_),
                             grpc::InsecureServerCredentials(), &bound);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    port_ = bound;
  }
  void EndRoot() {
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  RootLink::Options OptionsOf(const std::string& leaf) {
    RootLink::Options options;
    options.root = absl::StrCat("127.0.0.1:", port_);
    options.leaf = leaf;
    options.address = "127.0.0.1:4";
    options.max_ranks = 8;
    options.agents = [this] { return agents_; };
    options.relay = &relay_;
    options.say = [this](const std::string& session,
                         const v1::Directive& directive) {
      absl::MutexLock lock(&mutex_);
      said_[session].push_back(directive);
    };
    options.healthy = [this] { return healthy_.load(); };
    return options;
  }
  bool Await(const std::function<bool()>& there) {
    MonotonicEvent never;
    const MonotonicTime end = MonotonicAfter(absl::Seconds(60));
    while (!there()) {
      if (MonotonicNow() >= end) return false;
      never.WaitFor(absl::Milliseconds(5));
    }
    return true;
  }
  bool IsThere() { return !registry_->LeavesOf("", MonotonicNow()).empty(); }

  // What a rank of this leaf says.
  void Push(const std::string& session, v1::AgentEvent event) {
    v1::RelayedEvent relayed;
    relayed.set_session(session);
    *relayed.mutable_event() = std::move(event);
    relay_.Push(std::move(relayed));
  }
  void PushHello(const std::string& session, int64_t rank, int64_t step) {
    v1::AgentEvent event;
    v1::Hello* const hello = event.mutable_hello();
    *hello->mutable_identity() =
        testing::MakeIdentity("run", rank, 100 + static_cast<uint64_t>(rank));
    hello->set_protocol(1);
    hello->set_step(step);
    hello->set_incarnation_secret("secret");
    Push(session, std::move(event));
  }
  void PushStep(const std::string& session, int64_t step) {
    v1::AgentEvent event;
    event.mutable_progress()->set_step(step);
    Push(session, std::move(event));
  }
  // The next of them, once it is there.
  v1::Directive NextSaid(const std::string& session) {
    v1::Directive next;
    EXPECT_TRUE(Await([&] {
      absl::MutexLock lock(&mutex_);
      if (said_[session].empty()) return false;
      next = said_[session].front();
      said_[session].pop_front();
      return true;
    })) << session;
    return next;
  }
  int64_t StepOf(int64_t rank) {
    const v1::ListAgentsResponse all = control_->ListAgents("run");
    for (const v1::AgentInfo& agent : all.agents())
      if (agent.connected() && agent.identity().rank() == rank)
        return agent.step();
    return -2;
  }

  const Logger logger_{2, Logger::Severity::kError, &clock_};
  RelayQueue relay_;
  absl::Mutex mutex_;
  std::map<std::string, std::deque<v1::Directive>> said_
      ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<LeafRegistry> registry_;
  std::unique_ptr<RootService> service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  v1::ListAgentsResponse agents_;
  std::atomic<bool> healthy_{true};
};

TEST_F(RootLinkTest, ARootHearsOfALeafAsLongAsItIsWell) {
  StartRoot();
  v1::AgentInfo* const agent = agents_.add_agents();
  agent->mutable_identity()->set_run("run");
  agent->mutable_identity()->set_rank(3);
  agent->set_connected(true);
  RootLink link(OptionsOf(kLeaf), &logger_);
  link.Start();
  ASSERT_TRUE(Await([&] { return IsThere(); }));
  EXPECT_EQ(registry_->ListAgents("run", MonotonicNow()).agents_size(), 1);
  // Its disk has failed: ranks are to go elsewhere.
  healthy_ = false;
  EXPECT_TRUE(Await([&] { return !IsThere(); }));
  healthy_ = true;
  EXPECT_TRUE(Await([&] { return IsThere(); }));
  link.Stop();
  EXPECT_TRUE(Await([&] { return !IsThere(); }));
  EndRoot();
}

// A switch of the root over ranks of a leaf.
TEST_F(RootLinkTest, WhatRanksAndRootSayComesThrough) {
  StartRoot();
  PushHello("a", 0, 5);
  RootLink link(OptionsOf(kLeaf), &logger_);
  link.Start();
  PushHello("b", 1, 6);
  PushStep("a", 7);
  ASSERT_TRUE(Await([&] { return StepOf(0) == 7 && StepOf(1) == 6; }));
  v1::SetDumpEnableRequest request;
  request.set_run("run");
  request.set_enable(true);
  absl::Mutex mutex;
  std::optional<absl::StatusOr<v1::SwitchResult>> done;
  control_->SetDumpEnable(request,
                          [&](absl::StatusOr<v1::SwitchResult> result) {
                            absl::MutexLock lock(&mutex);
                            done = std::move(result);
                          });
  int64_t step = 0;
  for (const char* const session : {"a", "b"}) {
    const v1::Directive prepare = NextSaid(session);
    ASSERT_TRUE(prepare.has_prepare()) << prepare.ShortDebugString();
    step = prepare.prepare().plan().effective_at_step();
    v1::AgentEvent prepared;
    prepared.mutable_prepared()->set_epoch(prepare.prepare().plan().epoch());
    prepared.mutable_prepared()->set_current_step(7);
    prepared.mutable_prepared()->set_accepted(true);
    Push(session, prepared);
  }
  for (const char* const session : {"a", "b"}) {
    const v1::Directive commit = NextSaid(session);
    ASSERT_TRUE(commit.has_commit()) << commit.ShortDebugString();
    v1::AgentEvent applied;
    applied.mutable_applied()->set_epoch(commit.commit().epoch());
    applied.mutable_applied()->set_step(step);
    Push(session, applied);
  }
  ASSERT_TRUE(Await([&] {
    absl::MutexLock lock(&mutex);
    return done.has_value();
  }));
  {
    absl::MutexLock lock(&mutex);
    ASSERT_TRUE(done->ok()) << done->status();
    EXPECT_EQ((*done)->summary(), absl::StrCat("2/2 ranks at step ", step));
  }
  // A rank that comes later is under it.
  PushHello("c", 2, 8);
  EXPECT_TRUE(NextSaid("c").has_adopt());
  // One that goes is known to have gone.
  v1::RelayedEvent gone;
  gone.set_session("a");
  gone.set_gone("it broke");
  relay_.Push(gone);
  EXPECT_TRUE(Await([&] { return StepOf(0) == -2; }));
  link.Stop();
  EXPECT_TRUE(Await([&] { return StepOf(1) == -2 && StepOf(2) == -2; }))
      << "its leaf has gone";
  EndRoot();
}

// Another root, which knows of nobody.
TEST_F(RootLinkTest, ARootThatBeginsIsToldWhereRanksAre) {
  StartRoot();
  RootLink link(OptionsOf(kLeaf), &logger_);
  link.Start();
  PushHello("a", 0, 5);
  PushStep("a", 9);
  ASSERT_TRUE(Await([&] { return StepOf(0) == 9; }));
  EndRoot();
  Restart();
  StartRoot();
  EXPECT_TRUE(Await([&] { return StepOf(0) == 9; }));
  link.Stop();
  EndRoot();
}

// The same rank as another live process, through another leaf.
TEST_F(RootLinkTest, ASecondProcessOfARankIsToldToGo) {
  StartRoot();
  PushHello("a", 0, 5);
  RootLink link(OptionsOf(kLeaf), &logger_);
  link.Start();
  ASSERT_TRUE(Await([&] { return StepOf(0) == 5; }));
  v1::AgentEvent event;
  *event.mutable_hello()->mutable_identity() =
      testing::MakeIdentity("run", 0, 999);
  event.mutable_hello()->set_protocol(1);
  Push("other", event);
  const v1::Directive said = NextSaid("other");
  ASSERT_TRUE(said.has_goodbye());
  EXPECT_THAT(said.goodbye().reason(), ::testing::HasSubstr("is claimed by"));
  EXPECT_EQ(StepOf(0), 5);
  link.Stop();
  EndRoot();
}

TEST_F(RootLinkTest, ARootThatWasStartedAgainIsFound) {
  StartRoot();
  RootLink link(OptionsOf(kLeaf), &logger_);
  link.Start();
  ASSERT_TRUE(Await([&] { return IsThere(); }));
  EndRoot();
  StartRoot();
  EXPECT_TRUE(Await([&] { return IsThere(); }));
  link.Stop();
  EndRoot();
}

TEST_F(RootLinkTest, ALeafThatIsRefusedTriesAgainAndStops) {
  StartRoot();
  RootLink link(OptionsOf("no name of a leaf"), &logger_);
  link.Start();
  RootLink good(OptionsOf(kLeaf), &logger_);
  good.Start();
  ASSERT_TRUE(Await([&] { return IsThere(); }));
  EXPECT_EQ(registry_->LeavesOf("", MonotonicNow()).size(), 1u);
  EndRoot();
}

TEST(RootLinkReportTest, ConnectedRanksComeFirstAndTheRestIsCounted) {
  v1::ListAgentsResponse agents;
  for (int i = 0; i < 4000; ++i) {
    v1::AgentInfo* const agent = agents.add_agents();
    agent->mutable_identity()->set_run(std::string(255, 'r'));
    agent->mutable_identity()->set_host(std::string(255, 'h'));
    agent->mutable_identity()->set_rank(i);
    agent->set_connected(i % 2 == 1);
  }
  RootLink::Options options;
  options.leaf = kLeaf;
  options.agents = [&] { return agents; };
  const v1::LeafReport report = RootLink::ReportOf(options);
  EXPECT_LE(report.ByteSizeLong(), 1u << 20);
  EXPECT_GT(report.agents_size(), 1000);
  EXPECT_EQ(report.agents_size() + static_cast<int>(report.agents_left_out()),
            4000);
  for (const v1::AgentInfo& agent : report.agents())
    EXPECT_TRUE(agent.connected());
}

}  // namespace
}  // namespace rankprobe
