// SPDX-License-Identifier: Apache-2.0
// A leaf's thread and a root's service, over loopback.
#include "collector/server/root_link.h"

#include <atomic>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "collector/rpc/root_service.h"
#include "common/base/clock.h"
#include "common/base/monotonic_time.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

constexpr char kLeaf[] = "0123456789abcdef0123456789abcdef";

class RootLinkTest : public ::testing::Test {
 protected:
  void StartRoot() {
    registry_ = std::make_unique<LeafRegistry>(
        LeafRegistry::Options(),
        MonotonicNow() - absl::ToChronoNanoseconds(LeafRegistry::kSettling));
    service_ = std::make_unique<RootService>(
        registry_.get(), &logger_,
        std::make_shared<Authorizer>(std::nullopt, false));
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

  const SystemClock clock_{};
  const Logger logger_{2, Logger::Severity::kError, &clock_};
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
