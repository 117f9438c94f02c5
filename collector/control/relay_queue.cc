// SPDX-License-Identifier: Apache-2.0
#include "collector/control/relay_queue.h"

#include <algorithm>
#include <utility>

namespace rankprobe {

void RelayQueue::Note(const v1::AgentEvent& event, v1::Hello* hello) {
  switch (event.event_case()) {
    case v1::AgentEvent::kProgress:
      hello->set_step(event.progress().step());
      break;
    case v1::AgentEvent::kApplied:
      hello->set_plan_epoch(event.applied().epoch());
      hello->set_plan_digest(event.applied().plan_digest());
      break;
    case v1::AgentEvent::kRankKnown:
      hello->mutable_identity()->set_rank(event.rank_known().rank());
      hello->mutable_identity()->set_world_size(
          event.rank_known().world_size());
      break;
    default:
      break;
  }
}

void RelayQueue::Push(v1::RelayedEvent event) {
  {
    absl::MutexLock lock(&mutex_);
    if (event.has_gone()) {
      // The root does not know this session.
      const auto known = hellos_.find(event.session());
      if (known == hellos_.end()) return;
      hello_bytes_ -= std::min(hello_bytes_, known->second.ByteSizeLong());
      hellos_.erase(known);
    } else if (event.event().has_hello()) {
      event.mutable_event()->mutable_hello()->clear_incarnation_secret();
      v1::RelayedEvent& kept = hellos_[event.session()];
      kept = event;
      hello_bytes_ += kept.ByteSizeLong();
      // The identity is kept; the config is only used in the first hello.
      if (hello_bytes_ > kMaxWaitingBytes)
        kept.mutable_event()->mutable_hello()->clear_config_json();
    } else {
      const auto known = hellos_.find(event.session());
      if (known == hellos_.end()) return;
      Note(event.event(), known->second.mutable_event()->mutable_hello());
    }
    if (overflown_) return;
    bytes_ += event.ByteSizeLong();
    events_.push_back(std::move(event));
    if (bytes_ > kMaxWaitingBytes) {
      overflown_ = true;
      events_.clear();
      bytes_ = 0;
    }
  }
  changed_.NotifyAll();
}

void RelayQueue::BeginAnew() {
  absl::MutexLock lock(&mutex_);
  overflown_ = false;
  events_.clear();
  bytes_ = 0;
  for (const auto& [session, hello] : hellos_) {
    events_.push_back(hello);
    bytes_ += hello.ByteSizeLong();
  }
}

bool RelayQueue::Take(size_t max_bytes, v1::LeafReport* report) {
  absl::MutexLock lock(&mutex_);
  if (overflown_) return false;
  size_t taken = 0;
  while (!events_.empty()) {
    const size_t bytes = events_.front().ByteSizeLong();
    if (taken > 0 && taken + bytes > max_bytes) break;
    taken += bytes + 8;
    bytes_ -= bytes;
    report->add_events()->Swap(&events_.front());
    events_.pop_front();
  }
  return true;
}

void RelayQueue::Wait(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  changed_.WaitFor(&mutex_, timeout, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return woken_ || overflown_ || !events_.empty();
  });
  woken_ = false;
}

void RelayQueue::Wake() {
  {
    absl::MutexLock lock(&mutex_);
    woken_ = true;
  }
  changed_.NotifyAll();
}

}  // namespace rankprobe
