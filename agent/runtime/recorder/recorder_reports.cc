// SPDX-License-Identifier: Apache-2.0
// What a step says beside its calls: for triggers, and for the run card.
#include <string>

#include "agent/runtime/recorder/recorder.h"
#include "common/base/limits.h"
#include "common/records/cut_value.h"

namespace rankprobe {

Recorder::WatchedPhase Recorder::BeginWatched() {
  WatchedPhase phase;
  phase.watched = watcher_ != nullptr && watcher_->active();
  phase.timed = phase.watched && watcher_->timed();
  if (phase.timed) phase.began_ns = clock_->MonotonicNanos();
  phase.payload_bytes = tensors_.payload_bytes();
  phase.deferred = tensors_.deferred();
  if (phase.watched) tensors_.SetDegraded(watcher_->evidence_level());
  return phase;
}

void Recorder::EndWatched(const WatchedPhase& phase,
                          const v1::CallPhase* call) {
  if (!phase.watched) return;
  if (tensors_.deferred() > phase.deferred) {
    deferred_phases_.push_back(call);
  } else {
    watcher_->OnPhase(*call);
  }
  watcher_->AddCost(
      tensors_.payload_bytes() - phase.payload_bytes + call->ByteSizeLong(),
      phase.timed ? clock_->MonotonicNanos() - phase.began_ns : 0);
}

bool Recorder::WantsLoss() const {
  return !Forked() && watcher_ != nullptr && watcher_->active();
}

void Recorder::ReportLoss(double loss) {
  if (WantsLoss()) watcher_->OnLoss(loss);
}

bool Recorder::WantsReplica() const {
  return !Forked() && watcher_ != nullptr && watcher_->wants_replica();
}

void Recorder::ReportReplica(absl::Span<const TensorInfo> tensors) {
  if (!WantsReplica()) return;
  SummaryRequest request;
  request.statistics = false;
  request.digest = true;
  uint64_t digest = 0;
  for (const TensorInfo& tensor : tensors) {
    const Summary summary = Summarize(tensor.view, request);
    // Order matters: a swap of two tensors is a difference.
    for (const uint8_t byte : summary.digest)
      digest = (digest ^ byte) * uint64_t{0x100000001b3};
  }
  watcher_->OnReplica(digest);
}

bool Recorder::WantsFacts() const {
  if (Forked() || session_ == nullptr) return false;
  absl::MutexLock lock(&mutex_);
  return step_begun_ && !flight_;
}

void Recorder::RecordFacts(absl::Span<const v1::RunFact> facts) {
  if (Forked() || session_ == nullptr) return;
  absl::MutexLock lock(&mutex_);
  if (!step_begun_ || flight_) return;
  // A record of the longest texts still fits a frame.
  constexpr int kFactsPerRecord = 128;
  v1::RunCard* card = nullptr;
  for (const v1::RunFact& fact : facts) {
    if (fact.section().empty() || fact.name().empty()) continue;
    if (card == nullptr || card->facts_size() == kFactsPerRecord)
      card = AddRecord()->mutable_run_card();
    v1::RunFact* added = card->add_facts();
    added->set_section(
        std::string(Utf8Prefix(fact.section(), kMaxFactSectionBytes)));
    added->set_name(std::string(Utf8Prefix(fact.name(), kMaxFactNameBytes)));
    added->set_value(std::string(Utf8Prefix(fact.value(), kMaxFactValueBytes)));
  }
  if (card != nullptr) SubmitIfDue();
}

}  // namespace rankprobe
