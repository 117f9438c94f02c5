// SPDX-License-Identifier: Apache-2.0
// The rules (analysis/rules) applied to a run of the archive.
#ifndef RANKPROBE_CLI_CLIENT_RUN_RULES_H_
#define RANKPROBE_CLI_CLIENT_RUN_RULES_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "analysis/rules/rank_rule.h"
#include "cli/client/run_scan.h"
#include "cli/output/diagnosis_report.h"

namespace rankprobe {

struct RunRules {
  // Findings with the name of the rule.
  std::vector<std::pair<std::string, analysis::RankFinding>> findings;
  // Names of the rules that found nothing, and of those that could not judge,
  // by what they need: values or steps that were not recorded, or parts that
  // the program does not have.
  std::vector<std::string> kept;
  using Unjudged = std::map<std::string, std::vector<std::string>>;
  Unjudged without_values, without_steps, without_subject;
};

// Applies the rules. `scan` is the result for the same request.
absl::StatusOr<RunRules> AskRules(const Globals& globals,
                                  const RunScanRequest& request,
                                  const RunScan& scan);

// Applies the rules to values that were already read.
RunRules AskRules(const analysis::RankInput& input);
// Returns the largest and the smallest norm over the ranks.
analysis::ScanInput NormsOf(const analysis::RankInput& input);
// Notes which steps are judged if the program trains several models one after
// the other.
void NoteTrainings(const RunScan& scan, DiagnosisReport* report);

// Adds the findings, the rules that found nothing and those that did not judge.
void AddRules(RunRules rules, const RunScan& scan, DiagnosisReport* report);
// Adds what was not judged, one line for each thing that must be recorded.
void AddUnjudgedRules(const RunScan& scan, const RunRules& rules,
                      DiagnosisReport* report);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_RUN_RULES_H_
