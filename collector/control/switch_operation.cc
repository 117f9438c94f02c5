// SPDX-License-Identifier: Apache-2.0
#include "collector/control/switch_operation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace rankprobe {
namespace {

constexpr absl::Duration kDefaultTimeout = absl::Seconds(10);
constexpr absl::Duration kMaxTimeout = absl::Minutes(10);
// The longest wait for the disk to sync what is written. Then the switch
// continues: the plan survives this process, and a moment later the machine.
constexpr absl::Duration kSyncWait = absl::Seconds(1);
// Time for idle ranks to get the commit, or to report that it came too late.
constexpr absl::Duration kIdleWait = absl::Milliseconds(500);
// Time that prepare and commit may take in the first attempt, plus more for
// each rank; doubled in each further attempt.
constexpr double kRoundTripNs = 1e8;
constexpr double kRoundTripNsPerRank = 2e5;
constexpr uint32_t kOvertakingAttempts = 2;
// A rank that is idle at the first attempt and has then passed the step is not
// idle.
constexpr uint32_t kIdleAttempts = 1;
constexpr int64_t kMinMargin = 2;
constexpr int64_t kMaxMargin = 100000;
// Maximum growth from one attempt to the next if the pace of the ranks was
// observed for less than kSeenLong.
constexpr int64_t kMaxGrowth = 8;
constexpr absl::Duration kSeenLong = absl::Milliseconds(100);
// A step is too far ahead if reaching it takes this many times longer than
// planned, and longer than an operator would wait without wondering.
constexpr double kFarAhead = 4;
constexpr double kFarAheadNs = 2e9;

absl::Duration TimeoutOf(const v1::SwitchOptions& options) {
  if (options.timeout_ms() == 0) return kDefaultTimeout;
  return std::min(absl::Milliseconds(options.timeout_ms()), kMaxTimeout);
}

}  // namespace

SwitchOperation::SwitchOperation(Request request,
                                 const std::vector<std::string>& sessions,
                                 Actions actions, Done done)
    : request_(std::move(request)),
      actions_(std::move(actions)),
      done_(std::move(done)),
      deadline_(actions_.now() + TimeoutOf(request_.options)),
      ranks_(sessions, actions_.whose, actions_.look, actions_.now) {}

void SwitchOperation::Start() { Prepare(); }

void SwitchOperation::GoOnWithout(Rank* rank, int64_t step) {
  ranks_.LeaveOut(rank, step, ranks_.FurthestOfOthers(*rank));
  if (request_.options.has_at_step()) return SaveIfAllPrepared();
  // The step was chosen with this rank's report, so it is chosen again.
  saving_ = false;
  Abort();
  earlier_attempts_ += std::exchange(attempts_, 0);
  Prepare();
}

void SwitchOperation::Prepare() {
  ++attempts_;
  ranks_.LeaveOutliersOut();
  v1::PlanSpec spec = request_.spec;
  spec.set_epoch(actions_.next_epoch());
  spec.set_effective_at_step(ChooseStep());
  if (spec.enabled() && request_.until.has_value()) {
    const int64_t left = *request_.until - spec.effective_at_step();
    spec.set_enabled(left > 0);
    spec.set_for_steps(std::max<int64_t>(left, 0));
  }
  first_step_.reset();
  // Until a rank has begun, the number of its first step is not known: the plan
  // then counts from the step that a rank reports.
  spec.set_from_first_step(spec.enabled() && spec.for_steps() > 0 &&
                           !request_.options.has_at_step() &&
                           ranks_.FurthestStep() < 0);
  // Before the first step no steps have passed.
  prepared_at_step_ = std::max<int64_t>(ranks_.FurthestStep(), 0);
  prepared_at_ = actions_.now();
  saving_ = false;
  absl::StatusOr<std::shared_ptr<const CompiledPlan>> compiled =
      RunPlans::Compile(spec, request_.config);
  if (!compiled.ok()) return Finish(compiled.status());
  plan_ = *std::move(compiled);
  v1::Directive directive;
  *directive.mutable_prepare()->mutable_plan() = spec;
  for (auto& [session, rank] : ranks_.all()) {
    if (rank.state == v1::RankSwitch::STATE_LOST || rank.left_out) continue;
    ranks_.SetState(&rank, v1::RankSwitch::STATE_UNSPECIFIED);
    rank.reason.clear();
    actions_.send(session, directive);
  }
  SaveIfAllPrepared();
}

