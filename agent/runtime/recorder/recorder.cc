// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/recorder/recorder.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/runtime/recorder/step_requests.h"
#include "common/base/status_macros.h"
#include "common/base/step_range.h"
#include "common/filter/record_filter.h"
#include "common/records/cut_value.h"
#include "common/records/entry_names.h"
#include "common/text/visible_text.h"
#include "google/protobuf/stubs/common.h"

namespace rankprobe {
namespace {

// Records are handed over in pieces: each wakes threads on both sides, but what
// is left for the end of the step has to be waited for.
constexpr size_t kSubmitBytes = 512 << 10;
constexpr size_t kMinSubmitBytes = 32 << 10;
constexpr int64_t kSubmitIntervalNs = 30'000'000;
constexpr uint64_t kMaxFaultRecords = 100;

}  // namespace

void CallBuilder::NoData(v1::TensorSummary* out) { SetNoData(*plan_, out); }
void CallBuilder::Int(int64_t value, v1::Value* out) {
  out->mutable_scalar()->set_type("int");
  out->mutable_scalar()->set_i(value);
}
void CallBuilder::Float(double value, v1::Value* out) {
  out->mutable_scalar()->set_type("float");
  out->mutable_scalar()->set_f(value);
}
void CallBuilder::Bool(bool value, v1::Value* out) {
  out->mutable_scalar()->set_type("bool");
  out->mutable_scalar()->set_b(value);
}
void CallBuilder::String(absl::string_view value, v1::Value* out) {
  // Text on the wire is UTF-8.
  const bool utf8 = google::protobuf::internal::IsStructurallyValidUTF8(
      value.data(), static_cast<int>(value.size()));
  std::string text = utf8 ? std::string(value) : VisibleText(value);
  if (text.size() > kMaxTextBytes)
    return SetCutText("str", text, kMaxTextBytes, "length", out);
  out->mutable_scalar()->set_type("str");
  out->mutable_scalar()->set_s(std::move(text));
}

absl::StatusOr<std::unique_ptr<Recorder>> Recorder::Create(
    RecorderOptions options, std::unique_ptr<Session> session,
    const Clock* clock) {
  if (options.config_json.empty())
    options.config_json = std::string(DefaultConfigJson());
  RP_ASSIGN_OR_RETURN(ConfigResult config,
                      ParseConfig(options.config_json, options.overrides));
  std::unique_ptr<FileSystem> own;
  if (options.file_system == nullptr) {
    own = NewPosixFileSystem();
    options.file_system = own.get();
  }
  RP_RETURN_IF_ERROR(CheckReferencePath(config.plan, options.file_system));
  auto plan = std::make_shared<const Plan>(std::move(config.plan));
  return std::unique_ptr<Recorder>(
      new Recorder(std::move(options), std::move(session), clock,
                   std::move(own), std::move(plan)));
}

Recorder::Recorder(RecorderOptions options, std::unique_ptr<Session> session,
                   const Clock* clock,
                   std::unique_ptr<FileSystem> own_file_system,
                   std::shared_ptr<const Plan> local_plan)
    : options_(std::move(options)),
      clock_(clock),
      session_(std::move(session)),
      watcher_(session_ == nullptr ? nullptr : session_->watcher()),
      own_file_system_(std::move(own_file_system)),
      tensors_(session_.get()),
      reference_(session_.get(), options_.file_system, clock) {
  if (session_ != nullptr)
    session_->SetLocalPlan(local_plan, local_plan->dump_enable.value_or(true));
  absl::MutexLock lock(&mutex_);
  plan_ = std::move(local_plan);
  rank_ = options_.rank;
  tensors_.SetWideAsFloat(options_.framework == "mindspore");
  if (watcher_ != nullptr) {
    tensors_.SetFits(
        [watcher = watcher_](uint64_t bytes) { return watcher->Fits(bytes); });
  }
}

Recorder::~Recorder() {
  if (Forked()) return;
  recording_ = false;
  absl::MutexLock lock(&mutex_);
  Submit();
}

int64_t Recorder::current_step() const {
  absl::MutexLock lock(&mutex_);
  return init_step_ + loop_;
}

bool Recorder::enabled() const {
  absl::MutexLock lock(&mutex_);
  return plan_enabled_;
}

bool Recorder::request_missing() const {
  absl::MutexLock lock(&mutex_);
  return request_missing_;
}

std::optional<int64_t> Recorder::rank() const {
  absl::MutexLock lock(&mutex_);
  return rank_;
}

Recorder::Forwards Recorder::forwards() const {
  absl::MutexLock lock(&mutex_);
  return counts_.forwards;
}

std::shared_ptr<const Plan> Recorder::plan() const {
  absl::MutexLock lock(&mutex_);
  return plan_;
}

ActivePlan Recorder::asked() const {
  absl::MutexLock lock(&mutex_);
  return asked_;
}

absl::Status Recorder::SetInitStep(int64_t step) {
  if (!IsStep(step))
    return absl::InvalidArgumentError(absl::StrCat(
        "init step ", step, " is not an integer from 0 to ", kMaxStep));
  absl::MutexLock lock(&mutex_);
  init_step_ = step;
  loop_ = 0;
  return absl::OkStatus();
}

void Recorder::AdoptPlan(const ActivePlan& active) {
  plan_enabled_ = active.enabled && active.plan != nullptr;
  plan_epoch_ = active.epoch;
  if (active.plan == nullptr || (active.plan == plan_ && filter_ != nullptr))
    return;
  if (tensors_.HasDeferred()) deferred_plans_.push_back(std::move(plan_));
  plan_ = active.plan;
  filter_ = std::make_unique<CallFilter>(plan_.get());
}

static bool RecordsSaved(const ActivePlan& asked) {
  return asked.enabled && asked.plan != nullptr && asked.plan->RecordsSaved();
}

void Recorder::Start(std::optional<int64_t> rank,
                     const v1::StepRequests* requests) {
  if (Forked() || session_ == nullptr) return;
  absl::MutexLock lock(&mutex_);
  if (rank.has_value() && rank_ != rank) {
    rank_ = rank;
    session_->SetRank(*rank, 0);
  }
  const int64_t step = init_step_ + loop_;
  asked_ = session_->BeginStep(step);
  AdoptPlan(asked_);
  if (watcher_ != nullptr) watcher_->BeginStep(step);
  reference_.NotePlan(*plan_, plan_epoch_);
  bool wanted = plan_enabled_ && !plan_->RecordsSaved() &&
                !reference_.spent() && !plan_->FinishedBefore(step) &&
                plan_->WantsStep(step) && plan_->WantsRank(rank_);
  const v1::RequestRows* request = nullptr;
  request_missing_ = false;
  if (wanted && requests != nullptr && !plan_->request_id.empty()) {
    request = FindRequest(*requests, plan_->request_id);
    request_missing_ = request == nullptr;
    wanted = request != nullptr;
  }
  tensors_.SetRows(std::nullopt);
  if (request != nullptr)
    tensors_.SetRows(
        SliceSpec{0, requests->rows(), request->begin(), request->end()});
  if (!wanted && watcher_ != nullptr && !RecordsSaved(asked_)) {
    // Dumping is off: the step is recorded all the same, into the agent's memory.
    const std::shared_ptr<const Plan> plan = watcher_->FlightPlan();
    if (plan != nullptr && (!step_begun_ || flight_)) {
      flight_ = true;
      AdoptPlan({plan, /*epoch=*/0, /*enabled=*/true});
    }
    wanted = flight_;
  }
  if (wanted) {
    BeginStepRecords(requests == nullptr
                         ? v1::StepRequests()
                         : RequestsOfRecord(*requests, request));
  }
  if (wanted && !flight_) BeginReference(step);
  recording_.store(wanted, std::memory_order_relaxed);
}

void Recorder::BeginReference(int64_t step) {
  const absl::Status status = reference_.BeginStep(*plan_, step, rank_);
  if (status.ok()) return;
  const std::string what =
      absl::StrCat("step ", step, " is not compared with the reference: ",
                   absl::string_view(status.message()));
  AddError(what);
  if (reference_fault_epoch_ == plan_epoch_) return;
  reference_fault_epoch_ = plan_epoch_;
  v1::AgentEvent event;
  event.mutable_error()->set_step(step);
  event.mutable_error()->set_message(what);
  session_->SendEvent(std::move(event));
}

void Recorder::StopIfSpent() {
  if (!reference_.spent() || !reference_.active()) return;
  recording_.store(false, std::memory_order_relaxed);
  // Calls that are still open, and all gradients, are of no interest any more.
  ++generation_;
}

void Recorder::BeginStepRecords(v1::StepRequests requests) {
  std::string told = requests.SerializeAsString();
  if (step_begun_ && told == told_requests_) return;
  if (!step_begun_) tensors_.BeginCount();
  step_begun_ = true;
  v1::StepBegin* begin = AddRecord()->mutable_step_begin();
  begin->set_task(std::string(TaskName(plan_->task)));
  begin->set_level(std::string(LevelName(plan_->level)));
  begin->set_framework(options_.framework);
  begin->set_dump_path(plan_->dump_path);
  begin->set_has_payloads(plan_->HasPayloads());
  begin->set_extra_info(plan_->extra_info);
  begin->set_plan_epoch(plan_epoch_);
  begin->set_flight(flight_);
  for (const v1::StatisticId id : plan_->extra_statistics.Ids())
    begin->add_extra_statistics(id);
  if (!told.empty()) *begin->mutable_requests() = std::move(requests);
  told_requests_ = std::move(told);
}

void Recorder::Step() {
  if (Forked() || session_ == nullptr) return;
  recording_.store(false, std::memory_order_relaxed);
  // The end of the step is no less safe than what stop() was for.
  if (EndStep()) session_->Keep();
}

bool Recorder::EndStep() {
  absl::MutexLock lock(&mutex_);
  const bool sent = step_begun_ && !flight_;
  if (step_begun_) {
    v1::StepEnd* end = AddRecord()->mutable_step_end();
    end->set_call_phases(counts_.call_phases);
    end->set_filtered_calls(counts_.filtered);
    end->set_payloads(tensors_.payloads());
    end->set_lost_payloads(tensors_.lost_payloads());
    end->set_lost_records(counts_.lost_records);
    Submit();
  }
  if (watcher_ != nullptr) watcher_->EndStep();
  ++loop_;
  ++generation_;
  step_begun_ = step_submitted_ = flight_ = false;
  told_requests_.clear();
  trace_.Clear();
  traced_ = 0;
  next_order_ = 0;
  counts_ = StepCounts();
  call_numbers_.clear();
  parameter_rounds_.clear();
  module_stacks_.clear();
  module_edges_.clear();
  stacks_.clear();
  numbered_stacks_.clear();
  tensors_.BeginStep();
  reference_.EndStep();
  if (filter_ != nullptr) filter_->BeginStep();
  return sent;
}

bool Recorder::IsEmpty() const {
  return step_begun_ && !step_submitted_ && counts_.call_phases == 0 &&
         counts_.filtered == 0 && counts_.forwards.seen == 0;
}

bool Recorder::StepIsEmpty() const {
  if (Forked()) return false;
  absl::MutexLock lock(&mutex_);
  return IsEmpty();
}

bool Recorder::ForgetEmptyStep() {
  if (Forked()) return false;
  absl::MutexLock lock(&mutex_);
  if (!IsEmpty()) return false;
  recording_.store(false, std::memory_order_relaxed);
  buffer_.reset();
  step_begun_ = false;
  return true;
}

v1::Record* Recorder::AddRecord() {
  if (buffer_ == nullptr) {
    buffer_ = std::make_unique<RecordBuffer>();
    buffer_->batch()->set_step(init_step_ + loop_);
  }
  v1::Record* record = buffer_->Add();
  record->set_order(next_order_++);
  return record;
}

// What is deferred bounds itself: the front end resolves it in time.
void Recorder::SubmitIfDue() {
  if (tensors_.HasDeferred()) return;
  const size_t bytes = buffer_->ApproxBytes();
  if (bytes < kMinSubmitBytes) return;
  const int64_t now = clock_->MonotonicNanos();
  if (bytes < kSubmitBytes && now - submitted_ns_ < kSubmitIntervalNs) return;
  submitted_ns_ = now;
  Submit();
}

void Recorder::Submit() {
  if (buffer_ == nullptr || session_ == nullptr) return;
  Resolve({0, std::numeric_limits<uint64_t>::max(), {}});
  if (flight_ && watcher_ != nullptr) {
    watcher_->KeepFlight(std::move(buffer_));
    buffer_.reset();
    return;
  }
  const auto records = static_cast<uint64_t>(buffer_->batch()->records_size());
  step_submitted_ = true;
  if (!session_->SubmitRecords(std::move(buffer_)))
    counts_.lost_records += records;
  buffer_.reset();
}

void Recorder::ResolveDeferred(const DeferredResults& results) {
  if (Forked()) return;
  absl::MutexLock lock(&mutex_);
  Resolve(results);
  if (buffer_ != nullptr) SubmitIfDue();
}

void Recorder::Resolve(const DeferredResults& results) {
  if (!tensors_.HasDeferred()) return;
  const uint64_t payload_bytes = tensors_.payload_bytes();
  tensors_.Resolve(results);
  if (watcher_ != nullptr)
    watcher_->AddCost(tensors_.payload_bytes() - payload_bytes, 0);
  if (tensors_.HasDeferred()) return;
  deferred_plans_.clear();
  for (const v1::CallPhase* phase : deferred_phases_) watcher_->OnPhase(*phase);
  deferred_phases_.clear();
}

void Recorder::AddPhase(const std::string& entry, v1::CallKind kind,
                        BuildFn build, ReferenceComparer::Phase phase) {
  AddTrace();
  const WatchedPhase watched = BeginWatched();
  v1::CallPhase* call = AddRecord()->mutable_call();
  call->set_entry(entry);
  call->set_kind(kind);
  CallBuilder builder(&tensors_, plan_.get(), filter_->WantsPayload(entry));
  if (reference_.active()) {
    tensors_.BeginReference(
        reference_.Begin(phase, entry, tensors_.held_bytes()));
    build(builder, call);
    tensors_.EndReference();
    std::unique_ptr<HeldPayloads> held;
    if (reference_.End(phase, call, &held)) tensors_.SendHeld(held.get(), call);
  } else {
    build(builder, call);
  }
  ++counts_.call_phases;
  EndWatched(watched, call);
  SubmitIfDue();
}

Verdict Recorder::AskFilter(v1::CallTrace::Kind kind, absl::string_view entry) {
  if (watcher_ != nullptr) watcher_->OnCall(kind, entry);
  if (PlanHasWindows(*plan_)) {
    v1::CallTrace::Item* item = trace_.add_items();
    item->set_kind(kind);
    item->set_entry(entry.data(), entry.size());
  }
  switch (kind) {
    case v1::CallTrace::KIND_MODULE_BEGIN:
      return filter_->ModuleBegin(entry);
    case v1::CallTrace::KIND_MODULE_END:
      return filter_->ModuleEnd(entry);
    case v1::CallTrace::KIND_PARAMETERS_GRAD:
      return filter_->ParametersGrad(entry);
    default:
      return filter_->Api(entry);
  }
}

void Recorder::AddTrace() {
  if (trace_.items().empty()) return;
  trace_.set_first(traced_);
  traced_ += static_cast<uint64_t>(trace_.items_size());
  *AddRecord()->mutable_trace() = std::move(trace_);
  trace_.Clear();
}

bool Recorder::Edges() const {
  return plan_->extra_info && plan_->RecordsModules();
}

void Recorder::AddEdge(const std::string& entry,
                       const std::optional<std::string>& parent) {
  v1::ConstructEdge* edge = AddRecord()->mutable_edge();
  edge->set_entry(entry);
  if (parent.has_value()) edge->set_parent(*parent);
}

// Modules enter construct.json in the order they began, but only when the next
// record is finished.
void Recorder::FlushModuleEdges() {
  for (const auto& [entry, parent] : module_edges_) AddEdge(entry, parent);
  module_edges_.clear();
}

std::vector<std::string>& Recorder::ModuleStack() {
  return module_stacks_[std::this_thread::get_id()];
}

std::optional<std::string> Recorder::Parent() {
  const std::vector<std::string>& stack = ModuleStack();
  if (stack.empty()) return std::nullopt;
  return stack.back();
}

void Recorder::ReportFault(absl::string_view what) {
  if (Forked()) return;
  absl::MutexLock lock(&mutex_);
  if (++faults_ > kMaxFaultRecords || !step_begun_) return;
  AddError(what);
}

void Recorder::AddError(absl::string_view what) {
  v1::ErrorEvent* error = AddRecord()->mutable_error();
  error->set_time_unix_ns(absl::ToUnixNanos(clock_->Now()));
  error->set_message(std::string(what));
}

}  // namespace rankprobe
