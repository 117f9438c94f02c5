// SPDX-License-Identifier: Apache-2.0
// One step-aligned switch in progress: prepare on every rank, save the plan,
// commit, then wait until each has applied. A pure state machine: messages in,
// actions out.
//
//   preparing --all accepted--> saving --saved--> committing --applied--> done
//       |  a rank has passed the step: abort, later step, prepare again
//       |  the ranks turn out slower: abort, earlier step, prepare again
//       |  time-out or refusal: abort, done (nothing switched)
//
// A commit can still come too late because a rank began the step meanwhile. If
// it is late for all, nothing has changed, so a later step is prepared. If it
// is late for some, those converge: the plan applies to them from their next
// step, and the result names them.
//
// Ranks that are all idle switch at the step after the furthest: that is their
// next, whenever it begins, and the switch does not wait for it. If ranks
// become idle after a later step was agreed on, the switch moves to their next
// step; if a rank begins a step meanwhile, the agreed step stays.
//
// The plan is saved without any thread waiting for the disk, and no rank
// receives a commit that is not saved. A plan that was saved and not agreed on
// is taken back. Owned by a shared pointer, which the pending save holds too.
//
// Not thread-safe: guarded by ControlCore's lock.
#ifndef RANKPROBE_COLLECTOR_CONTROL_SWITCH_OPERATION_H_
#define RANKPROBE_COLLECTOR_CONTROL_SWITCH_OPERATION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collector/control/run_plans.h"
#include "collector/control/switch_ranks.h"
#include "rankprobe/v1/agent.pb.h"
#include "rankprobe/v1/control.pb.h"

namespace rankprobe {

// Time limit of a switch that no operator requested.
inline constexpr uint32_t kOwnSwitchTimeoutMs = 10000;

class SwitchOperation : public std::enable_shared_from_this<SwitchOperation> {
 public:
  // Called twice: when the plan survives this process, and when it survives the
  // machine; once if the first fails.
  using Saved = std::function<void(const absl::Status& status, bool synced)>;
  struct Request {
    v1::PlanSpec spec;  // without epoch and effective_at_step
    v1::SwitchOptions options;
    // The spec's config, parsed.
    std::shared_ptr<const Plan> config;
    // A step from which on this plan would overtake an agreed one: the first
    // attempts choose no later step, as long as no rank has reached it.
    std::optional<int64_t> not_after = std::nullopt;
    // Recording under this plan ends at this step, wherever it begins; if the
    // step comes before the plan, the plan is off.
    std::optional<int64_t> until = std::nullopt;
  };
  // Callbacks to the owner of the operation.
  struct Actions {
    std::function<void(const std::string& session,
                       const v1::Directive& directive)>
        send;
    std::function<uint64_t()> next_epoch;
    std::function<v1::Identity(const std::string& session)> whose;
    // Returns the current step and step time of a session.
    SwitchRanks::Look look;
    // Saves the plan later, never in the call.
    std::function<void(const v1::PlanSpec& spec, Saved saved)> save;
    // Makes the plan the run's: all ranks have accepted and it is saved. The
    // commit follows.
    std::function<void(const std::shared_ptr<const CompiledPlan>&)> agree;
    // Sends the rank the run's plan for its next step, because it refused the
    // commit of the agreed plan for `reason`.
    std::function<void(const std::string& session, const std::string& reason)>
        converge;
    // Saves the plan in force, because the saved plan was not agreed on.
    std::function<void()> take_back;
    std::function<absl::Time()> now;
  };
  using Done = std::function<void(absl::StatusOr<v1::SwitchResult>)>;

  SwitchOperation(Request request, const std::vector<std::string>& sessions,
                  Actions actions, Done done);

  // Sends the first prepare.
  void Start();
  // Returns whether the rank can have reached `step` since the switch began: by
  // the time at its own pace, or because other ranks are there, too. A rank
  // that reports more is not waited for.
  bool Believes(const std::string& session, int64_t step);
  // Returns false if it is not an answer to this switch.
  bool OnPrepared(const std::string& session, const v1::PlanPrepared& prepared);
  void OnApplied(const std::string& session, const v1::PlanApplied& applied);
  void OnLost(const std::string& session);
  void Tick(absl::Time now);

  // Stops preparing and waiting, because something newer replaces the switch.
  // An agreed plan stays; else the result is CANCELLED.
  void CallOff();

  bool finished() const { return finished_; }
  v1::PlanSpec::Source source() const { return request_.spec.source(); }
  bool enables() const { return request_.spec.enabled(); }

 private:
  static constexpr uint32_t kMaxAttempts = 8;

  using Rank = SwitchRanks::Rank;

  void Prepare();
  // Continues without a rank that reports an implausible step.
  void GoOnWithout(Rank* rank, int64_t step);
  void SaveIfAllPrepared();
  void OnSaved(uint64_t epoch, const absl::Status& status, bool synced);
  void Decide();
  bool CommitCameTooLate() const;
  void FinishIfAllSettled();
  void ConvergeLateRanks();
  void Abort();
  // All ranks became idle before the agreed step: prepares their next step
  // instead.
  void PrepareForRest();
  // A rank has begun a step: drops the attempt of PrepareForRest and keeps the
  // agreed plan.
  void GoBackToAgreed();
  // Returns the step time of the fastest rank, with the furthest rank in step
  // `furthest`; 0 if nothing is known.
  int64_t StepNanos(int64_t furthest) const;
  // Returns the time that prepare and commit may take in this attempt.
  double WaitNanos() const;
  int64_t ChooseStep();
  // Returns whether the step was chosen for idle ranks, none has switched, and
  // all still are idle: nothing happens until a rank gets work.
  bool WaitsForIdleRanks() const;
  // Returns whether the agreed step is later than the next step of idle ranks,
  // so that it might never come.
  bool RestBeforeIt() const;
  // Returns whether the ranks have become slower since the step was chosen.
  bool IsFarAhead(int64_t now) const;
  void Finish(absl::StatusOr<v1::SwitchResult> result);
  v1::SwitchResult Result() const;

  const Request request_;
  const Actions actions_;
  const Done done_;
  const absl::Time deadline_;
  SwitchRanks ranks_;
  std::shared_ptr<const CompiledPlan> plan_;
  uint32_t attempts_ = 0;
  // Attempts before this one that counted ranks that are now left out.
  uint32_t earlier_attempts_ = 0;
  // The furthest rank's step when the last prepare was sent; `prepare_steps_`
  // is how many steps later all had answered.
  int64_t prepared_at_step_ = 0;
  // For a plan that counts from the first step: the step that a rank has
  // reported.
  std::optional<int64_t> first_step_;
  int64_t prepare_steps_ = 0;
  // Distance of the chosen step from the furthest rank's.
  int64_t margin_ = 0;
  absl::Time prepared_at_;
  // The longest time from a prepare to its decision.
  absl::Duration slowest_;
  bool saving_ = false;
  absl::Time saving_since_;
  // The plan being saved survives this process.
  bool written_ = false;
  // A plan of this switch is in the store.
  bool stored_ = false;
  bool committed_ = false;
  absl::Time committed_at_;
  // The agreed and committed plan while another one is tried instead: see
  // PrepareForRest, which runs once.
  std::shared_ptr<const CompiledPlan> agreed_;
  bool rested_ = false;
  // All ranks were idle when the step was chosen.
  bool for_idle_ = false;
  bool finished_ = false;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_SWITCH_OPERATION_H_
