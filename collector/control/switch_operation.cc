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
// So long a switch waits for the disk to sync what is written. Then it goes on:
// the plan survives this process, and a moment later the machine.
constexpr absl::Duration kSyncWait = absl::Seconds(1);
// For idle ranks to get the commit, or to say that it came too late.
constexpr absl::Duration kIdleWait = absl::Milliseconds(500);
// In a summary; the result has them all.
constexpr size_t kMaxNamed = 8;

std::string NameOf(const v1::Identity& identity) {
  return identity.has_rank() ? absl::StrCat("rank ", identity.rank())
                             : absl::StrCat("proc", identity.pid());
}

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
      began_(actions_.now()),
      deadline_(began_ + TimeoutOf(request_.options)) {
  for (const std::string& session : sessions) {
    const auto [it, is_new] = ranks_.try_emplace(session);
    if (!is_new) continue;
    it->second.identity = actions_.whose(session);
    it->second.was = actions_.look(session);
    ++in_state_[static_cast<size_t>(it->second.state)];
  }
}

void SwitchOperation::SetState(Rank* rank, v1::RankSwitch::State state) {
  --in_state_[static_cast<size_t>(rank->state)];
  ++in_state_[static_cast<size_t>(state)];
  rank->state = state;
}

void SwitchOperation::SetLate(const std::string& session, Rank* rank,
                              std::string reason) {
  rank->late = std::move(reason);
  late_.insert(session);
}

void SwitchOperation::ClearLate(const std::string& session, Rank* rank) {
  rank->late.reset();
  late_.erase(session);
}

void SwitchOperation::Start() { Prepare(); }

void SwitchOperation::GoOnWithout(Rank* rank, int64_t step) {
  LeaveOut(rank, step, FurthestBelievable(StepsOfAllBut(rank)));
  if (request_.options.has_at_step()) return SaveIfAllPrepared();
  // The step was chosen by what it had said before.
  saving_ = false;
  Abort();
  earlier_attempts_ += std::exchange(attempts_, 0);
  Prepare();
}

void SwitchOperation::SayCalledOff(const std::string& why) {
  for (auto& [session, rank] : ranks_) {
    if (rank.state != v1::RankSwitch::STATE_PREPARED &&
        rank.state != v1::RankSwitch::STATE_UNSPECIFIED)
      continue;
    SetState(&rank, v1::RankSwitch::STATE_REFUSED);
    rank.reason =
        absl::StrCat("called off: ", why, "; select the others with --ranks");
  }
}

void SwitchOperation::Prepare() {
  ++attempts_;
  LeaveOutliersOut();
  v1::PlanSpec spec = request_.spec;
  spec.set_epoch(actions_.next_epoch());
  spec.set_effective_at_step(ChooseStep());
  if (spec.enabled() && request_.until.has_value()) {
    const int64_t left = *request_.until - spec.effective_at_step();
    spec.set_enabled(left > 0);
    spec.set_for_steps(std::max<int64_t>(left, 0));
  }
  first_step_.reset();
  spec.set_from_first_step(spec.enabled() && spec.for_steps() > 0 &&
                           !request_.options.has_at_step() &&
                           FurthestStep() < 0);
  // Before the first step nothing has gone by.
  prepared_at_step_ = std::max<int64_t>(FurthestStep(), 0);
  prepared_at_ = actions_.now();
  saving_ = false;
  absl::StatusOr<std::shared_ptr<const CompiledPlan>> compiled =
      RunPlans::Compile(spec, request_.config);
  if (!compiled.ok()) return Finish(compiled.status());
  plan_ = *std::move(compiled);
  v1::Directive directive;
  *directive.mutable_prepare()->mutable_plan() = spec;
  for (auto& [session, rank] : ranks_) {
    if (rank.state == v1::RankSwitch::STATE_LOST || rank.left_out) continue;
    SetState(&rank, v1::RankSwitch::STATE_UNSPECIFIED);
    rank.reason.clear();
    actions_.send(session, directive);
  }
  SaveIfAllPrepared();
}

