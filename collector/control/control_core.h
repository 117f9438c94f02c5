// SPDX-License-Identifier: Apache-2.0
// State that the roles of a ControlPlane share: its lock, the sessions and runs
// under it, the table of saved plans and the queue of saves.
//
// Ownership: the control plane's; registry, archive, clock, events and queue
// outlive it.
// Threads: every rank's events and every `status` take the lock. No thread
// waits for a disk, parses or compiles under it. Senders and completion
// callbacks run under it and must only queue. Order of locks: Newcomers', this
// one, then audit, events and queue.
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
  // Limit for runs without a connected rank in memory; beyond it the least
  // recently used are dropped, and read again when they are named.
  size_t max_idle_runs = 1024;
  // Number of principals that share the sessions; each may hold only its share.
  size_t agents = 1;
  // Runs that one principal may begin at once (Newcomers).
  size_t new_runs = 1024;
  uint64_t credit_bytes = 16 << 20;
  // Receives events; outlives the control plane. Null: events are dropped.
  EventLog* events = nullptr;
  // Used for runs without triggers of their own.
  std::optional<v1::TriggerSpec> default_triggers;
  // The longest wait for a disk to sync what it has written.
  absl::Duration sync_wait = absl::Seconds(1);
  // Ranks may come from another collector with plans that were agreed on there:
  // steps under a plan that this collector did not send are not checked against
  // it.
  bool one_of_several = false;
  // On a leaf: passes what its ranks report to the root, which controls them.
  // Must only queue. Null: this collector controls its ranks.
  std::function<void(v1::RelayedEvent)> relay;
  // If true, plans are saved on a separate thread; otherwise in the calls that
  // requested it, after the lock is released.
  bool own_thread = false;
};

// Represents ControlCore::mutex in annotations: the roles are separate objects
// with one lock, and the compiler cannot see that it is the same.
class ABSL_LOCKABLE ControlLockTag {};
inline constexpr ControlLockTag kControlLock{};

struct ControlCore {
  // If `rows` is null, no process is admitted and no plan can be switched.
  ControlCore(const ControlOptions& with, RunRegistry* rows,
              ArchiveReader* reader, const Clock* time, DiskQueue* queue)
      : options(with),
        registry(rows),
        archive(reader),
        clock(time),
        saves(queue),
        plans(rows, queue, with.sync_wait),
        sessions(with.max_sessions, with.agents, with.one_of_several) {}

  // Monotonic time, so that a jump of the wall clock does not move deadlines or
  // ages.
  absl::Time Now() const {
    return absl::FromUnixNanos(clock->MonotonicNanos());
  }
  // Returns the event's id; 0 if the event was left out.
  uint64_t Emit(v1::Event event) const {
    return options.events == nullptr ? 0
                                     : options.events->Append(std::move(event));
  }
  // Emits an event of a run, not of one rank.
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
  // Returns null if the run is not in memory. Does not count as a use of the
  // run.
  RunState* FindRun(const std::string& run)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock) {
    const auto it = runs.find(run);
    return it == runs.end() ? nullptr : &it->second;
  }
  // Returns the run in memory, or adds an empty one. Every call that names a
  // run calls SavedRuns::Read first, which reads it from the disk.
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
  // Null if the archive is read-only; then there are no ranks and no plans.
  RunRegistry* const registry;
  ArchiveReader* const archive;
  const Clock* const clock;
  DiskQueue* const saves;
  PlanTable plans;
  absl::Mutex mutex;
  SessionTable sessions ABSL_GUARDED_BY(kControlLock);
  std::map<std::string, RunState> runs ABSL_GUARDED_BY(kControlLock);
};

// Holds the lock. If the queue has no thread, saves that were queued under the
// lock run after it is released.
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
