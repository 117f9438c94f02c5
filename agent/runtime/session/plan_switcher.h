// SPDX-License-Identifier: Apache-2.0
// The plan in force at each step: the agent's half of step-aligned switching. A
// prepared plan waits for its commit, an agreed one for its step; a plan whose
// step comes before its commit is not applied, unless the collector sends it
// again (Adopt). A plan that is prepared or cancelled in the meantime does not
// change an agreed plan.
//
// If the config file of the process is edited too, the newest change decides.
// In a process with a private collector an edit takes effect at once (Edit),
// until a later plan arrives that was not made from a config file; plans that
// the collector makes from config files then apply to other ranks. Every other
// process leaves the decision to the collector while it is connected to one.
// Thread-safe. Never fails; PlanPrepared reports errors.
#ifndef RANKPROBE_AGENT_RUNTIME_SESSION_PLAN_SWITCHER_H_
#define RANKPROBE_AGENT_RUNTIME_SESSION_PLAN_SWITCHER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "agent/runtime/session/session.h"
#include "common/config/plan.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

class PlanSwitcher {
 public:
  // Enters `step` and returns its plan. `applied` is set if a plan took effect.
  ActivePlan BeginStep(int64_t step, std::optional<v1::PlanApplied>* applied);
  // Enters `step` if no plan is due and the one in force records nothing;
  // otherwise returns false and changes nothing.
  bool BeginIdleStep(int64_t step);

  // Sets the plan that is used while the collector has sent none.
  void SetLocal(std::shared_ptr<const Plan> plan, bool enabled);

  // Reports that the config file was edited; the edit takes effect with the
  // next BeginStep. Null `plan`: the file cannot be used, and nothing is
  // recorded. `enabled` absent: unchanged. `at_once`: the edit also replaces a
  // plan of the collector.
  void Edit(std::shared_ptr<const Plan> plan, std::optional<bool> enabled,
            bool at_once);

  // From now on plans that enable recording are refused for this reason, and a
  // plan in force records nothing. `only_apis`: only plans that record calls of
  // APIs (levels L1 and mix).
  void RefuseRecording(std::string reason, bool only_apis);

  // Holds the plan for its step, if possible; returns the answer to send.
  v1::PlanPrepared Prepare(const v1::PlanSpec& spec);
  // Returns an answer if the commit came too late, nullopt if it is in time.
  std::optional<v1::PlanPrepared> Commit(uint64_t epoch);
  void Abort(uint64_t epoch);

  // Takes over the plan of a Welcome, or one whose commit came too late. It is
  // in force from its step, or from the next BeginStep if that step has passed.
  void Adopt(const v1::PlanSpec& spec);

  int64_t step() const;
  uint64_t epoch() const;
  // Digest of the plan in force, reported with its epoch; empty for the
  // process' own plan.
  std::string plan_digest() const;
  // The highest epoch that was ever received, in force or not.
  uint64_t heard_epoch() const;

 private:
  struct Held {
    uint64_t epoch = 0;
    bool enabled = false;
    // The collector made it from the config file of some rank.
    bool from_file = false;
    int64_t effective_at_step = 0;
    int64_t for_steps = 0;
    // for_steps counts from the step where the plan takes effect.
    bool from_first_step = false;
    std::shared_ptr<const Plan> plan;
    // PlanDigest of the plan; empty for the process' own plan.
    std::string digest;
  };

  struct FileEdit {
    std::shared_ptr<const Plan> plan;
    bool enabled = false;
    // Plans up to this epoch are older than the edit.
    uint64_t heard_epoch = 0;
  };

  ActivePlan Current() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Refuses(const Plan& plan) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static Held HeldOf(const v1::PlanSpec& spec,
                     std::shared_ptr<const Plan> plan);
  bool IsAgreed(uint64_t epoch) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Agree(Held plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  // Empty if this process can record.
  std::string why_not_recording_ ABSL_GUARDED_BY(mutex_);
  // The reason applies only to plans that record APIs.
  bool refuses_only_apis_ ABSL_GUARDED_BY(mutex_) = false;
  // -1 before the first BeginStep.
  int64_t step_ ABSL_GUARDED_BY(mutex_) = -1;
  Held current_ ABSL_GUARDED_BY(mutex_);
  std::optional<Held> prepared_ ABSL_GUARDED_BY(mutex_);
  // Committed plans by epoch: an operator may agree on a second plan before the
  // step of the first has come.
  std::vector<Held> agreed_ ABSL_GUARDED_BY(mutex_);
  uint64_t heard_epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  // Overrides current_.
  std::optional<FileEdit> edit_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_SESSION_PLAN_SWITCHER_H_
