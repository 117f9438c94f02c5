// SPDX-License-Identifier: Apache-2.0
// The rules (analysis/rules) over a run of the archive.
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
  // With the name of the rule.
  std::vector<std::pair<std::string, analysis::RankFinding>> findings;
  // Names of rules; those of which values or steps were not recorded, or that the
  // program has nothing of, by what they need.
  std::vector<std::string> kept;
  using Unjudged = std::map<std::string, std::vector<std::string>>;
  Unjudged without_values, without_steps, without_subject;
};

// scan: of the same request.
absl::StatusOr<RunRules> AskRules(const Globals& globals,
                                  const RunScanRequest& request,
                                  const RunScan& scan);

// The same of values that are at hand.
RunRules AskRules(const analysis::RankInput& input);
// The largest and the smallest norm of the ranks.
analysis::ScanInput NormsOf(const analysis::RankInput& input);

// Adds the findings, the rules that are kept and those that did not judge.
void AddRules(RunRules rules, const RunScan& scan, DiagnosisReport* report);
// What was not judged, in a line for each thing that has to be recorded.
void AddUnjudgedRules(const RunScan& scan, const RunRules& rules,
                      DiagnosisReport* report);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_RUN_RULES_H_
