// SPDX-License-Identifier: Apache-2.0
// Converter of hook events to records: the part of every front end that does
// not use torch. It keeps the step state machine, names and counters, the
// module stack, filters, and the order of records; front ends say what was
// called with which tensors.
//
// Use, per step of the training loop:
//   recorder->Start(rank);            ... hooks ...
//   if (recorder->recording()) {      // one relaxed load; off, that is all
//     RecordedCall call = recorder->BeginApi("Aten", "conv2d");
//     recorder->Inputs(call, [&](CallBuilder& b) { b.AddTensor(..) .. });
//     ... the op runs ...
//     recorder->Outputs(call, [&](CallBuilder& b) { .. });
//   }
//   recorder->Stop();                 // the step is safe, or a deadline is over
//   recorder->Step();
//
// Ownership: owns its Session. Threads: all methods may be called from any
// thread (autograd has its own); builders run with the recorder's lock held and
// must not call the recorder again. Module stacks are per thread.
// Failure: nothing here throws or stops training. Faults are counted and sent
// as ErrorEvents; dropped data is marked lost. After a fork the child's
// recorder does nothing.
#ifndef RANKPROBE_AGENT_RUNTIME_RECORDER_RECORDER_H_
#define RANKPROBE_AGENT_RUNTIME_RECORDER_RECORDER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "agent/runtime/recorder/tensor_recorder.h"
#include "agent/runtime/reference/reference_comparer.h"
#include "agent/runtime/session/session.h"
#include "agent/runtime/triggers/trigger_watcher.h"
#include "common/base/clock.h"
#include "common/base/fork_guard.h"
#include "common/filter/call_filter.h"

namespace rankprobe {

// One call, from its begin to its gradients. Copyable; cheap when not kept.
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

// Fills one section of a record. Valid only inside the callback.
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
  void NoData(v1::TensorSummary* out);
  static void Int(int64_t value, v1::Value* out);
  static void Float(double value, v1::Value* out);
  static void Bool(bool value, v1::Value* out);
  static void String(absl::string_view value, v1::Value* out);

 private:
  TensorRecorder* const tensors_;
  const Plan* const plan_;
  const bool want_payload_;
};

struct RecorderOptions {
  // config.json text after constructor arguments; empty: the default config.
  std::string config_json;
  ConfigOverrides overrides;
  // Of dump.json; "mindspore" has rules of its own for statistics.
  std::string framework = "pytorch";
  // The global rank, when it is known already.
  std::optional<int64_t> rank;
  // How long Stop() waits for a collector that answers; after a timeout it does
  // not wait again until the collector continues.
  absl::Duration stop_deadline = absl::Seconds(10);
  // The same of one that says nothing of what it was sent: it may hang.
  absl::Duration silence_deadline = absl::Milliseconds(45);
  // Where the dump directory of a reference is; outlives the recorder. Null: the
  // machine's.
  FileSystem* file_system = nullptr;
};

class Recorder {
 public:
  using BuildFn = absl::FunctionRef<void(CallBuilder&, v1::CallPhase*)>;

  // INVALID_ARGUMENT for a bad config, and for a reference directory that is not
  // there. `session` may be null: nothing is sent
  // then and nothing recorded.
  static absl::StatusOr<std::unique_ptr<Recorder>> Create(
      RecorderOptions options, std::unique_ptr<Session> session,
      const Clock* clock);
  ~Recorder();

  // --- The step state machine (docs/formats.md, "start, stop, step").
  // `rank` is used on the first effective start if given. `requests`, of a
  // server's step: the plan's request_id picks a step and its rows by them.
  void Start(std::optional<int64_t> rank = std::nullopt,
             const v1::StepRequests* requests = nullptr);
  // True: the records are safe in a file (Session::Keep), or there are none;
  // false: Stop waited for the collector, at most for the deadline, or for
  // `at_most` if the caller knows that the wait may time out. `at_most` is
  // called only if there is something to wait for, without a lock; it may
  // throw.
  bool Stop(const std::function<absl::Duration()>& at_most = {});
  void Step();
  // A step has begun, no call was made in it, and nothing of it is sent yet.
  bool StepIsEmpty() const;
  // Before the end of the process: forgets such a step, which would be in the
  // archive as one that never ended. False: there is none.
  bool ForgetEmptyStep();
  // Before the loop; INVALID_ARGUMENT below 0 and beyond kMaxStep.
  absl::Status SetInitStep(int64_t step);
  int64_t current_step() const;

  // The gate of every hook.
  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  // The plan of the last Start says that something may be recorded.
  bool enabled() const;
  // The last Start would have recorded, but for its requests: that of the plan is
  // not among them.
  bool request_missing() const;
  // Names the plan under which hooks may be left out altogether.
  std::shared_ptr<const Plan> plan() const;
  // The plan that the last Start used for the step: plan() is the flight
  // recorder's if this plan does not record the step. Without a plan before the
  // first Start.
  ActivePlan asked() const;
  std::optional<int64_t> rank() const;
  // Of the step so far: forwards that began, and those that passed the filters.
  struct Forwards {
    uint64_t seen = 0;
    uint64_t matched = 0;
  };
  Forwards forwards() const;

