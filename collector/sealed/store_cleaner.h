// SPDX-License-Identifier: Apache-2.0
// Cleanup of an object store: retention, unneeded objects, objects that no
// entry ever named (orphans), old versions of plans. Only this class removes
// objects; any number of them may run at once.
//
// Two rules keep what is needed:
// * Readers. An object that an entry names is removed only when a collection
//   has named it for longer than the grace period: a reader of an older log has
//   ended until then, or gets the error that it was removed
//   (SealedReader::Missing).
// * Collectors. A sweep decides that an object is an orphan, or that a pack is
//   not needed: an entry in the log of each collector of the run. A set whose
//   objects were put before it can no longer be committed (its number is
//   taken), and what is made instead has other names
//   (SealedRecordsIndex.origin). So what was listed before the sweep, and is
//   named by no entry up to it, is never named: it may be removed at any time,
//   however long the janitor was suspended. No clock is involved in that.
//
// Ownership: store and clock outlive it. One thread. Failure: the store's; what
// cannot be done now is done by the next pass. Runs are independent: damage is
// an error at the end of the pass, and no object of that run is touched.
#ifndef RANKPROBE_COLLECTOR_SEALED_STORE_CLEANER_H_
#define RANKPROBE_COLLECTOR_SEALED_STORE_CLEANER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
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
  // Steps whose last write is older are deleted, all of a run's once one is a
  // sixteenth older. Infinite: none.
  absl::Duration max_age = absl::InfiniteDuration();
  // Limit for all needed objects: above it the oldest sets are deleted, until a
  // tenth of it is free again. 0: no limit.
  uint64_t max_bytes = 0;
  // Time between the end of the need for an object and its removal.
  absl::Duration grace = absl::Hours(24);
  // Newest versions of a plan that are kept.
  uint64_t kept_plans = kKeptPlans;
};

struct CleanReport {
  uint64_t steps_deleted = 0;
  uint64_t runs_deleted = 0;
  // Objects that became unneeded; the next fields count removed ones.
  uint64_t collected = 0;
  uint64_t orphans_removed = 0;
  uint64_t objects_removed = 0;
  uint64_t bytes_removed = 0;
  uint64_t plans_removed = 0;
  // Nothing was deleted for its age, because the wall clock is not trusted.
  bool waits_for_clock = false;
};

class StoreCleaner {
 public:
  StoreCleaner(const CleanOptions& options, ObjectStore* store,
               const Clock* clock)
      : options_(options), store_(store), clock_(clock), logs_(store) {}

  // Runs one pass. `stop` ends it between two runs. The report covers what was
  // done, even on an error.
  absl::Status Clean(const std::function<bool()>& stop, CleanReport* report);

  // For a reader of the logs in the same thread, so that both share the cache.
  RunLogs* logs() { return &logs_; }

 private:
  // Sizes of a run's objects, by key.
  using Objects = std::map<std::string, uint64_t>;

  // Returns nothing if the log cannot be read now; the run is skipped for the
  // rest of the pass.
  absl::StatusOr<std::optional<sealed::RunLog>> ReadLog(const std::string& run);
  // Returns OK if the error concerns this run alone, which is skipped from then
  // on.
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
  // Returns those of `objects` that no entry named when they were first seen, a
  // grace period ago.
  std::vector<std::string> DueOrphans(const std::string& run,
                                      const Objects& objects,
                                      const sealed::RunLog& log);
  absl::Status Sweep(const std::string& run, const sealed::RunLog& log);
  // Collects packs of which no step refers to any payload.
  absl::Status CollectPacks(const std::string& run, const sealed::RunLog& log,
                            v1::SealedCollection* collection);
  absl::Status CleanPlans(CleanReport* report);

  const CleanOptions options_;
  ObjectStore* const store_;
  const Clock* const clock_;
  RunLogs logs_;
  // Runs that this pass skips.
  std::map<std::string, absl::Status> bad_;
  std::optional<WallClockGuard> guard_;
  // When orphans were first seen, by run and key, on the monotonic clock.
  std::map<std::string, std::map<std::string, int64_t>> orphans_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_STORE_CLEANER_H_
