// SPDX-License-Identifier: Apache-2.0
#include "analysis/layout/layout_file.h"

#include <yaml-cpp/yaml.h>

#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "analysis/calls/parallel_groups.h"
#include "common/base/status_macros.h"
#include "dump_format/input_files.h"

namespace rankprobe::analysis {
namespace {

constexpr int64_t kMostRanks = 1 << 16;
constexpr size_t kMostDimensions = 16;

// Throws the same exception as yaml-cpp; ParseLayoutFile converts both into a
// status.
[[noreturn]] void Refuse(const YAML::Node& at, absl::string_view what) {
  throw YAML::Exception(at.Mark(), std::string(what));
}

int LineOf(const YAML::Node& node) { return node.Mark().line + 1; }

void CheckKeys(const YAML::Node& node, const std::set<std::string>& known) {
  std::set<std::string> seen;
  for (const auto& item : node) {
    const std::string key =
        item.first.IsScalar() ? item.first.Scalar() : std::string("?");
    if (!known.contains(key)) {
      Refuse(item.first, absl::StrCat("unknown key ", key, "; there are ",
                                      absl::StrJoin(known, ", ")));
    }
    if (!seen.insert(key).second) {
      Refuse(item.first, absl::StrCat("key ", key, " stands there twice"));
    }
  }
}

int64_t Size(const YAML::Node& node, absl::string_view what) {
  int64_t value = 0;
  if (!node.IsScalar() || !absl::SimpleAtoi(node.Scalar(), &value) ||
      value < 1 || value > kMostRanks) {
    Refuse(node,
           absl::StrCat(what, ": expected an integer from 1 to ", kMostRanks));
  }
  return value;
}

// Reads a word or a list of words.
std::vector<std::string> Words(const YAML::Node& node, absl::string_view what) {
  std::vector<std::string> out;
  const auto add = [&](const YAML::Node& word) {
    if (!word.IsScalar() || word.Scalar().empty()) {
      Refuse(word, absl::StrCat(what, ": expected a word, or a list of words"));
    }
    out.push_back(word.Scalar());
  };
  if (node.IsSequence()) {
    for (const YAML::Node& word : node) add(word);
  } else {
    add(node);
  }
  return out;
}

std::vector<SideLayout::Dimension> ReadMesh(const YAML::Node& node) {
  if (!node.IsMap() || node.size() == 0) {
    Refuse(node, "mesh: expected sizes by name, {dp: 2, tp: 2}");
  }
  std::vector<SideLayout::Dimension> out;
  int64_t ranks = 1;
  for (const auto& item : node) {
    if (!item.first.IsScalar()) Refuse(item.first, "mesh: expected a name");
    SideLayout::Dimension one;
    one.name = item.first.Scalar();
    for (const SideLayout::Dimension& other : out) {
      if (other.name == one.name) {
        Refuse(item.first, absl::StrCat("mesh: ", one.name, " twice"));
      }
    }
    one.size = Size(item.second, absl::StrCat("mesh: ", one.name));
    ranks *= one.size;
    out.push_back(std::move(one));
    if (ranks > kMostRanks || out.size() > kMostDimensions) {
      Refuse(item.first,
             absl::StrCat("mesh: more than ", kMostRanks, " ranks or ",
                          kMostDimensions, " dimensions"));
    }
  }
  return out;
}

// Reads the form of graph_visualize: sizes, and an order with the fastest
// dimension first.
std::vector<SideLayout::Dimension> ReadParallel(const YAML::Node& node) {
  if (!node.IsMap()) {
    Refuse(node, "parallel: expected {rank_size: 4, tp: 2, pp: 1}");
  }
  CheckKeys(node, {"rank_size", "tp", "pp", "order"});
  if (!node["rank_size"]) Refuse(node, "parallel: rank_size is missing");
  ParallelLayout sizes;
  sizes.ranks = Size(node["rank_size"], "rank_size");
  if (node["tp"]) sizes.tensor = Size(node["tp"], "tp");
  if (node["pp"]) sizes.pipeline = Size(node["pp"], "pp");
  if (node["order"]) {
    const std::vector<std::string> order = Words(node["order"], "order");
    sizes.order = absl::StrJoin(order, "-");
  }
  const absl::Status fit = CheckLayout(sizes, "parallel");
  if (!fit.ok()) {
    Refuse(node, absl::StrReplaceAll(fit.message(), {{"--", ""}}));
  }
  std::vector<SideLayout::Dimension> out;
  for (const absl::string_view name : absl::StrSplit(sizes.order, '-')) {
    SideLayout::Dimension one;
    one.name = std::string(name);
    if (name == "tp") {
      one.size = sizes.tensor;
    } else if (name == "pp") {
      one.size = sizes.pipeline;
    } else if (name == "dp") {
      one.size = sizes.ranks / (sizes.tensor * sizes.pipeline);
    } else {
      continue;
    }
    out.insert(out.begin(), std::move(one));
  }
  return out;
}

// Marks the dimensions named under `key`, or without `key` the one with the
// usual name.
void Mark(const YAML::Node& side, const char* key, absl::string_view usual,
          bool SideLayout::Dimension::*mark, SideLayout* out) {
  std::vector<std::string> names;
  const YAML::Node given = side[key];
  if (given) {
    names = Words(given, key);
  } else {
    names.emplace_back(usual);
  }
  for (const std::string& name : names) {
    const auto it = absl::c_find_if(
        out->mesh, [&](const auto& one) { return one.name == name; });
    if (it != out->mesh.end()) {
      (*it).*mark = true;
    } else if (given) {
      Refuse(given, absl::StrCat(key, ": the mesh has no dimension ", name));
    }
  }
}

// Accepts shard(0), Shard(dim=-1), replicate, Partial(), partial(avg).
Placement ReadPlacement(const YAML::Node& node) {
  Placement out;
  std::string word;
  std::string argument;
  if (node.IsScalar()) {
    word = absl::AsciiStrToLower(node.Scalar());
    const size_t open = word.find('(');
    if (open != std::string::npos && absl::EndsWith(word, ")")) {
      argument = word.substr(open + 1, word.size() - open - 2);
      word.resize(open);
    }
  }
  absl::string_view rest = absl::StripAsciiWhitespace(argument);
  if (word == "replicate" && rest.empty()) return out;
  if (word == "shard") {
    out.kind = Placement::Kind::kShard;
    absl::ConsumePrefix(&rest, "dim=");
    if (absl::SimpleAtoi(rest, &out.dim) && out.dim > -64 && out.dim < 64) {
      return out;
    }
  }
  if (word == "partial") {
    out.kind = Placement::Kind::kPartial;
    out.reduce_op = rest.empty() ? "sum" : std::string(rest);
    if (out.reduce_op == "sum" || out.reduce_op == "avg") return out;
  }
  Refuse(node, absl::StrCat(
                   "place: ", node.IsScalar() ? node.Scalar() : "a list or map",
                   " is not a placement; there are shard(N), replicate, "
                   "partial(sum) and partial(avg)"));
}

PlacementRule ReadRule(const YAML::Node& node, const SideLayout& side) {
  if (!node.IsMap()) Refuse(node, "expected a rule, {entry, at, place}");
  CheckKeys(node, {"entry", "inside", "at", "place"});
  PlacementRule rule;
  rule.line = LineOf(node);
  if (!node["entry"]) Refuse(node, "entry: expected a pattern of calls");
  for (const auto& [key, pattern] :
       {std::pair("entry", &rule.entry), std::pair("inside", &rule.inside)}) {
    if (!node[key]) continue;
    if (!node[key].IsScalar() || node[key].Scalar().empty()) {
      Refuse(node[key], absl::StrCat(key, ": expected a pattern of calls"));
    }
    *pattern = node[key].Scalar();
  }
  if (const YAML::Node at = node["at"]) {
    rule.at = Words(at, "at");
    for (const std::string& place : rule.at) {
      const std::string kind = place.substr(0, place.find('.'));
      if (kind != "input" && kind != "output" && kind != "parameters" &&
          kind != "grads") {
        Refuse(at, absl::StrCat("at: ", place,
                                " begins with none of input, "
                                "output, parameters, grads"));
      }
    }
  }
  const YAML::Node place = node["place"];
  if (place && place.IsScalar() && place.Scalar() == "local") {
    rule.local = true;
    return rule;
  }
  if (!place || !place.IsMap() || place.size() == 0) {
    Refuse(node,
           "place: expected placements by dimension, {tp: shard(0)}, or local");
  }
  for (const auto& item : place) {
    const std::string name = item.first.IsScalar() ? item.first.Scalar() : "?";
    const auto it = absl::c_find_if(
        side.mesh, [&](const auto& one) { return one.name == name; });
    if (it == side.mesh.end()) {
      Refuse(item.first,
             absl::StrCat("place: the mesh has no dimension ", name));
    }
    if (it->pipeline) {
      Refuse(item.first,
             absl::StrCat("place: no tensor lies over the stages of ", name));
    }
    const auto index = static_cast<size_t>(it - side.mesh.begin());
    for (const auto& [other, unused] : rule.placements) {
      if (other == index) {
        Refuse(item.first, absl::StrCat("place: ", name, " twice"));
      }
    }
    rule.placements.emplace_back(index, ReadPlacement(item.second));
  }
  absl::c_sort(rule.placements,
               [](const auto& a, const auto& b) { return a.first < b.first; });
  return rule;
}

SideLayout ReadSide(const YAML::Node& node, const std::set<std::string>& more) {
  std::set<std::string> known = {"mesh", "parallel", "data", "pipeline",
                                 "rules"};
  known.insert(more.begin(), more.end());
  if (!node.IsMap()) Refuse(node, "expected mesh and rules");
  CheckKeys(node, known);
  SideLayout side;
  if (static_cast<bool>(node["mesh"]) == static_cast<bool>(node["parallel"])) {
    Refuse(node, "expected one of mesh and parallel");
  }
  const YAML::Node sizes = node["mesh"] ? node["mesh"] : node["parallel"];
  side.line = LineOf(sizes);
  side.mesh = node["mesh"] ? ReadMesh(sizes) : ReadParallel(sizes);
  Mark(node, "data", "dp", &SideLayout::Dimension::data, &side);
  Mark(node, "pipeline", "pp", &SideLayout::Dimension::pipeline, &side);
  if (const YAML::Node rules = node["rules"]) {
    if (!rules.IsSequence()) Refuse(rules, "rules: expected a list of rules");
    for (const YAML::Node& rule : rules) {
      side.rules.push_back(ReadRule(rule, side));
    }
  }
  return side;
}

void ReadRoot(const YAML::Node& root, LayoutFile* out) {
  if (!root.IsMap()) Refuse(root, "expected version, mesh and rules");
  if (root["target"] || root["reference"]) {
    CheckKeys(root, {"version", "target", "reference"});
    out->by_side = true;
    if (root["target"]) out->target = ReadSide(root["target"], {});
    if (root["reference"]) out->reference = ReadSide(root["reference"], {});
  } else {
    out->target = out->reference = ReadSide(root, {"version"});
  }
  if (!root["version"]) Refuse(root, "version is missing");
  if (!root["version"].IsScalar() || root["version"].Scalar() != "1") {
    Refuse(root["version"], "version: only 1 is known");
  }
}

}  // namespace

int64_t SideLayout::ranks() const {
  int64_t out = 1;
  for (const Dimension& one : mesh) out *= one.size;
  return out;
}

absl::StatusOr<LayoutFile> ParseLayoutFile(const std::string& path,
                                           const std::string& text) {
  LayoutFile out;
  out.path = path;
  try {
    ReadRoot(YAML::Load(text), &out);
  } catch (const YAML::Exception& fault) {
    // The mark is null for an empty file.
    const std::string line =
        fault.mark.is_null() ? ""
                             : absl::StrCat("line ", fault.mark.line + 1, ": ");
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": ", line, absl::StrReplaceAll(fault.msg, {{"\n", " "}})));
  }
  return out;
}

absl::StatusOr<LayoutFile> ReadLayoutFile(FileSystem* file_system,
                                          const std::string& path) {
  RP_ASSIGN_OR_RETURN(const std::string text, ReadInput(file_system, path));
  return ParseLayoutFile(path, text);
}

}  // namespace rankprobe::analysis
