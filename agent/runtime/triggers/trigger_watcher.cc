// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/triggers/trigger_watcher.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "agent/runtime/triggers/run_facts.h"
#include "common/config/trigger_spec.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxCalls = 20000;
constexpr uint32_t kMaxFollowingSteps = 16;

// Returns the records with the end of that step, or of the last one if it is not
// there.
v1::RecordBatch* EndOfStep(const FlightRing::Contents& contents, int64_t step) {
  v1::RecordBatch* found = contents.buffers.back()->batch();
  for (const auto& buffer : contents.buffers)
    if (buffer->batch()->step() == step) found = buffer->batch();
  return found;
}

// Adds facts to a step that has ended: its last record is its end, which counts
// the records before it.
void AddBeforeEnd(const std::vector<v1::RunFact>& facts,
                  v1::RecordBatch* batch) {
  if (facts.empty() || batch->records().empty()) return;
  AddFacts(facts, [batch] {
    const int last = batch->records_size() - 1;
    const uint64_t order = batch->records(last).order();
    v1::Record* const added = batch->add_records();
    added->set_order(order + 1);
    if (!batch->records(last).has_step_end()) return added->mutable_run_card();
    batch->mutable_records()->SwapElements(last, last + 1);
    batch->mutable_records(last)->set_order(order);
    batch->mutable_records(last + 1)->set_order(order + 1);
    return batch->mutable_records(last)->mutable_run_card();
  });
}

}  // namespace

TriggerWatcher::TriggerWatcher(const Clock* clock, Emit emit)
    : emit_(std::move(emit)), triggers_(clock) {}

void TriggerWatcher::Configure(const v1::TriggerSpec& untrusted) {
  if (!CheckTriggerSpec(untrusted).ok()) return;
  v1::TriggerSpec spec = WithDefaults(untrusted);
  std::shared_ptr<const Plan> plan;
  if (spec.flight().steps() > 0) {
    auto config = ParseConfig(FlightConfigJson(spec.flight()), {});
    if (config.ok())
      plan = std::make_shared<const Plan>(std::move(config->plan));
  }
  absl::MutexLock lock(&mutex_);
  flight_plan_ = std::move(plan);
  ring_.SetLimits(spec.flight().steps(), spec.flight().max_bytes());
  triggers_.Configure(spec);
  tokens_.SetLimits(spec.flight().requests(), spec.flight().tokens());
  wants_tokens_.store(spec.flight().tokens() > 0, std::memory_order_relaxed);
  budget_.Configure(spec.budget());
  active_.store(
      spec.rules_size() > 0 || budget_.limited() || budget_.level() > 0,
      std::memory_order_relaxed);
  spec_ = std::move(spec);
}

void TriggerWatcher::SetRunLevel(uint32_t level) {
  absl::MutexLock lock(&mutex_);
  budget_.SetRunLevel(level);
  if (level > 0) active_.store(true, std::memory_order_relaxed);
}

void TriggerWatcher::RequestFlight() {
  absl::MutexLock lock(&mutex_);
  flight_wanted_ = true;
  flight_follows_ = kMaxFollowingSteps;
  HoldSteps();
}

void TriggerWatcher::HoldSteps() {
  held_steps_ = kMaxFollowingSteps;
  ring_.KeepMore(kMaxFollowingSteps);
}

void TriggerWatcher::ReleaseSteps() {
  if (held_steps_ == 0 && !flight_wanted_) ring_.KeepMore(0);
}

v1::RequestFlagged TriggerWatcher::FlagRequest(const std::string& request) {
  RequestFlight();
  absl::MutexLock lock(&mutex_);
  return tokens_.Flag(request);
}

std::optional<FlightRing::Contents> TriggerWatcher::TakeRequestedFlight() {
  absl::MutexLock lock(&mutex_);
  if (!std::exchange(flight_wanted_, false)) return std::nullopt;
  FlightRing::Contents contents = ring_.Take();
  ReleaseSteps();
  if (contents.steps == 0) return std::nullopt;
  for (const RequestTokens::Wanted& wanted : tokens_.TakeWanted())
    AddBeforeEnd(wanted.facts, EndOfStep(contents, wanted.step));
  return contents;
}

std::optional<FlightRing::Contents> TriggerWatcher::TakeLastFlight() {
  {
    absl::MutexLock lock(&mutex_);
    if (spec_.flight().ship_at_exit() || held_steps_ > 0) flight_wanted_ = true;
    // A program that raises an exception because of the NaN ends no step.
    if (held_steps_ > 0) ring_.EndStep();
  }
  return TakeRequestedFlight();
}

void TriggerWatcher::OnToken(const std::string& request, RequestToken token) {
  absl::MutexLock lock(&mutex_);
  token.step = step_;
  std::vector<v1::TriggerFired> fired =
      triggers_.OnToken(request, tokens_.Add(request, token));
  for (const v1::TriggerFired& one : fired) {
    tokens_.Want(request,
                 absl::StrCat("rule ", one.rule(), ": ", one.detail()));
  }
  EmitFired(std::move(fired));
}

std::vector<v1::RunFact> TriggerWatcher::TakeTokens() {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::RunFact> facts;
  for (RequestTokens::Wanted& wanted : tokens_.TakeWanted())
    absl::c_move(wanted.facts, std::back_inserter(facts));
  return facts;
}

