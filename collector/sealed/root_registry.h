// SPDX-License-Identifier: Apache-2.0
// The registry of a root: plans are kept in the log of the object store. A leaf
// verifies identities and stores what processes report, so none of that is
// stored here.
// Ownership: the log outlives it. Threads: thread-safe; waits for the object
// store. Failure: the log's status.
#ifndef RANKPROBE_COLLECTOR_SEALED_ROOT_REGISTRY_H_
#define RANKPROBE_COLLECTOR_SEALED_ROOT_REGISTRY_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collector/sealed/plan_log.h"
#include "collector/store/run_registry.h"

namespace rankprobe {

class RootRegistry final : public RunRegistry {
 public:
  explicit RootRegistry(PlanLog* plans) : plans_(plans) {}

  absl::StatusOr<OpenedIncarnation> OpenIncarnation(
      const v1::Identity&, const IncarnationClaim& claim) override {
    OpenedIncarnation opened;
    opened.proved = true;
    opened.principal = claim.principal;
    return opened;
  }
  absl::Status NoteLostFrames(const v1::Identity&, uint64_t) override {
    return absl::OkStatus();
  }
  absl::Status NoteUndelivered(const v1::Identity&,
                               const v1::Undelivered&) override {
    return absl::OkStatus();
  }
  absl::Status NoteDumping(const v1::Identity&, Dumping) override {
    return absl::OkStatus();
  }
  absl::Status SavePlan(const std::string& key,
                        const v1::PlanSpec& plan) override {
    return plans_->Save(key, plan);
  }
  absl::Status SyncPlans() override { return absl::OkStatus(); }
  absl::StatusOr<std::optional<v1::PlanSpec>> LoadPlan(
      const std::string& key) override {
    return plans_->Load(key);
  }

 private:
  PlanLog* const plans_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_ROOT_REGISTRY_H_
