// SPDX-License-Identifier: Apache-2.0
// The rules (analysis/rules) over a run of the archive.
#ifndef RANKPROBE_CLI_CLIENT_RUN_RULES_H_
#define RANKPROBE_CLI_CLIENT_RUN_RULES_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "analysis/rules/rank_rule.h"
#include "cli/client/run_scan.h"

namespace rankprobe {

struct RunRules {
  // With the name of the rule.
  std::vector<std::pair<std::string, analysis::RankFinding>> findings;
  // Names of rules; those of which values or steps were not recorded, with what
  // they need.
  std::vector<std::string> kept, without_values, without_steps;
};

// scan: of the same request.
absl::StatusOr<RunRules> AskRules(const Globals& globals,
                                  const RunScanRequest& request,
                                  const RunScan& scan);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_RUN_RULES_H_
