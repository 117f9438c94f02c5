// SPDX-License-Identifier: Apache-2.0
// The thread that applies retention and returns disk space: periodically, and
// as soon as the segments exceed their limit. Steps are deleted for their age
// only while the wall clock is trusted (collector/store/wall_clock_guard.h).
// Ownership: one per server; store, clock, logger and what `live` uses outlive
// it. Failure: logged; the next round tries again.
#ifndef RANKPROBE_COLLECTOR_SERVER_JANITOR_H_
#define RANKPROBE_COLLECTOR_SERVER_JANITOR_H_

#include <functional>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collector/store/retention.h"
#include "collector/store/store.h"
#include "collector/store/wall_clock_guard.h"
#include "common/base/clock.h"
#include "common/base/logger.h"
#include "common/base/monotonic_event.h"

namespace rankprobe {

class Janitor {
 public:
  struct Options {
    RetentionOptions retention;
    absl::Duration interval = absl::Minutes(1);
  };

  Janitor(const Options& options, Store* store, const Clock* clock,
          const Logger* logger,
          std::function<absl::flat_hash_set<uint64_t>()> live);
  ~Janitor();

  void Start();
  // Waits for the current round.
  void Stop();
  // Result of the last round; zeros before the first.
  GarbageReport last_garbage() const;

 private:
  void Run();
  // Returns true if it did nothing although the segments are above their limit.
  bool Round();
  // Returns whether steps may be deleted for their age now; logs changes.
  bool AgesAreKnown();

  const Options options_;
  Store* const store_;
  const Clock* const clock_;
  const Logger* const logger_;
  const std::function<absl::flat_hash_set<uint64_t>()> live_;
  mutable absl::Mutex mutex_;
  GarbageReport last_garbage_ ABSL_GUARDED_BY(mutex_);
  // Used by the thread only.
  std::optional<WallClockGuard> guard_;
  bool ages_known_ = true;
  bool told_over_limit_ = false, told_unknown_ = false;
  MonotonicEvent stop_;
  std::thread thread_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_JANITOR_H_
