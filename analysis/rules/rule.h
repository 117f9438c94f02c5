// SPDX-License-Identifier: Apache-2.0
// Rules that a sound training keeps, whatever its model: each says what it wants
// recorded, what that costs, and what a sound program does that looks like its
// fault. They look at values over steps, as `scan` does, and need no reference
// (docs/rules.md). Pure functions of plain values.
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

// What was read of one group of replicas. A series that was not read is empty.
struct RuleInput {
  // Norms, the largest and the smallest over the ranks.
  const ScanInput* norms = nullptr;
};

struct RuleFinding {
  int64_t step = 0;
  std::string name;  // of the value
  int64_t rank = -1;
  std::string what;  // a sentence
  // True: numbers that must agree and do not. False: only unusual.
  bool exact = true;
  size_t others = 0;
};

class Rule : public Judged {
 public:
  // "update-zero".
  virtual absl::string_view name() const = 0;
  // Words of monitor.values.
  virtual absl::string_view needs() const = 0;
  virtual absl::string_view cost() const = 0;
  // What is sound and must not be found.
  virtual absl::string_view twin() const = 0;
  // Says nothing of a program of one rank.
  virtual bool IsOfRanks() const { return false; }
  // So many recorded steps it needs to find anything.
  virtual size_t LeastSteps() const = 0;
  // Whether what it needs was recorded.
  virtual bool CanJudge(const RuleInput& input) const = 0;
  // At most one finding of a kind a step, with the number of values beside it.
  virtual std::vector<RuleFinding> Look(const RuleInput& input) const = 0;
};

std::vector<std::unique_ptr<Rule>> AllRules();

// The values by name, for rules.
class ValueIndex {
 public:
  // `input` outlives it; may be null.
  explicit ValueIndex(const ScanInput* input);
  // Null where it was not recorded in as many columns as there are steps.
  const std::vector<ScanCell>* Find(absl::string_view name) const;

 private:
  absl::flat_hash_map<absl::string_view, const ScanSeries*> by_name_;
  size_t columns_ = 0;
};

// "layers.0.fc.weight" of "Parameter.layers.0.fc.weight.0.debug.grad", with
// `what` "grad"; empty for another value.
std::string ParameterOf(absl::string_view name, absl::string_view prefix,
                        absl::string_view what);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_RULES_RULE_H_