bool SwitchOperation::OnPrepared(const std::string& session,
                                 const v1::PlanPrepared& prepared) {
  const auto it = ranks_.find(session);
  if (finished_ || it == ranks_.end() || it->second.left_out ||
      prepared.epoch() != plan_->spec.epoch())
    return false;
  Rank& rank = it->second;
  if (committed_) {
    // The commit reached this rank too late; the others go on.
    if (!prepared.accepted()) {
      SetState(&rank, v1::RankSwitch::STATE_REFUSED);
      rank.reason = prepared.reason();
      SetLate(session, &rank, prepared.reason());
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
    SetState(&rank, v1::RankSwitch::STATE_PREPARED);
    SaveIfAllPrepared();
    return true;
  }
  const bool passed =
      prepared.current_step() >= plan_->spec.effective_at_step();
  if (agreed_ != nullptr) {
    GoBackToAgreed();
    return true;
  }
  // Nobody passes so many that the others do not, each further off.
  const bool too_often = attempts_ >= kMaxAttempts &&
                         !request_.options.has_at_step() &&
                         FurthestBelievable(StepsOfAllBut(&rank)) >= 0;
  if (passed && (too_often || !Believes(rank, prepared.current_step()))) {
    GoOnWithout(&rank, prepared.current_step());
    return true;
  }
  SetState(&rank, v1::RankSwitch::STATE_REFUSED);
  rank.reason = prepared.reason();
  Abort();
  if (passed && !request_.options.has_at_step() && attempts_ < kMaxAttempts) {
    SetState(&rank, v1::RankSwitch::STATE_UNSPECIFIED);
    Prepare();
  } else if (passed && request_.options.has_at_step()) {
    Finish(absl::FailedPreconditionError(absl::StrCat(
        "step ", request_.options.at_step(), " has passed: a rank is in step ",
        prepared.current_step())));
  } else {
    SayCalledOff(absl::StrCat(NameOf(rank.identity), " refused"));
    Finish(Result());
  }
  return true;
}

void SwitchOperation::SaveIfAllPrepared() {
  if (saving_ || AnyIs(v1::RankSwitch::STATE_UNSPECIFIED)) return;
  bool any = false;
  for (const auto& [session, rank] : ranks_) {
    if (rank.state == v1::RankSwitch::STATE_LOST || rank.left_out) continue;
    if (rank.state != v1::RankSwitch::STATE_PREPARED) return;
    any = true;
  }
  if (!any && !ranks_.empty()) return Finish(Result());
  // The commit takes about as long as the prepare took. If some ranks would be
  // past the step by then, others not, a later step is agreed on instead; an
  // earlier one if they have become slow.
  const int64_t now = FurthestStep();
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
  // Also when it failed: part of it may be there.
  stored_ = true;
  const bool is_last = synced || !status.ok();
  if (finished_) {
    if (!committed_ && is_last) actions_.take_back();
    return;
  }
  // Decided, or of an earlier attempt.
  if (!saving_ || epoch != plan_->spec.epoch()) return;
  if (!status.ok()) {
    if (agreed_ != nullptr) return GoBackToAgreed();
    saving_ = false;
    Abort();
    return Finish(status);
  }
  written_ = true;
  if (synced) Decide();
}

void SwitchOperation::Decide() {
  saving_ = false;
  slowest_ = std::max(slowest_, actions_.now() - prepared_at_);
  if (!AnyIs(v1::RankSwitch::STATE_PREPARED) && !ranks_.empty())
    return Finish(Result());
  // The disk may have taken longer than the ranks.
  const int64_t now = FurthestStep();
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
  for (auto& [session, rank] : ranks_) {
    if (rank.state != v1::RankSwitch::STATE_PREPARED) continue;
    // Of an earlier attempt.
    ClearLate(session, &rank);
    actions_.send(session, directive);
  }
  FinishIfAllSettled();
}

void SwitchOperation::OnApplied(const std::string& session,
                                const v1::PlanApplied& applied) {
  const auto it = ranks_.find(session);
  if (agreed_ != nullptr && applied.epoch() == agreed_->spec.epoch())
    GoBackToAgreed();
  if (finished_ || it == ranks_.end() || it->second.left_out || !committed_ ||
      applied.epoch() != plan_->spec.epoch())
    return;
  Rank& rank = it->second;
  SetState(&rank, v1::RankSwitch::STATE_APPLIED);
  rank.applied_step = applied.step();
  if (plan_->spec.from_first_step() && !first_step_.has_value())
    first_step_ = applied.step();
  if (rank.late.has_value()) {
    rank.reason =
        absl::StrCat(*rank.late, "; it follows from step ", applied.step());
    ClearLate(session, &rank);
  }
  FinishIfAllSettled();
}

void SwitchOperation::OnLost(const std::string& session) {
  const auto it = ranks_.find(session);
  if (finished_ || it == ranks_.end()) return;
  SetState(&it->second, v1::RankSwitch::STATE_LOST);
  it->second.reason = "the connection was lost";
  if (committed_) {
    FinishIfAllSettled();
  } else {
    SaveIfAllPrepared();
  }
}

// For everybody, so that nothing has changed and a later step may do.
bool SwitchOperation::CommitCameTooLate() const {
  if (AnyIs(v1::RankSwitch::STATE_PREPARED) ||
      AnyIs(v1::RankSwitch::STATE_APPLIED))
    return false;
  bool any = false;
  for (const auto& [session, rank] : ranks_) {
    if (rank.state == v1::RankSwitch::STATE_LOST || rank.left_out) continue;
    if (rank.state != v1::RankSwitch::STATE_REFUSED) return false;
    any = true;
  }
  return any && !request_.options.has_at_step() && attempts_ < kMaxAttempts;
}

void SwitchOperation::FinishIfAllSettled() {
  const bool waits = AnyIs(v1::RankSwitch::STATE_PREPARED);
  // As long as nobody has switched it may be late for all.
  if (AnyIs(v1::RankSwitch::STATE_APPLIED) || !waits) ConvergeLateRanks();
  const bool converges =
      std::any_of(late_.begin(), late_.end(), [this](const auto& session) {
        return ranks_.at(session).state == v1::RankSwitch::STATE_REFUSED;
      });
  if ((waits || converges) && !request_.options.no_wait()) return;
  Finish(Result());
}

void SwitchOperation::ConvergeLateRanks() {
  for (const std::string& session : late_) {
    Rank& rank = ranks_.at(session);
    if (rank.converging || rank.state == v1::RankSwitch::STATE_LOST) continue;
    rank.converging = true;
    actions_.converge(session, *rank.late);
  }
}

void SwitchOperation::Abort() {
  v1::Directive directive;
  directive.mutable_abort()->set_epoch(plan_->spec.epoch());
  for (const auto& [session, rank] : ranks_) {
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
  // Also of one that is being saved: the queue keeps the order.
  if (stored_ || saving_) actions_.take_back();
  saving_ = for_idle_ = false;
  plan_ = std::exchange(agreed_, nullptr);
  committed_ = true;
  for (auto& [session, rank] : ranks_) {
    if (rank.state != v1::RankSwitch::STATE_LOST && !rank.left_out)
      SetState(&rank, v1::RankSwitch::STATE_PREPARED);
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
  std::vector<std::string> silent;
  for (auto& [session, rank] : ranks_) {
    if (rank.state != v1::RankSwitch::STATE_UNSPECIFIED) continue;
    SetState(&rank, v1::RankSwitch::STATE_SILENT);
    rank.reason = "no answer";
    if (silent.size() < kMaxNamed) silent.push_back(NameOf(rank.identity));
  }
  if (!committed_) {
    SayCalledOff(absl::StrCat("no answer from ", absl::StrJoin(silent, ", ")));
  }
  Finish(Result());
}

v1::SwitchResult SwitchOperation::Result() const {
  v1::SwitchResult result;
  const int64_t step = first_step_.value_or(plan_->spec.effective_at_step());
  result.set_epoch(plan_->spec.epoch());
  result.set_effective_at_step(step);
  result.set_attempts(earlier_attempts_ + attempts_);
  size_t applied = 0, prepared = 0;
  std::vector<std::string> late;
  for (const auto& [session, rank] : ranks_) {
    v1::RankSwitch& out = *result.add_ranks();
    if (rank.identity.has_rank()) out.set_rank(rank.identity.rank());
    out.set_pid(rank.identity.pid());
    out.set_host(rank.identity.host());
    out.set_state(rank.state);
    out.set_applied_step(rank.applied_step);
    out.set_reason(rank.reason);
    if (rank.state == v1::RankSwitch::STATE_APPLIED &&
        rank.applied_step == step)
      ++applied;
    if (rank.state == v1::RankSwitch::STATE_PREPARED) ++prepared;
    const std::string who = NameOf(rank.identity);
    if (rank.converging && rank.state == v1::RankSwitch::STATE_APPLIED) {
      late.push_back(absl::StrCat(who, " at step ", rank.applied_step));
    } else if (rank.late.has_value()) {
      late.push_back(absl::StrCat(who, " at its next step"));
    }
  }
  std::sort(result.mutable_ranks()->begin(), result.mutable_ranks()->end(),
            [](const v1::RankSwitch& a, const v1::RankSwitch& b) {
              return std::make_pair(a.rank(), a.pid()) <
                     std::make_pair(b.rank(), b.pid());
            });
  if (ranks_.empty()) {
    result.set_summary("no rank is connected; ranks that join get the plan");
  } else if (WaitsForIdleRanks() && !request_.options.no_wait()) {
    result.set_waits(true);
    result.set_summary(absl::StrCat(
        prepared, "/", ranks_.size(), " ranks will switch at ",
        plan_->spec.from_first_step()
            ? "their first step: waits for it (ranks are idle)"
            : absl::StrCat("step ", step,
                           ": waits for the next step (ranks are idle)")));
  } else if (request_.options.no_wait()) {
    result.set_summary(absl::StrCat(applied + prepared, "/", ranks_.size(),
                                    " ranks will switch at step ", step));
  } else {
    result.set_summary(
        absl::StrCat(applied, "/", ranks_.size(), " ranks at step ", step));
  }
  if (!late.empty()) {
    const size_t others = late.size() - std::min(late.size(), kMaxNamed);
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
  // What is still being saved is taken back when that is over.
  if (stored_ && !committed_ && !saving_) actions_.take_back();
  done_(std::move(result));
}

}  // namespace rankprobe
