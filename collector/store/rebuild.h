// SPDX-License-Identifier: Apache-2.0
// Rebuilds the index of an archive that is damaged or missing: `rankprobed
// --rebuild-index`.
//
// Rows that LevelDB can still read are kept. Payloads are found by the headers
// of their chunks, assembled and checked against their digests, or against the
// names that the principals of the run's incarnations give them. Counters are
// recomputed from the remaining records, so that the ledger and verify report
// what is missing. Segments are only read. Threads: one process at a time, by
// the archive's lock. Failure: the first error; the rebuild may be repeated.
#ifndef RANKPROBE_COLLECTOR_STORE_REBUILD_H_
#define RANKPROBE_COLLECTOR_STORE_REBUILD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "collector/store/payload_finder.h"
#include "collector/store/store_core.h"
#include "common/base/clock.h"
#include "common/io/file_system.h"

namespace rankprobe {

struct RebuildReport {
  uint64_t runs = 0;
  uint64_t records = 0;
  uint64_t payloads = 0;
  // Payloads among them that the old index did not have.
  uint64_t payloads_found = 0;
  // Payloads that are not finished, or have a damaged chunk.
  uint64_t incomplete_payloads = 0;
  // The first 100 damaged places in the segments, and the number of all.
  std::vector<std::string> damaged;
  uint64_t damaged_places = 0;
};

// FAILED_PRECONDITION: a process holds the archive. NOT_FOUND: there is no
// archive.
absl::StatusOr<RebuildReport> RebuildIndex(const StoreOptions& options,
                                           FileSystem* file_system,
                                           const Clock* clock,
                                           const PayloadNameFn& name_of);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_REBUILD_H_
