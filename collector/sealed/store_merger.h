// SPDX-License-Identifier: Apache-2.0
// Merge of many small sealed objects into large ones: neighbouring sets of one
// collector's log become one set, in the run's log of maintenance, that
// replaces them (docs/storage.md, "Merge"). Records and payloads are the same
// bytes; deleted steps are left out. The same entry collects the old objects,
// so that a StoreCleaner removes them a grace period later.
//
// The entry has the number after the last one that was read: if another process
// deletes, cleans or merges meanwhile, it is not put, and what was written is
// an orphan, which no later entry names (SealedRecordsIndex.origin).
// Ownership: store, file system and clock outlive it. One thread. Failure: the
// store's or the disk's; nothing is changed then.
#ifndef RANKPROBE_COLLECTOR_SEALED_STORE_MERGER_H_
#define RANKPROBE_COLLECTOR_SEALED_STORE_MERGER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collector/object_store/object_store.h"
#include "collector/sealed/maintenance_log.h"
#include "collector/sealed/run_logs.h"
#include "common/base/clock.h"
#include "common/io/file_system.h"

namespace rankprobe {

struct MergeOptions {
  // Used by the merger alone, for files in progress.
  std::string directory;
  // Size of a merged set's objects; sets of less than half of it are merged.
  uint64_t bytes = uint64_t{256} << 20;
  // Minimum number of sets for a merge.
  size_t sets = 16;
  // Maximum number of steps of a merged set.
  int steps = 20'000;
};

struct MergeReport {
  // Sets that were merged, and the sets made from them.
  uint64_t merged = 0;
  uint64_t made = 0;
};

class StoreMerger {
 public:
  // `logs` are of the same store; used while Merge runs.
  StoreMerger(MergeOptions options, ObjectStore* store, FileSystem* file_system,
              const Clock* clock, RunLogs* logs)
      : options_(std::move(options)),
        store_(store),
        file_system_(file_system),
        clock_(clock),
        logs_(logs) {}

  // Merges what can be merged of all runs. `stop` ends it between two sets.
  absl::Status Merge(const std::function<bool()>& stop, MergeReport* report);

 private:
  // Neighbours, as indexes of RunLog.sets: the first, and one past the last.
  struct Group {
    size_t begin = 0;
    size_t end = 0;
  };

  std::vector<Group> Groups(const sealed::RunLog& log) const;
  // Returns false if another process put an entry first.
  absl::StatusOr<bool> MergeGroup(const std::string& run,
                                  const sealed::RunLog& log, const Group& group,
                                  uint64_t sequence);
  absl::Status WriteRecords(const std::string& run, const sealed::RunLog& log,
                            const Group& group, const std::string& origin,
                            v1::SealedLogEntry* entry);
  absl::Status WritePack(const std::string& run, const sealed::RunLog& log,
                         const Group& group, const std::string& origin,
                         v1::SealedLogEntry* entry);
  std::string Path(const std::string& name) const;

  const MergeOptions options_;
  ObjectStore* const store_;
  FileSystem* const file_system_;
  const Clock* const clock_;
  RunLogs* const logs_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_STORE_MERGER_H_
