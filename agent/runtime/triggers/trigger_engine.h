// SPDX-License-Identifier: Apache-2.0
// Evaluation of the rules of a TriggerSpec on what a rank records; it returns
// the rules that have fired. Cost: non-finite values take three comparisons for
// each tensor; names of values are made only if a rule checks courses. Not
// thread-safe: guarded by the TriggerWatcher's lock.
#ifndef RANKPROBE_AGENT_RUNTIME_TRIGGERS_TRIGGER_ENGINE_H_
#define RANKPROBE_AGENT_RUNTIME_TRIGGERS_TRIGGER_ENGINE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "agent/runtime/triggers/course_watch.h"
#include "common/base/clock.h"
#include "common/detect/token_checks.h"
#include "common/records/call_values.h"
#include "common/records/non_finite.h"
#include "rankprobe/v1/agent.pb.h"
#include "rankprobe/v1/triggers.pb.h"

namespace rankprobe {

class TriggerEngine {
 public:
  explicit TriggerEngine(const Clock* clock,
                         size_t course_bytes = CourseMemory::kDefaultBytes)
      : clock_(clock), course_memory_(course_bytes) {}

  // `spec` must have its defaults filled in.
  void Configure(const v1::TriggerSpec& spec);

  // Returns the rules that a phase of a call makes true, for the first time
  // since their cool-down.
  std::vector<v1::TriggerFired> OnPhase(int64_t step,
                                        const v1::CallPhase& phase);
  std::vector<v1::TriggerFired> OnLoss(int64_t step, double loss);
  // `tokens`: of the request, the new one last.
  std::vector<v1::TriggerFired> OnToken(const std::string& request,
                                        absl::Span<const RequestToken> tokens);
  // Describes, for a person and once for each spec, what the rules cannot
  // check.
  std::optional<std::string> TakeNotice();

 private:
  struct Rule {
    v1::TriggerRule rule;
    int64_t rests_until_ns = INT64_MIN;
    uint32_t fires = 0;
    // Set for a rule that checks courses.
    std::unique_ptr<CourseWatch> courses;
    // Set for a rule that checks tokens.
    std::optional<TokenCheck> tokens;
  };
  struct History {
    double mean = 0;
    uint32_t count = 0;
  };

  bool Resting(const Rule& rule) const;
  v1::TriggerFired Fire(Rule* rule, int64_t step, const std::string& entry,
                        const std::string& detail);

  // Infinities of this phase that are not a fault, because they were passed in
  // or requested. A phase of outputs is judged with the result for the inputs
  // of its call.
  NonFinite MeantInfinities(const v1::CallPhase& phase);
  // Checks the `number`-th tensor with statistics of its phase.
  void LookAtTensor(int64_t step, const v1::CallPhase& phase, TensorPlace at,
                    int number, const v1::TensorStats& stats,
                    const NonFinite& meant, std::vector<v1::TriggerFired>* all);
  void LookAtCourses(int64_t step, const std::string& entry,
                     absl::string_view value, const v1::TensorStats& stats,
                     std::vector<v1::TriggerFired>* all);

  const Clock* const clock_;
  CourseMemory course_memory_;
  std::vector<Rule> rules_;
  bool watches_tensors_ = false;
  bool watches_norms_ = false;
  bool watches_courses_ = false;
  bool notice_given_ = false;
  uint64_t left_out_before_ = 0;
  bool watches_infinities_ = false;
  // For calls whose outputs are still to come; bounded.
  absl::flat_hash_map<std::string, NonFinite> given_;
  // Norms by entry and place; bounded.
  absl::flat_hash_map<std::string, History> norms_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_TRIGGERS_TRIGGER_ENGINE_H_
