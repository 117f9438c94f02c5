// SPDX-License-Identifier: Apache-2.0
// Writer of the audit records that the control plane collects of agents. The
// thread that calls Write must not wait for a disk, because the deadline of each
// switch depends on it: one batch is written at a time, by the queue; meanwhile
// the control plane collects records, and bounds and counts what it drops.
// Threads: Write and Drain from one thread at a time. The parts outlive it.
#ifndef RANKPROBE_COLLECTOR_SERVER_AGENTS_AUDIT_H_
#define RANKPROBE_COLLECTOR_SERVER_AGENTS_AUDIT_H_

#include <atomic>
#include <cstdint>

#include "collector/auth/auditor.h"
#include "collector/control/control_plane.h"
#include "collector/control/disk_queue.h"
#include "common/base/logger.h"

namespace rankprobe {

class AgentsAudit {
 public:
  AgentsAudit(ControlPlane* control, Auditor* auditor, DiskQueue* queue,
              const Logger* logger)
      : control_(control), auditor_(auditor), queue_(queue), logger_(logger) {}

  void Write();
  // Waits until everything is saved and audited.
  void Drain();

 private:
  ControlPlane* const control_;
  Auditor* const auditor_;
  DiskQueue* const queue_;
  const Logger* const logger_;
  std::atomic<bool> batch_waits_{false};
  uint64_t reported_drops_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_AGENTS_AUDIT_H_
