#include "agent/runtime/event_outbox.h"

#include <utility>

namespace rankprobe {
namespace {

constexpr size_t kMaxEvents = 10000;

}  // namespace

void EventOutbox::Wake() {
  absl::MutexLock lock(&mutex_);
  wake_ = true;
}

void EventOutbox::Emit(v1::AgentEvent event) {
  absl::MutexLock lock(&mutex_);
  if (events_.size() < kMaxEvents) events_.push_back(std::move(event));
  wake_ = true;
}

void EventOutbox::Push(v1::AgentEvent event) {
  absl::MutexLock lock(&mutex_);
  events_.push_back(std::move(event));
  wake_ = true;
}

void EventOutbox::NoteStep(v1::StepProgress progress,
                           std::optional<v1::PlanApplied> applied,
                           bool urgent) {
  absl::MutexLock lock(&mutex_);
  urgent = urgent || applied.has_value();
  if (applied.has_value()) {
    v1::AgentEvent event;
    *event.mutable_applied() = *std::move(applied);
    events_.push_back(std::move(event));
  }
  progress_ = std::move(progress);
  wake_ = wake_ || urgent;
}

void EventOutbox::Stop() {
  absl::MutexLock lock(&mutex_);
  stopping_ = true;
  wake_ = true;
}

bool EventOutbox::Pop(v1::AgentEvent* event) {
  absl::MutexLock lock(&mutex_);
  if (!events_.empty()) {
    *event = std::move(events_.front());
    events_.pop_front();
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
  mutex_.AwaitWithTimeout(absl::Condition(&wake_), timeout);
  wake_ = false;
  return !stopping_;
}

bool EventOutbox::stopping() const {
  absl::MutexLock lock(&mutex_);
  return stopping_;
}

}  // namespace rankprobe
