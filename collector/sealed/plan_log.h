// SPDX-License-Identifier: Apache-2.0
// The plans of a root, in the object store: of each a log of versions. A version
// is put with "if there is none", so of two roots one decides, and the other
// decides nothing on that plan any more: no epoch is used twice. Old versions are
// removed by a janitor; a root that was away for so long looks whether there are
// newer ones than it has put.
//
// Ownership: the store outlives it. Threads: thread-safe; one request at a time.
// Failure: DATA_LOSS (damage), ABORTED (another root has spoken), else the
// store's; nothing is decided then.
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
// Of each plan so many newest versions are never removed.
inline constexpr uint64_t kKeptPlans = 16;
// The name of its log and its number; 0: it is the key of none.
std::pair<std::string, uint64_t> ParsePlanKey(const std::string& key);

class PlanLog {
 public:
  // Looks for what there is; plans are read when they are asked for.
  static absl::StatusOr<std::unique_ptr<PlanLog>> Open(ObjectStore* store);

  absl::StatusOr<std::optional<v1::PlanSpec>> Load(const std::string& key);
  absl::Status Save(const std::string& key, const v1::PlanSpec& plan);

 private:
  struct Versions {
    uint64_t last = 0;
    // The last one, once it was read.
    std::optional<v1::PlanSpec> plan;
    // What was put behind it, and no answer came.
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
