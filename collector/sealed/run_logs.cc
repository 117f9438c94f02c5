// SPDX-License-Identifier: Apache-2.0
#include "collector/sealed/run_logs.h"

#include <algorithm>
#include <set>
#include <utility>

#include "collector/sealed/sealed_keys.h"
#include "common/base/status_macros.h"

namespace rankprobe {

void RunLogs::Forget(const std::string& run) {
  const auto known = runs_.find(run);
  if (known == runs_.end()) return;
  bytes_ -= known->second.bytes;
  runs_.erase(known);
}

absl::StatusOr<std::vector<std::string>> RunLogs::Runs(
    std::vector<absl::Status>* bad) {
  RP_ASSIGN_OR_RETURN(std::vector<std::string> runs,
                      sealed::ListRunNames(store_, &names_, bad));
  const std::set<std::string> there(runs.begin(), runs.end());
  std::vector<std::string> gone;
  for (const auto& [run, known] : runs_)
    if (there.count(run) == 0) gone.push_back(run);
  for (const std::string& run : gone) Forget(run);
  return runs;
}

absl::StatusOr<sealed::RunLog> RunLogs::Read(const std::string& run) {
  Known known;
  if (const auto it = runs_.find(run); it != runs_.end()) known = it->second;
  std::vector<v1::SealedLogEntry> fresh;
  RP_RETURN_IF_ERROR(sealed::ReadNewEntries(store_, run, known.maintenance,
                                            &known.logs, &fresh));
  for (v1::SealedLogEntry& entry : fresh) {
    if (entry.shard() == sealed::kMaintenanceShard)
      known.maintenance.Note(entry);
    known.entries.push_back(std::move(entry));
  }
  // Entries that a merge replaces are dropped.
  known.entries.erase(
      std::remove_if(known.entries.begin(), known.entries.end(),
                     [&](const v1::SealedLogEntry& entry) {
                       return known.maintenance.IsReplaced(entry.shard(),
                                                           entry.sequence()) &&
                              entry.shard() != sealed::kMaintenanceShard;
                     }),
      known.entries.end());
  sealed::RunLog log;
  log.logs = known.logs;
  sealed::Arrange(known.entries, &log);
  Forget(run);
  known.bytes = 0;
  for (const v1::SealedLogEntry& entry : known.entries)
    known.bytes += entry.SpaceUsedLong();
  if (bytes_ + known.bytes <= max_bytes_) {
    bytes_ += known.bytes;
    runs_[run] = std::move(known);
  }
  return log;
}

}  // namespace rankprobe
