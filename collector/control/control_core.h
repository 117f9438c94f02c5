// SPDX-License-Identifier: Apache-2.0
// State that the roles of a ControlPlane share: its lock, the sessions and runs under it,
// the table of saved plans and the queue of saves.
//
// Ownership: the control plane's; registry, archive, clock, events and queue outlive it.
// Threads: every rank's events and every `status` take the lock. No thread waits for a
// disk, parses or compiles under it. Senders and completion callbacks run under it and
// must only queue. Order of locks: Newcomers', this one, then audit, events and queue.
#ifndef RANKPROBE_COLLECTOR_CONTROL_CONTROL_CORE_H_
#define RANKPROBE_COLLECTOR_CONTROL_CONTROL_CORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collector/control/disk_queue.h"
#include "collector/control/event_log.h"
#include "collector/control/plan_table.h"
#include "collector/control/run_state.h"
#include "collector/control/session_table.h"
#include "collector/store/archive_reader.h"
#include "collector/store/run_registry.h"
#include "common/base/clock.h"
#include "rankprobe/v1/leaf.pb.h"

namespace rankprobe {

struct ControlOptions {
  size_t max_sessions = 4096;
  // Runs without a connected rank that are held in memory; of more, those that
  // were longest not spoken of are forgotten, and read again when they are.
  size_t max_idle_runs = 1024;
  // Principals that share them: each may hold its part and no more.
  size_t agents = 1;
  // Runs that one principal may begin at once (Newcomers).
  size_t new_runs = 1024;
  uint64_t credit_bytes = 16 << 20;
  // Where events go; outlives the control plane. Null: nowhere.
  EventLog* events = nullptr;
  // For runs that were given no triggers of their own.
  std::optional<v1::TriggerSpec> default_triggers;
  // A disk that takes longer to sync what it has written is not waited for.
  absl::Duration sync_wait = absl::Seconds(1);
  // Ranks may come from another collector, with plans that were agreed on there:
  // steps under a plan that was not sent from here are not checked against it.
  bool one_of_several = false;
  // Of a leaf with a root, which controls its ranks: takes what they say. Only
  // queues. Null: they are controlled here.
  std::function<void(v1::RelayedEvent)> relay;
  // Plans are saved on a thread of their own; else in the calls that asked
  // for it, after the lock.
  bool own_thread = false;
};

// Stands for ControlCore::mutex in annotations: the roles are separate objects with
// one lock, and the compiler cannot see that it is the same.
class ABSL_LOCKABLE ControlLockTag {};
inline constexpr ControlLockTag kControlLock{};

struct ControlCore {
  // `rows` null: nobody is admitted and nothing can be switched.
  ControlCore(const ControlOptions& with, RunRegistry* rows,
              ArchiveReader* reader, const Clock* time, DiskQueue* queue)
      : options(with),
        registry(rows),
        archive(reader),
        clock(time),
        saves(queue),
        plans(rows, queue, with.sync_wait),
        sessions(with.max_sessions, with.agents, with.one_of_several) {}

  // For deadlines and ages only: a jump of the wall clock moves none of them.
  absl::Time Now() const {
    return absl::FromUnixNanos(clock->MonotonicNanos());
  }
  // Returns the event's id; 0: left out.
  uint64_t Emit(v1::Event event) const {
    return options.events == nullptr ? 0
                                     : options.events->Append(std::move(event));
  }
  // An event of a run as a whole.
  void Tell(v1::Event::Kind kind, const std::string& run,
            const std::string& detail, const std::string& outcome,
            int64_t step = -1) const {
    v1::Event told;
    told.set_kind(kind);
    told.set_run(run);
    told.set_step(step);
    told.set_detail(detail);
    told.set_outcome(outcome);
    Emit(std::move(told));
  }
  // Null: it is not in memory. Looking is not using.
  RunState* FindRun(const std::string& run)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock) {
    const auto it = runs.find(run);
    return it == runs.end() ? nullptr : &it->second;
  }
  // First in every call that names a run is SavedRuns::Read: this only looks in
  // memory, and makes an empty one where there is none.
  RunState* LoadRun(const std::string& name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock) {
    RunState& run = runs[name];
    run.name = name;
    run.last_used = Now();
    return &run;
  }
  // For callbacks that are called with the lock held.
  void AssertHeld() const ABSL_ASSERT_EXCLUSIVE_LOCK(kControlLock) {
    mutex.AssertHeld();
  }

  const ControlOptions options;
  // Null: the archive is read-only, so there are no ranks and no plans.
  RunRegistry* const registry;
  ArchiveReader* const archive;
  const Clock* const clock;
  DiskQueue* const saves;
  PlanTable plans;
  absl::Mutex mutex;
  SessionTable sessions ABSL_GUARDED_BY(kControlLock);
  std::map<std::string, RunState> runs ABSL_GUARDED_BY(kControlLock);
};

// Holds the lock. Saves that were queued under it run after it where the queue has no
// thread of its own.
class ABSL_SCOPED_LOCKABLE ControlLock {
 public:
  explicit ControlLock(ControlCore* core)
      ABSL_EXCLUSIVE_LOCK_FUNCTION(kControlLock) ABSL_NO_THREAD_SAFETY_ANALYSIS
      : save_(core->saves),
        lock_(&core->mutex) {}
  ~ControlLock()
      ABSL_UNLOCK_FUNCTION() ABSL_NO_THREAD_SAFETY_ANALYSIS = default;
  ControlLock(const ControlLock&) = delete;
  ControlLock& operator=(const ControlLock&) = delete;

 private:
  const RunQueuedAfter save_;
  const absl::MutexLock lock_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_CONTROL_CORE_H_
