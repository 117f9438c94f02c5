// SPDX-License-Identifier: Apache-2.0
// Cached logs of runs for repeated readers: entries never change, so each is
// read once, and later reads only list new ones.
//
// Ownership: the store outlives it. Not thread-safe. Memory: the entries of the
// runs that were read last, up to a bound; others are read again.
// Failure: as sealed::ReadRunLog; cached entries stay.
#ifndef RANKPROBE_COLLECTOR_SEALED_RUN_LOGS_H_
#define RANKPROBE_COLLECTOR_SEALED_RUN_LOGS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collector/object_store/object_store.h"
#include "collector/sealed/maintenance_log.h"

namespace rankprobe {

class RunLogs {
 public:
  static constexpr uint64_t kMaxBytes = 128 << 20;

  explicit RunLogs(ObjectStore* store, uint64_t max_bytes = kMaxBytes)
      : store_(store), max_bytes_(max_bytes) {}

  // Returns the existing runs, in order, and drops the cache of others. `bad`:
  // as sealed::ListRunNames.
  absl::StatusOr<std::vector<std::string>> Runs(
      std::vector<absl::Status>* bad = nullptr);
  // Returns everything that is valid of the run now.
  absl::StatusOr<sealed::RunLog> Read(const std::string& run);

 private:
  struct Known {
    sealed::Maintenance maintenance;
    // The last entry of each log.
    std::map<std::string, uint64_t> logs;
    std::vector<v1::SealedLogEntry> entries;
    uint64_t bytes = 0;
  };
  void Forget(const std::string& run);

  ObjectStore* const store_;
  const uint64_t max_bytes_;
  // Names of runs by the key of their object.
  std::map<std::string, std::string> names_;
  std::map<std::string, Known> runs_;
  uint64_t bytes_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_RUN_LOGS_H_
