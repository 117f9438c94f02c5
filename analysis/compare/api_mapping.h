// SPDX-License-Identifier: Apache-2.0
// Pairs API calls of different names: one rule renames "Torch.mul" to
// "Tensor.mul" and may say which argument or output stands where.
// docs/analysis.md, "Tables". Pure functions.
#ifndef RANKPROBE_ANALYSIS_COMPARE_API_MAPPING_H_
#define RANKPROBE_ANALYSIS_COMPARE_API_MAPPING_H_

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/io/file_system.h"

namespace rankprobe::analysis {

struct ApiRule {
  std::string reference;  // "Tensor.mul"
  // By section ("input", "output", "parameters", "parameters_grad"): places of
  // the target to places of the reference side. A section that is not there keeps
  // its places; a place that its section does not list has no partner.
  std::map<std::string, std::vector<std::pair<std::string, std::string>>,
           std::less<>>
      places;
};
// By the target's API: "Torch.mul".
using ApiRules = std::map<std::string, ApiRule, std::less<>>;

// YAML: lines of `Torch.mul: Tensor.mul`, or a list of msprobe's rules (ms_api,
// pt_api, ms_args, pt_args, ms_output, pt_output ..). INVALID_ARGUMENT naming
// file and reason.
// `path` may be the name of a table that comes along, "mindspore".
absl::StatusOr<ApiRules> ReadApiRules(FileSystem* file_system,
                                      const std::string& path);
// The texts of those tables by name.
const std::map<std::string, std::string>& BuiltInApiRules();

// Of an entry such as "Torch.mul.3.forward"; null without a rule.
const ApiRule* FindApiRule(const ApiRules& rules, absl::string_view entry);
std::string RenamedEntry(const ApiRule& rule, absl::string_view entry);
// What follows the entry's name in a row's name: ".input.0.1". Nothing: the
// row has no partner.
std::optional<std::string> RenamedPlace(const ApiRule& rule,
                                        absl::string_view suffix);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_COMPARE_API_MAPPING_H_
