// SPDX-License-Identifier: Apache-2.0
// Queue between the session's callers and its worker: events for the collector,
// the newest progress, and the request to stop. It also wakes the worker.
//
// Ownership: of the Session; outlives everything that wakes the worker.
// Thread-safe. Emit drops events that do not fit, so an agent that cannot reach
// its collector loses them.
#ifndef RANKPROBE_AGENT_RUNTIME_SESSION_EVENT_OUTBOX_H_
#define RANKPROBE_AGENT_RUNTIME_SESSION_EVENT_OUTBOX_H_

#include <deque>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/monotonic_time.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

class EventOutbox {
 public:
  void Wake();
  // Queues an event; drops it if the queue is full.
  void Emit(v1::AgentEvent event);
  // Queues an event that is never dropped: there are few of these, and the
  // collector relies on them.
  void Push(v1::AgentEvent event);
  // Replaces the progress to report; only the newest matters. `applied`: the
  // plan that took effect with this step, reported before the progress. Without
  // `applied` and `urgent`, the progress may wait for the next event or for the
  // worker's next tick.
  void NoteStep(v1::StepProgress progress,
                std::optional<v1::PlanApplied> applied, bool urgent);
  void Stop();

  // For the worker: takes the next event. Returns false if there is none.
  bool Pop(v1::AgentEvent* event);
  // For the worker: waits until woken or for `timeout`. Returns false when
  // stopping.
  bool Wait(absl::Duration timeout);
  bool stopping() const;

 private:
  mutable absl::Mutex mutex_;
  // Notified whenever wake_ is set.
  MonotonicCondVar woken_;
  bool wake_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<v1::AgentEvent> events_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::StepProgress> progress_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_SESSION_EVENT_OUTBOX_H_
