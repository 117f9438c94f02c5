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
// A commit can come too late all the same, because a rank began the step
// meanwhile. Late for all: nothing has changed, so a later step is prepared. Late
// for some: those converge, the plan is theirs from their next step on, and the
// result names them.
//
// Ranks that are all idle switch at the step behind the furthest: that is their
// next, whenever it comes, and nobody waits for it. Those that come to rest when
// a later step is agreed on get that one in its place; who begins a step
// meanwhile keeps what was agreed on.
//
// The plan is saved while nobody waits for the disk, and no rank hears of a
// commit that is not saved. A plan that was saved and not agreed on is taken
// back. Owned by a shared pointer: what is being saved holds it.
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

// How long a switch may take that no operator asked for.
inline constexpr uint32_t kOwnSwitchTimeoutMs = 10000;

class SwitchOperation : public std::enable_shared_from_this<SwitchOperation> {
 public:
  // Told twice: when the plan survives this process, and when it survives the
  // machine. Once if the first fails.
  using Saved = std::function<void(const absl::Status& status, bool synced)>;
  struct Request {
    v1::PlanSpec spec;  // without epoch and effective_at_step
    v1::SwitchOptions options;
    // The spec's config, parsed.
    std::shared_ptr<const Plan> config;
    // A step from which on it overtakes a plan that is agreed on: in the first
    // attempts no later one is chosen, as long as nobody is there.
    std::optional<int64_t> not_after = std::nullopt;
    // Recording that goes on under this plan ends here, wherever it begins: off
    // if that has come before the plan.
    std::optional<int64_t> until = std::nullopt;
  };
  // What the owner does for the operation.
  struct Actions {
    std::function<void(const std::string& session,
                       const v1::Directive& directive)>
        send;
    std::function<uint64_t()> next_epoch;
    std::function<v1::Identity(const std::string& session)> whose;
    // The current step and step time of a session.
    SwitchRanks::Look look;
    // Saves the plan later, never in the call.
    std::function<void(const v1::PlanSpec& spec, Saved saved)> save;
    // All ranks have accepted and it is saved: make it the run's plan. The
    // commit follows.
    std::function<void(const std::shared_ptr<const CompiledPlan>&)> agree;
    // The rank refused the commit of what is agreed on, for `reason`: bring it
    // the run's plan for its next step.
    std::function<void(const std::string& session, const std::string& reason)>
        converge;
    // What was saved was not agreed on: save what is in force.
    std::function<void()> take_back;
    std::function<absl::Time()> now;
  };
  using Done = std::function<void(absl::StatusOr<v1::SwitchResult>)>;

  SwitchOperation(Request request, const std::vector<std::string>& sessions,
                  Actions actions, Done done);

  // Sends the first prepare.
  void Start();
  // Whether the rank can have come to `step` since the switch began: by the time
  // at its own pace, or because others are there, too. One that says more is
  // not waited for.
  bool Believes(const std::string& session, int64_t step);
  // False: it is no answer to this switch.
  bool OnPrepared(const std::string& session, const v1::PlanPrepared& prepared);
  void OnApplied(const std::string& session, const v1::PlanApplied& applied);
  void OnLost(const std::string& session);
  void Tick(absl::Time now);

  // Something newer has come: nothing more is prepared or waited for. A plan
  // that is agreed on already stays; else CANCELLED.
  void CallOff();

  bool finished() const { return finished_; }
  v1::PlanSpec::Source source() const { return request_.spec.source(); }
  bool enables() const { return request_.spec.enabled(); }

 private:
  static constexpr uint32_t kMaxAttempts = 8;

  using Rank = SwitchRanks::Rank;

  void Prepare();
  // It says that it has passed the step and is not believed.
  void GoOnWithout(Rank* rank, int64_t step);
  void SaveIfAllPrepared();
  void OnSaved(uint64_t epoch, const absl::Status& status, bool synced);
  void Decide();
  bool CommitCameTooLate() const;
  void FinishIfAllSettled();
  void ConvergeLateRanks();
  void Abort();
  // All have come to rest before the step that is agreed on: their next, then.
  void PrepareForRest();
  // No: somebody goes on. What was agreed on stays.
  void GoBackToAgreed();
  // Of the fastest rank, the furthest being in step `furthest`; 0: nothing is
  // known.
  int64_t StepNanos(int64_t furthest) const;
  // What prepare and commit may take in this attempt.
  double WaitNanos() const;
  int64_t ChooseStep();
  // The step was chosen for idle ranks, none has switched, and they still are
  // idle: nothing will happen before somebody gives them work.
  bool WaitsForIdleRanks() const;
  // A later step than their next is agreed on, which might never come.
  bool RestBeforeIt() const;
  // The ranks have become slower since the step was chosen.
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
  // With ranks that were left out then.
  uint32_t earlier_attempts_ = 0;
  // The furthest rank's step when the last prepare was sent, and how many steps
  // later all had answered.
  int64_t prepared_at_step_ = 0;
  // Of a plan that counts from the first step: the one that a rank has said.
  std::optional<int64_t> first_step_;
  int64_t prepare_steps_ = 0;
  // How far after the furthest rank's the step was chosen.
  int64_t margin_ = 0;
  absl::Time prepared_at_;
  // The longest time from a prepare to its decision.
  absl::Duration slowest_;
  bool saving_ = false;
  absl::Time saving_since_;
  // Of the plan that is being saved: it survives this process.
  bool written_ = false;
  // A plan of this switch is in the store.
  bool stored_ = false;
  bool committed_ = false;
  absl::Time committed_at_;
  // Agreed on and committed, while another plan is tried in its place: see
  // PrepareForRest, which is done once.
  std::shared_ptr<const CompiledPlan> agreed_;
  bool rested_ = false;
  // All ranks were idle when the step was chosen.
  bool for_idle_ = false;
  bool finished_ = false;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_SWITCH_OPERATION_H_
