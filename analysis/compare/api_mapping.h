// SPDX-License-Identifier: Apache-2.0
// Pairs of API calls with different names: one rule renames "Torch.mul" to
// "Tensor.mul" and may map its arguments and outputs to other places.
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
  // Maps places of the target to places of the reference, by section ("input",
  // "output", "parameters", "parameters_grad"). A section that is not listed
  // keeps its places; a place that a listed section omits has no partner.
  std::map<std::string, std::vector<std::pair<std::string, std::string>>,
           std::less<>>
      places;
};
// Rules by the target's API, such as "Torch.mul".
using ApiRules = std::map<std::string, ApiRule, std::less<>>;

// Reads a YAML file: lines of `Torch.mul: Tensor.mul`, or a list of msprobe's
// rules (ms_api, pt_api, ms_args, pt_args, ms_output, pt_output ..). `path` may
// also name a built-in table, "mindspore". Returns INVALID_ARGUMENT with the
// file and the reason.
absl::StatusOr<ApiRules> ReadApiRules(FileSystem* file_system,
                                      const std::string& path);
// Returns the texts of the built-in tables by name.
const std::map<std::string, std::string>& BuiltInApiRules();

// Returns the rule of an entry such as "Torch.mul.3.forward", or null if it has
// none.
const ApiRule* FindApiRule(const ApiRules& rules, absl::string_view entry);
std::string RenamedEntry(const ApiRule& rule, absl::string_view entry);
// Renames the part of a row's name after the entry's name, such as
// ".input.0.1". Returns nullopt if the row has no partner.
std::optional<std::string> RenamedPlace(const ApiRule& rule,
                                        absl::string_view suffix);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_COMPARE_API_MAPPING_H_