v1::CallReport TriggerWatcher::ReportCalls(uint64_t id) const {
  v1::CallReport report;
  report.set_id(id);
  absl::MutexLock lock(&mutex_);
  // Before the end of the first step, its calls so far.
  const Calls& calls = last_calls_.step >= 0 ? last_calls_ : calls_;
  report.set_step(calls.items.empty() ? -1 : calls.step);
  report.set_truncated(calls.truncated);
  size_t begin = 0;
  for (const auto& [kind, end] : calls.items) {
    v1::CallTrace::Item* item = report.mutable_calls()->add_items();
    item->set_kind(kind);
    item->set_entry(calls.text.substr(begin, end - begin));
    begin = end;
  }
  return report;
}

void TriggerWatcher::BeginStep(int64_t step) {
  absl::MutexLock lock(&mutex_);
  // Start, stop and start again belong to one step.
  if (step == step_) return;
  step_ = step;
  budget_.BeginStep(step);
}

void TriggerWatcher::Calls::Clear() {
  step = -1;
  truncated = false;
  text.clear();
  items.clear();
}

bool TriggerWatcher::IsIdle() const {
  absl::MutexLock lock(&mutex_);
  return !active() && !wants_tokens() && flight_plan_ == nullptr &&
         flight_follows_ == 0 && calls_.items.empty();
}

void TriggerWatcher::EndStep() {
  absl::MutexLock lock(&mutex_);
  ring_.EndStep();
  step_ = -1;
  // A step that went to the archive itself ends the requested flight.
  if (!std::exchange(kept_this_step_, false)) flight_follows_ = 0;
  if (flight_follows_ > 0) {
    --flight_follows_;
    flight_wanted_ = true;
  }
  if (held_steps_ > 0) --held_steps_;
  ReleaseSteps();
  if (calls_.items.empty()) return;
  std::swap(last_calls_, calls_);
  calls_.Clear();
}

std::shared_ptr<const Plan> TriggerWatcher::FlightPlan() const {
  absl::MutexLock lock(&mutex_);
  return flight_plan_;
}

void TriggerWatcher::KeepFlight(std::unique_ptr<RecordBuffer> records) {
  absl::MutexLock lock(&mutex_);
  kept_this_step_ = true;
  ring_.Add(std::move(records));
}

void TriggerWatcher::EmitFired(std::vector<v1::TriggerFired> fired) {
  if (!fired.empty()) HoldSteps();
  for (v1::TriggerFired& one : fired) {
    v1::AgentEvent event;
    *event.mutable_fired() = std::move(one);
    emit_(std::move(event));
  }
}

bool TriggerWatcher::WantsTensors(const v1::TriggerFired& fired) const {
  return absl::c_any_of(spec_.rules(), [&](const v1::TriggerRule& rule) {
    return rule.name() == fired.rule() &&
           rule.raise_to() == v1::TriggerRule::EVIDENCE_TENSORS;
  });
}

bool TriggerWatcher::OnPhase(const v1::CallPhase& phase) {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::TriggerFired> fired = triggers_.OnPhase(step_, phase);
  const bool wants_tensors = std::any_of(
      fired.begin(), fired.end(),
      [this](const v1::TriggerFired& one)
          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return WantsTensors(one); });
  EmitFired(std::move(fired));
  if (auto notice = triggers_.TakeNotice(); notice.has_value()) {
    v1::AgentEvent event;
    event.mutable_error()->set_step(step_);
    event.mutable_error()->set_message(*std::move(notice));
    emit_(std::move(event));
  }
  return wants_tensors;
}

void TriggerWatcher::OnLoss(double loss) {
  absl::MutexLock lock(&mutex_);
  EmitFired(triggers_.OnLoss(step_, loss));
}

bool TriggerWatcher::wants_replica() const {
  if (!active()) return false;
  absl::MutexLock lock(&mutex_);
  return absl::c_any_of(spec_.rules(),
                        [](const auto& rule) { return rule.has_replica(); });
}

void TriggerWatcher::OnReplica(uint64_t digest) {
  absl::MutexLock lock(&mutex_);
  v1::AgentEvent event;
  event.mutable_replica()->set_step(step_);
  event.mutable_replica()->set_digest(digest);
  emit_(std::move(event));
}

void TriggerWatcher::OnCall(v1::CallTrace::Kind kind, absl::string_view entry) {
  absl::MutexLock lock(&mutex_);
  calls_.step = step_;
  if (calls_.items.size() >= kMaxCalls) {
    calls_.truncated = true;
    return;
  }
  calls_.text.append(entry.data(), entry.size());
  calls_.items.emplace_back(kind, calls_.text.size());
}

bool TriggerWatcher::timed() const {
  absl::MutexLock lock(&mutex_);
  return spec_.budget().ms_per_step() > 0;
}

uint32_t TriggerWatcher::evidence_level() const {
  absl::MutexLock lock(&mutex_);
  return budget_.level();
}

bool TriggerWatcher::Fits(uint64_t payload_bytes) const {
  absl::MutexLock lock(&mutex_);
  return budget_.Fits(payload_bytes);
}

void TriggerWatcher::AddCost(uint64_t bytes, int64_t ns) {
  absl::MutexLock lock(&mutex_);
  if (auto reached = budget_.Add(bytes, ns); reached.has_value()) {
    v1::AgentEvent event;
    *event.mutable_budget() = *std::move(reached);
    emit_(std::move(event));
  }
}

}  // namespace rankprobe
