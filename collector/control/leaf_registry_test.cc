// SPDX-License-Identifier: Apache-2.0
#include "collector/control/leaf_registry.h"

#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;

class LeafRegistryTest : public ::testing::Test {
 protected:
  static std::string Name(int leaf) { return absl::StrFormat("%032x", leaf); }
  static std::string Address(int leaf) {
    return absl::StrCat("10.0.0.", leaf, ":7411");
  }
  static v1::LeafReport ReportOf(int leaf, std::set<int64_t> ranks = {}) {
    v1::LeafReport report;
    report.set_leaf(Name(leaf));
    report.set_address(Address(leaf));
    report.set_max_ranks(4096);
    for (const int64_t rank : ranks) {
      v1::AgentInfo* const agent = report.add_agents();
      agent->mutable_identity()->set_run("run");
      agent->mutable_identity()->set_rank(rank);
      agent->set_connected(true);
      agent->set_step(10 * rank);
    }
    return report;
  }
  uint64_t Connect(int leaf, std::set<int64_t> ranks = {}) {
    const absl::StatusOr<uint64_t> link = registry_.Connect(
        ReportOf(leaf, std::move(ranks)), "leaves",
        [this](const absl::Status& status) { ended_ = status; }, now_);
    EXPECT_TRUE(link.ok()) << link.status();
    return link.value_or(0);
  }
  absl::StatusOr<std::string> Find(int64_t rank,
                                   std::set<std::string> failed = {},
                                   const std::string& replica = "") {
    v1::FindCollectorRequest request;
    request.mutable_identity()->set_run("run");
    request.mutable_identity()->set_rank(rank);
    request.set_replica(replica);
    for (const std::string& leaf : failed) request.add_failed(leaf);
    const absl::StatusOr<v1::FoundCollector> found =
        registry_.Find(request, now_);
    if (!found.ok()) return found.status();
    return found->address();
  }
  void Pass(absl::Duration time) { now_ += absl::ToChronoNanoseconds(time); }

  MonotonicTime now_ = MonotonicNow();
  LeafRegistry registry_{{}, now_};
  absl::Status ended_;
};

TEST_F(LeafRegistryTest, WaitsForItsLeavesFirst) {
  EXPECT_TRUE(absl::IsAborted(Find(0).status()));
  const uint64_t one = Connect(1);
  EXPECT_TRUE(absl::IsAborted(Find(0).status())) << "the others may come yet";
  Pass(LeafRegistry::kSettling);
  EXPECT_EQ(*Find(0), Address(1));
  // A rank that a leaf reports does not have to wait.
  LeafRegistry later({}, now_);
  ASSERT_TRUE(later
                  .Connect(
                      ReportOf(2, {5}), "leaves", [](const auto&) {}, now_)
                  .ok());
  v1::FindCollectorRequest request;
  request.mutable_identity()->set_run("run");
  request.mutable_identity()->set_rank(5);
  EXPECT_EQ(later.Find(request, now_)->address(), Address(2));
  registry_.Disconnected(one, now_);
  Pass(LeafRegistry::kGrace);
  EXPECT_THAT(std::string(Find(0).status().message()), HasSubstr("no leaf"));
}

TEST_F(LeafRegistryTest, SharesRanksAndMovesFewWhenALeafComesOrGoes) {
  std::map<int, uint64_t> links;
  for (int leaf = 1; leaf <= 4; ++leaf) links[leaf] = Connect(leaf);
  Pass(LeafRegistry::kSettling);
  std::map<int64_t, std::string> places;
  std::map<std::string, int> count;
  for (int64_t rank = 0; rank < 400; ++rank) {
    places[rank] = *Find(rank);
    ++count[places[rank]];
  }
  ASSERT_EQ(count.size(), 4u);
  for (const auto& [address, ranks] : count) {
    EXPECT_GT(ranks, 60) << address;
    EXPECT_LE(ranks, 127) << address;
  }
  // They stay, whichever leaf is added.
  links[5] = Connect(5);
  for (const auto& [rank, address] : places) EXPECT_EQ(*Find(rank), address);
  // One leaf disconnects: its ranks are moved, others are not.
  registry_.Disconnected(links[2], now_);
  Pass(LeafRegistry::kGrace);
  for (const int leaf : {1, 3, 4, 5})
    ASSERT_TRUE(registry_.Report(links[leaf], ReportOf(leaf), now_).ok());
  for (const auto& [rank, address] : places) {
    if (address == Address(2)) {
      EXPECT_NE(*Find(rank), Address(2));
    } else {
      EXPECT_EQ(*Find(rank), address);
    }
  }
}

