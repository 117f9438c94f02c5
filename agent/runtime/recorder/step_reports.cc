// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/recorder/step_reports.h"

#include <string>

#include "common/base/limits.h"
#include "common/records/cut_value.h"

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
  StepRecords& records = core_->records;
  if (!records.for_collector()) return;
  // A record of the longest texts still fits in a frame.
  constexpr int kFactsPerRecord = 128;
  v1::RunCard* card = nullptr;
  for (const v1::RunFact& fact : facts) {
    if (fact.section().empty() || fact.name().empty()) continue;
    if (card == nullptr || card->facts_size() == kFactsPerRecord)
      card = records.Add()->mutable_run_card();
    v1::RunFact* added = card->add_facts();
    added->set_section(
        std::string(Utf8Prefix(fact.section(), kMaxFactSectionBytes)));
    added->set_name(std::string(Utf8Prefix(fact.name(), kMaxFactNameBytes)));
    added->set_value(std::string(Utf8Prefix(fact.value(), kMaxFactValueBytes)));
  }
  if (card != nullptr) records.SubmitIfDue();
}

}  // namespace rankprobe
