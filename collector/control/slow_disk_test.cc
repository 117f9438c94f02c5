// SPDX-License-Identifier: Apache-2.0
// The control plane over a slow disk, and the guarantees of saves: no rank and
// no `status` waits for the disk, no rank receives a plan that is not saved,
// and a plan that was not agreed on does not come back.
#include <atomic>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "collector/control/control_plane.h"
#include "collector/testing/slow_disk_fixture.h"
#include "common/base/monotonic_event.h"
#include "common/testing/fault_file_system.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

using SlowDiskTest = testing::SlowDiskFixture;

// During each access to the disk a client requests the status and a rank takes
// a step: both are answered before the disk answers.
TEST_F(SlowDiskTest, NothingThatRanksNeedIsLockedWhileTheDiskWorks) {
  FakeRank ranks[2];
  Join(0, &ranks[0]);
  absl::Mutex mutex;
  std::set<std::string> stuck;
  std::vector<std::thread> late;
  std::atomic<int> probes{0};
  fs_.SetDelay([&](const std::string& op) {
    {
      absl::MutexLock lock(&mutex);
      // One failure is enough, and takes long.
      if (!stuck.empty()) return;
    }
    ++probes;
    MonotonicEvent* const answered = new MonotonicEvent;
    std::thread probe([this, answered, session = ranks[0].session] {
      control_->agents().List("");
      control_->ListEvents(v1::ListEventsRequest());
      v1::AgentEvent event;
      event.mutable_progress()->set_step(3);
      control_->agents().OnEvent(session, event);
      answered->Set();
    });
    if (answered->WaitFor(absl::Seconds(60))) {
      probe.join();
      delete answered;
      return;
    }
    absl::MutexLock lock(&mutex);
    stuck.insert(op);
    late.push_back(std::move(probe));
  });
  // A run's first plan, a rank that becomes known, a switch of all ranks.
  Join(1, &ranks[1]);
  v1::AgentEvent known;
  known.mutable_rank_known()->set_rank(1);
  control_->agents().OnEvent(ranks[1].session, known);
  for (const FakeRank& rank : ranks) BeginStep(rank, 3);
  Enable();
  std::optional<v1::PlanSpec> plan;
  for (FakeRank& rank : ranks) plan = Accept(&rank, 3);
  ASSERT_TRUE(plan.has_value());
  control_->WaitForSaves();
  for (FakeRank& rank : ranks) {
    EXPECT_TRUE(HasCommit(rank.Take(), plan->epoch()));
    Apply(rank, *plan);
  }
  EXPECT_TRUE(TakeResult().has_value());
  // Triggers, events, an edit of the file, a switch of one rank, a new run.
  v1::SetTriggersRequest triggers;
  triggers.set_run("run");
  triggers.mutable_spec()->mutable_flight()->set_steps(2);
  const auto told = control_->triggers().Set(triggers);
  EXPECT_TRUE(told.ok()) << told.status();
  v1::AgentEvent event;
  event.mutable_error()->set_message("an event");
  control_->agents().OnEvent(ranks[0].session, event);
  event.mutable_config_edited()->set_config_json(
      R"({"dump_enable": false, "level": "L1"})");
  event.mutable_config_edited()->set_seen_epoch(plan->epoch());
  control_->agents().OnEvent(ranks[0].session, event);
  for (FakeRank& rank : ranks) plan = Accept(&rank, 3);
  ASSERT_TRUE(plan.has_value());
  control_->WaitForSaves();
  for (const FakeRank& rank : ranks) Apply(rank, *plan);
  Enable(std::nullopt, {1});
  plan = Accept(&ranks[1], 3);
  ASSERT_TRUE(plan.has_value());
  control_->WaitForSaves();
  Apply(ranks[1], *plan);
  EXPECT_FALSE(control_->plans().GetConfig("another").ok());
  control_->agents().Disconnected(ranks[1].session, "gone");
  clock_.Advance(absl::Seconds(1));
  control_->Tick();
  control_->WaitForSaves();
  events_->WaitForWrites();
  fs_.SetDelay(nullptr);
  EXPECT_GT(probes, 9);
  for (std::thread& probe : late) probe.join();
  absl::MutexLock lock(&mutex);
  EXPECT_THAT(stuck, IsEmpty());
}

