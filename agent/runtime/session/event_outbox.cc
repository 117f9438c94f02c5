// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/session/event_outbox.h"

#include <utility>

namespace rankprobe {
namespace {

constexpr size_t kMaxEvents = 10000;
// How old the collector's knowledge of a rank's step may get while it steps:
// less than the time that a switch leaves for its messages (kRoundTripNs in
// collector/control).
constexpr int64_t kProgressIntervalNs = 50'000'000;

}  // namespace

void EventOutbox::Wake() {
  {
    absl::MutexLock lock(&mutex_);
    wake_ = true;
  }
  woken_.NotifyAll();
}

void EventOutbox::Emit(v1::AgentEvent event) {
  {
    absl::MutexLock lock(&mutex_);
    if (events_.size() < kMaxEvents) events_.push_back(std::move(event));
  }
  Wake();
}

void EventOutbox::Push(v1::AgentEvent event) {
  {
    absl::MutexLock lock(&mutex_);
    events_.push_back(std::move(event));
  }
  Wake();
}

void EventOutbox::NoteStep(int64_t step, bool dumping, int64_t now_ns,
                           std::optional<v1::PlanApplied> applied) {
  bool urgent = applied.has_value();
  {
    absl::MutexLock lock(&mutex_);
    if (applied.has_value()) {
      v1::AgentEvent event;
      *event.mutable_applied() = *std::move(applied);
      events_.push_back(std::move(event));
    }
    urgent = urgent || now_ns - woken_ns_ >= kProgressIntervalNs ||
             dumping != step_.dumping;
    if (urgent) woken_ns_ = now_ns;
    step_ = {step, dumping, now_ns,
             step_.began_ns > 0 ? now_ns - step_.began_ns : 0};
    has_progress_ = true;
  }
  if (urgent) Wake();
}

void EventOutbox::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  Wake();
}

bool EventOutbox::Pop(v1::AgentEvent* event) {
  absl::MutexLock lock(&mutex_);
  if (!events_.empty()) {
    *event = std::move(events_.front());
    events_.pop_front();
    // More events may follow, so the next Wait returns at once.
    wake_ = true;
    return true;
  }
  if (!has_progress_) return false;
  has_progress_ = false;
  v1::StepProgress* const progress = event->mutable_progress();
  progress->set_step(step_.step);
  progress->set_dumping(step_.dumping);
  progress->set_last_step_ns(step_.last_ns);
  return true;
}

bool EventOutbox::Wait(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  woken_.WaitFor(&mutex_, timeout,
                 [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return wake_; });
  wake_ = false;
  return !stopping_;
}

bool EventOutbox::stopping() const {
  absl::MutexLock lock(&mutex_);
  return stopping_;
}

}  // namespace rankprobe
