// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/recorder/step_records.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace rankprobe {
namespace {

// Records are submitted in pieces. Each piece wakes threads on both sides, but
// everything left at the end of the step has to be waited for.
constexpr size_t kSubmitBytes = 512 << 10;
constexpr size_t kMinSubmitBytes = 32 << 10;
constexpr int64_t kSubmitIntervalNs = 30'000'000;
// Limit for the tensors of a phase at which a trigger rule has fired: a NaN
// reaches all ranks, and all of them send theirs.
constexpr uint64_t kMaxFiredBytes = 64 << 20;

}  // namespace

StepRecords::StepRecords(Session* session, TriggerWatcher* watcher,
                         const Clock* clock, FileSystem* file_system,
                         std::string framework, StepFilter* filter)
    : session_(session),
      watcher_(watcher),
      clock_(clock),
      framework_(std::move(framework)),
      filter_(filter),
      tensors_(session),
      reference_(session, file_system, clock) {
  tensors_.SetWideAsFloat(framework_ == "mindspore");
  if (watcher != nullptr) {
    tensors_.SetFits(
        [watcher](uint64_t bytes) { return watcher->Fits(bytes); });
  }
}

bool StepRecords::IsEmpty() const {
  return begun_ && !submitted_ && counts_.call_phases == 0 &&
         counts_.filtered == 0 && counts_.forwards.seen == 0;
}

void StepRecords::Begin(v1::StepRequests requests) {
  std::string told = requests.SerializeAsString();
  if (begun_ && told == told_requests_) return;
  if (!begun_) tensors_.BeginCount();
  begun_ = true;
  const Plan& plan = filter_->plan();
  v1::StepBegin* begin = Add()->mutable_step_begin();
  begin->set_task(std::string(TaskName(plan.task)));
  // The flight recorder of tokens hooks no call, which is a step of level L0
  // without calls.
  begin->set_level(std::string(
      LevelName(flight_ && plan.RecordsSaved() ? Level::kL0 : plan.level)));
  begin->set_framework(framework_);
  begin->set_dump_path(plan.dump_path);
  begin->set_has_payloads(plan.HasPayloads());
  begin->set_extra_info(plan.extra_info);
  begin->set_plan_epoch(filter_->epoch());
  begin->set_flight(flight_);
  for (const v1::StatisticId id : plan.extra_statistics.Ids())
    begin->add_extra_statistics(id);
  if (!told.empty()) *begin->mutable_requests() = std::move(requests);
  told_requests_ = std::move(told);
}

void StepRecords::BeginReference(std::optional<int64_t> rank) {
  const absl::Status status =
      reference_.BeginStep(filter_->plan(), step_, rank);
  if (status.ok()) return;
  const std::string what =
      absl::StrCat("step ", step_, " is not compared with the reference: ",
                   absl::string_view(status.message()));
  AddError(what);
  if (reference_fault_epoch_ == filter_->epoch()) return;
  reference_fault_epoch_ = filter_->epoch();
  v1::AgentEvent event;
  event.mutable_error()->set_step(step_);
  event.mutable_error()->set_message(what);
  session_->SendEvent(std::move(event));
}

bool StepRecords::CutIfSpent() {
  if (!spent()) return false;
  ++generation_;
  return true;
}

void StepRecords::Forget() {
  buffer_.reset();
  begun_ = false;
}

bool StepRecords::End() {
  const bool sent = for_collector();
  if (begun_) {
    v1::StepEnd* end = Add()->mutable_step_end();
    end->set_call_phases(counts_.call_phases);
    end->set_filtered_calls(counts_.filtered);
    end->set_payloads(tensors_.payloads());
    end->set_lost_payloads(tensors_.lost_payloads());
    end->set_lost_records(counts_.lost_records);
    Submit();
  }
  if (watcher_ != nullptr) watcher_->EndStep();
  ++step_;
  ++generation_;
  begun_ = submitted_ = flight_ = false;
  told_requests_.clear();
  next_order_ = 0;
  counts_ = Counts();
  tensors_.BeginStep();
  reference_.EndStep();
  return sent;
}

v1::Record* StepRecords::Add() {
  if (buffer_ == nullptr) {
    buffer_ = std::make_unique<RecordBuffer>();
    buffer_->batch()->set_step(step_);
  }
  v1::Record* record = buffer_->Add();
  record->set_order(next_order_++);
  return record;
}

void StepRecords::AddError(absl::string_view what) {
  v1::ErrorEvent* error = Add()->mutable_error();
  error->set_time_unix_ns(absl::ToUnixNanos(clock_->Now()));
  error->set_message(std::string(what));
}

bool StepRecords::AddCall(const std::string& entry, v1::CallKind kind,
                          bool want_payload, BuildPhase build) {
  const bool watched = watcher_ != nullptr && watcher_->active();
  const bool timed = watched && watcher_->timed();
  const int64_t began_ns = timed ? clock_->MonotonicNanos() : 0;
  const uint64_t payload_bytes = tensors_.payload_bytes();
  const size_t deferred = tensors_.deferred();
  if (watched) tensors_.SetDegraded(watcher_->evidence_level());
  v1::CallPhase* call = Add()->mutable_call();
  call->set_entry(entry);
  call->set_kind(kind);
  CallBuilder builder(&tensors_, &filter_->plan(), want_payload);
  build(builder, call);
  ++counts_.call_phases;
  if (!watched) return false;
  bool in_full = false;
  if (tensors_.deferred() > deferred) {
    deferred_phases_.push_back(call);
  } else if (watcher_->OnPhase(*call) && !want_payload &&
             !reference_.active()) {
    // Nothing has run since: the tensors are still those that the rule has
    // checked.
    in_full = true;
    call->Clear();
    BuildInFull(entry, kind, build, call);
  }
  watcher_->AddCost(
      tensors_.payload_bytes() - payload_bytes + call->ByteSizeLong(),
      timed ? clock_->MonotonicNanos() - began_ns : 0);
  return in_full;
}

