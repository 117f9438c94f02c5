// SPDX-License-Identifier: Apache-2.0
#include "collector/store/step_counts.h"

#include <algorithm>

#include "collector/store/frame_store.h"
#include "common/base/saturating_add.h"
#include "common/records/call_values.h"

namespace rankprobe {
namespace {

v1::LossCount* LossOf(v1::LossReason reason, v1::StepRow* step) {
  for (v1::LossCount& known : *step->mutable_losses()) {
    if (known.reason() == reason) return &known;
  }
  v1::LossCount* const count = step->add_losses();
  count->set_reason(reason);
  return count;
}

void CountCall(const v1::CallPhase& call,
               absl::FunctionRef<void(const v1::PayloadRef&)> on_payload,
               v1::StepRow* step) {
  step->set_call_phases(step->call_phases() + 1);
  ForEachTensor(call, [&](const v1::TensorSummary& tensor) {
    if (!tensor.has_payload()) return;
    const v1::PayloadRef& payload = tensor.payload();
    step->set_payloads(step->payloads() + 1);
    if (payload.lost() != v1::LOSS_REASON_UNSPECIFIED) {
      v1::LossCount* const lost = LossOf(payload.lost(), step);
      lost->set_referred_payloads(lost->referred_payloads() + 1);
    }
    on_payload(payload);
  });
}

void CountLossEvent(const v1::LossEvent& loss, v1::StepRow* step) {
  if (loss.reason() == v1::LOSS_REASON_FILTERED) {
    step->set_gate_filtered(
        SaturatingAdd(step->gate_filtered(), loss.records()));
    return;
  }
  step->set_lost_records(SaturatingAdd(step->lost_records(), loss.records()));
  step->set_lost_payloads(
      SaturatingAdd(step->lost_payloads(), loss.payloads()));
  // A loss with only bytes belongs to a payload whose record is here.
  if (loss.records() == 0 && loss.payloads() == 0 && loss.bytes() == 0) return;
  v1::LossCount* const lost = LossOf(loss.reason(), step);
  lost->set_records(SaturatingAdd(lost->records(), loss.records()));
  lost->set_payloads(SaturatingAdd(lost->payloads(), loss.payloads()));
}

}  // namespace

void CountRecord(const v1::Record& record,
                 absl::FunctionRef<void(const v1::PayloadRef&)> on_payload,
                 v1::StepRow* step) {
  step->set_records(step->records() + 1);
  if (record.order() < kFirstAddedOrder)
    step->set_rank_records(step->rank_records() + 1);
  switch (record.body_case()) {
    case v1::Record::kCall:
      return CountCall(record.call(), on_payload, step);
    case v1::Record::kStepBegin:
      step->set_begun(true);
      return;
    case v1::Record::kStepEnd:
      *step->mutable_end() = record.step_end();
      step->set_end_order(record.order());
      return;
    case v1::Record::kLoss:
      return CountLossEvent(record.loss(), step);
    default:
      return;
  }
}

void DescribeCounts(const v1::StepRow& step, v1::StepInfo* info) {
  info->set_records(step.records());
  info->set_payloads(step.payloads());
  info->set_lost(std::max(step.lost_records(), step.end().lost_records()) +
                 std::max(step.lost_payloads(), step.end().lost_payloads()));
  *info->mutable_losses() = step.losses();
  info->set_stored_records(step.rank_records());
  if (step.has_end()) {
    // A rank numbers its records densely, and its end is the last.
    info->set_expected_records(step.end_order() + 1);
    info->set_expected_payloads(step.end().payloads());
  }
  info->set_filtered_calls(step.end().filtered_calls() + step.gate_filtered());
  info->set_complete(IsComplete(step));
}

bool IsComplete(const v1::StepRow& step) {
  return step.deleted_unix_ns() == 0 && step.has_end() && step.begun() &&
         step.call_phases() >= step.end().call_phases();
}

}  // namespace rankprobe
