// SPDX-License-Identifier: Apache-2.0
// Reports of a step besides its calls: its loss and a replica that should be
// equal on all ranks (for example the parameters), both for triggers, the facts
// of the run card (docs/formats.md), and the tokens of a server's requests.
//
// Ownership: the Recorder's. Thread-safe. Never fails: reports that no
// trigger or plan needs are left out.
#ifndef RANKPROBE_AGENT_RUNTIME_RECORDER_STEP_REPORTS_H_
#define RANKPROBE_AGENT_RUNTIME_RECORDER_STEP_REPORTS_H_

#include <string>
#include <utility>

#include "absl/types/span.h"
#include "agent/runtime/recorder/recorder_core.h"

namespace rankprobe {

class StepReports {
 public:
  // `core` must outlive this object.
  explicit StepReports(RecorderCore* core) : core_(core) {}

  // Whether a trigger rule checks the loss.
  bool WantsLoss() const;
  void ReportLoss(double loss);
  bool WantsReplica() const;
  void ReportReplica(absl::Span<const TensorInfo> tensors);

  // Whether the step is recorded for the collector, not for the flight
  // recorder.
  bool WantsFacts() const;
  // Texts are cut at the limits of common/base/limits.h; facts without a
  // section or name are left out.
  void RecordFacts(absl::Span<const v1::RunFact> facts);

  // Whether tokens of a server's requests are kept and checked.
  bool WantsTokens() const;
  // Tokens that the step has computed, by request. Those of a request that a
  // rule or a user names are recorded with the step, or with the next one if
  // this one is not recorded.
  void ReportTokens(
      absl::Span<const std::pair<std::string, RequestToken>> tokens);

 private:
  void Add(absl::Span<const v1::RunFact> facts)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mutex);

  RecorderCore* const core_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_RECORDER_STEP_REPORTS_H_