TEST_F(LeafRegistryTest, ALeafThatWasKilledMayComeBackForAMoment) {
  const uint64_t one = Connect(1);
  const uint64_t two = Connect(2);
  Pass(LeafRegistry::kSettling);
  const std::string first = *Find(7);
  const bool is_one = first == Address(1);
  const auto others_report = [&] {
    return registry_.Report(is_one ? two : one, ReportOf(is_one ? 2 : 1), now_);
  };
  registry_.Disconnected(is_one ? one : two, now_);
  Pass(LeafRegistry::kGrace - absl::Milliseconds(1));
  ASSERT_TRUE(others_report().ok());
  EXPECT_THAT(std::string(Find(7).status().message()),
              HasSubstr("to come back"));
  EXPECT_TRUE(absl::IsAborted(Find(7).status()));
  // A rank that could not reach its leaf for long does not have to wait.
  EXPECT_EQ(*Find(7, {Name(is_one ? 1 : 2)}), Address(is_one ? 2 : 1));
  // It stays there, whether the first leaf returns or not.
  Connect(is_one ? 1 : 2);
  EXPECT_EQ(*Find(7), Address(is_one ? 2 : 1));
}

// The root is connected to the leaf, but the rank cannot reach it.
TEST_F(LeafRegistryTest, ALeafThatARankDoesNotReachIsNotNamedToIt) {
  for (int leaf = 1; leaf <= 3; ++leaf) Connect(leaf);
  Pass(LeafRegistry::kSettling);
  for (int64_t rank = 0; rank < 20; ++rank) {
    std::set<std::string> failed;
    std::set<std::string> named;
    for (int tries = 0; tries < 3; ++tries) {
      const auto found = Find(rank, failed);
      ASSERT_TRUE(found.ok()) << found.status();
      EXPECT_TRUE(named.insert(*found).second) << *found << " again";
      for (int leaf = 1; leaf <= 3; ++leaf)
        if (*found == Address(leaf)) failed.insert(Name(leaf));
    }
    EXPECT_TRUE(absl::IsAborted(Find(rank, failed).status()));
  }
}

TEST_F(LeafRegistryTest, OneThatIsSilentIsNotThere) {
  const uint64_t one = Connect(1, {3});
  Pass(LeafRegistry::kSettling);
  EXPECT_EQ(*Find(3), Address(1));
  EXPECT_EQ(registry_.ListAgents("run", now_).agents_size(), 1);
  Pass(LeafRegistry::kSilence);
  EXPECT_FALSE(Find(3).ok());
  EXPECT_EQ(registry_.ListAgents("run", now_).agents_size(), 0);
  ASSERT_TRUE(registry_.Report(one, ReportOf(1, {3}), now_).ok());
  EXPECT_EQ(*Find(3), Address(1));
}

// A second process of a rank is sent to the leaf that has the first, which
// refuses it.
TEST_F(LeafRegistryTest, ARankGoesWhereItIs) {
  for (int leaf = 1; leaf <= 8; ++leaf) Connect(leaf);
  const uint64_t nine = Connect(9, {0, 1, 2, 3});
  Pass(LeafRegistry::kSettling);
  for (int64_t rank = 0; rank < 4; ++rank) EXPECT_EQ(*Find(rank), Address(9));
  // They have ended: their places are kept for a while.
  ASSERT_TRUE(registry_.Report(nine, ReportOf(9), now_).ok());
  EXPECT_EQ(*Find(0), Address(9));
}

TEST_F(LeafRegistryTest, CopiesOfAReplicaMeet) {
  for (int leaf = 1; leaf <= 8; ++leaf) Connect(leaf);
  Pass(LeafRegistry::kSettling);
  std::set<std::string> of_one, of_all;
  for (int64_t rank = 0; rank < 64; ++rank) {
    of_all.insert(*Find(rank, {}, absl::StrCat("stage", rank % 16)));
    if (rank % 16 == 3) of_one.insert(*Find(rank, {}, "stage3"));
  }
  EXPECT_EQ(of_one.size(), 1u);
  EXPECT_GT(of_all.size(), 3u);
}

TEST_F(LeafRegistryTest, ALeafTakesSoManyAndNoMore) {
  v1::LeafReport report = ReportOf(1);
  report.set_max_ranks(3);
  ASSERT_TRUE(registry_
                  .Connect(
                      report, "leaves", [](const auto&) {}, now_)
                  .ok());
  Pass(LeafRegistry::kSettling);
  for (int64_t rank = 0; rank < 3; ++rank) ASSERT_TRUE(Find(rank).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Find(3).status()));
  EXPECT_TRUE(Find(2).ok());
  // Places of ranks that did not connect are taken first.
  Pass(LeafRegistry::kPlacedFor);
  report.set_max_ranks(3);
  Connect(1);
  EXPECT_TRUE(Find(3).ok());
}

