// SPDX-License-Identifier: Apache-2.0
// Queue of messages from a leaf's ranks to the root, with the sessions' current
// hellos, so that a restarted or another root receives the complete state.
//
// Ownership: one per leaf. Threads: thread-safe; Push never waits. Failure: if
// a root does not keep up, only its link ends: Take returns false, and the next
// link begins again with hellos.
#ifndef RANKPROBE_COLLECTOR_CONTROL_RELAY_QUEUE_H_
#define RANKPROBE_COLLECTOR_CONTROL_RELAY_QUEUE_H_

#include <cstddef>
#include <deque>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/monotonic_time.h"
#include "rankprobe/v1/leaf.pb.h"

namespace rankprobe {

class RelayQueue {
 public:
  static constexpr size_t kMaxWaitingBytes = 64 << 20;

  // Called in the order of each session: its hello, its events, its end.
  void Push(v1::RelayedEvent event);
  // Drops the waiting messages and queues a hello of each session with its
  // current state.
  void BeginAnew();
  // Adds waiting messages to the report, up to `max_bytes`. Returns false if
  // too many waited, so that some were dropped: call BeginAnew.
  bool Take(size_t max_bytes, v1::LeafReport* report);
  // Waits until there is a message, Wake was called, or the timeout has passed.
  void Wait(absl::Duration timeout);
  void Wake();

 private:
  // Updates the hello with the state that the event reports.
  static void Note(const v1::AgentEvent& event, v1::Hello* hello);

  absl::Mutex mutex_;
  MonotonicCondVar changed_;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  bool overflown_ ABSL_GUARDED_BY(mutex_) = false;
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t hello_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, v1::RelayedEvent> hellos_ ABSL_GUARDED_BY(mutex_);
  std::deque<v1::RelayedEvent> events_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_RELAY_QUEUE_H_
