// SPDX-License-Identifier: Apache-2.0
// Runs between disk and memory: reads plan, epoch and triggers of a run, and forgets runs
// that are idle.
//
// Ownership: the control plane's. Thread-safe; reading waits for the disk, not under a lock.
// Failure: UNAVAILABLE when the store cannot be read. A saved plan that does not compile is
// reported as an event, and the run continues without it.
#ifndef RANKPROBE_COLLECTOR_CONTROL_SAVED_RUNS_H_
#define RANKPROBE_COLLECTOR_CONTROL_SAVED_RUNS_H_

#include "collector/control/control_core.h"

namespace rankprobe {

class SavedRuns {
 public:
  explicit SavedRuns(ControlCore* core) : core_(core) {}

  // INVALID_ARGUMENT.
  static absl::Status CheckName(const std::string& run);
  // Checks the name, and brings the run if it is not in memory. First thing in every
  // call that names a run. UNAVAILABLE: the run is not known, and the call is over;
  // to go on would save the next Hello's plan over its own.
  absl::Status Read(const std::string& run);
  // A plan of one rank that was saved for it; null: none.
  absl::StatusOr<std::shared_ptr<const CompiledPlan>> ReadOwnPlan(
      const v1::Identity& identity);
  // A request can name any run, so idle ones are bounded.
  void ForgetIdle(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);

 private:
  struct Saved {
    std::shared_ptr<const CompiledPlan> plan;
    // The state of the config file that it was made of.
    std::string file_key;
    std::optional<v1::TriggerSpec> triggers;
    // Of the saved plan, also when it cannot be used.
    uint64_t epoch = 0;
    // Saved, and cannot be used.
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
