// SPDX-License-Identifier: Apache-2.0
// Explains which calls of a rank are recorded and why: requests the last calls
// of the ranks and evaluates a plan on them.
//
// Ownership: the control plane's. Threads: Explain is thread-safe and may read
// the disk; the others, and `done`, run under the lock. Failure: a rank that
// does not answer within the time limit is explained without its calls.
#ifndef RANKPROBE_COLLECTOR_CONTROL_EXPLANATIONS_H_
#define RANKPROBE_COLLECTOR_CONTROL_EXPLANATIONS_H_

#include <list>

#include "collector/control/control_core.h"
#include "collector/control/saved_runs.h"

namespace rankprobe {

class Explanations {
 public:
  using Done = std::function<void(absl::StatusOr<v1::ExplainResponse>)>;

  Explanations(ControlCore* core, SavedRuns* saved)
      : core_(core), saved_(saved) {}

  // Calls `done` within a few seconds.
  void Explain(const v1::ExplainRequest& request, Done done);
  void OnCalls(const v1::Identity& identity, const v1::CallReport& report)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);
  void OnLost(const v1::Identity& identity)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);
  // Answers questions that are complete or timed out.
  void Finish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);

 private:
  struct Operation {
    uint64_t id = 0;
    v1::ExplainRequest request;
    std::shared_ptr<const CompiledPlan> hypothetical;
    Done done;
    absl::Time deadline;
    // Incarnations that have not answered, and the answers of the others.
    std::set<uint64_t> waiting;
    std::map<uint64_t, v1::CallReport> reports;
  };
  v1::ExplainResponse Answer(const Operation& op)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);

  ControlCore* const core_;
  SavedRuns* const saved_;
  uint64_t next_id_ ABSL_GUARDED_BY(kControlLock) = 1;
  std::list<Operation> operations_ ABSL_GUARDED_BY(kControlLock);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_EXPLANATIONS_H_
