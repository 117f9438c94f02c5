// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/session/event_outbox.h"

#include <utility>

namespace rankprobe {
namespace {

constexpr size_t kMaxEvents = 10000;

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

void EventOutbox::NoteStep(v1::StepProgress progress,
                           std::optional<v1::PlanApplied> applied,
                           bool urgent) {
  urgent = urgent || applied.has_value();
  {
    absl::MutexLock lock(&mutex_);
    if (applied.has_value()) {
      v1::AgentEvent event;
      *event.mutable_applied() = *std::move(applied);
      events_.push_back(std::move(event));
    }
    progress_ = std::move(progress);
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
  if (!progress_.has_value()) return false;
  *event->mutable_progress() = *std::move(progress_);
  progress_.reset();
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
