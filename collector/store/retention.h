// SPDX-License-Identifier: Apache-2.0
// Retention limits: steps that are too old go, then the oldest ones until the
// payloads fit, then the space comes back. Threads: one pass at a time.
// Failure: the store's first error; the next pass goes on.
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
  // Of what ArchiveBytes counts; 0: no limit. Deletion begins above it and ends when
  // a tenth of it is free again.
  uint64_t max_bytes = 0;
};

struct RetentionReport {
  uint64_t steps_deleted = 0;
  uint64_t runs_deleted = 0;
  GarbageReport garbage;
  // Nothing more may be deleted, and it is still above the limit.
  bool over_limit = false;
};

// Segment files, and what the index holds of rollups and summaries.
uint64_t ArchiveBytes(Store* store);

// A step that a connected rank has not finished is never deleted; a run whose
// last step goes and that no connected rank belongs to goes as a whole.
//
// A connected rank may refer to payloads of its 32 newest steps without sending
// them again (common/base/dedup_window.h). They stay as long as the bytes can come
// from elsewhere. When they cannot, the limit is worth more: steps go up to the
// newest two of such a rank, and a payload of theirs that is referred to again
// is a gap (NOT_STORED) that the ledger names.
absl::StatusOr<RetentionReport> ApplyRetention(
    Store* store, const RetentionOptions& options, absl::Time now,
    const absl::flat_hash_set<uint64_t>& live_incarnations);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_RETENTION_H_
