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

// Copyable; cheap when not kept.
struct RecordedCall {
  // Full names of the forward entry and its backward twin.
  std::string forward_entry;
  std::string backward_entry;
  bool is_module = false;
  bool kept = false;
  // It passed the filters: its stack is wanted. At task structure without data.
  bool stack_wanted = false;
  // A module recorded at a level that has none.
  bool forced = false;
  // How a front end must read tensors that lie on a device.
  enum class Needs : uint8_t {
    kNumbers,  // statistics will do
    kBytes,    // checksum or payload
    kNow,      // the call is judged as soon as it ends
  };
  Needs needs = Needs::kNumbers;
  // The step it was made in; gradients that come later than that are dropped.
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
  // Nulls for a tensor without bytes to read (meta, fake).
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

// What fills a phase, or one value; it must not call the recorder.
using BuildPhase = absl::FunctionRef<void(CallBuilder&, v1::CallPhase*)>;
using BuildValue = std::function<void(CallBuilder&, v1::Value*)>;

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_RECORDER_RECORDED_CALL_H_
