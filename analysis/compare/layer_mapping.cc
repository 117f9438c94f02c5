// SPDX-License-Identifier: Apache-2.0
#include "analysis/compare/layer_mapping.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "analysis/calls/call_tree.h"
#include "common/base/status_macros.h"
#include "common/records/entry_names.h"
#include "dump_format/input_files.h"

namespace rankprobe::analysis {
namespace {

constexpr char kTop[] = "TopLayer";

// Place of an entry in the tree of layers.
struct Item {
  std::string name;
  std::vector<std::string> scope;  // under the top
  std::string class_name;          // of a module
  bool backward = false;
};

// Splits "Module.a.b.Class.forward.0" into {a, b} and "Class".
bool ModuleScope(absl::string_view entry, std::vector<std::string>* scope,
                 std::string* class_name) {
  const absl::string_view module = ModuleOfEntry(entry);
  if (module.empty()) return false;
  std::vector<std::string> parts = absl::StrSplit(module, '.');
  if (parts.size() < 3) return false;
  *class_name = parts.back();
  scope->assign(parts.begin() + 1, parts.end() - 1);
  return true;
}

std::vector<Item> ItemsOf(const DumpReader& dump) {
  absl::flat_hash_map<std::string, const ConstructEdge*> edges;
  for (const ConstructEdge& edge : dump.construct()) edges[edge.child] = &edge;
  std::vector<Item> items;
  for (const ConstructEdge& edge : dump.construct()) {
    Item item;
    item.name = edge.child;
    item.backward = IsBackwardNode(edge.child);
    if (!ModuleScope(edge.child, &item.scope, &item.class_name)) {
      const absl::string_view op = OpOfEntry(edge.child);
      if (op.empty()) continue;
      // A backward call has the place of its forward call.
      const ConstructEdge* at = &edge;
      if (item.backward) {
        const auto forward = edges.find(TwinOf(edge.child));
        if (forward != edges.end()) at = forward->second;
      }
      std::string ignored;
      if (at->parent.has_value() &&
          !ModuleScope(*at->parent, &item.scope, &ignored)) {
        item.scope = {*at->parent};  // "optimizer"
      }
      item.scope.emplace_back(op);
    }
    items.push_back(std::move(item));
  }
  return items;
}

// Pipeline stages continue the layer numbers of the stage before; renumbers
// them from 0.
void RenumberLayers(std::vector<Item>* items) {
  std::set<std::vector<std::string>> transformers;
  for (const Item& item : *items) {
    if (item.class_name == "ParallelTransformer") {
      transformers.insert(item.scope);
    }
  }
  for (const std::vector<std::string>& transformer : transformers) {
    const size_t depth = transformer.size();
    const auto number_of = [&](const Item& item) -> int64_t {
      int64_t number = -1;
      if (item.scope.size() < depth + 2 || item.scope[depth] != "layers" ||
          !std::equal(transformer.begin(), transformer.end(),
                      item.scope.begin()) ||
          !absl::SimpleAtoi(item.scope[depth + 1], &number)) {
        return -1;
      }
      return number;
    };
    std::map<int64_t, std::string> renumbered;
    for (const Item& item : *items) {
      const int64_t number = number_of(item);
      if (number >= 0) renumbered[number] = "";
    }
    int64_t next = 0;
    for (auto& [number, text] : renumbered) text = absl::StrCat(next++);
    for (Item& item : *items) {
      const int64_t number = number_of(item);
      if (number >= 0) item.scope[depth + 1] = renumbered[number];
    }
  }
}

std::string Key(const std::vector<std::string>& scope, bool backward) {
  return absl::StrCat(backward ? "b\t" : "f\t", absl::StrJoin(scope, "."));
}

// Classes of layers by their paths.
using Classes = absl::flat_hash_map<std::string, std::string>;

std::vector<std::string> Renamed(const LayerRules& rules,
                                 const Classes& classes,
                                 const std::vector<std::string>& scope) {
  std::vector<std::string> out;
  for (size_t i = 0; i < scope.size();) {
    const std::vector<std::string> above(
        scope.begin(), scope.begin() + static_cast<ptrdiff_t>(i));
    const auto type = classes.find(absl::StrJoin(above, "."));
    const auto found = rules.find(i == 0                  ? kTop
                                  : type == classes.end() ? scope[i - 1]
                                                          : type->second);
    size_t step = 0;
    if (found != rules.end()) {
      for (const LayerRule& rule : found->second) {
        if (rule.from.size() > scope.size() - i ||
            !std::equal(rule.from.begin(), rule.from.end(),
                        scope.begin() + static_cast<ptrdiff_t>(i))) {
          continue;
        }
        for (const absl::string_view part : absl::StrSplit(rule.to, '.')) {
          out.emplace_back(part);
        }
        step = rule.from.size();
        break;
      }
    }
    if (step == 0) {
      out.push_back(scope[i]);
      step = 1;
    }
    i += step;
  }
  return out;
}

absl::Status BadRules(const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": ", absl::StrReplaceAll(what, {{"\n", " "}})));
}

}  // namespace