TEST_F(LeafRegistryTest, WhatCannotBeALeafIsRefused) {
  const auto connect = [&](const v1::LeafReport& report,
                           const std::string& who = "leaves") {
    return registry_
        .Connect(
            report, who, [](const auto&) {}, now_)
        .status();
  };
  v1::LeafReport report = ReportOf(1);
  report.set_leaf("../../leaf");
  EXPECT_TRUE(absl::IsInvalidArgument(connect(report)));
  report = ReportOf(1);
  report.set_address("nowhere");
  EXPECT_TRUE(absl::IsInvalidArgument(connect(report)));
  report.set_address(std::string(1 << 20, 'a') + ":1");
  EXPECT_TRUE(absl::IsInvalidArgument(connect(report)));
  report = ReportOf(1, {int64_t{1} << 40});
  EXPECT_TRUE(absl::IsInvalidArgument(connect(report)));
  report = ReportOf(1, {1});
  report.mutable_agents(0)->mutable_identity()->clear_run();
  EXPECT_TRUE(absl::IsInvalidArgument(connect(report)));
  // A name belongs to its owner.
  const uint64_t one = Connect(1);
  EXPECT_TRUE(absl::IsPermissionDenied(connect(ReportOf(1), "mallory")));
  EXPECT_TRUE(
      absl::IsInvalidArgument(registry_.Report(one, ReportOf(2), now_)));
  EXPECT_TRUE(ended_.ok());
  Connect(1);
  EXPECT_TRUE(absl::IsAborted(ended_)) << "a second stream takes its place";
}

TEST_F(LeafRegistryTest, ALeafIsNotAtTheRootsAddress) {
  LeafRegistry::Options options;
  options.own_addresses = {"root:7410", "10.0.0.1:7411"};
  LeafRegistry registry(options, now_);
  const auto end = [](const absl::Status&) {};
  const absl::Status refused =
      registry.Connect(ReportOf(1), "leaves", end, now_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--advertise"));
  const absl::StatusOr<uint64_t> link =
      registry.Connect(ReportOf(2), "leaves", end, now_);
  ASSERT_TRUE(link.ok()) << link.status();
  // Nor can it take the name later.
  v1::LeafReport moved = ReportOf(2);
  moved.set_address("root:7410");
  EXPECT_TRUE(absl::IsInvalidArgument(registry.Report(*link, moved, now_)));
}

TEST_F(LeafRegistryTest, WhatRanksSayIsBounded) {
  LeafRegistry small({.max_leaves = 2, .max_ranks = 4}, now_);
  const auto connect = [&](int leaf) {
    return small
        .Connect(
            ReportOf(leaf), "leaves", [](const auto&) {}, now_)
        .status();
  };
  ASSERT_TRUE(connect(1).ok());
  ASSERT_TRUE(connect(2).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(connect(3)));
  Pass(LeafRegistry::kSettling);
  v1::FindCollectorRequest request;
  for (int64_t rank = 0; rank < 100; ++rank) {
    request.mutable_identity()->set_run(absl::StrCat("run", rank));
    request.mutable_identity()->set_rank(rank);
    EXPECT_TRUE(small.Find(request, now_).ok());
  }
  request.set_replica(std::string(256, 'r'));
  EXPECT_TRUE(absl::IsInvalidArgument(small.Find(request, now_).status()));
  request.clear_replica();
  for (int i = 0; i < 17; ++i) request.add_failed("x");
  EXPECT_TRUE(absl::IsInvalidArgument(small.Find(request, now_).status()));
}

TEST_F(LeafRegistryTest, SaysWhoseDiskIsFull) {
  const auto report = [&](uint64_t link, v1::DiskState::Level level) {
    v1::LeafReport leaf = ReportOf(1, {0});
    leaf.mutable_disk()->set_level(level);
    leaf.mutable_disk()->set_used_percent(75);
    leaf.mutable_disk()->set_collector("not its own to say");
    EXPECT_EQ(registry_.Report(link, leaf, now_), absl::OkStatus());
  };
  const uint64_t link = Connect(1, {0});
  Connect(2, {1});
  EXPECT_EQ(registry_.ListAgents("", now_).disks_size(), 0);
  report(link, v1::DiskState::LEVEL_ROOM);
  EXPECT_TRUE(registry_.TakeDiskChanges().empty());
  report(link, v1::DiskState::LEVEL_HIGH);
  report(link, v1::DiskState::LEVEL_HIGH);
  const std::vector<v1::DiskState> changes = registry_.TakeDiskChanges();
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].collector(), Address(1));
  EXPECT_TRUE(registry_.TakeDiskChanges().empty());
  const v1::ListAgentsResponse agents = registry_.ListAgents("", now_);
  ASSERT_EQ(agents.disks_size(), 1);
  EXPECT_EQ(agents.disks(0).collector(), Address(1));
  EXPECT_EQ(agents.disks(0).level(), v1::DiskState::LEVEL_HIGH);
  // A report that contains only events does not change the agents.
  v1::LeafReport events = ReportOf(1);
  events.set_only_events(true);
  EXPECT_EQ(registry_.Report(link, events, now_), absl::OkStatus());
  EXPECT_EQ(registry_.ListAgents("", now_).disks_size(), 1);
  report(link, v1::DiskState::LEVEL_ROOM);
  EXPECT_EQ(registry_.TakeDiskChanges().size(), 1u);
  Pass(LeafRegistry::kSilence);
  EXPECT_EQ(registry_.ListAgents("", now_).disks_size(), 0);
}

