// SPDX-License-Identifier: Apache-2.0
// The plans and triggers of runs that are kept over restarts, and the order in
// which they are saved.
//
// Ownership: the control plane's; the registry and the queue outlive it.
// Threads: all methods are thread-safe. Those that read wait for the disk;
// those that save only queue, and may be called under any lock, except Await.
// Failure: a status. Without a registry nothing is saved: reading finds
// nothing, saving fails with FAILED_PRECONDITION.
#ifndef RANKPROBE_COLLECTOR_CONTROL_PLAN_TABLE_H_
#define RANKPROBE_COLLECTOR_CONTROL_PLAN_TABLE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collector/control/disk_queue.h"
#include "collector/store/run_registry.h"
#include "rankprobe/v1/control.pb.h"

namespace rankprobe {

class PlanTable {
 public:
  // Rows of the registry with their keys.
  using Rows = std::vector<std::pair<std::string, v1::PlanSpec>>;
  // Called without a lock, on the queue's thread: when the rows survive this
  // process (`synced` false) and when they survive the machine (true). On an
  // error it is called once, and then no more.
  using Saved = std::function<void(const absl::Status& status, bool synced)>;
  // A save that a caller waits for.
  struct AwaitedSave;

  // `sync_wait`: how long Await waits for the disk's sync once the rows survive
  // this process.
  PlanTable(RunRegistry* registry, DiskQueue* queue, absl::Duration sync_wait)
      : registry_(registry), queue_(queue), sync_wait_(sync_wait) {}

  absl::StatusOr<std::optional<v1::PlanSpec>> ForRun(const std::string& run);
  absl::StatusOr<std::optional<v1::PlanSpec>> ForRank(const std::string& run,
                                                      int64_t rank);
  // Returns the highest epoch of the run and of its ranks, including ranks that
  // do not return and plans that were taken back; 0 if there is none.
  absl::StatusOr<uint64_t> HighestEpoch(const std::string& run);
  // Returns the run's triggers as JSON.
  absl::StatusOr<std::optional<std::string>> Triggers(const std::string& run);

  // Adds the row of the run's plan, or of one rank's.
  static void AddPlan(const std::string& run, std::optional<int64_t> rank,
                      const v1::PlanSpec& spec, Rows* rows);
  // Returns the rows for a new plan of the run, or of `ranks` of it, with its
  // epoch as the highest.
  static Rows NewPlan(const std::string& run, const v1::PlanSpec& spec,
                      const std::vector<int64_t>& ranks);
  static Rows TriggerRows(const std::string& run, const std::string& json);

  // Saves the rows after all earlier saves.
  void Save(Rows rows, Saved saved);
  // The same for rows that are made when their turn comes; the result is not
  // reported.
  void SaveLater(std::function<Rows()> rows);
  // The same; `when_saved` is called without a lock when the rows survive the
  // machine, or only this process if the disk needs longer than `sync_wait`. It
  // is never called if they cannot be saved.
  std::shared_ptr<AwaitedSave> QueueSave(Rows rows,
                                         std::function<void()> when_saved);
  // Waits until `when_saved` has returned or will never be called. Must not be
  // called under a lock.
  absl::Status Await(const std::shared_ptr<AwaitedSave>& save);

 private:
  absl::Status SaveRows(const Rows& rows);
  absl::StatusOr<std::optional<v1::PlanSpec>> Load(const std::string& key);

  RunRegistry* const registry_;
  DiskQueue* const queue_;
  const absl::Duration sync_wait_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_PLAN_TABLE_H_
