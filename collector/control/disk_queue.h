// SPDX-License-Identifier: Apache-2.0
// Work that waits for the disk, one task after another in the order of Add, so
// that no thread waits for a disk while holding a lock that others need.
//
// What strangers can cause is added with TryAdd, which refuses beyond the bounds;
// what ends something that was begun, with Add.
//
// Threads: thread-safe. With a thread of its own tasks run there; without one,
// in the RunQueued call of somebody who holds no lock (tests, fuzzers: the same
// order, and no thread to wait for).
// Failure: tasks tell their own.
#ifndef RANKPROBE_COLLECTOR_CONTROL_DISK_QUEUE_H_
#define RANKPROBE_COLLECTOR_CONTROL_DISK_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/monotonic_time.h"
#include "common/base/service_thread.h"

namespace rankprobe {

class DiskQueue {
 public:
  // Of what waits.
  struct Bounds {
    size_t tasks = SIZE_MAX;
    uint64_t bytes = UINT64_MAX;
  };

  explicit DiskQueue(bool own_thread) : DiskQueue(own_thread, Bounds()) {}
  DiskQueue(bool own_thread, const Bounds& bounds);
  // Runs what is queued.
  ~DiskQueue();
  DiskQueue(const DiskQueue&) = delete;
  DiskQueue& operator=(const DiskQueue&) = delete;

  // Only queues: may be called under any lock.
  void Add(std::function<void()> task);
  // The same for a task that holds about `bytes`. False: so much waits already
  // that it was not added.
  bool TryAdd(std::function<void()> task, uint64_t bytes);
  // Without a thread: runs what is queued, unless another call is at it.
  void RunQueued();
  // Returns when everything added before has run. Not from a task.
  void Wait();
  // Nothing is queued, and no task runs.
  bool idle() const {
    absl::MutexLock lock(&mutex_);
    return Idle();
  }

 private:
  void Work();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !tasks_.empty();
  }
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !running_ && tasks_.empty();
  }
  // Runs tasks until there are none.
  void RunAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  struct Task {
    std::function<void()> run;
    uint64_t bytes = 0;
  };

  const Bounds bounds_;
  mutable absl::Mutex mutex_;
  // Told with each task, when there is none any more, and with stopping_.
  MonotonicCondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  ServiceThread thread_;
};

// Runs what was queued meanwhile when it goes out of scope: declared before the
// lock that is held meanwhile.
class RunQueuedAfter {
 public:
  explicit RunQueuedAfter(DiskQueue* queue) : queue_(queue) {}
  ~RunQueuedAfter() { queue_->RunQueued(); }
  RunQueuedAfter(const RunQueuedAfter&) = delete;
  RunQueuedAfter& operator=(const RunQueuedAfter&) = delete;

 private:
  DiskQueue* const queue_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_DISK_QUEUE_H_
