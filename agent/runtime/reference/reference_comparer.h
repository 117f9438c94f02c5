// SPDX-License-Identifier: Apache-2.0
// Comparison with tensor.bench_path during the training: the reference of the
// step in progress, the calls that wait for their outputs, and the count of
// differences against tensor.diff_nums.
//
// A call is a difference when the reference has it with the same inputs and an
// output of the same shape with another md5. Only the tensors of such a call
// are sent.
//
// Ownership: the Recorder's; Session, FileSystem and Clock outlive it.
// Not thread-safe: guarded by the Recorder's lock.
// Failure: a step whose reference is not available is not compared, and the
// reason is reported once for each step. A reference in the archive is fetched
// with a deadline; after a timeout the comparer pauses before the next fetch.
#ifndef RANKPROBE_AGENT_RUNTIME_REFERENCE_REFERENCE_COMPARER_H_
#define RANKPROBE_AGENT_RUNTIME_REFERENCE_REFERENCE_COMPARER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "agent/runtime/queue/held_payloads.h"
#include "agent/runtime/reference/reference_dump.h"
#include "agent/runtime/session/session.h"
#include "common/base/clock.h"
#include "common/config/plan.h"
#include "common/io/file_system.h"

namespace rankprobe {

class ReferenceComparer {
 public:
  static constexpr absl::Duration kFetchDeadline = absl::Seconds(2);
  static constexpr absl::Duration kFetchPause = absl::Seconds(30);
  // Limit of events for one step when diff_nums has no limit; further
  // differences are recorded without events.
  static constexpr int64_t kMaxEventsPerStep = 100;

  enum class Phase { kOther, kInputs, kOutputs };

  ReferenceComparer(Session* session, FileSystem* file_system,
                    const Clock* clock)
      : session_(session), file_system_(file_system), clock_(clock) {}

  // Called with the plan at each Start(). Each epoch has its own budget, except
  // that the agent's own plan (epoch 0) and the run's first one share it.
  void NotePlan(const Plan& plan, uint64_t epoch);
  // Whether diff_nums is reached: nothing more is recorded under this plan.
  bool spent() const { return spent_; }

  // Called when recording of a step begins: loads the reference of the step.
  // May be called again in the same step.
  absl::Status BeginStep(const Plan& plan, int64_t step,
                         std::optional<int64_t> rank);
  void EndStep();
  // Whether the step is recorded in reference mode: names, but no bytes unless
  // a call differs.
  bool active() const { return active_; }

  // Called before a phase is built. Returns where to hold its payloads, or null
  // if they are not held.
  HeldPayloads* Begin(Phase phase, const std::string& entry,
                      uint64_t* held_bytes);
  // Called when the phase is built, with tokens. Inputs are remembered if they
  // match. Returns true if these outputs differ: the phase then has the inputs
  // too, and `*held` has the payloads of its tokens. Otherwise no token is
  // left.
  bool End(Phase phase, v1::CallPhase* call,
           std::unique_ptr<HeldPayloads>* held);
  void Abandon(const std::string& entry) { open_.erase(entry); }

 private:
  struct OpenCall {
    std::unique_ptr<HeldPayloads> held;
    v1::CallPhase inputs;
  };

  absl::Status Fetch(const std::string& run, int64_t step,
                     std::optional<int64_t> rank);
  void Count(const std::string& entry, const std::string& detail);

  Session* const session_;
  FileSystem* const file_system_;
  const Clock* const clock_;
  ReferenceDump reference_;
  bool active_ = false;
  int64_t step_ = -1;
  int64_t events_in_step_ = 0;
  int64_t not_before_ns_ = 0;
  std::map<std::string, OpenCall> open_;

  uint64_t epoch_ = 0;
  int64_t diff_nums_ = -1;
  int64_t differences_ = 0;
  bool spent_ = false;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_REFERENCE_REFERENCE_COMPARER_H_
