// SPDX-License-Identifier: Apache-2.0
#include "analysis/align/align_rules.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "dump_format/input_files.h"

namespace rankprobe::analysis {
namespace {

// Throws the same exception as yaml-cpp; ParseAlignRules converts both into a
// status.
[[noreturn]] void Refuse(const YAML::Node& at, absl::string_view what) {
  throw YAML::Exception(at.Mark(), std::string(what));
}

// Returns "layer" for "{layer}", and an empty text for other components.
absl::string_view NameOf(absl::string_view part) {
  if (part.size() < 3 || part.front() != '{' || part.back() != '}') return "";
  return part.substr(1, part.size() - 2);
}

using Taken = std::map<std::string, std::string, std::less<>>;

// Returns "4" for "{layer-1}" if the layer is 5. Returns nullopt if the value
// is not a number or the result would be negative.
std::optional<std::string> Substitute(absl::string_view name,
                                      const Taken& taken) {
  if (const auto it = taken.find(name); it != taken.end()) return it->second;
  const bool less = absl::EndsWith(name, "-1");
  const auto it = taken.find(name.substr(0, name.size() - 2));
  int64_t number = 0;
  if (it == taken.end() || !absl::SimpleAtoi(it->second, &number)) {
    return std::nullopt;
  }
  number += less ? -1 : 1;
  if (number < 0) return std::nullopt;
  return absl::StrCat(number);
}

void CheckKeys(const YAML::Node& node, const std::set<std::string>& known) {
  for (const auto& item : node) {
    const std::string key = item.first.as<std::string>();
    if (!known.contains(key)) {
      Refuse(item.first, absl::StrCat("unknown key ", key, "; there are ",
                                      absl::StrJoin(known, ", ")));
    }
  }
}

int64_t Number(const YAML::Node& node, absl::string_view what) {
  int64_t value = 0;
  if (!node.IsScalar() || !absl::SimpleAtoi(node.Scalar(), &value)) {
    Refuse(node, absl::StrCat(what, ": expected an integer"));
  }
  return value;
}

std::vector<int64_t> Numbers(const YAML::Node& node, absl::string_view what) {
  if (!node.IsSequence() || node.size() == 0) {
    Refuse(node, absl::StrCat(what, ": expected a list of integers"));
  }
  std::vector<int64_t> out;
  for (const YAML::Node& item : node) out.push_back(Number(item, what));
  return out;
}

std::string RowName(const YAML::Node& node, absl::string_view what) {
  if (!node || !node.IsScalar() || node.Scalar().empty()) {
    Refuse(node, absl::StrCat(what, ": expected the name of a row"));
  }
  return node.Scalar();
}

SplitRule ReadSplit(const YAML::Node& node) {
  if (!node.IsMap()) Refuse(node, "split: expected {dim, part, sizes}");
  CheckKeys(node, {"dim", "part", "sizes"});
  for (const char* const key : {"part", "sizes"}) {
    if (!node[key]) Refuse(node, absl::StrCat("split: ", key, " is missing"));
  }
  SplitRule split;
  split.dim = node["dim"] ? Number(node["dim"], "dim") : -1;
  split.sizes = Numbers(node["sizes"], "sizes");
  for (const int64_t size : split.sizes) {
    if (size <= 0 || size > (int64_t{1} << 40)) {
      Refuse(node["sizes"], "sizes: a size is not positive, or too large");
    }
  }
  const int64_t part = Number(node["part"], "part");
  if (part < 0 || part >= static_cast<int64_t>(split.sizes.size())) {
    Refuse(node["part"],
           absl::StrCat("part ", part, " of ", split.sizes.size(), " sizes"));
  }
  split.part = static_cast<size_t>(part);
  return split;
}

RowTokens ReadTokens(const YAML::Node& node) {
  const std::string word = node.IsScalar() ? node.Scalar() : "";
  if (word == "tokens") return RowTokens::kTokens;
  if (word == "last") return RowTokens::kLast;
  if (word == "none") return RowTokens::kNone;
  Refuse(node, "dim0: expected tokens, last or none");
}

// Checks that the target's pattern defines every name in the reference pattern.
void CheckNames(const YAML::Node& node, const AlignRule& rule,
                const std::string& reference) {
  std::set<std::string, std::less<>> taken;
  for (const std::string& part : rule.target) {
    if (!NameOf(part).empty()) taken.insert(std::string(NameOf(part)));
  }
  for (const absl::string_view part : absl::StrSplit(reference, '.')) {
    absl::string_view name = NameOf(part);
    if (name.empty()) continue;
    if (!absl::ConsumeSuffix(&name, "-1")) absl::ConsumeSuffix(&name, "+1");
    if (taken.find(name) == taken.end()) {
      Refuse(node, absl::StrCat(part, " is not in the target's name"));
    }
  }
}

AlignRule ReadRule(const YAML::Node& node) {
  if (!node.IsMap()) Refuse(node, "expected a rule, {target, reference}");
  CheckKeys(node,
            {"target", "reference", "dim0", "split", "concat", "transpose"});
  AlignRule rule;
  rule.line = node.Mark().line + 1;
  if (!node["target"]) Refuse(node, "target is missing");
  if (!node["reference"]) Refuse(node, "reference is missing");
  const std::string target = RowName(node["target"], "target");
  rule.target = absl::StrSplit(target, '.');
  const YAML::Node reference = node["reference"];
  if (reference.IsSequence()) {
    for (const YAML::Node& row : reference) {
      rule.reference.push_back(RowName(row, "reference"));
      CheckNames(row, rule, rule.reference.back());
    }
    if (reference.size() == 0) Refuse(reference, "reference: an empty list");
  } else {
    rule.reference.push_back(RowName(reference, "reference"));
    CheckNames(reference, rule, rule.reference.back());
  }
  if (absl::StrContains(target, ".parameters")) {
    rule.tokens = RowTokens::kNone;
  }
  if (const YAML::Node word = node["dim0"]) rule.tokens = ReadTokens(word);
  if (const YAML::Node split = node["split"]) rule.split = ReadSplit(split);
  if (const YAML::Node concat = node["concat"]) {
    if (rule.reference.size() < 2) {
      Refuse(concat, "concat: there is one reference row only");
    }
    rule.concat_dim = Number(concat, "concat");
  } else if (rule.reference.size() > 1) {
    Refuse(node, "several reference rows and no concat");
  }
  if (const YAML::Node transpose = node["transpose"]) {
    rule.transpose = Numbers(transpose, "transpose");
    std::vector<int64_t> sorted = rule.transpose;
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 0; i < sorted.size(); ++i) {
      if (sorted[i] != static_cast<int64_t>(i)) {
        Refuse(transpose, "transpose: is not a permutation of the dimensions");
      }
    }
  }
  return rule;
}

void ReadRoot(const YAML::Node& root, AlignRules* out) {
  if (!root.IsMap()) Refuse(root, "expected version, tokens and rules");
  CheckKeys(root, {"version", "tokens", "rules"});
  if (!root["version"]) Refuse(root, "version is missing");
  if (Number(root["version"], "version") != 1) {
    Refuse(root["version"], "version: only 1 is known");
  }
  const YAML::Node tokens = root["tokens"];
  if (!tokens || !tokens.IsMap()) {
    Refuse(root, "tokens: expected {target: row, reference: row}");
  }
  CheckKeys(tokens, {"target", "reference"});
  for (const char* const side : {"target", "reference"}) {
    if (!tokens[side]) Refuse(tokens, absl::StrCat("tokens: ", side, "?"));
  }
  out->target_tokens = RowName(tokens["target"], "tokens");
  out->reference_tokens = RowName(tokens["reference"], "tokens");
  const YAML::Node rules = root["rules"];
  if (!rules || !rules.IsSequence() || rules.size() == 0) {
    Refuse(root, "rules: expected a list of rules");
  }
  for (const YAML::Node& rule : rules) out->rules.push_back(ReadRule(rule));
}

}  // namespace

