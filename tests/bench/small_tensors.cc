// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/small_tensors.h"

#include <array>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/bench/load.h"

namespace rankprobe::bench {
namespace {

constexpr uint64_t kTensorBytes = 1 << 10;
constexpr int kTensorsPerCall = 4;
constexpr uint64_t kCallsPerBuffer = 250;

absl::Status AddTensor(uint64_t seed, v1::TensorSummary* tensor,
                       Session* session) {
  v1::LossReason reason;
  std::unique_ptr<PayloadBuffer> buffer =
      session->ReservePayload(kTensorBytes, &reason);
  if (buffer == nullptr)
    return absl::ResourceExhaustedError("a payload was shed");
  FillPayload(seed, buffer->data(), kTensorBytes);
  const std::array<uint8_t, 16> digest =
      DigestOf({buffer->data(), kTensorBytes});
  session->SubmitPayload(digest, std::move(buffer));
  tensor->set_dtype(v1::DTYPE_FLOAT32);
  tensor->add_shape(16);
  tensor->add_shape(16);
  tensor->mutable_stats()->set_max_f(static_cast<double>(seed));
  tensor->mutable_stats()->set_min_f(-1);
  tensor->mutable_stats()->set_mean_f(0.37 * static_cast<double>(seed));
  tensor->mutable_stats()->set_norm_f(3);
  tensor->mutable_payload()->set_digest(digest.data(), digest.size());
  tensor->mutable_payload()->set_length_bytes(kTensorBytes);
  return absl::OkStatus();
}

}  // namespace

absl::Status SendSmallTensors(uint64_t count, Session* session) {
  const uint64_t calls = count / kTensorsPerCall;
  uint64_t order = 0, seed = 0;
  auto records = std::make_unique<RecordBuffer>();
  records->batch()->set_step(0);
  v1::Record* record = records->Add();
  record->set_order(order++);
  v1::StepBegin* begin = record->mutable_step_begin();
  begin->set_task("tensor");
  begin->set_level("L1");
  begin->set_framework("pytorch");
  begin->set_has_payloads(true);
  begin->set_extra_info(true);
  for (uint64_t i = 0; i <= calls; ++i) {
    if (i == calls || (i > 0 && i % kCallsPerBuffer == 0)) {
      if (i == calls) {
        record = records->Add();
        record->set_order(order++);
        record->mutable_step_end()->set_call_phases(calls);
        record->mutable_step_end()->set_payloads(calls * kTensorsPerCall);
      }
      if (!session->SubmitRecords(std::move(records)))
        return absl::ResourceExhaustedError("records were shed");
      if (i == calls) break;
      records = std::make_unique<RecordBuffer>();
      records->batch()->set_step(0);
    }
    record = records->Add();
    record->set_order(order++);
    v1::CallPhase* call = record->mutable_call();
    call->set_entry(absl::StrCat("Functional.linear.", i, ".forward"));
    call->set_kind(v1::CALL_KIND_API_FORWARD);
    call->mutable_input_kwargs();
    for (int t = 0; t < kTensorsPerCall; ++t) {
      v1::ValueList* list =
          t < 3 ? call->mutable_input_args() : call->mutable_output();
      const absl::Status added =
          AddTensor(seed++, list->add_items()->mutable_tensor(), session);
      if (!added.ok()) return added;
    }
  }
  return session->Flush(v1::DURABILITY_COMMITTED, absl::Minutes(2));
}

}  // namespace rankprobe::bench
