// SPDX-License-Identifier: Apache-2.0
// Rows of all runs, and of the processes that are or were recently active.
// Threads: none of its own; the store's mutex guards it. A pointer to a row is
// valid until the row is erased. Failure: the index's errors, DATA_LOSS for
// rows that cannot be read.
#ifndef RANKPROBE_COLLECTOR_STORE_RUN_TABLE_H_
#define RANKPROBE_COLLECTOR_STORE_RUN_TABLE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collector/store/commit_work.h"
#include "collector/store/index.h"
#include "common/base/clock.h"
#include "rankprobe/v1/store.pb.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

class RunTable {
 public:
  RunTable(Index* index, const Clock* clock) : index_(index), clock_(clock) {}

  // Loads all runs. Called at open.
  absl::Status Load();
  // NOT_FOUND if the run does not exist.
  absl::StatusOr<v1::RunRow*> Find(const std::string& run);
  // Adds a new run in memory only; the caller writes the row.
  v1::RunRow* FindOrAdd(const std::string& run);
  bool Has(uint32_t run) const;
  uint32_t last_run_id() const { return last_run_id_; }
  const std::map<std::string, v1::RunRow>& rows() const { return runs_; }
  // Adds a new incarnation in memory only; the caller writes the row.
  absl::StatusOr<v1::IncarnationRow*> Incarnation(uint32_t run,
                                                  const v1::Identity& identity);
  // The same for an existing incarnation.
  absl::StatusOr<v1::IncarnationRow*> Incarnation(uint32_t run,
                                                  uint64_t incarnation);
  // The incarnation must be loaded.
  const v1::IncarnationRow& at(const RunIncarnation& id) const {
    return incarnations_.at(id);
  }
  // Replaces an existing row.
  void Put(const RunIncarnation& id, v1::IncarnationRow row) {
    incarnations_[id] = std::move(row);
  }
  // Called when the run was deleted, or is about to be.
  void Erase(const std::string& run);
  // Reads the rows again that the commit changed.
  void Undo(const CommitWork& work);

  // Records that frames of these processes arrived at `now` of the monotonic
  // clock.
  void Hear(const std::set<RunIncarnation>& processes, int64_t now) {
    for (const RunIncarnation& process : processes) heard_[process] = now;
  }
  absl::flat_hash_set<uint64_t> HeardSince(uint32_t run, int64_t since) const;
  void ForgetHeard(int64_t since) {
    std::erase_if(heard_, [since](const auto& h) { return h.second <= since; });
  }

 private:
  Index* const index_;
  const Clock* const clock_;
  // The number of a deleted run is not used again.
  uint32_t last_run_id_ = 0;
  std::map<std::string, v1::RunRow> runs_;
  std::map<RunIncarnation, v1::IncarnationRow> incarnations_;
  std::map<RunIncarnation, int64_t> heard_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_RUN_TABLE_H_