std::optional<AlignMatch> AlignRules::Find(absl::string_view row) const {
  const std::vector<absl::string_view> parts = absl::StrSplit(row, '.');
  for (const AlignRule& rule : rules) {
    if (rule.target.size() != parts.size()) continue;
    Taken taken;
    bool fits = true;
    for (size_t i = 0; fits && i < parts.size(); ++i) {
      const absl::string_view name = NameOf(rule.target[i]);
      if (name.empty()) {
        fits = rule.target[i] == parts[i];
      } else {
        const auto [it, is_new] = taken.emplace(name, parts[i]);
        fits = is_new || it->second == parts[i];
      }
    }
    if (!fits) continue;
    AlignMatch match{&rule, {}};
    for (const std::string& pattern : rule.reference) {
      std::vector<std::string> out = absl::StrSplit(pattern, '.');
      for (std::string& part : out) {
        const absl::string_view name = NameOf(part);
        if (name.empty()) continue;
        const std::optional<std::string> value = Substitute(name, taken);
        fits = fits && value.has_value();
        if (value.has_value()) part = *value;
      }
      match.reference.push_back(absl::StrJoin(out, "."));
    }
    // "{layer-1}" does not exist for layer 0; a later rule may match it.
    if (fits) return match;
  }
  return std::nullopt;
}

absl::StatusOr<AlignRules> ParseAlignRules(const std::string& path,
                                           const std::string& text) {
  AlignRules out;
  out.path = path;
  try {
    ReadRoot(YAML::Load(text), &out);
  } catch (const YAML::Exception& fault) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": line ", fault.mark.line + 1, ": ",
                     absl::StrReplaceAll(fault.msg, {{"\n", " "}})));
  }
  return out;
}

absl::StatusOr<AlignRules> ReadAlignRules(FileSystem* file_system,
                                          const std::string& name) {
  if (!absl::StrContains(name, '/') && !file_system->Exists(name)) {
    const auto& known = BuiltInAlignRules();
    const auto it = known.find(name);
    if (it != known.end()) return ParseAlignRules(name, it->second);
    std::vector<std::string> names;
    names.reserve(known.size());
    for (const auto& [built_in, text] : known) names.push_back(built_in);
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": is not a file, and none of the built-in rules: ",
                     absl::StrJoin(names, ", ")));
  }
  RP_ASSIGN_OR_RETURN(const std::string text, ReadInput(file_system, name));
  return ParseAlignRules(name, text);
}

}  // namespace rankprobe::analysis
