// SPDX-License-Identifier: Apache-2.0
// A single worker thread that runs tasks in order while the callers wait. It
// bounds memory: an allocator caches freed memory for each thread, and a server
// has many threads. Thread-safe.
#ifndef RANKPROBE_WEB_GRAPH_ONE_THREAD_H_
#define RANKPROBE_WEB_GRAPH_ONE_THREAD_H_

#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"

namespace rankprobe {

class OneThread {
 public:
  OneThread() : thread_([this] { Work(); }) {}
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  // No caller may be waiting in Run().
  ~OneThread() {
    {
      const absl::MutexLock lock(&mutex_);
      ending_ = true;
    }
    thread_.join();
  }

  // Waits for its turn, and until `work` has run.
  void Run(absl::FunctionRef<void()> work) {
    const absl::MutexLock turn(&turn_);
    const absl::MutexLock lock(&mutex_);
    work_ = &work;
    const auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return work_ == nullptr;
    };
    mutex_.Await(absl::Condition(&done));
  }

 private:
  void Work() {
    const auto called = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return ending_ || work_ != nullptr;
    };
    for (;;) {
      const absl::FunctionRef<void()>* work = nullptr;
      {
        const absl::MutexLock lock(&mutex_, absl::Condition(&called));
        if (work_ == nullptr) return;
        work = work_;
      }
      (*work)();
      const absl::MutexLock lock(&mutex_);
      work_ = nullptr;
    }
  }

  absl::Mutex turn_ ABSL_ACQUIRED_BEFORE(mutex_);
  absl::Mutex mutex_;
  const absl::FunctionRef<void()>* work_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_GRAPH_ONE_THREAD_H_
