// SPDX-License-Identifier: Apache-2.0
// State that the roles of a Recorder share: its session, its lock, and under
// the lock the plan, the calls and the records of the step in progress.
//
// Ownership: the Recorder's; owns the session. Threads: any. The lock is held
// while builders read tensors, and taken before those of the TriggerWatcher and
// of the Session. Never fails.
#ifndef RANKPROBE_AGENT_RUNTIME_RECORDER_RECORDER_CORE_H_
#define RANKPROBE_AGENT_RUNTIME_RECORDER_RECORDER_CORE_H_

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "agent/runtime/recorder/call_tree.h"
#include "agent/runtime/recorder/step_filter.h"
#include "agent/runtime/recorder/step_records.h"
#include "common/base/fork_guard.h"

namespace rankprobe {

struct RecorderCore {
  RecorderCore(std::unique_ptr<Session> with, const Clock* clock,
               FileSystem* file_system, std::string framework,
               std::shared_ptr<const Plan> plan)
      : session(std::move(with)),
        watcher(session == nullptr ? nullptr : session->watcher()),
        filter(std::move(plan), watcher),
        records(session.get(), watcher, clock, file_system,
                std::move(framework), &filter),
        tree(&records) {}

  // Whether this is the child of a fork, in which nothing is recorded.
  bool Forked() const { return fork_guard.InChild(); }
  // The gate of every hook.
  bool Records() const {
    return recording.load(std::memory_order_relaxed) && !Forked();
  }
  // Begins a step of a recorder with a session, and adopts its plan.
  ActivePlan BeginStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    ActivePlan active = session->BeginStep(records.step());
    Adopt(active);
    if (watcher != nullptr) watcher->BeginStep(records.step());
    return active;
  }
  void Adopt(const ActivePlan& active) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    records.KeepWhileDeferred(filter.Adopt(active));
  }

  const ForkGuard fork_guard;
  // Null: nothing is sent and nothing recorded.
  const std::unique_ptr<Session> session;
  // The session's watcher; null if it has none.
  TriggerWatcher* const watcher;
  std::atomic<bool> recording{false};

  mutable absl::Mutex mutex;
  StepFilter filter ABSL_GUARDED_BY(mutex);
  StepRecords records ABSL_GUARDED_BY(mutex);
  CallTree tree ABSL_GUARDED_BY(mutex);
  std::optional<int64_t> rank ABSL_GUARDED_BY(mutex);
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_RECORDER_RECORDER_CORE_H_