bool SwitchOperation::OnPrepared(const std::string& session,
                                 const v1::PlanPrepared& prepared) {
  Rank* const found = ranks_.Find(session);
  if (finished_ || found == nullptr || found->left_out ||
      prepared.epoch() != plan_->spec.epoch())
    return false;
  Rank& rank = *found;
  if (committed_) {
    // The commit reached this rank too late; the others continue.
    if (!prepared.accepted()) {
      ranks_.SetState(&rank, v1::RankSwitch::STATE_REFUSED);
      rank.reason = prepared.reason();
      ranks_.SetLate(session, prepared.reason());
      if (CommitCameTooLate()) {
        committed_ = false;
        Prepare();
      } else {
        FinishIfAllSettled();
      }
    }
    return true;
  }
  if (prepared.accepted()) {
    ranks_.SetState(&rank, v1::RankSwitch::STATE_PREPARED);
    SaveIfAllPrepared();
    return true;
  }
  const bool passed =
      prepared.current_step() >= plan_->spec.effective_at_step();
  if (agreed_ != nullptr) {
    GoBackToAgreed();
    return true;
  }
  // If a rank passes the step in each attempt and the others do not, its steps
  // are not plausible.
  const bool too_often = attempts_ >= kMaxAttempts &&
                         !request_.options.has_at_step() &&
                         ranks_.FurthestOfOthers(rank) >= 0;
  if (passed &&
      (too_often || !ranks_.Believes(rank, prepared.current_step()))) {
    GoOnWithout(&rank, prepared.current_step());
    return true;
  }
  ranks_.SetState(&rank, v1::RankSwitch::STATE_REFUSED);
  rank.reason = prepared.reason();
  Abort();
  if (passed && !request_.options.has_at_step() && attempts_ < kMaxAttempts) {
    ranks_.SetState(&rank, v1::RankSwitch::STATE_UNSPECIFIED);
    Prepare();
  } else if (passed && request_.options.has_at_step()) {
    Finish(absl::FailedPreconditionError(absl::StrCat(
        "step ", request_.options.at_step(), " has passed: a rank is in step ",
        prepared.current_step())));
  } else {
    ranks_.CallOff(
        absl::StrCat(SwitchRanks::NameOf(rank.identity), " refused"));
    Finish(Result());
  }
  return true;
}

void SwitchOperation::SaveIfAllPrepared() {
  if (saving_ || ranks_.AnyIs(v1::RankSwitch::STATE_UNSPECIFIED)) return;
  bool any = false;
  for (const auto& [session, rank] : ranks_.all()) {
    if (rank.state == v1::RankSwitch::STATE_LOST || rank.left_out) continue;
    if (rank.state != v1::RankSwitch::STATE_PREPARED) return;
    any = true;
  }
  if (!any && !ranks_.all().empty()) return Finish(Result());
  // The commit takes about as long as the prepare took. If some ranks would
  // pass the step in that time and others not, a later step is agreed on
  // instead; an earlier one if they have become slow.
  const int64_t now = ranks_.FurthestStep();
  prepare_steps_ = now - prepared_at_step_;
  if (!request_.options.has_at_step() && attempts_ < kMaxAttempts &&
      (plan_->spec.effective_at_step() - now <= prepare_steps_ ||
       IsFarAhead(now))) {
    if (agreed_ != nullptr) return GoBackToAgreed();
    Abort();
    return Prepare();
  }
  saving_ = true;
  saving_since_ = actions_.now();
  written_ = false;
  actions_.save(plan_->spec,
                [self = shared_from_this(), epoch = plan_->spec.epoch()](
                    const absl::Status& status, bool synced) {
                  self->OnSaved(epoch, status, synced);
                });
}

