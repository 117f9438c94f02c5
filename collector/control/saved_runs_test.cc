// SPDX-License-Identifier: Apache-2.0
// Saved state of a run: it is never lost because the disk was slow or could not
// be read, or because another plan was not agreed on.
#include <atomic>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "collector/testing/slow_disk_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::FaultKind;
using ::testing::HasSubstr;
using SavedRunsTest = testing::SlowDiskFixture;

v1::SetTriggersRequest SomeTriggers() {
  v1::SetTriggersRequest triggers;
  triggers.set_run("run");
  triggers.mutable_spec()->mutable_flight()->set_steps(2);
  return triggers;
}

// If it counted as "no plan", the next Hello would overwrite it.
TEST_F(SavedRunsTest, APlanThatCannotBeReadIsNotNone) {
  FakeRank rank, again;
  Join(0, &rank);
  control_->WaitForSaves();
  Close();
  index_cache_bytes_ = 0;
  Open();
  bool failed = false;
  fs_.FailWhile([&](const std::string& op, const std::string& path) {
    const bool fail = op == "Read" && path.find("/index/") != path.npos;
    failed = failed || fail;
    return fail ? FaultKind::kIoError : FaultKind::kNone;
  });
  EXPECT_EQ(control_->plans().GetConfig("run").status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_TRUE(failed);
  Enable();
  const auto result = TakeResult();
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(control_->triggers().Set(SomeTriggers()).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_FALSE(
      control_->agents().Admit(HelloOf(0), [](const v1::Directive&) {}).ok());
  EXPECT_EQ(control_->CountRuns(), 0u);
  fs_.FailWhile(nullptr);
  const auto config = control_->plans().GetConfig("run");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->epoch(), 1u);
  EXPECT_EQ(Join(0, &again).plan().epoch(), 1u);
}

TEST_F(SavedRunsTest, APlanThatCannotBeUsedIsTold) {
  v1::PlanSpec spec;
  spec.set_epoch(7);
  spec.set_config_json("{");
  ASSERT_TRUE(store_->SavePlan("run", spec).ok());
  EXPECT_TRUE(absl::IsNotFound(control_->plans().GetConfig("run").status()));
  const v1::ListEventsResponse events = control_->ListEvents({});
  ASSERT_EQ(events.events_size(), 1);
  EXPECT_EQ(events.events(0).kind(), v1::Event::KIND_ERROR);
  EXPECT_THAT(events.events(0).detail(), HasSubstr("epoch 7 cannot be used"));
  FakeRank rank;
  EXPECT_EQ(Join(0, &rank).plan().epoch(), 8u) << "no epoch twice";
}

// It is in the store before it is agreed on.
TEST_F(SavedRunsTest, AReconnectDoesNotPutInForceWhatWasNotAgreedOn) {
  FakeRank ranks[2], again, later;
  Join(0, &ranks[0]);
  Join(1, &ranks[1]);
  control_->WaitForSaves();
  for (const FakeRank& rank : ranks) BeginStep(rank, 10);
  Hang("Sync");
  Enable(std::nullopt, {1});
  const std::optional<v1::PlanSpec> plan = Accept(&ranks[1], 10);
  ASSERT_TRUE(plan.has_value());
  ASSERT_TRUE(WaitUntilItHangs());
  const std::string row = absl::StrCat("run", std::string(1, '\0'), 1);
  ASSERT_EQ((*store_->LoadPlan(row))->epoch(), plan->epoch());
  EXPECT_EQ(Join(1, &again).plan().epoch(), 1u);
  v1::GetConfigResponse config = *control_->plans().GetConfig("run");
  EXPECT_EQ(config.epoch(), 1u);
  Answer();
  EXPECT_EQ(Join(1, &later).plan().epoch(), 1u) << "taken back";
  // A plan that is agreed on is sent after a reconnect, and after a restart.
  BeginStep(later, 10);
  Enable(std::nullopt, {1});
  const std::optional<v1::PlanSpec> second = Accept(&later, 10);
  ASSERT_TRUE(second.has_value());
  control_->WaitForSaves();
  EXPECT_EQ(Join(1, &later).plan().epoch(), second->epoch());
  Close();
  Open();
  EXPECT_EQ(Join(1, &later).plan().epoch(), second->epoch());
}

// A rank may have received its own plan and never return.
TEST_F(SavedRunsTest, AnEpochOfARankThatIsGoneIsNotUsedAgain) {
  FakeRank ranks[2], later;
  Join(0, &ranks[0]);
  Join(1, &ranks[1]);
  control_->WaitForSaves();
  for (const FakeRank& rank : ranks) BeginStep(rank, 10);
  Enable(std::nullopt, {1});
  const std::optional<v1::PlanSpec> own = Accept(&ranks[1], 10);
  ASSERT_TRUE(own.has_value());
  control_->WaitForSaves();
  Close();
  Open();
  EXPECT_EQ(Join(0, &later).plan().epoch(), 1u);
  BeginStep(later, 10);
  Enable(std::nullopt, {0});
  const std::optional<v1::PlanSpec> next = Accept(&later, 10);
  ASSERT_TRUE(next.has_value());
  EXPECT_GT(next->epoch(), own->epoch());
  control_->WaitForSaves();
  Close();
}

TEST_F(SavedRunsTest, TriggersThatCannotBeSyncedAreNotAnsweredWithOk) {
  FakeRank rank;
  Join(0, &rank);
  rank.Take();
  fs_.FailWhile([](const std::string& op, const std::string&) {
    return op == "fdatasync" ? FaultKind::kIoError : FaultKind::kNone;
  });
  EXPECT_FALSE(control_->triggers().Set(SomeTriggers()).ok());
  EXPECT_TRUE(rank.Take().empty());
  EXPECT_TRUE(absl::IsNotFound(control_->triggers().Get("run").status()));
}

TEST_F(SavedRunsTest, TriggersWaitForTheSyncAndNotForEver) {
  FakeRank rank;
  Join(0, &rank);
  control_->WaitForSaves();
  Close();
  ControlPlane::Options options;
  options.sync_wait = absl::InfiniteDuration();
  Open(options);
  Hang("Sync");
  std::atomic<bool> answered{false};
  std::thread operators([&] {
    EXPECT_TRUE(control_->triggers().Set(SomeTriggers()).ok());
    answered = true;
  });
  EXPECT_TRUE(WaitUntilItHangs());
  EXPECT_FALSE(answered);
  EXPECT_TRUE(absl::IsNotFound(control_->triggers().Get("run").status()));
  Answer();
  operators.join();
  EXPECT_EQ(control_->triggers().Get("run")->flight().steps(), 2u);
  Close();
  options.sync_wait = absl::Milliseconds(1);
  Open(options);
  Hang("Sync");
  EXPECT_TRUE(control_->triggers().Set(SomeTriggers()).ok())
      << "while it hangs";
  Answer();
}

// The first plan of a run and an operator's arrive together: the plan with the
// higher epoch is in force, and in the store.
TEST_F(SavedRunsTest, AnOperatorsPlanIsNotOverwrittenByAFirstRanks) {
  for (int round = 0; round < 60; ++round) {
    const std::string run = absl::StrCat("run", round);
    // A principal that begins many runs has to wait.
    clock_.Advance(absl::Minutes(10));
    std::atomic<bool> go{false};
    v1::Hello hello = HelloOf(0);
    hello.mutable_identity()->set_run(run);
    hello.mutable_identity()->set_incarnation(1000 + round);
    hello.set_config_json(absl::StrCat(
        R"({"dump_path": "d", "dump_enable": false, "statistics": {"list": [")",
        std::string(100 << 10, 'x'), R"("]}})"));
    std::thread first([&] {
      go = true;
      EXPECT_TRUE(
          control_->agents().Admit(hello, [](const v1::Directive&) {}).ok());
    });
    while (!go) std::this_thread::yield();
    v1::SetDumpEnableRequest request;
    request.set_run(run);
    request.set_enable(true);
    request.mutable_options()->set_no_wait(true);
    uint64_t agreed = 0;
    for (int i = 0; i < 20; ++i) {
      control_->plans().SetDumpEnable(
          request, [&](const absl::StatusOr<v1::SwitchResult>& result) {
            if (result.ok()) agreed = std::max(agreed, result->epoch());
          });
    }
    first.join();
    control_->WaitForSaves();
    const uint64_t saved = (*store_->LoadPlan(run))->epoch();
    EXPECT_EQ(control_->plans().GetConfig(run)->epoch(), saved);
    EXPECT_GE(saved, agreed);
  }
}

TEST_F(SavedRunsTest, ARunsNameIsCheckedBeforeAnythingIsRead) {
  FakeRank rank;
  Join(3, &rank);
  for (const std::string& name :
       {std::string(1 << 20, 'r'), std::string("run\0003", 5), std::string()}) {
    EXPECT_TRUE(
        absl::IsInvalidArgument(control_->plans().GetConfig(name).status()));
  }
  EXPECT_EQ(control_->CountRuns(), 1u);
}

}  // namespace
}  // namespace rankprobe