// Progress of the switch that an operator requests.
TEST_F(SlowDiskTest, ADiskThatIsSlowToSyncDoesNotHoldASwitch) {
  FakeRank rank;
  Join(0, &rank);
  control_->WaitForSaves();
  BeginStep(rank, 10);
  Hang("Sync");
  Enable();
  const std::optional<v1::PlanSpec> plan = Accept(&rank, 10);
  ASSERT_TRUE(plan.has_value());
  // The disk gets its second.
  clock_.Advance(absl::Milliseconds(900));
  control_->Tick();
  EXPECT_THAT(rank.Take(), IsEmpty());
  EXPECT_FALSE(control_->plans().GetConfig("run")->enabled());
  clock_.Advance(absl::Milliseconds(200));
  bool committed = false;
  // Waits until the plan is written, which does not wait for a sync.
  const absl::Time give_up = absl::Now() + absl::Seconds(60);
  while (!committed && absl::Now() < give_up) {
    control_->Tick();
    committed = HasCommit(rank.Take(), plan->epoch());
    std::this_thread::yield();
  }
  ASSERT_TRUE(committed);
  Apply(rank, *plan);
  const auto result = TakeResult();
  ASSERT_TRUE(result.has_value() && result->ok());
  EXPECT_THAT((*result)->summary(), HasSubstr("1/1 ranks"));
  EXPECT_TRUE((*store_->LoadPlan("run"))->enabled());
  Answer();
}

TEST_F(SlowDiskTest, ARankThatPassedTheStepMeanwhileMeansALaterStep) {
  FakeRank ranks[2];
  for (int r = 0; r < 2; ++r) {
    Join(r, &ranks[r]);
    BeginStep(ranks[r], 10);
  }
  control_->WaitForSaves();
  Hang("Append");
  Enable();
  std::optional<v1::PlanSpec> first, second;
  for (FakeRank& rank : ranks) first = Accept(&rank, 10);
  ASSERT_TRUE(first.has_value());
  const int64_t now = first->effective_at_step() + 7;
  for (const FakeRank& rank : ranks) BeginStep(rank, now);
  clock_.Advance(absl::Seconds(3));
  Answer();
  for (FakeRank& rank : ranks) {
    {
      absl::MutexLock lock(&rank.mutex);
      EXPECT_FALSE(HasCommit(rank.inbox, first->epoch()));
    }
    second = Accept(&rank, now);
  }
  ASSERT_TRUE(second.has_value());
  // Steps of 100 ms, and a disk that took 3 s.
  EXPECT_GT(second->effective_at_step(), now + 30);
  control_->WaitForSaves();
  for (FakeRank& rank : ranks) {
    EXPECT_TRUE(HasCommit(rank.Take(), second->epoch()));
    Apply(rank, *second);
  }
  const auto result = TakeResult();
  ASSERT_TRUE(result.has_value() && result->ok());
  EXPECT_EQ((*result)->attempts(), 2u);
  EXPECT_EQ((*store_->LoadPlan("run"))->epoch(), second->epoch());
}

TEST_F(SlowDiskTest, AStepThatWasAskedForAndHasPassedIsRefused) {
  FakeRank rank;
  Join(0, &rank);
  BeginStep(rank, 10);
  control_->WaitForSaves();
  Hang("Append");
  Enable(/*at_step=*/20);
  ASSERT_TRUE(Accept(&rank, 10).has_value());
  BeginStep(rank, 20);
  Answer();
  const auto result = TakeResult();
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(control_->plans().GetConfig("run")->enabled());
  EXPECT_FALSE((*store_->LoadPlan("run"))->enabled()) << "taken back";
}

TEST_F(SlowDiskTest, TheAnswerComesAtTheDeadlineAndThePlanIsTakenBack) {
  FakeRank rank;
  Join(0, &rank);
  BeginStep(rank, 10);
  control_->WaitForSaves();
  Hang("Append");
  Enable();
  const std::optional<v1::PlanSpec> plan = Accept(&rank, 10);
  ASSERT_TRUE(plan.has_value());
  clock_.Advance(absl::Seconds(9));
  control_->Tick();
  EXPECT_FALSE(TakeResult().has_value());
  clock_.Advance(absl::Milliseconds(1100));
  control_->Tick();
  const auto result = TakeResult();
  ASSERT_TRUE(result.has_value()) << "while the disk still hangs";
  EXPECT_EQ(result->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(result->status().message()),
              HasSubstr("the archive's disk has not answered for 10.1s"));
  bool aborted = false;
  for (const v1::Directive& d : rank.Take())
    aborted = aborted || (d.has_abort() && d.abort().epoch() == plan->epoch());
  EXPECT_TRUE(aborted);
  Answer();
  EXPECT_FALSE(HasCommit(rank.Take(), plan->epoch()));
  EXPECT_FALSE(control_->plans().GetConfig("run")->enabled());
  Close();
  Open();
  EXPECT_FALSE(control_->plans().GetConfig("run")->enabled()) << "taken back";
}

