// What is kept and for how long: steps that are too old go, then the oldest
// ones until the payloads fit, then the space comes back.
// Threads: one pass at a time. Failure: the store's first error; the next pass
// goes on.
#ifndef RANKPROBE_COLLECTOR_STORE_RETENTION_H_
#define RANKPROBE_COLLECTOR_STORE_RETENTION_H_

#include <cstdint>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collector/store/store.h"

namespace rankprobe {

struct RetentionOptions {
  // Infinite: no limit.
  absl::Duration max_age = absl::InfiniteDuration();
  // Of payload segments; 0: no limit.
  uint64_t max_bytes = 0;
};

struct RetentionReport {
  uint64_t steps_deleted = 0;
  uint64_t runs_deleted = 0;
  GarbageReport garbage;
};

// A step that a connected rank has not finished is never deleted; a run whose
// last step goes and that no connected rank belongs to goes as a whole.
absl::StatusOr<RetentionReport> ApplyRetention(
    Store* store, const RetentionOptions& options, absl::Time now,
    const absl::flat_hash_set<uint64_t>& live_incarnations);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_RETENTION_H_
