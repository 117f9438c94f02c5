// A few threads for calls that wait for the disk. Thread-safe. The destructor
// runs what is queued, then joins.
#ifndef RANKPROBE_COLLECTOR_RPC_WORKER_POOL_H_
#define RANKPROBE_COLLECTOR_RPC_WORKER_POOL_H_

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace rankprobe {

class WorkerPool {
 public:
  WorkerPool(size_t threads, size_t max_queued);
  ~WorkerPool();
  // False when the queue is full.
  bool Run(std::function<void()> task);

 private:
  void Work();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !tasks_.empty();
  }

  const size_t max_queued_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_RPC_WORKER_POOL_H_