void SwitchOperation::OnSaved(uint64_t epoch, const absl::Status& status,
                              bool synced) {
  // Set even if the save failed, because part of it may be in the store.
  stored_ = true;
  const bool is_last = synced || !status.ok();
  if (finished_) {
    // The switch ended without a commit: the saved plan is taken back once
    // nothing more of it is written.
    if (!committed_ && is_last) actions_.take_back();
    return;
  }
  // The plan is already decided, or is of an earlier attempt.
  if (!saving_ || epoch != plan_->spec.epoch()) return;
  if (!status.ok()) {
    if (agreed_ != nullptr) return GoBackToAgreed();
    saving_ = false;
    Abort();
    return Finish(status);
  }
  written_ = true;
  // If the sync takes longer than kSyncWait, Tick decides without it.
  if (synced) Decide();
}

void SwitchOperation::Decide() {
  saving_ = false;
  slowest_ = std::max(slowest_, actions_.now() - prepared_at_);
  if (!ranks_.AnyIs(v1::RankSwitch::STATE_PREPARED) && !ranks_.all().empty())
    return Finish(Result());
  // The disk may have taken so long that ranks have passed the step.
  const int64_t now = ranks_.FurthestStep();
  const int64_t step = plan_->spec.effective_at_step();
  if (request_.options.has_at_step() && now >= step) {
    Abort();
    return Finish(absl::FailedPreconditionError(
        absl::StrCat("step ", step, " has passed while the plan was saved: a ",
                     "rank is in step ", now)));
  }
  if (!request_.options.has_at_step() && attempts_ < kMaxAttempts &&
      (step - now <= prepare_steps_ || IsFarAhead(now))) {
    if (agreed_ != nullptr) return GoBackToAgreed();
    Abort();
    return Prepare();
  }
  agreed_.reset();
  actions_.agree(plan_);
  committed_ = true;
  committed_at_ = actions_.now();
  v1::Directive directive;
  directive.mutable_commit()->set_epoch(plan_->spec.epoch());
  for (auto& [session, rank] : ranks_.all()) {
    if (rank.state != v1::RankSwitch::STATE_PREPARED) continue;
    // Clears a refusal of an earlier attempt.
    ranks_.ClearLate(session);
    actions_.send(session, directive);
  }
  FinishIfAllSettled();
}

void SwitchOperation::OnApplied(const std::string& session,
                                const v1::PlanApplied& applied) {
  Rank* const found = ranks_.Find(session);
  if (agreed_ != nullptr && applied.epoch() == agreed_->spec.epoch())
    GoBackToAgreed();
  if (finished_ || found == nullptr || found->left_out || !committed_ ||
      applied.epoch() != plan_->spec.epoch())
    return;
  Rank& rank = *found;
  ranks_.SetState(&rank, v1::RankSwitch::STATE_APPLIED);
  rank.applied_step = applied.step();
  if (plan_->spec.from_first_step() && !first_step_.has_value())
    first_step_ = applied.step();
  if (rank.late.has_value()) {
    rank.reason =
        absl::StrCat(*rank.late, "; it follows from step ", applied.step());
    ranks_.ClearLate(session);
  }
  FinishIfAllSettled();
}

void SwitchOperation::OnLost(const std::string& session) {
  Rank* const rank = ranks_.Find(session);
  if (finished_ || rank == nullptr) return;
  ranks_.SetState(rank, v1::RankSwitch::STATE_LOST);
  rank->reason = "the connection was lost";
  if (committed_) {
    FinishIfAllSettled();
  } else {
    SaveIfAllPrepared();
  }
}

// Returns whether the commit was late for all ranks: then nothing has changed,
// and a later step can be tried.
bool SwitchOperation::CommitCameTooLate() const {
  if (ranks_.AnyIs(v1::RankSwitch::STATE_PREPARED) ||
      ranks_.AnyIs(v1::RankSwitch::STATE_APPLIED))
    return false;
  bool any = false;
  for (const auto& [session, rank] : ranks_.all()) {
    if (rank.state == v1::RankSwitch::STATE_LOST || rank.left_out) continue;
    if (rank.state != v1::RankSwitch::STATE_REFUSED) return false;
    any = true;
  }
  return any && !request_.options.has_at_step() && attempts_ < kMaxAttempts;
}

