// SPDX-License-Identifier: Apache-2.0
// Rebuilds the index of an archive that is damaged or missing: `rankprobed
// --rebuild-index`.
//
// What LevelDB can still read of it is kept. Payloads are found again by the
// headers in front of their chunks, put together and checked against their
// digests, or against the names that the principals of the run's incarnations
// give them. Counters are counted anew from the records that are left, so that
// the ledger and verify say what is missing. Segments are only read. Threads:
// one process at a time, by the archive's lock. Failure: the first error; it
// may be done again.
#ifndef RANKPROBE_COLLECTOR_STORE_REBUILD_H_
#define RANKPROBE_COLLECTOR_STORE_REBUILD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "collector/store/payload_finder.h"
#include "collector/store/store.h"
#include "common/base/clock.h"
#include "common/io/file_system.h"

namespace rankprobe {

struct RebuildReport {
  uint64_t runs = 0;
  uint64_t records = 0;
  uint64_t payloads = 0;
  // Of them, those that the old index did not have.
  uint64_t payloads_found = 0;
  // Begun and not finished, or with a chunk that is damaged.
  uint64_t payloads_not_whole = 0;
  // The first 100 places in the segments that are damaged, and their number.
  std::vector<std::string> damaged;
  uint64_t damaged_places = 0;
};

// FAILED_PRECONDITION: a process holds the archive. NOT_FOUND: there is none.
absl::StatusOr<RebuildReport> RebuildIndex(const StoreOptions& options,
                                           FileSystem* file_system,
                                           const Clock* clock,
                                           const PayloadNameFn& name_of);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_REBUILD_H_
