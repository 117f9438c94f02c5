// SPDX-License-Identifier: Apache-2.0
// Registry of runs and of their processes: identities, whether they are dumping,
// and the plans that are in force. The control plane's interface to an archive.
// Ownership: the archive's. Threads: all methods are thread-safe and may wait for
// the disk. Failure: a status; a failed write is final as in FrameStore.
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

// What a process brings to prove that an incarnation is its own.
struct IncarnationClaim {
  // False: nothing is to be proved.
  bool from_agent = false;
  // SHA-256 of Hello.incarnation_secret; empty: it brought none.
  std::string secret_sha256;
  // IncarnationRow.principal of a new one.
  std::string principal;
};

// Whether a process is connected and dumping; kCutOff: it was when its connection
// ended, and had not said goodbye.
enum class Dumping : uint8_t { kNo, kYes, kCutOff };

struct OpenedIncarnation {
  // Highest sequence number of it that is committed; 0 for a new one.
  uint64_t committed = 0;
  // It is new, or the claim has its secret.
  bool proved = false;
  // It may be noted as dumping.
  bool dumping = false;
  // As stored; whoever goes on with it is taken for this one.
  std::string principal;
  // The newest of its frames that were refused.
  std::vector<v1::RefusalRow> refusals;
};

class RunRegistry {
 public:
  virtual ~RunRegistry() = default;

  // Registers the incarnation, or goes on with it. What is stored of its
  // identity stays: only a rank may be added, or change while no frame of it
  // is stored. PERMISSION_DENIED: another process', or not proved to be this.
  virtual absl::StatusOr<OpenedIncarnation> OpenIncarnation(
      const v1::Identity& identity, const IncarnationClaim& claim) = 0;
  // From inside, where it is settled who it is: the committed sequence.
  absl::StatusOr<uint64_t> OpenIncarnation(const v1::Identity& identity) {
    absl::StatusOr<OpenedIncarnation> opened =
        OpenIncarnation(identity, IncarnationClaim());
    if (!opened.ok()) return opened.status();
    return opened->committed;
  }

  // Frames up to `through_sequence` were committed, not synced, and went with
  // the machine: counted, and the incarnation goes on behind them.
  virtual absl::Status NoteLostFrames(const v1::Identity& identity,
                                      uint64_t through_sequence) = 0;
  // What a process said it could not deliver before it ended.
  virtual absl::Status NoteUndelivered(const v1::Identity& identity,
                                       const v1::Undelivered& undelivered) = 0;
  // Not synced.
  virtual absl::Status NoteDumping(const v1::Identity& identity,
                                   Dumping dumping) = 0;
  // The plan in force per run, kept over restarts. On return it survives this
  // process; after SyncPlans the machine. Neither waits for another's sync.
  virtual absl::Status SavePlan(const std::string& run,
                                const v1::PlanSpec& plan) = 0;
  virtual absl::Status SyncPlans() = 0;
  virtual absl::StatusOr<std::optional<v1::PlanSpec>> LoadPlan(
      const std::string& run) = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_RUN_REGISTRY_H_
