// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/recorder/step_reports.h"

#include <string>

#include "agent/runtime/triggers/run_facts.h"

namespace rankprobe {

bool StepReports::WantsLoss() const {
  return !core_->Forked() && core_->watcher != nullptr &&
         core_->watcher->active();
}

void StepReports::ReportLoss(double loss) {
  if (WantsLoss()) core_->watcher->OnLoss(loss);
}

bool StepReports::WantsReplica() const {
  return !core_->Forked() && core_->watcher != nullptr &&
         core_->watcher->wants_replica();
}

void StepReports::ReportReplica(absl::Span<const TensorInfo> tensors) {
  if (!WantsReplica()) return;
  SummaryRequest request;
  request.statistics = false;
  request.digest = true;
  uint64_t digest = 0;
  for (const TensorInfo& tensor : tensors) {
    const Summary summary = Summarize(tensor.view, request);
    // The order matters: swapping two tensors is a difference.
    for (const uint8_t byte : summary.digest)
      digest = (digest ^ byte) * uint64_t{0x100000001b3};
  }
  core_->watcher->OnReplica(digest);
}

bool StepReports::WantsFacts() const {
  if (core_->Forked() || core_->session == nullptr) return false;
  absl::MutexLock lock(&core_->mutex);
  return core_->records.for_collector();
}

void StepReports::RecordFacts(absl::Span<const v1::RunFact> facts) {
  if (core_->Forked() || core_->session == nullptr) return;
  absl::MutexLock lock(&core_->mutex);
  if (core_->records.for_collector()) Add(facts);
}

void StepReports::Add(absl::Span<const v1::RunFact> facts) {
  StepRecords* const records = &core_->records;
  if (AddFacts(facts, [records] { return records->Add()->mutable_run_card(); }))
    records->SubmitIfDue();
}

bool StepReports::WantsTokens() const {
  return !core_->Forked() && core_->session != nullptr &&
         core_->watcher != nullptr && core_->watcher->wants_tokens();
}

void StepReports::ReportTokens(
    absl::Span<const std::pair<std::string, RequestToken>> tokens) {
  if (!WantsTokens()) return;
  for (const auto& [request, token] : tokens)
    core_->watcher->OnToken(request, token);
  absl::MutexLock lock(&core_->mutex);
  if (core_->records.begun()) Add(core_->watcher->TakeTokens());
}

}  // namespace rankprobe
