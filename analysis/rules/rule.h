// SPDX-License-Identifier: Apache-2.0
// Rules that a correct training satisfies, whatever its model. Each rule states
// which values it needs, what recording them costs, and which correct programs
// look like its fault. They check values over steps, as `scan` does, and need
// no reference (docs/rules.md). Pure functions of plain values.
#ifndef RANKPROBE_ANALYSIS_RULES_RULE_H_
#define RANKPROBE_ANALYSIS_RULES_RULE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "analysis/rules/judged.h"
#include "analysis/scan/scan.h"

namespace rankprobe::analysis {

// Values of one group of replicas. A series that was not read is empty.
struct RuleInput {
  // Norms: the largest and the smallest over the ranks.
  const ScanInput* norms = nullptr;
};

struct RuleFinding {
  int64_t step = 0;
  std::string name;  // of the value
  int64_t rank = -1;
  std::string what;  // a sentence
  // True if numbers that must agree do not; false if they are only unusual.
  bool exact = true;
  size_t others = 0;
};

class Rule : public Judged {
 public:
  // The name of the rule, such as "update-zero".
  virtual absl::string_view name() const = 0;
  // The required words of monitor.values.
  virtual absl::string_view needs() const = 0;
  virtual absl::string_view cost() const = 0;
  // Correct programs that look similar and must not be reported.
  virtual absl::string_view twin() const = 0;
  // Whether the rule needs more than one rank.
  virtual bool IsOfRanks() const { return false; }
  // The number of recorded steps that the rule needs to find anything.
  virtual size_t LeastSteps() const = 0;
  // Whether the required values were recorded.
  virtual bool CanJudge(const RuleInput& input) const = 0;
  // Returns at most one finding of a kind for each step, with the number of
  // other values.
  virtual std::vector<RuleFinding> Look(const RuleInput& input) const = 0;
};

std::vector<std::unique_ptr<Rule>> AllRules();

// Index of the values by name.
class ValueIndex {
 public:
  // `input` outlives this object; it may be null.
  explicit ValueIndex(const ScanInput* input);
  // Returns null if the value was not recorded in as many columns as there are
  // steps.
  const std::vector<ScanCell>* Find(absl::string_view name) const;

 private:
  absl::flat_hash_map<absl::string_view, const ScanSeries*> by_name_;
  size_t columns_ = 0;
};

// Returns "layers.0.fc.weight" for "Parameter.layers.0.fc.weight.0.debug.grad"
// with `what` "grad"; empty for other values.
std::string ParameterOf(absl::string_view name, absl::string_view prefix,
                        absl::string_view what);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_RULES_RULE_H_