absl::StatusOr<std::optional<LayerRules>> LoadLayerMapping(
    FileSystem* file_system, const std::string& path,
    std::vector<std::string>* warnings) {
  if (!absl::EndsWith(path, ".yaml"))
    return BadRules(path, "a layer mapping is a .yaml file");
  RP_RETURN_IF_ERROR(ReadInput(file_system, path).status());
  absl::StatusOr<LayerRules> rules = ReadLayerRules(file_system, path);
  if (rules.ok()) return std::optional<LayerRules>(*std::move(rules));
  warnings->push_back(
      absl::StrCat(rules.status().message(), "; it is not applied"));
  return std::optional<LayerRules>();
}

absl::StatusOr<LayerRules> ReadLayerRules(FileSystem* file_system,
                                          const std::string& path) {
  RP_ASSIGN_OR_RETURN(const std::string text, ReadInput(file_system, path));
  constexpr char kShape[] =
      "expected `Class: {target name: reference name}` for each class";
  LayerRules rules;
  try {
    const YAML::Node root = YAML::Load(text);
    if (!root.IsMap()) return BadRules(path, kShape);
    for (const auto& layer : root) {
      std::string name = layer.first.as<std::string>();
      if (name == "Cell") name = kTop;
      if (layer.second.IsNull()) continue;
      if (!layer.second.IsMap()) return BadRules(path, kShape);
      std::vector<LayerRule>& out = rules[name];
      for (const auto& item : layer.second) {
        if (!item.first.IsScalar() || !item.second.IsScalar()) {
          return BadRules(path, kShape);
        }
        LayerRule rule;
        rule.from = absl::StrSplit(item.first.as<std::string>(), '.');
        const std::string to = item.second.as<std::string>();
        rule.to = to.substr(0, to.find('('));
        out.push_back(std::move(rule));
      }
      std::stable_sort(out.begin(), out.end(),
                       [](const LayerRule& a, const LayerRule& b) {
                         return a.from.size() > b.from.size();
                       });
    }
  } catch (const YAML::Exception& fault) {
    return BadRules(path, fault.what());
  }
  return rules;
}

std::string MapLayerPath(const LayerRules& rules, const Classes& classes,
                         const std::string& path) {
  return absl::StrJoin(Renamed(rules, classes, absl::StrSplit(path, '.')), ".");
}

absl::flat_hash_map<std::string, std::string> MapLayers(
    const LayerRules& rules, const DumpReader& target,
    const DumpReader& reference) {
  std::vector<Item> n = ItemsOf(target);
  std::vector<Item> b = ItemsOf(reference);
  RenumberLayers(&n);
  RenumberLayers(&b);
  Classes classes;
  for (const Item& item : n) {
    if (!item.class_name.empty()) {
      classes[absl::StrJoin(item.scope, ".")] = item.class_name;
    }
  }
  absl::flat_hash_map<std::string, std::vector<const Item*>> reference_items;
  for (const Item& item : b) {
    reference_items[Key(item.scope, item.backward)].push_back(&item);
  }
  absl::flat_hash_map<std::string, size_t> ordinal;
  absl::flat_hash_map<std::string, std::string> out;
  for (const Item& item : n) {
    const size_t index = ordinal[Key(item.scope, item.backward)]++;
    const auto found = reference_items.find(
        Key(Renamed(rules, classes, item.scope), item.backward));
    out[item.name] =
        found == reference_items.end() || index >= found->second.size()
            ? "N/A"
            : found->second[index]->name;
  }
  return out;
}

}  // namespace rankprobe::analysis
