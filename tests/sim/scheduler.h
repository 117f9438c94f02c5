// SPDX-License-Identifier: Apache-2.0
// Threads as fibers of one thread, in virtual time: what a simulated process
// starts (service_thread.h) and waits for (monotonic_time.h) runs and waits
// here. Nothing runs beside anything else, who is woken runs after a delay that
// the seed chooses, and time goes on to the next event when all wait. So a seed
// makes one order of all that happens.
//
// A fiber gives way where it waits, and nowhere else: a lock that is held
// meanwhile and wanted by another fiber would hang for ever, which the alarm of
// sim_main.cc and the time limit of a test turn into a fault.
// Not thread-safe.
#ifndef RANKPROBE_TESTS_SIM_SCHEDULER_H_
#define RANKPROBE_TESTS_SIM_SCHEDULER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/random_bytes.h"
#include "common/base/time_source.h"

namespace rankprobe::sim {

class Scheduler final : public TimeSource, public RandomSource {
 public:
  // Puts itself instead of the operating system's time and randomness.
  explicit Scheduler(uint64_t seed);
  // All fibers have ended.
  ~Scheduler() override;

  MonotonicTime Now() override;
  void WaitUntil(const void* condition, std::unique_lock<std::mutex>* lock,
                 MonotonicTime until) override;
  void NotifyAll(const void* condition) override;
  std::unique_ptr<Thread> Start(std::function<void()> body) override;
  void Fill(char* bytes, size_t count) override;

  int64_t nanos() const { return nanos_; }
  // Runs it later, on no fiber: it must not wait.
  void At(absl::Duration delay, std::function<void()> run);
  // The fiber that calls it waits.
  void Sleep(absl::Duration time);
  // False: `limit` of virtual time is over before `done` holds, or nobody has
  // anything to do.
  bool RunUntil(const std::function<bool()>& done, absl::Duration limit);
  size_t fibers() const { return alive_; }

  // The choices of the world; those of the product have a generator of their
  // own, so that one more of them does not change the faults.
  uint64_t Choose(uint64_t below) { return below == 0 ? 0 : random_() % below; }
  bool Chance(double probability) {
    return static_cast<double>(random_() >> 11) * 0x1.0p-53 < probability;
  }
  absl::Duration Between(absl::Duration from, absl::Duration to);

  // What happened, in order: two runs of a seed have the same.
  void Trace(absl::string_view line);
  uint64_t trace_hash() const { return trace_hash_; }
  uint64_t events() const { return events_; }
  // Null: lines are only hashed.
  void KeepTrace(std::vector<std::string>* lines) { lines_ = lines; }

 private:
  struct Fiber;
  struct Event {
    int64_t at = 0;
    uint64_t order = 0;
    std::function<void()> run;
    bool operator<(const Event& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };
  class Handle;

  static void Enter();
  void SwitchTo(Fiber* fiber);
  void GiveWay();
  void Wake(Fiber* fiber, absl::Duration delay);

  int64_t nanos_ = 0;
  uint64_t order_ = 0;
  std::priority_queue<Event> queue_;
  std::map<const void*, std::vector<Fiber*>> waiting_;
  std::vector<std::unique_ptr<Fiber>> pool_;
  std::vector<Fiber*> free_;
  Fiber* running_ = nullptr;
  uint64_t started_ = 0;
  size_t alive_ = 0;
  std::mt19937_64 random_, bytes_;
  uint64_t trace_hash_ = 0, events_ = 0;
  std::vector<std::string>* lines_ = nullptr;
};

// A machine's clock; its wall time can be set.
class SimClock : public Clock {
 public:
  explicit SimClock(const Scheduler* scheduler) : scheduler_(scheduler) {}
  absl::Time Now() const override {
    return absl::FromUnixSeconds(1700000000) +
           absl::Nanoseconds(scheduler_->nanos()) + jump_;
  }
  int64_t MonotonicNanos() const override {
    return 1000'000'000'000 + scheduler_->nanos();
  }
  void Jump(absl::Duration by) { jump_ += by; }

 private:
  const Scheduler* const scheduler_;
  absl::Duration jump_;
};

}  // namespace rankprobe::sim

#endif  // RANKPROBE_TESTS_SIM_SCHEDULER_H_
