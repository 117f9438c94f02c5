// SPDX-License-Identifier: Apache-2.0
// The records of the step in progress, from its begin to its end: their order
// and counts, the tensors in them, and their way to the session or the flight
// recorder.
//
// Ownership: the RecorderCore's; session, watcher, clock, file system and
// filter outlive it. Not thread-safe: guarded by the core's lock, with which
// builders run. Failure: records that the session drops are counted in
// StepEnd; a step without its reference has an error record.
#ifndef RANKPROBE_AGENT_RUNTIME_RECORDER_STEP_RECORDS_H_
#define RANKPROBE_AGENT_RUNTIME_RECORDER_STEP_RECORDS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "agent/runtime/recorder/recorded_call.h"
#include "agent/runtime/recorder/step_filter.h"
#include "agent/runtime/recorder/tensor_recorder.h"
#include "agent/runtime/reference/reference_comparer.h"
#include "common/base/clock.h"

namespace rankprobe {

class StepRecords {
 public:
  // `session` and `watcher` may be null. `framework`: of dump.json.
  StepRecords(Session* session, TriggerWatcher* watcher, const Clock* clock,
              FileSystem* file_system, std::string framework,
              StepFilter* filter);

  // --- The step.
  int64_t step() const { return step_; }
  void SetStep(int64_t step) { step_ = step; }
  // Changes with each End(), and when a step is cut short: ties gradients to
  // the step of their forward.
  uint64_t generation() const { return generation_; }
  bool begun() const { return begun_; }
  // It goes to the flight recorder.
  bool flight() const { return flight_; }
  // It is recorded for the collector, not for the flight recorder.
  bool for_collector() const { return begun_ && !flight_; }
  // As many differences from the reference were found as were wanted.
  bool spent() const { return reference_.active() && reference_.spent(); }
  void GoToFlight() { flight_ = true; }
  // It has begun, no call was made in it, and nothing of it is sent yet.
  bool IsEmpty() const;
  // Begins the step, or tells of other requests in it.
  void Begin(v1::StepRequests requests = {});
  // Compares it with the plan's reference from here on.
  void BeginReference(std::optional<int64_t> rank);
  // True: it has as many differences from the reference as were wanted. Calls
  // that are still open, and all gradients, are of no interest any more.
  bool CutIfSpent();
  void Forget();
  // Whether its records go to the collector.
  bool End();

  // --- Records.
  v1::Record* Add();
  void AddError(absl::string_view what);
  // True: a trigger rule has fired at it, and its tensors are kept, too.
  bool AddPhase(
      const std::string& entry, v1::CallKind kind, BuildPhase build,
      ReferenceComparer::Phase phase = ReferenceComparer::Phase::kOther);
  // With its tensors where the budgets allow them, whatever the plan says.
  void AddPhaseInFull(const std::string& entry, v1::CallKind kind,
                      BuildPhase build);
  // A value of level debug or of the monitor, or the leaf of one at `path`.
  void AddSaved(const std::string& entry, absl::string_view path,
                const BuildValue& build);
  void SubmitIfDue();
  void Submit();
  // Forwards that began, and those that passed the filters.
  struct Forwards {
    uint64_t seen = 0;
    uint64_t matched = 0;
  };
  const Forwards& forwards() const { return counts_.forwards; }
  void CountForward(bool matched);
  void CountFiltered() { ++counts_.filtered; }

  // --- Tensors.
  TensorRecorder& tensors() { return tensors_; }
  ReferenceComparer& reference() { return reference_; }
  // `payload`: one may be wanted.
  RecordedCall::Needs NeedsFor(bool payload) const;
  void Resolve(const DeferredResults& results);
  // A plan that is replaced while tensors wait that were recorded under it;
  // null: none.
  void KeepWhileDeferred(std::shared_ptr<const Plan> plan);

 private:
  struct Counts {
    uint64_t call_phases = 0;
    uint64_t filtered = 0;
    uint64_t lost_records = 0;
    Forwards forwards;
  };

  // With its tensors, where they fit.
  void BuildInFull(const std::string& entry, v1::CallKind kind,
                   BuildPhase build, v1::CallPhase* call);
  // Its cost, and triggers that look at it, are around `build`. As AddPhase.
  bool AddCall(const std::string& entry, v1::CallKind kind, bool want_payload,
               BuildPhase build);

  Session* const session_;
  TriggerWatcher* const watcher_;
  const Clock* const clock_;
  const std::string framework_;
  StepFilter* const filter_;
  TensorRecorder tensors_;
  // Behind the tensors: what it holds is counted there.
  ReferenceComparer reference_;
  // The plan whose missing reference was reported.
  std::optional<uint64_t> reference_fault_epoch_;

  int64_t step_ = 0;
  uint64_t generation_ = 1;
  bool begun_ = false;
  // Records of this step have left.
  bool submitted_ = false;
  bool flight_ = false;
  // As the last StepBegin of the step said them.
  std::string told_requests_;
  uint64_t next_order_ = 0;
  Counts counts_;
  std::unique_ptr<RecordBuffer> buffer_;
  int64_t submitted_ns_ = 0;
  // Of the buffer: phases that wait for numbers, and plans they were made
  // under.
  std::vector<const v1::CallPhase*> deferred_phases_;
  std::vector<std::shared_ptr<const Plan>> deferred_plans_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_RECORDER_STEP_RECORDS_H_