  // --- Calls. All are no-ops when not recording.
  RecordedCall BeginApi(absl::string_view prefix, absl::string_view op);
  // Modules are recorded at level L1 too, until this is set to false.
  void SetModulesForced(bool forced) { modules_forced_ = forced; }
  // `module` is "Module.{path}.{Class}".
  RecordedCall BeginModule(absl::string_view module);
  void Inputs(const RecordedCall& call, BuildFn build);
  // Ends the forward. A module must be ended, kept or not, also by Abandon.
  // late: they come once more, with LateOutputs, and count then.
  void Outputs(const RecordedCall& call, BuildFn build, bool late = false);
  // Replaces the outputs of a call that has ended: an asynchronous one is done.
  void LateOutputs(const RecordedCall& call, BuildFn build);
  // The forward ended by an exception: its inputs stay, its place is left.
  void Abandon(const RecordedCall& call);
  // Gradients of a call whose forward was recorded in this step. Also works
  // after Stop(), until Step().
  void Backward(const RecordedCall& call, BuildFn build);
  // The backward of a module begins: what runs until Backward is inside it.
  void BeginModuleBackward(const RecordedCall& call);
  // What runs on this thread until PopScope hangs under `name`, a parent that
  // is no call ("optimizer", "clip_grad").
  void PushScope(absl::string_view name);
  void PopScope(absl::string_view name);
  // A new forward of the root model: what an exception left open is closed.
  void ResetModules();
  using BuildValueFn = std::function<void(CallBuilder&, v1::Value*)>;
  void ParameterGradient(absl::string_view module, absl::string_view parameter,
                         const TensorInfo& gradient);
  void ParameterGradient(
      absl::string_view module, absl::string_view parameter,
      absl::FunctionRef<void(CallBuilder&, v1::Value*)> build);
  // Whether Backward of this call can still record something.
  bool WantsBackward(const RecordedCall& call) const;
  bool WantsStacks() const;
  // The stack of a kept forward, innermost frame first. number: of these frames
  // alone, by which they are known again at once; 0: they have none.
  void UseStack(const RecordedCall& call,
                const std::vector<std::string>& frames, uint64_t number = 0);

  // --- Level debug. False when the plan does not want it. With a gradient,
  // a null entry is left for it.
  bool Save(absl::string_view name, bool with_gradient,
            const BuildValueFn& build);
  // The same with the skeleton of its gradients (nulls); null: none. What
  // names the saved value for SaveGradient; nothing when it is not wanted.
  struct SavedValue {
    std::string gradient_entry;
    uint64_t step_generation = 0;
  };
  std::optional<SavedValue> SaveValue(absl::string_view name,
                                      const BuildValueFn& build,
                                      const BuildValueFn& build_gradient);
  // Fills one leaf of the skeleton; `path` is positions in nested lists
  // and maps joined by '.'; empty: the whole value.
  void SaveGradient(const SavedValue& value, absl::string_view path,
                    const BuildValueFn& build);

  // --- For triggers; sent only when a rule asks. The loss of this step, and a
  // replica that all ranks should hold alike (the parameters, say).
  bool WantsLoss() const;
  void ReportLoss(double loss);
  bool WantsReplica() const;
  void ReportReplica(absl::Span<const TensorInfo> tensors);

  // --- The run card (docs/formats.md): facts of this step. Nothing unless the
  // step is recorded for the collector. Texts are cut at the limits of
  // common/base/limits.h, facts without a section or name left out.
  bool WantsFacts() const;
  void RecordFacts(absl::Span<const v1::RunFact> facts);

  // --- Tensors on devices, see Arrival. A front end that defers resolves
  // before Stop and Step, and before what it holds grows too large: until then
  // no record leaves. What it did not deliver is null.
  void ResolveDeferred(const DeferredResults& results);
  // How tensors are read that are no call's: saved values and gradients.
  RecordedCall::Needs NeedsOfSaved() const;

  // The adapter caught a fault of its own.
  void ReportFault(absl::string_view what);

  Session* session() { return session_.get(); }

 private:
  Recorder(RecorderOptions options, std::unique_ptr<Session> session,
           const Clock* clock, std::unique_ptr<FileSystem> own_file_system,
           std::shared_ptr<const Plan> local_plan);

  struct StepCounts {
    uint64_t call_phases = 0;
    uint64_t filtered = 0;
    uint64_t lost_records = 0;
    Forwards forwards;
  };
  struct ParameterRounds {
    std::string first_parameter;
    int64_t number = 0;
  };

