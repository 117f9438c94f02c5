// SPDX-License-Identifier: Apache-2.0
// Work that waits for the disk, one task after another in the order of Add, so
// that no thread waits for a disk while holding a lock that others need.
//
// Tasks that untrusted clients can cause are added with TryAdd, which refuses
// beyond the bounds; tasks that complete an operation, with Add.
//
// Threads: thread-safe. With a thread of its own, tasks run there; without one,
// in the RunQueued call of a thread that holds no lock (tests, fuzzers: the
// same order, without another thread to wait for).
// Failure: tasks report their own errors.
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
  // Limits for queued tasks.
  struct Bounds {
    size_t tasks = SIZE_MAX;
    uint64_t bytes = UINT64_MAX;
  };

  explicit DiskQueue(bool own_thread) : DiskQueue(own_thread, Bounds()) {}
  DiskQueue(bool own_thread, const Bounds& bounds);
  // Runs the queued tasks first.
  ~DiskQueue();
  DiskQueue(const DiskQueue&) = delete;
  DiskQueue& operator=(const DiskQueue&) = delete;

  // Only queues; may be called under any lock.
  void Add(std::function<void()> task);
  // The same for a task that holds about `bytes`. Returns false if the bounds
  // are reached; the task is not added then.
  bool TryAdd(std::function<void()> task, uint64_t bytes);
  // Without a thread: runs the queued tasks, unless another call already does.
  void RunQueued();
  // Returns when everything added before has run. Must not be called from a
  // task.
  void Wait();
  // Returns true if nothing is queued and no task runs.
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
  // Runs tasks until the queue is empty.
  void RunAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  struct Task {
    std::function<void()> run;
    uint64_t bytes = 0;
  };

  const Bounds bounds_;
  mutable absl::Mutex mutex_;
  // Notified for each new task, when the queue becomes empty, and when
  // stopping_ is set.
  MonotonicCondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  ServiceThread thread_;
};

// Runs the queued tasks in its destructor. Declared before the lock under which
// they are queued, so that it runs after the unlock.
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
