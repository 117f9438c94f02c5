// SPDX-License-Identifier: Apache-2.0
// Cached logs of runs for repeated readers: entries never change, so each is
// read once, and after that it is only looked for what is new.
//
// Ownership: the store outlives it. Not thread-safe. Memory: what the entries of
// the runs are that were read last, up to a bound; what is above it is read again.
// Failure: as sealed::ReadRunLog; what was known stays.
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

  // Of the runs that there are, in order; what others were is forgotten. `bad`: as
  // sealed::ListRunNames.
  absl::StatusOr<std::vector<std::string>> Runs(
      std::vector<absl::Status>* bad = nullptr);
  // All that counts of the run now.
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
  // By the key of the object that says it.
  std::map<std::string, std::string> names_;
  std::map<std::string, Known> runs_;
  uint64_t bytes_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_RUN_LOGS_H_
