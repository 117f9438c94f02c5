// SPDX-License-Identifier: Apache-2.0
#include "analysis/compare/api_mapping.h"

#include <yaml-cpp/yaml.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "common/records/entry_names.h"
#include "dump_format/input_files.h"

namespace rankprobe::analysis {
namespace {

constexpr char kShape[] =
    "expected lines of `Torch.op: Tensor.op`, or a list of rules with ms_api "
    "and pt_api";

absl::Status Bad(const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": ", absl::StrReplaceAll(what, {{"\n", " "}})));
}

// Returns "Torch.mul" for "Torch.mul.3.forward", and an empty text for other
// entries.
absl::string_view ApiOf(absl::string_view entry) {
  const absl::string_view op = OpOfEntry(entry);
  const size_t dot = entry.find('.');
  if (op.empty() || dot == absl::string_view::npos) return "";
  return entry.substr(0, dot + 1 + op.size());
}

absl::Status AddRule(const std::string& path, const YAML::Node& item,
                     ApiRules* rules) {
  if (!item.IsMap() || !item["ms_api"] || !item["pt_api"] ||
      !item["ms_api"].IsScalar() || !item["pt_api"].IsScalar()) {
    return Bad(path, kShape);
  }
  // msprobe's rules compare MindSpore dumps with PyTorch: ms_ is always the
  // target's side, whatever the dumps are.
  const std::string target = item["ms_api"].as<std::string>();
  ApiRule& rule = (*rules)[target];
  rule.reference = item["pt_api"].as<std::string>();
  // Rows of keyword arguments are also named .input., so "args" covers both.
  const std::pair<const char*, const char*> kSections[] = {
      {"args", "input"},
      {"output", "output"},
      {"parameters", "parameters"},
      {"parameters_grad", "parameters_grad"}};
  for (const auto& [key, section] : kSections) {
    const YAML::Node from = item[absl::StrCat("ms_", key)];
    const YAML::Node to = item[absl::StrCat("pt_", key)];
    if (!from && !to) continue;
    if (!from || !to || !from.IsSequence() || !to.IsSequence() ||
        from.size() != to.size()) {
      return Bad(path, absl::StrCat(target, ": ms_", key, " and pt_", key,
                                    " are not lists of one length"));
    }
    auto& places = rule.places[section];
    for (size_t i = 0; i < from.size(); ++i) {
      places.emplace_back(from[i].as<std::string>(), to[i].as<std::string>());
    }
  }
  return absl::OkStatus();
}

absl::Status AddRules(const std::string& path, const YAML::Node& root,
                      ApiRules* rules) {
  // A single rule may be given without a list.
  if (root.IsMap() && root["ms_api"]) return AddRule(path, root, rules);
  if (root.IsSequence()) {
    for (const YAML::Node& item : root) {
      const absl::Status added = AddRule(path, item, rules);
      if (!added.ok()) return added;
    }
    return absl::OkStatus();
  }
  if (!root.IsMap()) return Bad(path, kShape);
  for (const auto& item : root) {
    if (!item.first.IsScalar() || !item.second.IsScalar()) {
      return Bad(path, kShape);
    }
    (*rules)[item.first.as<std::string>()].reference =
        item.second.as<std::string>();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ApiRules> ReadApiRules(FileSystem* file_system,
                                      const std::string& path) {
  std::string text;
  const auto built_in = BuiltInApiRules().find(path);
  if (built_in != BuiltInApiRules().end() && !file_system->Exists(path)) {
    text = built_in->second;
  } else {
    RP_ASSIGN_OR_RETURN(text, ReadInput(file_system, path));
  }
  ApiRules rules;
  absl::Status status;
  // yaml-cpp throws for invalid text and for values that as<std::string>()
  // cannot convert.
  try {
    status = AddRules(path, YAML::Load(text), &rules);
  } catch (const YAML::Exception& fault) {
    status = Bad(path, fault.what());
  }
  if (!status.ok()) return status;
  return rules;
}

const ApiRule* FindApiRule(const ApiRules& rules, absl::string_view entry) {
  if (rules.empty()) return nullptr;
  const auto it = rules.find(std::string(ApiOf(entry)));
  return it == rules.end() ? nullptr : &it->second;
}

std::string RenamedEntry(const ApiRule& rule, absl::string_view entry) {
  return absl::StrCat(rule.reference, entry.substr(ApiOf(entry).size()));
}

std::optional<std::string> RenamedPlace(const ApiRule& rule,
                                        absl::string_view suffix) {
  for (const auto& [section, places] : rule.places) {
    const std::string head = absl::StrCat(".", section, ".");
    if (!absl::StartsWith(suffix, head)) continue;
    const absl::string_view place = suffix.substr(head.size());
    for (const auto& [from, to] : places) {
      if (place == from) return absl::StrCat(head, to);
      // A rule for a list argument also applies to its elements; the dot keeps
      // "1" from matching "10".
      if (absl::StartsWith(place, absl::StrCat(from, "."))) {
        return absl::StrCat(head, to, place.substr(from.size()));
      }
    }
    return std::nullopt;
  }
  return std::string(suffix);
}

}  // namespace rankprobe::analysis
