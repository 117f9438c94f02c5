// SPDX-License-Identifier: Apache-2.0
// Registry of runs and of their processes: identities, whether they are
// dumping, and the plans in force. The control plane's interface to an archive.
// Ownership: the archive's. Threads: all methods are thread-safe and may wait
// for the disk. Failure: a status; a failed write is final as in FrameStore.
#ifndef RANKPROBE_COLLECTOR_STORE_RUN_REGISTRY_H_
#define RANKPROBE_COLLECTOR_STORE_RUN_REGISTRY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rankprobe/v1/agent.pb.h"
#include "rankprobe/v1/control.pb.h"
#include "rankprobe/v1/store.pb.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

// What a process presents to prove that it owns an incarnation.
struct IncarnationClaim {
  // If false, no proof is required.
  bool from_agent = false;
  // SHA-256 of Hello.incarnation_secret; empty if it sent none.
  std::string secret_sha256;
  // IncarnationRow.principal for a new incarnation.
  std::string principal;
};

// State of a process. kYes: it is connected and dumping. kCutOff: it was
// dumping when its connection ended without a goodbye.
enum class Dumping : uint8_t { kNo, kYes, kCutOff };

struct OpenedIncarnation {
  // Highest committed sequence number; 0 for a new incarnation.
  uint64_t committed = 0;
  // The incarnation is new, or the claim has its secret.
  bool proved = false;
  // The process may be recorded as dumping.
  bool dumping = false;
  // The stored principal; a process that continues the incarnation acts as it.
  std::string principal;
  // The newest of its refused frames.
  std::vector<v1::RefusalRow> refusals;
};

class RunRegistry {
 public:
  virtual ~RunRegistry() = default;

  // Registers the incarnation, or continues it. The stored identity does not
  // change, except that a rank may be added, or changed while no frame is
  // stored. PERMISSION_DENIED if it belongs to another process or the proof
  // fails.
  virtual absl::StatusOr<OpenedIncarnation> OpenIncarnation(
      const v1::Identity& identity, const IncarnationClaim& claim) = 0;
  // For callers inside the collector that know the identity. Returns the
  // committed sequence.
  absl::StatusOr<uint64_t> OpenIncarnation(const v1::Identity& identity) {
    absl::StatusOr<OpenedIncarnation> opened =
        OpenIncarnation(identity, IncarnationClaim());
    if (!opened.ok()) return opened.status();
    return opened->committed;
  }

  // Records that frames up to `through_sequence` were committed but not synced,
  // and were lost with the machine: they are counted, and the incarnation
  // continues after them.
  virtual absl::Status NoteLostFrames(const v1::Identity& identity,
                                      uint64_t through_sequence) = 0;
  // Records what a process reported as undelivered before it ended.
  virtual absl::Status NoteUndelivered(const v1::Identity& identity,
                                       const v1::Undelivered& undelivered) = 0;
  // The write is not synced.
  virtual absl::Status NoteDumping(const v1::Identity& identity,
                                   Dumping dumping) = 0;
  // Saves the plan in force for a run; it is kept over restarts. On return it
  // survives this process, and after SyncPlans the machine. Calls do not wait
  // for each other's sync.
  virtual absl::Status SavePlan(const std::string& run,
                                const v1::PlanSpec& plan) = 0;
  virtual absl::Status SyncPlans() = 0;
  virtual absl::StatusOr<std::optional<v1::PlanSpec>> LoadPlan(
      const std::string& run) = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_RUN_REGISTRY_H_
