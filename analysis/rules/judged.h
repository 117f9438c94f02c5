// SPDX-License-Identifier: Apache-2.0
// Base class of the rules: knows whether a rule found something to compare. A
// program may lack what a rule compares although its values are recorded. Not
// thread-safe.
#ifndef RANKPROBE_ANALYSIS_RULES_JUDGED_H_
#define RANKPROBE_ANALYSIS_RULES_JUDGED_H_

#include "absl/strings/string_view.h"

namespace rankprobe::analysis {

class Judged {
 public:
  virtual ~Judged() = default;
  // What it compares, as a program may not have it: "several micro batches in a
  // step". Empty: a program whose values are recorded has it.
  virtual absl::string_view subject() const { return ""; }
  // Whether a Look() so far has compared something.
  bool has_judged() const { return has_judged_ || subject().empty(); }

 protected:
  void Judge() const { has_judged_ = true; }

 private:
  mutable bool has_judged_ = false;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_RULES_JUDGED_H_
