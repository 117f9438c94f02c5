// SPDX-License-Identifier: Apache-2.0
// Checks of the ingest: finds the session of an upload, and checks whether the
// plan of a frame selects the records.
//
// Ownership: the control plane's. Thread-safe, reads memory only. Failure:
// NOT_FOUND.
#ifndef RANKPROBE_COLLECTOR_CONTROL_INGEST_GATE_H_
#define RANKPROBE_COLLECTOR_CONTROL_INGEST_GATE_H_

#include "collector/control/control_core.h"
#include "collector/control/trigger_rules.h"

namespace rankprobe {

class IngestGate {
 public:
  struct SessionInfo {
    v1::Identity identity;
    // The value of IncarnationRow.principal.
    std::string principal;
  };

  IngestGate(ControlCore* core, TriggerRules* triggers)
      : core_(core), triggers_(triggers) {}

  // Returns the session of an id; NOT_FOUND if there is none or it belongs to
  // another principal.
  absl::StatusOr<SessionInfo> Find(const std::string& session,
                                   const Principal& principal) const;
  // Returns whether this process may record this step under this epoch.
  bool Admits(const v1::Identity& identity, int64_t step, uint64_t epoch) const;
  // Returns the plan of an epoch of this process; null if it is not known (any
  // more), or is another collector's.
  std::shared_ptr<const CompiledPlan> PlanOf(const v1::Identity& identity,
                                             uint64_t epoch) const;
  void NoteReceived(const std::string& session, uint64_t bytes,
                    int64_t pending_delta);

 private:
  ControlCore* const core_;
  TriggerRules* const triggers_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_INGEST_GATE_H_
