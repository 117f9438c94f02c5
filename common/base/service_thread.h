// SPDX-License-Identifier: Apache-2.0
// std::thread for the service loops of a process; a simulation runs these loops
// itself (time_source.h). Not thread-safe; joined or detached before it is
// destroyed.
#ifndef RANKPROBE_COMMON_BASE_SERVICE_THREAD_H_
#define RANKPROBE_COMMON_BASE_SERVICE_THREAD_H_

#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "common/base/time_source.h"

namespace rankprobe {

class ServiceThread {
 public:
  ServiceThread() = default;
  explicit ServiceThread(std::function<void()> body) {
    if (TimeSource* const source = TimeSource::Current(); source != nullptr) {
      simulated_ = source->Start(std::move(body));
    } else {
      thread_ = std::thread(std::move(body));
    }
  }

  bool joinable() const { return simulated_ != nullptr || thread_.joinable(); }
  void join() {
    if (simulated_ == nullptr) return thread_.join();
    simulated_->Join();
    simulated_.reset();
  }
  void detach() {
    if (simulated_ == nullptr) return thread_.detach();
    simulated_.reset();
  }

 private:
  std::thread thread_;
  std::unique_ptr<TimeSource::Thread> simulated_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_SERVICE_THREAD_H_
