// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/reference/reference_comparer.h"

#include <utility>

namespace rankprobe {

void ReferenceComparer::NotePlan(const Plan& plan, uint64_t epoch) {
  if (epoch != epoch_ && epoch_ != 0) differences_ = 0;
  epoch_ = epoch;
  diff_nums_ = plan.ComparesWithReference() ? plan.diff_nums : -1;
  spent_ = diff_nums_ != -1 && differences_ >= diff_nums_;
}

absl::Status ReferenceComparer::BeginStep(const Plan& plan, int64_t step,
                                          std::optional<int64_t> rank) {
  if (active_ && step_ == step) return absl::OkStatus();
  EndStep();
  if (!plan.ComparesWithReference()) return absl::OkStatus();
  active_ = true;
  step_ = step;
  const std::string run = plan.ReferenceRun();
  return run.empty() ? reference_.LoadDirectory(file_system_, plan.bench_path,
                                                step, rank)
                     : Fetch(run, step, rank);
}

absl::Status ReferenceComparer::Fetch(const std::string& run, int64_t step,
                                      std::optional<int64_t> rank) {
  const int64_t now = clock_->MonotonicNanos();
  if (now < not_before_ns_) {
    return absl::UnavailableError(
        "the reference was not asked for: the collector did not answer in time "
        "shortly before");
  }
  v1::ReferenceRequest request;
  request.set_run(run);
  request.set_step(step);
  if (rank.has_value()) request.set_rank(*rank);
  const auto fetch = [&] {
    return session_->FetchReference(
        request, kFetchDeadline, [this](const v1::ReferenceChunk& chunk) {
          for (const v1::ReferenceEntry& entry : chunk.entries()) {
            if (absl::Status added = reference_.Add(entry); !added.ok())
              return added;
          }
          return absl::OkStatus();
        });
  };
  absl::Status status = fetch();
  // The answer may have been damaged in transit.
  if (absl::IsDataLoss(status)) {
    reference_.Clear();
    status = fetch();
  }
  if (status.ok()) status = reference_.CheckUsable();
  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
    not_before_ns_ =
        clock_->MonotonicNanos() + absl::ToInt64Nanoseconds(kFetchPause);
  }
  // With half a reference, calls that it lacks would count as equal.
  if (!status.ok()) reference_.Clear();
  return status;
}

void ReferenceComparer::EndStep() {
  active_ = false;
  step_ = -1;
  events_in_step_ = 0;
  open_.clear();
  reference_.Clear();
}

HeldPayloads* ReferenceComparer::Begin(Phase phase, const std::string& entry,
                                       uint64_t* held_bytes) {
  if (phase == Phase::kOther) return nullptr;
  if (phase == Phase::kInputs) {
    if (!reference_.Has(entry)) return nullptr;
    OpenCall& call = open_[entry];
    call.held = std::make_unique<HeldPayloads>(held_bytes);
    return call.held.get();
  }
  const auto it = open_.find(entry);
  return it == open_.end() ? nullptr : it->second.held.get();
}

bool ReferenceComparer::End(Phase phase, v1::CallPhase* call,
                            std::unique_ptr<HeldPayloads>* held) {
  const auto it =
      phase == Phase::kOther ? open_.end() : open_.find(call->entry());
  if (it == open_.end()) {
    DropPayloads(call);
    return false;
  }
  if (phase == Phase::kInputs) {
    if (reference_.InputsMatch(call->entry(), call->input_args())) {
      it->second.inputs = *call;
    } else {
      open_.erase(it);
    }
    DropPayloads(call);
    return false;
  }
  OpenCall open = std::move(it->second);
  open_.erase(it);
  const std::optional<std::string> difference =
      reference_.Difference(call->entry(), call->output());
  if (!difference.has_value()) {
    DropPayloads(call);
    return false;
  }
  // Sections of a later phase replace those of an earlier one, so the inputs
  // are recorded again, now with their bytes.
  if (open.inputs.has_input_args())
    *call->mutable_input_args() = std::move(*open.inputs.mutable_input_args());
  if (open.inputs.has_input_kwargs()) {
    *call->mutable_input_kwargs() =
        std::move(*open.inputs.mutable_input_kwargs());
  }
  if (open.inputs.has_parameters() && !call->has_parameters())
    *call->mutable_parameters() = std::move(*open.inputs.mutable_parameters());
  *held = std::move(open.held);
  Count(call->entry(), *difference);
  return true;
}

void ReferenceComparer::Count(const std::string& entry,
                              const std::string& detail) {
  ++differences_;
  spent_ = diff_nums_ != -1 && differences_ >= diff_nums_;
  if (diff_nums_ == -1 && ++events_in_step_ > kMaxEventsPerStep) return;
  v1::AgentEvent event;
  v1::ReferenceDifference* difference = event.mutable_difference();
  difference->set_step(step_);
  difference->set_entry(entry);
  difference->set_plan_epoch(epoch_);
  difference->set_detail(detail);
  session_->SendEvent(std::move(event));
}

}  // namespace rankprobe