void SwitchOperation::FinishIfAllSettled() {
  const bool waits = ranks_.AnyIs(v1::RankSwitch::STATE_PREPARED);
  // Until a rank has switched, the commit may turn out to be late for all.
  if (ranks_.AnyIs(v1::RankSwitch::STATE_APPLIED) || !waits)
    ConvergeLateRanks();
  const bool converges = std::any_of(
      ranks_.late().begin(), ranks_.late().end(), [this](const auto& session) {
        return ranks_.all().at(session).state == v1::RankSwitch::STATE_REFUSED;
      });
  if ((waits || converges) && !request_.options.no_wait()) return;
  Finish(Result());
}

void SwitchOperation::ConvergeLateRanks() {
  for (const std::string& session : ranks_.late()) {
    Rank& rank = ranks_.all().at(session);
    if (rank.converging || rank.state == v1::RankSwitch::STATE_LOST) continue;
    rank.converging = true;
    actions_.converge(session, *rank.late);
  }
}

void SwitchOperation::Abort() {
  v1::Directive directive;
  directive.mutable_abort()->set_epoch(plan_->spec.epoch());
  for (const auto& [session, rank] : ranks_.all()) {
    if (rank.state != v1::RankSwitch::STATE_LOST)
      actions_.send(session, directive);
  }
}

void SwitchOperation::PrepareForRest() {
  rested_ = true;
  agreed_ = plan_;
  committed_ = false;
  earlier_attempts_ += std::exchange(attempts_, 0);
  Prepare();
}

void SwitchOperation::GoBackToAgreed() {
  Abort();
  // Also if the plan is still being saved: the queue keeps the order.
  if (stored_ || saving_) actions_.take_back();
  saving_ = for_idle_ = false;
  plan_ = std::exchange(agreed_, nullptr);
  committed_ = true;
  for (auto& [session, rank] : ranks_.all()) {
    if (rank.state != v1::RankSwitch::STATE_LOST && !rank.left_out)
      ranks_.SetState(&rank, v1::RankSwitch::STATE_PREPARED);
  }
}

void SwitchOperation::CallOff() {
  if (finished_) return;
  if (agreed_ != nullptr) GoBackToAgreed();
  if (committed_) return Finish(Result());
  Abort();
  Finish(absl::CancelledError("called off: something newer has come"));
}

void SwitchOperation::Tick(absl::Time now) {
  if (finished_) return;
  if (saving_ && written_ && now >= saving_since_ + kSyncWait) Decide();
  if (finished_) return;
  if (committed_ && now >= committed_at_ + kIdleWait) {
    if (WaitsForIdleRanks()) return Finish(Result());
    if (RestBeforeIt()) return PrepareForRest();
  }
  if (now < deadline_) return;
  if (agreed_ != nullptr) GoBackToAgreed();
  if (saving_) {
    Abort();
    return Finish(absl::DeadlineExceededError(absl::StrCat(
        "the plan is not saved: the archive's disk has not answered for ",
        absl::FormatDuration(now - saving_since_),
        ". No rank switches. Only a collector that is killed before its disk "
        "answers may come back with this plan: see `rankprobe config get`")));
  }
  if (!committed_) Abort();
  const std::vector<std::string> silent = ranks_.SetSilent();
  if (!committed_) {
    ranks_.CallOff(
        absl::StrCat("no answer from ", absl::StrJoin(silent, ", ")));
  }
  Finish(Result());
}

v1::SwitchResult SwitchOperation::Result() const {
  v1::SwitchResult result;
  const int64_t step = first_step_.value_or(plan_->spec.effective_at_step());
  result.set_epoch(plan_->spec.epoch());
  result.set_effective_at_step(step);
  result.set_attempts(earlier_attempts_ + attempts_);
  auto [applied, prepared, late] = ranks_.Report(step, &result);
  if (ranks_.all().empty()) {
    result.set_summary("no rank is connected; ranks that join get the plan");
  } else if (WaitsForIdleRanks() && !request_.options.no_wait()) {
    result.set_waits(true);
    result.set_summary(absl::StrCat(
        prepared, "/", ranks_.all().size(), " ranks will switch at ",
        plan_->spec.from_first_step()
            ? "their first step: waits for it (ranks are idle)"
            : absl::StrCat("step ", step,
                           ": waits for the next step (ranks are idle)")));
  } else if (request_.options.no_wait()) {
    result.set_summary(absl::StrCat(applied + prepared, "/",
                                    ranks_.all().size(),
                                    " ranks will switch at step ", step));
  } else {
    result.set_summary(absl::StrCat(applied, "/", ranks_.all().size(),
                                    " ranks at step ", step));
  }
  if (!late.empty()) {
    const size_t others = late.size() - std::min(late.size(), kMaxNamedRanks);
    late.resize(late.size() - others);
    absl::StrAppend(
        result.mutable_summary(), "; the commit came too late for ",
        absl::StrJoin(late, ", "),
        others == 0 ? "" : absl::StrCat(" and ", others, " others"));
  }
  return result;
}

