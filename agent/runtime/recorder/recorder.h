// SPDX-License-Identifier: Apache-2.0
// Recorder: what front ends make of hook events becomes records. It is the part
// of every front end that does not use torch. This class is the state machine
// of steps (docs/formats.md, "start, stop, step"); its roles hold
// what is recorded in a step.
//
// Use, per step of the training loop:
//   recorder->Start(rank);            ... hooks ...
//   if (recorder->recording()) {      // one relaxed load; off, that is all
//     CallRecorder& calls = recorder->calls();
//     RecordedCall call = calls.BeginApi("Aten", "conv2d");
//     calls.Inputs(call, [&](CallBuilder& b, ..) { b.Tensor(..) .. });
//     ... the op runs ...
//     calls.Outputs(call, [&](CallBuilder& b, ..) { .. });
//   }
//   recorder->Stop();                 // the step is safe, or a deadline is over
//   recorder->Step();
//
// Ownership: owns its Session. Thread-safe, the roles too.
// Failure: nothing here throws or stops training. Faults are counted and sent
// as ErrorEvents; dropped data is marked lost. After a fork the child's
// recorder does nothing.
#ifndef RANKPROBE_AGENT_RUNTIME_RECORDER_RECORDER_H_
#define RANKPROBE_AGENT_RUNTIME_RECORDER_RECORDER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/runtime/recorder/call_recorder.h"
#include "agent/runtime/recorder/recorder_core.h"
#include "agent/runtime/recorder/saved_values.h"
#include "agent/runtime/recorder/step_reports.h"
#include "agent/runtime/session/session.h"
#include "common/base/clock.h"

namespace rankprobe {

struct RecorderOptions {
  // config.json text with constructor arguments applied; empty: the default
  // config.
  std::string config_json;
  ConfigOverrides overrides;
  // Framework of dump.json; "mindspore" has its own rules for statistics.
  std::string framework = "pytorch";
  // The global rank, if it is already known.
  std::optional<int64_t> rank;
  // How long Stop() waits for a collector that responds; after a timeout it
  // does not wait again until the collector makes progress.
  absl::Duration stop_deadline = absl::Seconds(10);
  // The same for a collector that does not respond: it may hang.
  absl::Duration silence_deadline = absl::Milliseconds(45);
};

class Recorder {
 public:
  // INVALID_ARGUMENT for a bad config, and for a missing reference directory.
  // `session` may be null: then nothing is sent and nothing recorded.
  static absl::StatusOr<std::unique_ptr<Recorder>> Create(
      RecorderOptions options, std::unique_ptr<Session> session,
      const Clock* clock);
  ~Recorder();

  CallRecorder& calls() { return calls_; }
  SavedValues& saved() { return saved_; }
  StepReports& reports() { return reports_; }
  Session* session() { return core_.session.get(); }

  // `rank` is used at the first effective start if given. `requests`, for a
  // server's step: the plan's request_id selects a step and its rows by them.
  void Start(std::optional<int64_t> rank = std::nullopt,
             const v1::StepRequests* requests = nullptr);
  // Like Start() and Step() of a step that records nothing after another one,
  // for a fraction of their cost: a training step has evicted their code and
  // data from the processor's caches. They return false, having done nothing,
  // if anything is to be recorded, and StartIdle() also if the last Start() was
  // over a second ago, so that what only a caller of Start() checks is checked
  // from time to time. They wait for no other thread that uses the recorder.
  bool StartIdle();
  bool StepIdle();
  // Returns true if the records are safe in a file (Session::Keep) or there are
  // none, false if Stop waited for the collector: at most for the deadline, or
  // for `at_most` if the caller knows that the wait may time out. `at_most` is
  // called only if there is something to wait for, without a lock; it may
  // throw.
  bool Stop(const std::function<absl::Duration()>& at_most = {});
  void Step();
  // Whether a step has begun without any call, and none of it has been sent.
  bool StepIsEmpty() const;
  // Called before the end of the process: forgets such a step, which would be
  // in the archive as one that never ended. Returns false if there is none.
  bool ForgetEmptyStep();
  // Call it before the loop; INVALID_ARGUMENT below 0 and beyond kMaxStep.
  absl::Status SetInitStep(int64_t step);
  int64_t current_step() const;

  // The gate of every hook.
  bool recording() const {
    return core_.recording.load(std::memory_order_relaxed);
  }
  // Whether the plan of the last Start permits recording.
  bool enabled() const;
  // Whether the last Start did not record only because the plan's request is
  // not among its requests.
  bool request_missing() const;
  // The plan that decides which hooks are needed at all.
  std::shared_ptr<const Plan> plan() const;
  // The plan that the last Start used for the step; plan() is the flight
  // recorder's if this plan does not record the step. Has no plan before the
  // first Start.
  ActivePlan asked() const;
  std::optional<int64_t> rank() const;
  // Counts of the step so far.
  StepRecords::Forwards forwards() const;

  // Delivers results for tensors on devices, see Arrival. A front end that
  // defers must call it before Stop and Step, and before it holds too much:
  // until then no record is sent. A result that it does not deliver is null.
  void ResolveDeferred(const DeferredResults& results);

  // Called if the front end caught a fault of its own.
  void ReportFault(absl::string_view what);

 private:
  Recorder(RecorderOptions options, std::unique_ptr<Session> session,
           const Clock* clock, std::unique_ptr<FileSystem> file_system,
           std::shared_ptr<const Plan> local_plan);

  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  // Returns whether the step's records go to the collector.
  bool EndStep() ABSL_LOCKS_EXCLUDED(core_.mutex);

  const RecorderOptions options_;
  const Clock* const clock_;
  // Reads the dump directory of a reference.
  const std::unique_ptr<FileSystem> file_system_;
  RecorderCore core_;
  CallRecorder calls_{&core_};
  SavedValues saved_{&core_};
  StepReports reports_{&core_};

  ActivePlan asked_ ABSL_GUARDED_BY(core_.mutex);
  bool request_missing_ ABSL_GUARDED_BY(core_.mutex) = false;
  // When Start() was called last.
  int64_t started_ns_ ABSL_GUARDED_BY(core_.mutex) = INT64_MIN / 2;
  uint64_t faults_ ABSL_GUARDED_BY(core_.mutex) = 0;
  // Sequence number that the collector had committed when Stop() last timed
  // out.
  std::optional<uint64_t> stuck_at_ ABSL_GUARDED_BY(core_.mutex);
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_RECORDER_RECORDER_H_
