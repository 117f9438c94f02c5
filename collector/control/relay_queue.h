// SPDX-License-Identifier: Apache-2.0
// Queue of messages from a leaf's ranks to the root; and who they are, so that
// a root that was started again, or is another one, is told from the beginning.
//
// Ownership: one per leaf. Threads: thread-safe; Push waits for nobody. Failure: a
// root that does not keep up loses nothing but its link: Take then says so, and
// the next link begins anew.
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

  // In the order of each session: a hello, what it says, that it is gone.
  void Push(v1::RelayedEvent event);
  // Forgets what waits: a hello of each session is next, of where it is now.
  void BeginAnew();
  // Adds what waits to the report, up to so many bytes. False: too much waited,
  // and some of it is forgotten: BeginAnew.
  bool Take(size_t max_bytes, v1::LeafReport* report);
  // Until there is something, it was woken, or the time is over.
  void Wait(absl::Duration timeout);
  void Wake();

 private:
  // What a hello would say now.
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
