// SPDX-License-Identifier: Apache-2.0
// The plans of a root, in the object store: for each a log of versions. A
// version is put with "if there is none", so of two roots one decides, and the
// other decides nothing more on that plan: no epoch is used twice. Old versions
// are removed by a janitor; a root that was disconnected for that long checks
// whether there are newer ones than it has put.
//
// Ownership: the store outlives it. Threads: thread-safe; one request at a
// time.
// Failure: DATA_LOSS (damage), ABORTED (another root has put a version), else
// the store's; nothing is decided then.
#ifndef RANKPROBE_COLLECTOR_SEALED_PLAN_LOG_H_
#define RANKPROBE_COLLECTOR_SEALED_PLAN_LOG_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "collector/object_store/object_store.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

inline constexpr char kPlansPrefix[] = "v1/plans/";
// This many newest versions of each plan are never removed.
inline constexpr uint64_t kKeptPlans = 16;
// Returns the name of the log and the number; 0 if the key is not one of a
// plan.
std::pair<std::string, uint64_t> ParsePlanKey(const std::string& key);

class PlanLog {
 public:
  // Lists the logs; plans are read when they are requested.
  static absl::StatusOr<std::unique_ptr<PlanLog>> Open(ObjectStore* store);

  absl::StatusOr<std::optional<v1::PlanSpec>> Load(const std::string& key);
  absl::Status Save(const std::string& key, const v1::PlanSpec& plan);

 private:
  struct Versions {
    uint64_t last = 0;
    // The last version, once it was read.
    std::optional<v1::PlanSpec> plan;
    // A version that was put after it without an answer from the store.
    std::string unsure;
  };
  explicit PlanLog(ObjectStore* store) : store_(store) {}

  ObjectStore* const store_;
  absl::Mutex mutex_;
  // By the name of the log.
  std::map<std::string, Versions> logs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_PLAN_LOG_H_