  struct WatchedPhase {
    bool watched = false;
    bool timed = false;
    int64_t began_ns = 0;
    uint64_t payload_bytes = 0;
    size_t deferred = 0;
  };

  bool Forked() const { return fork_guard_.InChild(); }
  void AdoptPlan(const ActivePlan& active)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginStepRecords(v1::StepRequests requests = {})
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsEmpty() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::Record* AddRecord() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether its records go to the collector.
  bool EndStep() ABSL_LOCKS_EXCLUDED(mutex_);
  void SubmitIfDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Submit() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddPhase(
      const std::string& entry, v1::CallKind kind, BuildFn build,
      ReferenceComparer::Phase phase = ReferenceComparer::Phase::kOther)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Around what fills a phase: its cost, and triggers that look at it.
  WatchedPhase BeginWatched() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndWatched(const WatchedPhase& phase, const v1::CallPhase* call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginReference(int64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // As many differences from the reference as were wanted: the step ends here.
  void StopIfSpent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Resolve(const DeferredResults& results)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  RecordedCall::Needs NeedsOf(const RecordedCall& call) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `payload`: one may be wanted.
  RecordedCall::Needs NeedsFor(bool payload) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddError(absl::string_view what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddEdge(const std::string& entry,
               const std::optional<std::string>& parent)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FlushModuleEdges() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<std::string>& ModuleStack() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<std::string> Parent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool PopStack(const std::string& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndModule(const RecordedCall& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The filter's verdicts; what it is asked is remembered for Explain and,
  // under plans with windows, sent ahead of the next call.
  Verdict AskFilter(v1::CallTrace::Kind kind, absl::string_view entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddTrace() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Edges() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RecorderOptions options_;
  const Clock* const clock_;
  const ForkGuard fork_guard_;
  std::atomic<bool> recording_{false};
  std::atomic<bool> modules_forced_{false};

  mutable absl::Mutex mutex_;
  const std::unique_ptr<Session> session_;
  // The session's; null when it has none.
  TriggerWatcher* const watcher_;
  const std::unique_ptr<FileSystem> own_file_system_;
  TensorRecorder tensors_ ABSL_GUARDED_BY(mutex_);
  // Behind the tensors: what it holds is counted there.
  ReferenceComparer reference_ ABSL_GUARDED_BY(mutex_);
  // The plan whose missing reference was reported.
  std::optional<uint64_t> reference_fault_epoch_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Plan> plan_ ABSL_GUARDED_BY(mutex_);
  ActivePlan asked_ ABSL_GUARDED_BY(mutex_);
  uint64_t plan_epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  bool plan_enabled_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<CallFilter> filter_ ABSL_GUARDED_BY(mutex_);
  std::optional<int64_t> rank_ ABSL_GUARDED_BY(mutex_);
  int64_t init_step_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t loop_ ABSL_GUARDED_BY(mutex_) = 0;
  // Of the buffer: phases that wait for numbers, and plans they were made
  // under.
  std::vector<const v1::CallPhase*> deferred_phases_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<const Plan>> deferred_plans_
      ABSL_GUARDED_BY(mutex_);
  // Changes with each Step(), and when a step is cut short: ties gradients to
  // the step of their forward.
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 1;
  bool step_begun_ ABSL_GUARDED_BY(mutex_) = false;
  // Records of this step have left.
  bool step_submitted_ ABSL_GUARDED_BY(mutex_) = false;
  bool request_missing_ ABSL_GUARDED_BY(mutex_) = false;
  // As the last StepBegin of the step said them.
  std::string told_requests_ ABSL_GUARDED_BY(mutex_);
  // The step goes to the flight recorder.
  bool flight_ ABSL_GUARDED_BY(mutex_) = false;
  v1::CallTrace trace_ ABSL_GUARDED_BY(mutex_);
  uint64_t traced_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t next_order_ ABSL_GUARDED_BY(mutex_) = 0;
  StepCounts counts_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<RecordBuffer> buffer_ ABSL_GUARDED_BY(mutex_);
  int64_t submitted_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, int64_t> call_numbers_
      ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, ParameterRounds> parameter_rounds_
      ABSL_GUARDED_BY(mutex_);
  std::map<std::thread::id, std::vector<std::string>> module_stacks_
      ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<std::string, std::optional<std::string>>> module_edges_
      ABSL_GUARDED_BY(mutex_);
  std::map<std::vector<std::string>, uint32_t> stacks_ ABSL_GUARDED_BY(mutex_);
  // By number.
  absl::flat_hash_map<uint64_t, uint32_t> numbered_stacks_
      ABSL_GUARDED_BY(mutex_);
  uint64_t faults_ ABSL_GUARDED_BY(mutex_) = 0;
  // What the collector had committed when Stop() last timed out.
  std::optional<uint64_t> stuck_at_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_RECORDER_RECORDER_H_
