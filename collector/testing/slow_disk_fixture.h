// SPDX-License-Identifier: Apache-2.0
// A control plane with its own threads over a disk that hangs or fails on
// request; ranks of run "run" are in the test's memory.
//
// Threads: the test may call it while another call hangs.
#ifndef RANKPROBE_COLLECTOR_TESTING_SLOW_DISK_FIXTURE_H_
#define RANKPROBE_COLLECTOR_TESTING_SLOW_DISK_FIXTURE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "collector/control/control_plane.h"
#include "collector/testing/frames.h"
#include "common/base/monotonic_event.h"
#include "common/testing/fault_file_system.h"
#include "gtest/gtest.h"

namespace rankprobe::testing {

class SlowDiskFixture : public ::testing::Test {
 protected:
  // The peer of a rank's stream.
  struct FakeRank {
    std::string session;
    absl::Mutex mutex;
    absl::Status ended ABSL_GUARDED_BY(mutex);
    std::vector<v1::Directive> inbox ABSL_GUARDED_BY(mutex);

    std::vector<v1::Directive> Take() {
      absl::MutexLock lock(&mutex);
      return std::exchange(inbox, {});
    }
    absl::Status End() {
      absl::MutexLock lock(&mutex);
      return ended;
    }
  };

  static bool HasCommit(const std::vector<v1::Directive>& directives,
                        uint64_t epoch) {
    for (const v1::Directive& d : directives) {
      if (d.has_commit() && d.commit().epoch() == epoch) return true;
    }
    return false;
  }

  void SetUp() override { Open(); }
  void TearDown() override {
    fs_.SetDelay(nullptr);
    if (hanging_ != nullptr && !hanging_->HasBeenNotified()) hanging_->Notify();
    Close();
  }

  void Open(ControlPlane::Options control = {}) {
    StoreOptions options = testing::OptionsAt("/d");
    options.leveldb_cache_bytes = index_cache_bytes_;
    auto store = Store::Open(options, &fs_, &clock_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    EventLog::Options events;
    events.path = "/d/events.log";
    events.own_thread = true;
    events_ = *EventLog::Open(events, &fs_, &clock_);
    control.own_thread = true;
    control.events = events_.get();
    control_ = std::make_unique<ControlPlane>(control, store_.get(),
                                              store_.get(), &clock_);
  }
  void Close() {
    control_.reset();
    events_.reset();
    store_.reset();
  }

  static v1::Hello HelloOf(int64_t rank) {
    v1::Hello hello;
    *hello.mutable_identity() =
        testing::MakeIdentity("run", rank, 100 + static_cast<uint64_t>(rank));
    hello.set_protocol(1);
    hello.set_incarnation_secret(std::string(32, 's'));
    hello.set_config_json(R"({"dump_path": "d", "dump_enable": false})");
    hello.set_step(-1);
    return hello;
  }
  v1::Welcome Join(int64_t rank, FakeRank* fake) {
    Peer peer;
    peer.end = [fake](const absl::Status& status) {
      absl::MutexLock lock(&fake->mutex);
      fake->ended = status;
    };
    const auto admission = control_->agents().Admit(
        HelloOf(rank),
        [fake](const v1::Directive& d) {
          absl::MutexLock lock(&fake->mutex);
          fake->inbox.push_back(d);
        },
        peer);
    EXPECT_TRUE(admission.ok()) << admission.status();
    if (!admission.ok()) return {};
    fake->session = admission->welcome.session_id();
    return admission->welcome;
  }
  void BeginStep(const FakeRank& rank, int64_t step) {
    v1::AgentEvent event;
    event.mutable_progress()->set_step(step);
    event.mutable_progress()->set_last_step_ns(100000000);
    control_->agents().OnEvent(rank.session, event);
  }
  // Accepts the newest plan in the inbox, if there is one.
  std::optional<v1::PlanSpec> Accept(FakeRank* rank, int64_t step) {
    std::optional<v1::PlanSpec> plan;
    for (const v1::Directive& d : rank->Take()) {
      if (d.has_prepare()) plan = d.prepare().plan();
    }
    if (!plan.has_value()) return plan;
    v1::AgentEvent event;
    event.mutable_prepared()->set_epoch(plan->epoch());
    event.mutable_prepared()->set_current_step(step);
    event.mutable_prepared()->set_accepted(true);
    control_->agents().OnEvent(rank->session, event);
    return plan;
  }
  void Apply(const FakeRank& rank, const v1::PlanSpec& plan) {
    v1::AgentEvent event;
    event.mutable_applied()->set_epoch(plan.epoch());
    event.mutable_applied()->set_step(plan.effective_at_step());
    control_->agents().OnEvent(rank.session, event);
  }
  void Enable(std::optional<int64_t> at_step = std::nullopt,
              const std::vector<int64_t>& ranks = {}) {
    v1::SetDumpEnableRequest request;
    request.set_run("run");
    request.set_enable(true);
    if (at_step.has_value()) request.mutable_options()->set_at_step(*at_step);
    for (const int64_t rank : ranks) request.mutable_options()->add_ranks(rank);
    control_->plans().SetDumpEnable(
        request, [this](const absl::StatusOr<v1::SwitchResult>& result) {
          absl::MutexLock lock(&result_mutex_);
          result_ = result;
        });
  }
  std::optional<absl::StatusOr<v1::SwitchResult>> TakeResult() {
    absl::MutexLock lock(&result_mutex_);
    return std::exchange(result_, std::nullopt);
  }

  // From now on calls named `op` hang until Answer().
  void Hang(const std::string& op) {
    hanging_ = std::make_shared<absl::Notification>();
    asked_ = std::make_shared<MonotonicEvent>();
    fs_.SetDelay(
        [op, hanging = hanging_, asked = asked_](const std::string& called) {
          if (called != op) return;
          asked->Set();
          hanging->WaitForNotification();
        });
  }
  // Waits until a call hangs.
  bool WaitUntilItHangs() { return asked_->WaitFor(absl::Seconds(60)); }
  void Answer() {
    fs_.SetDelay(nullptr);
    hanging_->Notify();
    control_->WaitForSaves();
  }

  ManualClock clock_;
  // For the next Open. 0: every read goes to the disk.
  uint64_t index_cache_bytes_ = 1 << 20;
  FaultFileSystem fs_;
  std::shared_ptr<absl::Notification> hanging_;
  std::shared_ptr<MonotonicEvent> asked_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<EventLog> events_;
  std::unique_ptr<ControlPlane> control_;
  absl::Mutex result_mutex_;
  std::optional<absl::StatusOr<v1::SwitchResult>> result_
      ABSL_GUARDED_BY(result_mutex_);
};

}  // namespace rankprobe::testing

#endif  // RANKPROBE_COLLECTOR_TESTING_SLOW_DISK_FIXTURE_H_
