// SPDX-License-Identifier: Apache-2.0
// Base class of the rules, which records whether a rule found something to
// compare. A program may lack it although its values are recorded. Not
// thread-safe.
#ifndef RANKPROBE_ANALYSIS_RULES_JUDGED_H_
#define RANKPROBE_ANALYSIS_RULES_JUDGED_H_

#include "absl/strings/string_view.h"

namespace rankprobe::analysis {

class Judged {
 public:
  virtual ~Judged() = default;
  // Returns what the rule compares if a program may not have it, such as
  // "several micro batches in a step". Empty if every program has it whose
  // values are recorded.
  virtual absl::string_view subject() const { return ""; }
  // Whether a call of Look() has compared something so far.
  bool has_judged() const { return has_judged_ || subject().empty(); }

 protected:
  void Judge() const { has_judged_ = true; }

 private:
  mutable bool has_judged_ = false;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_RULES_JUDGED_H_
