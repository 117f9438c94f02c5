// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/recorder/recorder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "agent/runtime/recorder/step_requests.h"
#include "common/base/status_macros.h"
#include "common/base/step_range.h"

namespace rankprobe {
namespace {

constexpr uint64_t kMaxFaultRecords = 100;
// How often a step that records nothing is begun by Start() at least.
constexpr int64_t kFullStartNs = 1'000'000'000;
// Longest wait of Stop() for a collector that was stuck and commits again.
constexpr absl::Duration kPatienceWithStuck = absl::Seconds(1);
// Bounds of one wait, after which the collector's progress is checked again.
constexpr absl::Duration kShortestWait = absl::Milliseconds(1);
constexpr absl::Duration kLongestLook = absl::Milliseconds(250);

bool RecordsSaved(const ActivePlan& asked) {
  return asked.enabled && asked.plan != nullptr && asked.plan->RecordsSaved();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Recorder>> Recorder::Create(
    RecorderOptions options, std::unique_ptr<Session> session,
    const Clock* clock) {
  if (options.config_json.empty())
    options.config_json = std::string(DefaultConfigJson());
  RP_ASSIGN_OR_RETURN(ConfigResult config,
                      ParseConfig(options.config_json, options.overrides));
  std::unique_ptr<FileSystem> file_system = NewPosixFileSystem();
  RP_RETURN_IF_ERROR(CheckReferencePath(config.plan, file_system.get()));
  auto plan = std::make_shared<const Plan>(std::move(config.plan));
  return std::unique_ptr<Recorder>(
      new Recorder(std::move(options), std::move(session), clock,
                   std::move(file_system), std::move(plan)));
}

Recorder::Recorder(RecorderOptions options, std::unique_ptr<Session> session,
                   const Clock* clock, std::unique_ptr<FileSystem> file_system,
                   std::shared_ptr<const Plan> local_plan)
    : options_(std::move(options)),
      clock_(clock),
      file_system_(std::move(file_system)),
      core_(std::move(session), clock, file_system_.get(), options_.framework,
            local_plan) {
  if (core_.session != nullptr)
    core_.session->SetLocalPlan(local_plan,
                                local_plan->dump_enable.value_or(true));
  absl::MutexLock lock(&core_.mutex);
  core_.rank = options_.rank;
}

Recorder::~Recorder() {
  if (core_.Forked()) return;
  core_.recording = false;
  absl::MutexLock lock(&core_.mutex);
  core_.records.Submit();
}

int64_t Recorder::current_step() const {
  absl::MutexLock lock(&core_.mutex);
  return core_.records.step();
}

bool Recorder::enabled() const {
  absl::MutexLock lock(&core_.mutex);
  return core_.filter.enabled();
}

bool Recorder::request_missing() const {
  absl::MutexLock lock(&core_.mutex);
  return request_missing_;
}

std::optional<int64_t> Recorder::rank() const {
  absl::MutexLock lock(&core_.mutex);
  return core_.rank;
}

StepRecords::Forwards Recorder::forwards() const {
  absl::MutexLock lock(&core_.mutex);
  return core_.records.forwards();
}

std::shared_ptr<const Plan> Recorder::plan() const {
  absl::MutexLock lock(&core_.mutex);
  return core_.filter.shared_plan();
}

ActivePlan Recorder::asked() const {
  absl::MutexLock lock(&core_.mutex);
  return asked_;
}

absl::Status Recorder::SetInitStep(int64_t step) {
  if (!IsStep(step))
    return absl::InvalidArgumentError(absl::StrCat(
        "init step ", step, " is not an integer from 0 to ", kMaxStep));
  absl::MutexLock lock(&core_.mutex);
  core_.records.SetStep(step);
  return absl::OkStatus();
}

void Recorder::Start(std::optional<int64_t> rank,
                     const v1::StepRequests* requests) {
  if (core_.Forked() || core_.session == nullptr) return;
  absl::MutexLock lock(&core_.mutex);
  started_ns_ = clock_->MonotonicNanos();
  StepRecords& records = core_.records;
  if (rank.has_value() && core_.rank != rank) {
    core_.rank = rank;
    core_.session->SetRank(*rank, 0);
  }
  asked_ = core_.BeginStep();
  const Plan& plan = core_.filter.plan();
  records.reference().NotePlan(plan, core_.filter.epoch());
  bool wanted = core_.filter.enabled() && !plan.RecordsSaved() &&
                !records.reference().spent() &&
                !plan.FinishedBefore(records.step()) &&
                plan.WantsStep(records.step()) && plan.WantsRank(core_.rank);
  const v1::RequestRows* request = nullptr;
  request_missing_ = false;
  if (wanted && requests != nullptr && !plan.request_id.empty()) {
    request = FindRequest(*requests, plan.request_id);
    request_missing_ = request == nullptr;
    wanted = request != nullptr;
  }
  records.tensors().SetRows(std::nullopt);
  if (request != nullptr)
    records.tensors().SetRows(
        SliceSpec{0, requests->rows(), request->begin(), request->end()});
  if (!wanted && core_.watcher != nullptr && !RecordsSaved(asked_)) {
    // Dumping is off: the step is recorded into the agent's memory instead.
    const std::shared_ptr<const Plan> flight = core_.watcher->FlightPlan();
    // A step that has begun for the collector stays there.
    if (flight != nullptr && (!records.begun() || records.flight())) {
      records.GoToFlight();
      core_.Adopt({flight, /*epoch=*/0, /*enabled=*/true});
    }
    wanted = records.flight();
  }
  if (wanted) {
    records.Begin(requests == nullptr ? v1::StepRequests()
                                      : RequestsOfRecord(*requests, request));
  }
  if (wanted && !records.flight()) records.BeginReference(core_.rank);
  core_.recording.store(wanted, std::memory_order_relaxed);
}

bool Recorder::IsIdle() const {
  return !core_.filter.enabled() && !asked_.enabled && !core_.records.begun() &&
         (core_.watcher == nullptr || core_.watcher->IsIdle());
}

bool Recorder::StartIdle() {
  // The caller may hold the GIL, so nothing is waited for.
  if (core_.Forked() || core_.session == nullptr || !core_.mutex.TryLock())
    return false;
  const bool idle = IsIdle() &&
                    clock_->MonotonicNanos() - started_ns_ < kFullStartNs &&
                    core_.session->BeginIdleStep(core_.records.step());
  core_.mutex.Unlock();
  return idle;
}

bool Recorder::StepIdle() {
  if (core_.Forked() || core_.session == nullptr || !core_.mutex.TryLock())
    return false;
  const bool idle = IsIdle();
  if (idle) core_.records.SkipStep();
  core_.mutex.Unlock();
  return idle;
}

bool Recorder::Stop(const std::function<absl::Duration()>& at_most) {
  Session* const session = core_.session.get();
  if (core_.Forked() || session == nullptr) return true;
  core_.recording.store(false, std::memory_order_relaxed);
  absl::Duration patience = options_.stop_deadline;
  {
    absl::MutexLock lock(&core_.mutex);
    if (!core_.records.begun()) return true;
    core_.records.Submit();
    // These records stay in the agent's memory, so there is nothing to wait
    // for.
    if (core_.records.flight()) return true;
    if (stuck_at_.has_value()) {
      // The collector's disk may be full. Later steps wait only once it commits
      // again.
      patience = session->GetStats().committed_sequence == *stuck_at_
                     ? absl::ZeroDuration()
                     : std::min(patience, kPatienceWithStuck);
    }
  }
  if (session->Keep()) return true;
  const absl::Duration longest =
      at_most ? std::min(options_.stop_deadline, at_most())
              : options_.stop_deadline;
  patience = std::min(patience, longest);
  // Wait for COMMITTED while the collector responds.
  const int64_t begun_ns = clock_->MonotonicNanos();
  const auto waited = [&] {
    return absl::Nanoseconds(clock_->MonotonicNanos() - begun_ns);
  };
  SessionStats stats = session->GetStats();
  while (stats.connected && waited() < patience &&
         stats.silence < options_.silence_deadline) {
    const absl::Duration rest =
        std::max(options_.silence_deadline - stats.silence, kShortestWait);
    const absl::Status status =
        session->Flush(v1::DURABILITY_COMMITTED,
                       std::min({patience - waited(), rest, kLongestLook}));
    if (status.ok()) {
      absl::MutexLock lock(&core_.mutex);
      stuck_at_.reset();
      return false;
    }
    stats = session->GetStats();
  }
  // With a spool, uncommitted data is kept for the next process.
  session->FlushToSpool(longest).IgnoreError();
  if (!stats.connected) return false;
  bool newly;
  {
    absl::MutexLock lock(&core_.mutex);
    newly = !stuck_at_.has_value();
    stuck_at_ = stats.committed_sequence;
  }
  // A silent collector is reported when its connection is given up.
  if (newly && waited() > kPatienceWithStuck) session->TellStuck(patience);
  return false;
}

void Recorder::Step() {
  if (core_.Forked() || core_.session == nullptr) return;
  core_.recording.store(false, std::memory_order_relaxed);
  // The end of the step must be as safe as the records that stop() waited for.
  if (EndStep()) core_.session->Keep();
}

bool Recorder::EndStep() {
  absl::MutexLock lock(&core_.mutex);
  const bool sent = core_.records.End();
  core_.tree.EndStep();
  core_.filter.EndStep();
  return sent;
}

bool Recorder::StepIsEmpty() const {
  if (core_.Forked()) return false;
  absl::MutexLock lock(&core_.mutex);
  return core_.records.IsEmpty();
}

bool Recorder::ForgetEmptyStep() {
  if (core_.Forked()) return false;
  absl::MutexLock lock(&core_.mutex);
  if (!core_.records.IsEmpty()) return false;
  core_.recording.store(false, std::memory_order_relaxed);
  core_.records.Forget();
  return true;
}

void Recorder::ResolveDeferred(const DeferredResults& results) {
  if (core_.Forked()) return;
  absl::MutexLock lock(&core_.mutex);
  core_.records.Resolve(results);
  core_.records.SubmitIfDue();
}

void Recorder::ReportFault(absl::string_view what) {
  if (core_.Forked()) return;
  absl::MutexLock lock(&core_.mutex);
  if (++faults_ > kMaxFaultRecords || !core_.records.begun()) return;
  core_.records.AddError(what);
}

}  // namespace rankprobe
