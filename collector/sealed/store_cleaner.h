// SPDX-License-Identifier: Apache-2.0
// Gives back the space of an object store: retention, objects that nothing needs
// any more, objects that no entry ever named (orphans), old versions of plans. It
// is the only one that removes objects; any number of them may run at once.
//
// Two rules keep what is needed:
// * Readers. An object that an entry names goes only when a collection has named
//   it for longer than the grace period: who read the log before has come to its
//   end by then, or is told that it went (SealedReader::Missing).
// * Collectors. What decides that an object is an orphan, or that a pack is needed
//   by nobody, is a sweep: an entry in the log of each collector of the run. A set
//   whose objects were put before it can be committed no more (its number is
//   taken), and what is made instead has other names (SealedRecordsIndex.origin).
//   So what was listed before the sweep, and is named by no entry up to it, is
//   never named: it may go at any time, however long whoever removes it has slept.
//   No clock takes part in that.
// Ownership: store and clock outlive it. One thread. Failure: the store's; what
// cannot be done now is done by the next pass. One run keeps no other back: what is
// damaged is an error at the end of the pass, and nothing of that run is touched.
#ifndef RANKPROBE_COLLECTOR_SEALED_STORE_CLEANER_H_
#define RANKPROBE_COLLECTOR_SEALED_STORE_CLEANER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collector/object_store/object_store.h"
#include "collector/sealed/maintenance_log.h"
#include "collector/sealed/plan_log.h"
#include "collector/sealed/run_logs.h"
#include "collector/store/wall_clock_guard.h"
#include "common/base/clock.h"

namespace rankprobe {

struct CleanOptions {
  // Steps that were written to last longer ago are deleted, all of a run's once one
  // is a sixteenth older. Infinite: none.
  absl::Duration max_age = absl::InfiniteDuration();
  // Of all objects that are needed: above it the oldest sets are deleted, until a
  // tenth of it is free again. 0: no limit.
  uint64_t max_bytes = 0;
  // From when nobody needs it any more until it is removed.
  absl::Duration grace = absl::Hours(24);
  // Newest versions of a plan that stay.
  uint64_t kept_plans = kKeptPlans;
};

struct CleanReport {
  uint64_t steps_deleted = 0;
  uint64_t runs_deleted = 0;
  // Objects that nothing needs any more, and those that were removed.
  uint64_t collected = 0;
  uint64_t orphans_removed = 0;
  uint64_t objects_removed = 0;
  uint64_t bytes_removed = 0;
  uint64_t plans_removed = 0;
  // Nothing was deleted for its age, because the wall clock is not believed.
  bool waits_for_clock = false;
};

class StoreCleaner {
 public:
  StoreCleaner(const CleanOptions& options, ObjectStore* store,
               const Clock* clock)
      : options_(options), store_(store), clock_(clock), logs_(store) {}

  // One pass. `stop` ends it between two runs. The report says what was done,
  // also where it failed.
  absl::Status Clean(const std::function<bool()>& stop, CleanReport* report);

  // For who reads the logs in the same thread: what either has read, both know.
  RunLogs* logs() { return &logs_; }

 private:
  // Sizes of a run's objects, by key.
  using Objects = std::map<std::string, uint64_t>;

  // None: it cannot be read now, and is left alone for the rest of the pass.
  absl::StatusOr<std::optional<sealed::RunLog>> ReadLog(const std::string& run);
  // OK where it concerns this run alone, which is left alone from now on.
  absl::Status LeaveAlone(const std::string& run, const absl::Status& status);
  absl::Status DeleteOld(const std::vector<std::string>& runs,
                         CleanReport* report);
  absl::Status DeleteForSpace(const std::vector<std::string>& runs,
                              CleanReport* report);
  absl::Status Expire(
      const std::string& run,
      const std::function<bool(int64_t step, uint64_t incarnation)>& wanted,
      absl::Time written_before, CleanReport* report);
  absl::Status CleanRun(const std::string& run, CleanReport* report);
  absl::Status Remove(const std::string& key, uint64_t bytes,
                      CleanReport* report);
  // Those of `objects` that no entry named when they were seen first, a grace
  // period ago.
  std::vector<std::string> DueOrphans(const std::string& run,
                                      const Objects& objects,
                                      const sealed::RunLog& log);
  absl::Status Sweep(const std::string& run, const sealed::RunLog& log);
  // Packs that no step refers to any payload of.
  absl::Status CollectPacks(const std::string& run, const sealed::RunLog& log,
                            v1::SealedCollection* collection);
  absl::Status CleanPlans(CleanReport* report);

  const CleanOptions options_;
  ObjectStore* const store_;
  const Clock* const clock_;
  RunLogs logs_;
  // Runs that this pass leaves alone.
  std::map<std::string, absl::Status> bad_;
  std::optional<WallClockGuard> guard_;
  // By run and key, on the monotonic clock.
  std::map<std::string, std::map<std::string, int64_t>> orphans_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_STORE_CLEANER_H_
