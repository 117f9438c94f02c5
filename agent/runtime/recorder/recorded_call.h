// SPDX-License-Identifier: Apache-2.0
// One call between its begin and its gradients, and CallBuilder, which fills a
// section of its record.
//
// Ownership: a RecordedCall is a value of the front end's. A CallBuilder lives
// as long as the callback that it is given to, which runs with the Recorder's
// lock held. Neither fails.
#ifndef RANKPROBE_AGENT_RUNTIME_RECORDER_RECORDED_CALL_H_
#define RANKPROBE_AGENT_RUNTIME_RECORDER_RECORDED_CALL_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "agent/runtime/recorder/tensor_recorder.h"

namespace rankprobe {

// Copyable; cheap if not kept.
struct RecordedCall {
  // Full names of the forward entry and of its backward.
  std::string forward_entry;
  std::string backward_entry;
  bool is_module = false;
  bool kept = false;
  // It passed the filters, so its stack is recorded. At task structure it has
  // no data.
  bool stack_wanted = false;
  // A module recorded at a level without modules.
  bool forced = false;
  // How a front end must read tensors on a device.
  enum class Needs : uint8_t {
    kNumbers,  // statistics will do
    kBytes,    // checksum or payload
    kNow,      // the call is judged as soon as it ends
  };
  Needs needs = Needs::kNumbers;
  // The step of the call; gradients that come in later steps are dropped.
  uint64_t step_generation = 0;
};

class CallBuilder {
 public:
  CallBuilder(TensorRecorder* tensors, const Plan* plan, bool want_payload)
      : tensors_(tensors), plan_(plan), want_payload_(want_payload) {}

  void Tensor(const TensorInfo& tensor, v1::Value* out) {
    Tensor(tensor, out->mutable_tensor());
  }
  void Tensor(const TensorInfo& tensor, v1::TensorSummary* out) {
    tensors_->Record(tensor, *plan_, want_payload_, out);
  }
  // Stores nulls for a tensor without bytes to read (meta, fake).
  void NoData(v1::TensorSummary* out) { SetNoData(*plan_, out); }
  static void Int(int64_t value, v1::Value* out);
  static void Float(double value, v1::Value* out);
  static void Bool(bool value, v1::Value* out);
  static void String(absl::string_view value, v1::Value* out);

 private:
  TensorRecorder* const tensors_;
  const Plan* const plan_;
  const bool want_payload_;
};

// Fill a phase, or one value; they must not call the recorder.
using BuildPhase = absl::FunctionRef<void(CallBuilder&, v1::CallPhase*)>;
using BuildValue = std::function<void(CallBuilder&, v1::Value*)>;

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_RECORDER_RECORDED_CALL_H_
