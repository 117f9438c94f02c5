// SPDX-License-Identifier: Apache-2.0
// One simulated rank: a thread that begins steps on a real Session and writes
// down under which plan each step ran. Lives come and go; the log of each is
// kept. Ownership: the test's. Thread-safe.
#ifndef RANKPROBE_TESTS_CHURN_SIM_RANK_H_
#define RANKPROBE_TESTS_CHURN_SIM_RANK_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "agent/runtime/session/session.h"

namespace rankprobe {

// What all ranks share: how far they are, and when to stop.
struct Fleet {
  std::string collector;
  std::string run;
  // Ranks stay within so many steps of the slowest, as collectives make them.
  int64_t slack = 3;
  std::vector<std::unique_ptr<std::atomic<int64_t>>> steps;
  std::atomic<bool> stop{false};
};

class SimRank {
 public:
  struct StepLog {
    int64_t step = 0;
    uint64_t epoch = 0;
    bool enabled = false;
  };
  // One incarnation; `pid` is made up and unique.
  struct Life {
    int64_t pid = 0;
    std::vector<StepLog> steps;
  };

  SimRank(int64_t rank, Fleet* fleet, uint32_t seed);
  ~SimRank();

  // Ends this life and begins another in the same step.
  void Restart() { restart_ = true; }
  std::vector<Life> lives() const;
  int64_t rank() const { return rank_; }

 private:
  void Run();
  std::unique_ptr<Session> Connect();

  const int64_t rank_;
  Fleet* const fleet_;
  std::mt19937 random_;
  const SystemClock clock_;
  std::atomic<bool> restart_{false};
  mutable absl::Mutex mutex_;
  std::vector<Life> lives_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_TESTS_CHURN_SIM_RANK_H_
