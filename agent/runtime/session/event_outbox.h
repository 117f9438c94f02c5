// SPDX-License-Identifier: Apache-2.0
// Queue between the session's callers and its worker: events for the collector,
// the newest progress, and the request to stop. It also wakes the worker.
//
// Ownership: of the Session; outlives everything that wakes the worker.
// Thread-safe. Emit drops events that do not fit, so an agent that cannot reach
// its collector loses them.
#ifndef RANKPROBE_AGENT_RUNTIME_SESSION_EVENT_OUTBOX_H_
#define RANKPROBE_AGENT_RUNTIME_SESSION_EVENT_OUTBOX_H_

#include <cstdint>
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
  // A step has begun at `now_ns` on the monotonic clock. Only the newest step is
  // reported, from time to time: waking the worker costs the step 20 us, so that
  // others wait for the next event or for the worker's next tick. `applied`: the
  // plan that took effect with this step, reported at once, before the step.
  void NoteStep(int64_t step, bool dumping, int64_t now_ns,
                std::optional<v1::PlanApplied> applied);
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
  // The newest step, and whether it is still to be reported. A message is made
  // only of those that are.
  struct Step {
    int64_t step = 0;
    bool dumping = false;
    int64_t began_ns = 0;
    // Duration of the step before; 0 if unknown.
    int64_t last_ns = 0;
  };
  Step step_ ABSL_GUARDED_BY(mutex_);
  bool has_progress_ ABSL_GUARDED_BY(mutex_) = false;
  // When the worker was last woken for a step.
  int64_t woken_ns_ ABSL_GUARDED_BY(mutex_) = INT64_MIN / 2;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_SESSION_EVENT_OUTBOX_H_
