// SPDX-License-Identifier: Apache-2.0
// Records calls: APIs, modules, their gradients and those of parameters, and
// the stacks they were made from. No-ops when not recording.
//
// Ownership: the Recorder's. Thread-safe: autograd has threads of its own; what
// is open is kept for each thread. Builders run with the recorder's lock held
// and must not call the recorder. Never fails; what a builder throws passes
// through.
#ifndef RANKPROBE_AGENT_RUNTIME_RECORDER_CALL_RECORDER_H_
#define RANKPROBE_AGENT_RUNTIME_RECORDER_CALL_RECORDER_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "agent/runtime/recorder/recorded_call.h"
#include "agent/runtime/recorder/recorder_core.h"

namespace rankprobe {

class CallRecorder {
 public:
  // `core` must outlive this object.
  explicit CallRecorder(RecorderCore* core) : core_(core) {}

  // Begins a call of an API, which is recorded as {prefix}.{op}.{N}.forward.
  RecordedCall BeginApi(absl::string_view prefix, absl::string_view op);
  // Modules are recorded at level L1 too, until this is set to false.
  void SetModulesForced(bool forced) { modules_forced_ = forced; }
  // `module` is "Module.{path}.{Class}".
  RecordedCall BeginModule(absl::string_view module);
  // Whether records are due to be submitted, or are being submitted, for which
  // the recorder may wait until there is room. A caller that must not be kept
  // waiting, because it holds a lock of the program, passes `may_wait` false
  // unless records are due.
  bool Due() const { return due_.load(std::memory_order_relaxed); }
  // Records the inputs of a kept call, before it runs.
  void Inputs(const RecordedCall& call, BuildPhase build, bool may_wait = true);
  // Ends the forward. A module must be ended, kept or not, also by Abandon.
  // `late`: the outputs follow with LateOutputs, and count then. Returns true
  // if a trigger rule has fired, and they are kept in full; InputsInFull then
  // adds the inputs, if they are unchanged.
  bool Outputs(const RecordedCall& call, BuildPhase build, bool late = false,
               bool may_wait = true);
  void InputsInFull(const RecordedCall& call, BuildPhase build);
  // Replaces the outputs of a call that has ended, when an asynchronous call is
  // done.
  void LateOutputs(const RecordedCall& call, BuildPhase build);
  // The forward ended with an exception: keeps its inputs, and leaves its
  // place.
  void Abandon(const RecordedCall& call);
  // Records gradients of a call whose forward was recorded in this step. Also
  // works after Stop(), until Step().
  void Backward(const RecordedCall& call, BuildPhase build,
                bool may_wait = true);
  // Begins the backward of a module: calls until Backward are inside it.
  void BeginModuleBackward(const RecordedCall& call);
  // Whether Backward of this call can still record something.
  bool WantsBackward(const RecordedCall& call) const;
  void ParameterGradient(absl::string_view module, absl::string_view parameter,
                         const TensorInfo& gradient);
  void ParameterGradient(
      absl::string_view module, absl::string_view parameter,
      absl::FunctionRef<void(CallBuilder&, v1::Value*)> build,
      bool may_wait = true);
  // Until PopScope, calls on this thread have the parent `name`, which is not a
  // call ("optimizer", "clip_grad").
  void PushScope(absl::string_view name);
  void PopScope(absl::string_view name);
  // Called at a new forward of the root model: closes modules that an exception
  // left open.
  void ResetModules();
  bool WantsStacks() const;
  // Records the stack of a kept forward, innermost frame first. `number`
  // identifies these frames, so that equal stacks are found quickly; 0: not
  // numbered.
  void UseStack(const RecordedCall& call,
                const std::vector<std::string>& frames, uint64_t number = 0);

 private:
  // StepRecords::AddPhase, after which Due() is known.
  bool Add(const std::string& entry, v1::CallKind kind, BuildPhase build,
           ReferenceComparer::Phase phase, bool may_wait)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mutex);
  // Applies the filter's verdict to `call`, and counts it.
  void Judge(Verdict verdict, RecordedCall* call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mutex);
  bool WantsBackwardLocked(const RecordedCall& call) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mutex);
  void EndModule(const RecordedCall& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mutex);
  // Ends the step if it has as many differences from the reference as
  // requested.
  void StopIfSpent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mutex);
  // Whether the call belongs to the step in progress.
  bool IsOfStep(const RecordedCall& call) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mutex) {
    return call.step_generation == core_->records.generation();
  }

  RecorderCore* const core_;
  std::atomic<bool> modules_forced_{false};
  std::atomic<bool> due_{false};
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_RECORDER_CALL_RECORDER_H_
