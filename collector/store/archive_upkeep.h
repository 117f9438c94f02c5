// SPDX-License-Identifier: Apache-2.0
// Verification and deletion, which every archive that is served offers, local or
// in an object store.
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
  // Absent: the whole run.
  std::optional<std::set<int64_t>> steps;
  // Incarnations of connected ranks.
  absl::flat_hash_set<uint64_t> live_incarnations;
  // Payloads of so many newest steps of a connected rank stay.
  int64_t keep_steps = kCollectorKeepsSteps;
  // Give the space back at once. Else CollectGarbage does.
  bool reclaim = true;
  // With `steps`: of these, the processes alone (step, incarnation) that still have
  // so many records. What has come since whoever deletes looked stays.
  std::optional<std::map<std::pair<int64_t, uint64_t>, uint64_t>> unchanged;
};

class ArchiveUpkeep {
 public:
  virtual ~ArchiveUpkeep() = default;

  // One job at a time, others wait; ingest and reading go on. `progress` is
  // called now and then with the counts so far; its failure ends the job.
  virtual absl::StatusOr<v1::VerifyReport> Verify(
      const v1::VerifyRequest& request,
      const std::function<absl::Status(const v1::VerifyReport&)>& progress) = 0;
  // NOT_FOUND; FAILED_PRECONDITION for a run with connected ranks.
  virtual absl::StatusOr<v1::DeleteReport> Delete(
      const DeleteOptions& options) = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_ARCHIVE_UPKEEP_H_
