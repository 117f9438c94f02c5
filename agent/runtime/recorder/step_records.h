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
  // `session` and `watcher` may be null. `framework`: that of dump.json.
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
  // Whether the step is one of the flight recorder.
  bool flight() const { return flight_; }
  // Whether the step is recorded for the collector, not for the flight
  // recorder.
  bool for_collector() const { return begun_ && !flight_; }
  // Whether the requested number of differences from the reference was found.
  bool spent() const { return reference_.active() && reference_.spent(); }
  void GoToFlight() { flight_ = true; }
  // Ends a step of which nothing was recorded, after another one.
  void SkipStep() {
    ++step_;
    ++generation_;
  }
  // Whether it has begun without any call, and none of it has been sent.
  bool IsEmpty() const;
  // Begins the step, or reports other requests in it.
  void Begin(v1::StepRequests requests = {});
  // Compares the step with the plan's reference from here on.
  void BeginReference(std::optional<int64_t> rank);
  // If the requested number of differences from the reference was found, cuts
  // the step and returns true: open calls and all gradients are not recorded
  // any more.
  bool CutIfSpent();
  // Drops the records of the step, of which nothing may have been submitted.
  void Forget();
  // Ends the step; returns whether its records go to the collector.
  bool End();

  // --- Records.
  v1::Record* Add();
  void AddError(absl::string_view what);
  // Returns true if a trigger rule has fired, and its tensors are kept, too.
  // Submits what is due, for which it may wait for room, only if `may_wait`.
  bool AddPhase(
      const std::string& entry, v1::CallKind kind, BuildPhase build,
      ReferenceComparer::Phase phase = ReferenceComparer::Phase::kOther,
      bool may_wait = true);
  // Adds the phase with its tensors, if the budgets allow them, whatever the
  // plan.
  void AddPhaseInFull(const std::string& entry, v1::CallKind kind,
                      BuildPhase build);
  // Adds a value of level debug or of the monitor, or the leaf of one at
  // `path`.
  void AddSaved(const std::string& entry, absl::string_view path,
                const BuildValue& build);
  // Whether there are many records, or some and the last ones were submitted a
  // while ago; never while tensors are deferred.
  bool IsDue() const;
  void SubmitIfDue();
  // Submits all records to the session, or to the flight recorder.
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
  // `payload`: a payload may be recorded.
  RecordedCall::Needs NeedsFor(bool payload) const;
  void Resolve(const DeferredResults& results);
  // Keeps a replaced plan while tensors wait that were recorded under it; null:
  // none.
  void KeepWhileDeferred(std::shared_ptr<const Plan> plan);

 private:
  struct Counts {
    uint64_t call_phases = 0;
    uint64_t filtered = 0;
    uint64_t lost_records = 0;
    Forwards forwards;
  };

  // Builds the phase with its tensors, if they fit.
  void BuildInFull(const std::string& entry, v1::CallKind kind,
                   BuildPhase build, v1::CallPhase* call);
  // Runs `build`, and then accounts for its cost and checks triggers. Returns
  // as AddPhase.
  bool AddCall(const std::string& entry, v1::CallKind kind, bool want_payload,
               BuildPhase build);

  Session* const session_;
  TriggerWatcher* const watcher_;
  const Clock* const clock_;
  const std::string framework_;
  StepFilter* const filter_;
  TensorRecorder tensors_;
  // Declared after tensors_, which counts the bytes that it holds.
  ReferenceComparer reference_;
  // Epoch of the plan whose missing reference was reported.
  std::optional<uint64_t> reference_fault_epoch_;

  int64_t step_ = 0;
  uint64_t generation_ = 1;
  bool begun_ = false;
  // Whether records of this step have been submitted.
  bool submitted_ = false;
  bool flight_ = false;
  // The requests of the last StepBegin of the step.
  std::string told_requests_;
  uint64_t next_order_ = 0;
  Counts counts_;
  std::unique_ptr<RecordBuffer> buffer_;
  int64_t submitted_ns_ = 0;
  // For the buffer: phases that wait for numbers, and the plans under which
  // they were made.
  std::vector<const v1::CallPhase*> deferred_phases_;
  std::vector<std::shared_ptr<const Plan>> deferred_plans_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_RECORDER_STEP_RECORDS_H_
