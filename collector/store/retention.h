// SPDX-License-Identifier: Apache-2.0
// Retention limits: steps that are too old are deleted, then the oldest ones
// until the payloads fit, then the space is returned. Threads: one pass at a
// time.
// Failure: the store's first error; the next pass continues.
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
  // Limit for ArchiveBytes; 0 for none. Deletion begins above it and ends when
  // a tenth of it is free again.
  uint64_t max_bytes = 0;
};

struct RetentionReport {
  uint64_t steps_deleted = 0;
  uint64_t runs_deleted = 0;
  GarbageReport garbage;
  // The archive is still above the limit, and nothing more may be deleted.
  bool over_limit = false;
};

// Returns the size of the segment files and of rollups and summaries in the
// index.
uint64_t ArchiveBytes(Store* store);

// A step that a connected rank has not finished is never deleted. A run is
// deleted completely when its last step is deleted and no connected rank
// belongs to it.
//
// A connected rank may refer to payloads of its 32 newest steps without sending
// them again (common/base/dedup_window.h). They are kept as long as other steps
// can be deleted instead. After that the limit takes precedence: steps are
// deleted up to the newest two of such a rank, and a payload of theirs that is
// referred to again is a gap (NOT_STORED) that the ledger names.
absl::StatusOr<RetentionReport> ApplyRetention(
    Store* store, const RetentionOptions& options, absl::Time now,
    const absl::flat_hash_set<uint64_t>& live_incarnations);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_RETENTION_H_
