// SPDX-License-Identifier: Apache-2.0
// Runs, processes and plans of a store: who an incarnation is, registered once
// and kept. Threads and failure: as in RunRegistry.
#ifndef RANKPROBE_COLLECTOR_STORE_STORE_REGISTRY_H_
#define RANKPROBE_COLLECTOR_STORE_STORE_REGISTRY_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collector/store/run_registry.h"

namespace rankprobe {

struct StoreCore;

class StoreRegistry : public RunRegistry {
 public:
  explicit StoreRegistry(StoreCore* core) : core_(core) {}

  using RunRegistry::OpenIncarnation;
  absl::StatusOr<OpenedIncarnation> OpenIncarnation(
      const v1::Identity& identity, const IncarnationClaim& claim) override;
  absl::Status NoteLostFrames(const v1::Identity& identity,
                              uint64_t through_sequence) override;
  absl::Status NoteUndelivered(const v1::Identity& identity,
                               const v1::Undelivered& undelivered) override;
  absl::Status NoteDumping(const v1::Identity& identity,
                           Dumping dumping) override;
  absl::Status SavePlan(const std::string& run,
                        const v1::PlanSpec& plan) override;
  absl::Status SyncPlans() override;
  absl::StatusOr<std::optional<v1::PlanSpec>> LoadPlan(
      const std::string& run) override;

 private:
  // Writes the row of the process if `change` returns true. With `create`, the
  // run may be new.
  absl::Status Change(const v1::Identity& identity, bool create, bool sync,
                      const std::function<bool(v1::IncarnationRow*)>& change);

  StoreCore* const core_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_STORE_REGISTRY_H_