void SwitchOperation::Finish(absl::StatusOr<v1::SwitchResult> result) {
  if (finished_) return;
  finished_ = true;
  ConvergeLateRanks();
  // A plan that is still being saved is taken back when the save has ended.
  if (stored_ && !committed_ && !saving_) actions_.take_back();
  done_(std::move(result));
}

bool SwitchOperation::Believes(const std::string& session, int64_t step) {
  const Rank* const rank = ranks_.Find(session);
  return finished_ || rank == nullptr ||
         (!rank->left_out && ranks_.Believes(*rank, step));
}

bool SwitchOperation::WaitsForIdleRanks() const {
  return committed_ && for_idle_ && ranks_.NoneHasApplied() &&
         ranks_.AreAllIdle();
}

bool SwitchOperation::RestBeforeIt() const {
  // AreAllIdle scans every rank, so it is checked last: this runs in each tick.
  return committed_ && !rested_ && !for_idle_ &&
         !request_.options.has_at_step() && ranks_.AreAllIdle() &&
         ranks_.NoneHasApplied() &&
         plan_->spec.effective_at_step() > ranks_.FurthestStep() + 1;
}

int64_t SwitchOperation::ChooseStep() {
  if (request_.options.has_at_step()) return request_.options.at_step();
  const int64_t furthest = ranks_.FurthestStep();
  // Only in the first attempts: ranks that have not begun count from 0, or have
  // passed the step when they begin.
  for_idle_ = attempts_ <= kIdleAttempts && ranks_.AreAllIdle();
  if (for_idle_) {
    margin_ = 1;
    return furthest + 1;
  }
  const int64_t step_ns = StepNanos(furthest);
  const bool seen_long =
      attempts_ == 1 || actions_.now() - prepared_at_ >= kSeenLong;
  const int64_t most =
      seen_long ? kMaxMargin : std::min(kMaxMargin, kMaxGrowth * margin_);
  const double steps =
      step_ns == 0 ? 0 : WaitNanos() / static_cast<double>(step_ns);
  margin_ = std::clamp(
      static_cast<int64_t>(std::min(steps, static_cast<double>(kMaxMargin))) +
          1,
      kMinMargin, most);
  if (request_.not_after.has_value() && attempts_ <= kOvertakingAttempts &&
      *request_.not_after > furthest)
    return std::min(furthest + margin_, *request_.not_after);
  return furthest + margin_;
}

int64_t SwitchOperation::StepNanos(int64_t furthest) const {
  const int64_t fastest = ranks_.StepNanos();
  // The progress since the prepare is more accurate.
  const int64_t steps = furthest - prepared_at_step_;
  const absl::Duration took = actions_.now() - prepared_at_;
  if (plan_ == nullptr || steps <= 0 || took <= absl::ZeroDuration())
    return fastest;
  const int64_t seen =
      std::max<int64_t>(absl::ToInt64Nanoseconds(took / steps), 1);
  return fastest == 0 ? seen : std::min(fastest, seen);
}

double SwitchOperation::WaitNanos() const {
  return std::max(
      (kRoundTripNs +
       kRoundTripNsPerRank * static_cast<double>(ranks_.all().size())) *
          static_cast<double>(1u << (attempts_ - 1)),
      2 * absl::ToDoubleNanoseconds(slowest_));
}

bool SwitchOperation::IsFarAhead(int64_t now) const {
  const int64_t steps = plan_->spec.effective_at_step() - now;
  return steps > kMinMargin &&
         static_cast<double>(steps) * static_cast<double>(StepNanos(now)) >
             std::max(kFarAhead * WaitNanos(), kFarAheadNs);
}

}  // namespace rankprobe