bool StepRecords::AddPhase(const std::string& entry, v1::CallKind kind,
                           BuildPhase build, ReferenceComparer::Phase phase,
                           bool may_wait) {
  // The collector's filter replays the trace before it checks the call.
  if (filter_->has_trace()) filter_->MoveTrace(Add()->mutable_trace());
  const auto compared = [&](CallBuilder& builder, v1::CallPhase* call) {
    tensors_.BeginReference(
        reference_.Begin(phase, entry, tensors_.held_bytes()));
    build(builder, call);
    tensors_.EndReference();
    std::unique_ptr<HeldPayloads> held;
    if (reference_.End(phase, call, &held)) tensors_.SendHeld(held.get(), call);
  };
  const bool in_full =
      AddCall(entry, kind, filter_->WantsPayload(entry),
              reference_.active() ? BuildPhase(compared) : build);
  if (may_wait) SubmitIfDue();
  return in_full;
}

void StepRecords::AddPhaseInFull(const std::string& entry, v1::CallKind kind,
                                 BuildPhase build) {
  const uint64_t payload_bytes = tensors_.payload_bytes();
  v1::CallPhase* call = Add()->mutable_call();
  BuildInFull(entry, kind, build, call);
  ++counts_.call_phases;
  if (watcher_ != nullptr) {
    watcher_->AddCost(
        tensors_.payload_bytes() - payload_bytes + call->ByteSizeLong(), 0);
  }
  SubmitIfDue();
}

void StepRecords::BuildInFull(const std::string& entry, v1::CallKind kind,
                              BuildPhase build, v1::CallPhase* call) {
  call->set_entry(entry);
  call->set_kind(kind);
  CallBuilder builder(&tensors_, &filter_->plan(), /*want_payload=*/true);
  tensors_.SetOptionalBytes(kMaxFiredBytes);
  build(builder, call);
  tensors_.SetOptionalBytes(std::nullopt);
}

void StepRecords::AddSaved(const std::string& entry, absl::string_view path,
                           const BuildValue& build) {
  AddCall(entry, v1::CALL_KIND_DEBUG, filter_->plan().KeepsAllTensors(),
          [&](CallBuilder& builder, v1::CallPhase* call) {
            call->set_debug_path(std::string(path));
            build(builder, call->mutable_debug());
          });
}

// Deferred tensors are not submitted early: the front end bounds them by
// resolving in time.
bool StepRecords::IsDue() const {
  if (buffer_ == nullptr || tensors_.HasDeferred()) return false;
  const size_t bytes = buffer_->ApproxBytes();
  return bytes >= kSubmitBytes ||
         (bytes >= kMinSubmitBytes &&
          clock_->MonotonicNanos() - submitted_ns_ >= kSubmitIntervalNs);
}

void StepRecords::SubmitIfDue() {
  if (!IsDue()) return;
  submitted_ns_ = clock_->MonotonicNanos();
  Submit();
}

void StepRecords::Submit() {
  if (buffer_ == nullptr || session_ == nullptr) return;
  // Records must not leave with deferred tensors: what has not arrived is null.
  Resolve({0, std::numeric_limits<uint64_t>::max(), {}});
  if (flight_ && watcher_ != nullptr) {
    watcher_->KeepFlight(std::move(buffer_));
    buffer_.reset();
    return;
  }
  const auto records = static_cast<uint64_t>(buffer_->batch()->records_size());
  submitted_ = true;
  if (!session_->SubmitRecords(std::move(buffer_)))
    counts_.lost_records += records;
  buffer_.reset();
}

void StepRecords::CountForward(bool matched) {
  if (!matched) ++counts_.filtered;
  ++counts_.forwards.seen;
  if (matched) ++counts_.forwards.matched;
}

RecordedCall::Needs StepRecords::NeedsFor(bool payload) const {
  using Needs = RecordedCall::Needs;
  if (reference_.active()) return Needs::kNow;
  const Plan& plan = filter_->plan();
  return payload || plan.summary_mode != SummaryMode::kStatistics ||
                 plan.precision == Precision::kHigh ||
                 !plan.extra_statistics.empty() || !plan.slices.empty() ||
                 tensors_.has_rows()
             ? Needs::kBytes
             : Needs::kNumbers;
}

void StepRecords::Resolve(const DeferredResults& results) {
  if (!tensors_.HasDeferred()) return;
  const uint64_t payload_bytes = tensors_.payload_bytes();
  tensors_.Resolve(results);
  if (watcher_ != nullptr)
    watcher_->AddCost(tensors_.payload_bytes() - payload_bytes, 0);
  if (tensors_.HasDeferred()) return;
  deferred_plans_.clear();
  // Only now the rules can check these phases, because their numbers are known.
  for (const v1::CallPhase* phase : deferred_phases_) watcher_->OnPhase(*phase);
  deferred_phases_.clear();
}

void StepRecords::KeepWhileDeferred(std::shared_ptr<const Plan> plan) {
  if (plan != nullptr && tensors_.HasDeferred())
    deferred_plans_.push_back(std::move(plan));
}

}  // namespace rankprobe
