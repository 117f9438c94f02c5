// SPDX-License-Identifier: Apache-2.0
// Runs between disk and memory: reads plan, epoch and triggers of a run, and
// forgets runs that are idle.
//
// Ownership: the control plane's. Thread-safe; reading waits for the disk, not
// under a lock.
// Failure: UNAVAILABLE when the store cannot be read. A saved plan that does
// not compile is reported as an event, and the run continues without it.
#ifndef RANKPROBE_COLLECTOR_CONTROL_SAVED_RUNS_H_
#define RANKPROBE_COLLECTOR_CONTROL_SAVED_RUNS_H_

#include "collector/control/control_core.h"

namespace rankprobe {

class SavedRuns {
 public:
  explicit SavedRuns(ControlCore* core) : core_(core) {}

  // INVALID_ARGUMENT if the name is not valid.
  static absl::Status CheckName(const std::string& run);
  // Checks the name, and reads the run if it is not in memory. Every call that
  // names a run calls it first. On UNAVAILABLE the run is not known, and the
  // call must end: continuing would save the next Hello's plan over the run's
  // own.
  absl::Status Read(const std::string& run);
  // Reads the plan that was saved for this rank alone; null if there is none.
  absl::StatusOr<std::shared_ptr<const CompiledPlan>> ReadOwnPlan(
      const v1::Identity& identity);
  // Drops idle runs beyond the limit, which exists because a request can name
  // any run.
  void ForgetIdle(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);

 private:
  struct Saved {
    std::shared_ptr<const CompiledPlan> plan;
    // The state of the config file from which the plan was made.
    std::string file_key;
    std::optional<v1::TriggerSpec> triggers;
    // Epoch of the saved plan, even if the plan cannot be used.
    uint64_t epoch = 0;
    // Why saved plans or triggers cannot be used.
    std::vector<std::string> faults;
  };
  absl::StatusOr<Saved> ReadSaved(const std::string& run) const;
  void TellFault(const std::string& run, const std::string& fault);

  ControlCore* const core_;
  absl::Time next_idle_check_ ABSL_GUARDED_BY(kControlLock) =
      absl::InfinitePast();
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_SAVED_RUNS_H_
