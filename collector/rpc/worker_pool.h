// SPDX-License-Identifier: Apache-2.0
// A few threads for calls that wait for the disk. Thread-safe. The destructor
// runs the queued tasks, then joins. The queue is bounded by number and by the
// memory that the tasks hold.
#ifndef RANKPROBE_COLLECTOR_RPC_WORKER_POOL_H_
#define RANKPROBE_COLLECTOR_RPC_WORKER_POOL_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/monotonic_time.h"
#include "common/base/service_thread.h"

namespace rankprobe {

class WorkerPool {
 public:
  WorkerPool(size_t threads, size_t max_queued,
             size_t max_queued_bytes = SIZE_MAX);
  ~WorkerPool();
  // `bytes` is the memory that the task holds until it has run. Returns false
  // if the queue is full.
  bool Run(std::function<void()> task, size_t bytes = 0);

 private:
  void Work();
  struct Task {
    std::function<void()> run;
    size_t bytes = 0;
  };
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !tasks_.empty();
  }

  const size_t max_queued_;
  const size_t max_queued_bytes_;
  absl::Mutex mutex_;
  // Notified for each task, and when stopping_ is set.
  MonotonicCondVar work_came_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  std::vector<ServiceThread> threads_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_RPC_WORKER_POOL_H_
