// SPDX-License-Identifier: Apache-2.0
// Verification and deletion, which every archive that is served offers, local
// or in an object store.
// Ownership: the archive's. Threads: all methods are thread-safe; they may take
// long. Failure: a status.
#ifndef RANKPROBE_COLLECTOR_STORE_ARCHIVE_UPKEEP_H_
#define RANKPROBE_COLLECTOR_STORE_ARCHIVE_UPKEEP_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/dedup_window.h"
#include "rankprobe/v1/archive.pb.h"

namespace rankprobe {

struct DeleteOptions {
  std::string run;
  // Absent: the complete run is deleted.
  std::optional<std::set<int64_t>> steps;
  // Incarnations of connected ranks.
  absl::flat_hash_set<uint64_t> live_incarnations;
  // Payloads of this many newest steps of a connected rank are kept.
  int64_t keep_steps = kCollectorKeepsSteps;
  // Returns the space at once; otherwise CollectGarbage does.
  bool reclaim = true;
  // With `steps`: of these, deletes only the processes (step, incarnation) that
  // still have this number of records, so that records that arrived after the
  // caller's decision are kept.
  std::optional<std::map<std::pair<int64_t, uint64_t>, uint64_t>> unchanged;
};

class ArchiveUpkeep {
 public:
  virtual ~ArchiveUpkeep() = default;

  // Runs one job at a time, others wait; ingest and reading continue.
  // `progress` is called from time to time with the counts so far; its error
  // ends the job.
  virtual absl::StatusOr<v1::VerifyReport> Verify(
      const v1::VerifyRequest& request,
      const std::function<absl::Status(const v1::VerifyReport&)>& progress) = 0;
  // NOT_FOUND for an unknown run; FAILED_PRECONDITION for a run with connected
  // ranks.
  virtual absl::StatusOr<v1::DeleteReport> Delete(
      const DeleteOptions& options) = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_ARCHIVE_UPKEEP_H_
