// SPDX-License-Identifier: Apache-2.0
// CommitQueue: check of records against the plan of their step.

#include "absl/strings/str_cat.h"
#include "collector/ingest/commit_queue.h"

namespace rankprobe {
namespace {

// First order of records that the gate adds to a step, after the rank's own.
constexpr uint64_t kGateOrderBase = uint64_t{3} << 61;
constexpr size_t kMaxRememberedSteps = 4096;

}  // namespace

// Prepares the checks of single calls that the plan requires. Gates remember
// names, so only those of the newest steps are kept.
void CommitQueue::BeginStepGate(Upload* upload, int64_t step, uint64_t epoch) {
  if (upload->plan_of_step.size() >= kMaxRememberedSteps)
    upload->plan_of_step.erase(upload->plan_of_step.begin());
  for (auto& [other, plan] : upload->plan_of_step) {
    if (other < step - 1 || other > step) plan.gate.reset();
  }
  StepPlan& plan = upload->plan_of_step[step];
  plan.epoch = epoch;
  const std::shared_ptr<const CompiledPlan> compiled =
      epoch == 0 ? nullptr : gate_->PlanOf(upload->identity, epoch);
  plan.gate.reset();
  if (compiled != nullptr) {
    plan.gate = std::make_shared<RecordFilter>(
        std::shared_ptr<const Plan>(compiled, &compiled->plan));
  }
}

void CommitQueue::CheckCalls(RecordFilter* gate, v1::UploadFrame* frame) {
  v1::RecordBatch& batch = *frame->mutable_batch();
  std::map<Verdict, uint64_t> refused;
  int kept = 0;
  for (int i = 0; i < batch.records_size(); ++i) {
    const v1::Record& record = batch.records(i);
    bool keep = true;
    if (record.has_trace()) {
      gate->Replay(record.trace());
    } else if (record.has_call()) {
      const Verdict verdict = gate->Check(record.call());
      keep = verdict == Verdict::kKeep;
      if (!keep) ++refused[verdict];
    }
    if (!keep) continue;
    if (kept != i) batch.mutable_records()->SwapElements(kept, i);
    ++kept;
  }
  batch.mutable_records()->DeleteSubrange(kept, batch.records_size() - kept);
  uint64_t order = kGateOrderBase + (frame->sequence() << 8);
  for (const auto& [verdict, calls] : refused) {
    v1::Record* record = batch.add_records();
    record->set_order(order++);
    record->mutable_loss()->set_reason(v1::LOSS_REASON_FILTERED);
    record->mutable_loss()->set_records(calls);
    record->mutable_loss()->set_detail(
        absl::StrCat("outside the plan: ", std::string(VerdictName(verdict))));
  }
}

void CommitQueue::ApplyGate(Upload* upload, v1::UploadFrame* frame) {
  if (!frame->has_batch()) return;
  v1::RecordBatch& batch = *frame->mutable_batch();
  for (const v1::Record& record : batch.records()) {
    if (record.has_step_begin())
      BeginStepGate(upload, batch.step(), record.step_begin().plan_epoch());
  }
  const auto it = upload->plan_of_step.find(batch.step());
  // After a reconnect the begin of a step may have arrived on another stream.
  if (it == upload->plan_of_step.end()) return;
  if (gate_->Admits(upload->identity, batch.step(), it->second.epoch)) {
    if (it->second.gate != nullptr) CheckCalls(it->second.gate.get(), frame);
    return;
  }
  uint64_t calls = 0;
  for (const v1::Record& record : batch.records())
    calls += record.has_call() ? 1 : 0;
  batch.clear_records();
  if (calls == 0) return;
  v1::Record* record = batch.add_records();
  record->set_order(kGateOrderBase + (frame->sequence() << 8));
  record->mutable_loss()->set_reason(v1::LOSS_REASON_FILTERED);
  record->mutable_loss()->set_records(calls);
  record->mutable_loss()->set_detail(
      absl::StrCat("outside the plan of epoch ", it->second.epoch));
}

}  // namespace rankprobe
