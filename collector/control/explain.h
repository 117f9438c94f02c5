// SPDX-License-Identifier: Apache-2.0
// Explanations why a rank's calls are, will be or would be captured or not.
// Pure functions over the plan, the state of the rank and the calls it last
// made; CallFilter makes the decisions.
#ifndef RANKPROBE_COLLECTOR_CONTROL_EXPLAIN_H_
#define RANKPROBE_COLLECTOR_CONTROL_EXPLAIN_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "collector/control/run_plans.h"
#include "common/filter/call_filter.h"
#include "rankprobe/v1/control.pb.h"

namespace rankprobe {

struct RankFacts {
  v1::Identity identity;
  bool connected = false;
  int64_t step = -1;
  int64_t silent_ms = 0;
  uint32_t degrade = 0;
  // A plan whose commit came too late for the rank and that it does not follow
  // yet (0: none), and the reason.
  uint64_t late_epoch = 0;
  std::string late_reason;
  // The PlanSpec.api_list in force, which a hypothetical plan would keep.
  absl::string_view api_list;
  std::optional<v1::CallReport> report;
};

struct ExplainQuestion {
  std::string call;
  // The step in question; absent: the rank's next.
  std::optional<int64_t> step;
  // The plan is hypothetical, not the one in force.
  bool hypothetical = false;
  uint32_t max_calls = 200;
};

// `plan` is null if the run has none.
v1::RankExplanation ExplainRank(const ExplainQuestion& question,
                                std::shared_ptr<const CompiledPlan> plan,
                                const RankFacts& facts);

// Returns one sentence.
std::string VerdictReason(const Plan& plan, Verdict verdict,
                          absl::string_view entry);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_EXPLAIN_H_
