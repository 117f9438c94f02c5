// SPDX-License-Identifier: Apache-2.0
// Evaluates trigger rules while recording is off: flight recorder, triggers,
// budgets, and the names of the last calls for Explain. Sits between the
// Recorder, which feeds it, and the Session, which configures it and sends its
// events.
//
// Ownership: the Session's; the Recorder borrows it from its Session.
// Threads: thread-safe behind one mutex. `emit` is called with it held and must
// only queue. Nothing here waits.
// Failure: none; if records do not fit, the oldest are dropped, and this is
// reported.
#ifndef RANKPROBE_AGENT_RUNTIME_TRIGGERS_TRIGGER_WATCHER_H_
#define RANKPROBE_AGENT_RUNTIME_TRIGGERS_TRIGGER_WATCHER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "agent/runtime/triggers/evidence_budget.h"
#include "agent/runtime/triggers/flight_ring.h"
#include "agent/runtime/triggers/request_tokens.h"
#include "agent/runtime/triggers/trigger_engine.h"
#include "common/config/plan.h"

namespace rankprobe {

class TriggerWatcher {
 public:
  using Emit = std::function<void(v1::AgentEvent)>;
  TriggerWatcher(const Clock* clock, Emit emit);

  // --- Session side.
  // Applies `untrusted`; a spec with faults is ignored.
  void Configure(const v1::TriggerSpec& untrusted);
  void SetRunLevel(uint32_t level);
  // Requests the flight recorder's steps, and the following ones until dumping
  // is on.
  void RequestFlight();
  // Requests them with the tokens of the server's requests that `request`
  // names. Returns what it names here.
  v1::RequestFlagged FlagRequest(const std::string& request);
  // Returns the steps to send now, if any, with the tokens of requests that no
  // step in progress has taken.
  std::optional<FlightRing::Contents> TakeRequestedFlight();
  // The same at the end of the process: without a request if the spec says so
  // or a rule has just fired, then with the step in progress.
  std::optional<FlightRing::Contents> TakeLastFlight();
  v1::CallReport ReportCalls(uint64_t id) const;

  // --- Recorder side.
  void BeginStep(int64_t step);
  void EndStep();
  // Whether the methods below have an effect.
  bool active() const { return active_.load(std::memory_order_relaxed); }
  // Whether a step in which nothing is recorded changes nothing here.
  bool IsIdle() const;
  // The plan to record under while dumping is off; null if nothing is recorded.
  std::shared_ptr<const Plan> FlightPlan() const;
  // Adds records of the step in progress to the flight recorder.
  void KeepFlight(std::unique_ptr<RecordBuffer> records);
  // Returns whether a rule has fired that requires tensors as evidence,
  // including those of this call.
  bool OnPhase(const v1::CallPhase& phase);
  void OnLoss(double loss);
  // Whether tokens of requests are kept.
  bool wants_tokens() const {
    return wants_tokens_.load(std::memory_order_relaxed);
  }
  // A token that the step in progress has computed; its step is filled in.
  void OnToken(const std::string& request, RequestToken token);
  // Returns facts of requests whose tokens are to be recorded with the step in
  // progress.
  std::vector<v1::RunFact> TakeTokens();
  bool wants_replica() const;
  void OnReplica(uint64_t digest);
  // Notes a call that the filter has seen.
  void OnCall(v1::CallTrace::Kind kind, absl::string_view entry);

  // Budgets.
  bool timed() const;
  uint32_t evidence_level() const;
  bool Fits(uint64_t payload_bytes) const;
  // Adds the cost of a record to the budgets, and reports one that is reached.
  void AddCost(uint64_t bytes, int64_t ns);

 private:
  struct Calls {
    int64_t step = -1;
    bool truncated = false;
    // The names of all entries, concatenated; an item has the end of its own.
    // The memory is reused, which saves two allocations for each call of a
    // step.
    std::string text;
    std::vector<std::pair<v1::CallTrace::Kind, size_t>> items;

    void Clear();
  };

  bool WantsTensors(const v1::TriggerFired& fired) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EmitFired(std::vector<v1::TriggerFired> fired)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // HoldSteps keeps the steps of a rule that fires, or of a request, until they
  // are sent, since a fast training ends more steps until then than the ring
  // has. ReleaseSteps ends that once nothing waits to be sent.
  void HoldSteps() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReleaseSteps() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Emit emit_;
  std::atomic<bool> active_{false};
  std::atomic<bool> wants_tokens_{false};
  mutable absl::Mutex mutex_;
  int64_t step_ ABSL_GUARDED_BY(mutex_) = -1;
  v1::TriggerSpec spec_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Plan> flight_plan_ ABSL_GUARDED_BY(mutex_);
  FlightRing ring_ ABSL_GUARDED_BY(mutex_);
  TriggerEngine triggers_ ABSL_GUARDED_BY(mutex_);
  RequestTokens tokens_ ABSL_GUARDED_BY(mutex_);
  EvidenceBudget budget_ ABSL_GUARDED_BY(mutex_);
  bool flight_wanted_ ABSL_GUARDED_BY(mutex_) = false;
  // Number of steps that may still follow a request.
  uint32_t flight_follows_ ABSL_GUARDED_BY(mutex_) = 0;
  // Number of steps that may still end while steps are held.
  uint32_t held_steps_ ABSL_GUARDED_BY(mutex_) = 0;
  bool kept_this_step_ ABSL_GUARDED_BY(mutex_) = false;
  // Calls of the step in progress, and of the last complete one.
  Calls calls_ ABSL_GUARDED_BY(mutex_);
  Calls last_calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_TRIGGERS_TRIGGER_WATCHER_H_