// An operator's switch begins while a file's plan is being saved: the
// operator's is the last one in the store too, although the cancelled one is
// taken back after it.
TEST_F(SlowDiskTest, PlansAreSavedInTheOrderInWhichTheyHold) {
  FakeRank rank;
  Join(0, &rank);
  BeginStep(rank, 10);
  control_->WaitForSaves();
  Hang("Append");
  v1::AgentEvent edit;
  edit.mutable_config_edited()->set_config_json(
      R"({"dump_enable": false, "level": "L1"})");
  edit.mutable_config_edited()->set_seen_epoch(1);
  control_->agents().OnEvent(rank.session, edit);
  const std::optional<v1::PlanSpec> file = Accept(&rank, 10);
  ASSERT_TRUE(file.has_value());
  Enable();
  const std::optional<v1::PlanSpec> plan = Accept(&rank, 10);
  ASSERT_TRUE(plan.has_value());
  EXPECT_GT(plan->epoch(), file->epoch());
  Answer();
  EXPECT_TRUE(HasCommit(rank.Take(), plan->epoch()));
  EXPECT_EQ((*store_->LoadPlan("run"))->epoch(), plan->epoch());
  Close();
  Open();
  EXPECT_EQ(control_->plans().GetConfig("run")->epoch(), plan->epoch());
  EXPECT_TRUE(control_->plans().GetConfig("run")->enabled());
}

// A plan that a rank has received is on disk, even if the machine crashes.
TEST_F(SlowDiskTest, ACommitThatWasHeardOfSurvives) {
  FakeRank rank;
  Join(0, &rank);
  BeginStep(rank, 10);
  control_->WaitForSaves();
  // Otherwise the disk would still write these events after the commit.
  events_->WaitForWrites();
  Enable();
  std::atomic<bool> committed{false};
  std::atomic<uint64_t> epoch{0};
  // The event of the switch is written after the commit.
  std::atomic<bool> syncing{false};
  fs_.SetDelay([&](const std::string& called) {
    absl::MutexLock lock(&rank.mutex);
    committed = committed || (!syncing && HasCommit(rank.inbox, epoch));
    syncing = syncing || called == "Sync";
  });
  {
    absl::MutexLock lock(&rank.mutex);
    epoch = rank.inbox.back().prepare().plan().epoch();
  }
  ASSERT_TRUE(Accept(&rank, 10).has_value());
  control_->WaitForSaves();
  fs_.SetDelay(nullptr);
  EXPECT_TRUE(syncing);
  EXPECT_FALSE(committed) << "before it was synced";
  EXPECT_TRUE(HasCommit(rank.Take(), epoch));
  // Nothing that an orderly shutdown does may help.
  fs_.FailWhile([](const std::string&, const std::string&) {
    return testing::FaultKind::kIoError;
  });
  Close();
  fs_.FailWhile(nullptr);
  fs_.CrashAndRestart();
  Open();
  EXPECT_EQ(control_->plans().GetConfig("run")->epoch(), epoch);
}

// The run would be read without its plan, and the next save would overwrite the
// plan.
TEST_F(SlowDiskTest, ARunIsNotForgottenWhileSomethingOfItIsSaved) {
  FakeRank rank;
  Join(0, &rank);
  control_->WaitForSaves();
  Close();
  ControlPlane::Options options;
  options.max_idle_runs = 0;
  Open(options);
  Hang("Append");
  v1::SetTriggersRequest triggers;
  triggers.set_run("run");
  triggers.mutable_spec()->mutable_flight()->set_steps(2);
  absl::StatusOr<uint64_t> told;
  std::thread operators([&] { told = control_->triggers().Set(triggers); });
  EXPECT_TRUE(WaitUntilItHangs());
  clock_.Advance(absl::Seconds(31));
  control_->Tick();
  Answer();
  operators.join();
  EXPECT_TRUE(told.ok()) << told.status();
  EXPECT_EQ(control_->triggers().Get("run")->flight().steps(), 2u);
  const auto config = control_->plans().GetConfig("run");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->epoch(), 1u);
  // When nothing is being saved, the run is dropped.
  clock_.Advance(absl::Seconds(31));
  control_->Tick();
  EXPECT_EQ(control_->CountRuns(), 0u);
}

// A rank that connects between a prepare and its commit got the old plan.
TEST_F(SlowDiskTest, WhoJoinsDuringASwitchComesAgainForThePlan) {
  FakeRank rank, late;
  Join(0, &rank);
  BeginStep(rank, 10);
  control_->WaitForSaves();
  Enable();
  Join(1, &late);
  EXPECT_TRUE(late.End().ok());
  ASSERT_TRUE(Accept(&rank, 10).has_value());
  control_->WaitForSaves();
  EXPECT_EQ(late.End().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(rank.End().ok());
}

}  // namespace
}  // namespace rankprobe