TEST_F(LeafRegistryTest, SaysWhoIsConnectedOverAllLeaves) {
  Connect(1, {0, 2});
  Connect(2, {1, 3});
  const v1::ListAgentsResponse all = registry_.ListAgents("", now_);
  ASSERT_EQ(all.agents_size(), 4);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(all.agents(i).identity().rank(), i);
    // The lag is relative to the furthest of all ranks, not of its leaf.
    EXPECT_EQ(all.agents(i).lag_steps(), 30 - 10 * i);
  }
  EXPECT_EQ(registry_.ListAgents("other", now_).agents_size(), 0);
  EXPECT_EQ(registry_.LeavesOf("run", now_).size(), 2u);
  EXPECT_EQ(registry_.LeavesOf("other", now_).size(), 0u);
}

// A principal that asks for ranks which never connect does not keep others out.
TEST_F(LeafRegistryTest, WhoAsksForAllPlacesGivesThemToOthers) {
  v1::LeafReport report = ReportOf(1);
  report.set_max_ranks(100);
  const uint64_t link = *registry_.Connect(
      report, "leaves", [](const auto&) {}, now_);
  Pass(LeafRegistry::kSettling);
  const auto find = [&](const std::string& who, int64_t rank) {
    v1::FindCollectorRequest request;
    request.mutable_identity()->set_run(who);
    request.mutable_identity()->set_rank(rank);
    return registry_.Find(request, now_, who).status();
  };
  for (int64_t rank = 0; rank < 100; ++rank)
    ASSERT_EQ(find("greedy", rank), absl::OkStatus());
  // It takes no place of its own, and none of principals that have fewer.
  EXPECT_TRUE(absl::IsResourceExhausted(find("greedy", 100)));
  for (int64_t rank = 0; rank < 20; ++rank)
    ASSERT_EQ(find("modest", rank), absl::OkStatus()) << rank;
  for (int64_t rank = 100; rank < 200; ++rank)
    EXPECT_TRUE(absl::IsResourceExhausted(find("greedy", rank)));
  // No principal gets more than others that ask for as many.
  for (int64_t rank = 20; rank < 50; ++rank)
    EXPECT_EQ(find("modest", rank), absl::OkStatus()) << rank;
  EXPECT_TRUE(absl::IsResourceExhausted(find("modest", 51)));
  // Connected ranks stay; only the principal that asks has reserved places
  // left.
  for (int64_t rank = 0; rank < 49; ++rank) {
    v1::AgentInfo* const agent = report.add_agents();
    agent->mutable_identity()->set_run("modest");
    agent->mutable_identity()->set_rank(rank);
    agent->set_connected(true);
  }
  ASSERT_TRUE(registry_.Report(link, report, now_).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(find("greedy", 300)));
  // Places that were only reserved are free after seconds.
  Pass(LeafRegistry::kReservedFor);
  ASSERT_TRUE(registry_.Report(link, report, now_).ok());
  for (int64_t rank = 0; rank < 51; ++rank)
    EXPECT_EQ(find("late", rank), absl::OkStatus()) << rank;
  EXPECT_TRUE(absl::IsResourceExhausted(find("late", 52)));
}

}  // namespace
}  // namespace rankprobe
