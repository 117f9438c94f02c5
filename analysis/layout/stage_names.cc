// SPDX-License-Identifier: Apache-2.0
#include "analysis/layout/stage_names.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "analysis/layout/joined_step.h"

namespace rankprobe::analysis {
namespace {

bool IsModule(absl::string_view name) {
  return absl::StartsWith(name, "Module.");
}

// "Tensor.pow.2.forward" -> "Tensor.pow" and ".2.forward"; nothing for a name of
// another form.
std::optional<std::pair<absl::string_view, absl::string_view>> SplitCall(
    absl::string_view name) {
  const size_t direction = name.rfind('.');
  if (direction == absl::string_view::npos || direction == 0) {
    return std::nullopt;
  }
  const size_t number = name.rfind('.', direction - 1);
  if (number == absl::string_view::npos) return std::nullopt;
  return std::pair(name.substr(0, number), name.substr(number));
}

struct CallPlace {
  absl::string_view name;
  bool outside = false;  // of all modules
  std::string kind;      // module, function and direction
  int64_t ordinal = 0;   // among those of its kind

  std::string Key() const { return absl::StrCat(kind, "\n", ordinal); }
};

// Each call that is no module's, in order.
std::vector<CallPlace> PlacesOf(const DumpReader& dump, int wrappers) {
  absl::flat_hash_map<absl::string_view, std::string> module_of;
  for (const ConstructEdge& edge : dump.construct()) {
    if (edge.parent.has_value()) {
      module_of[edge.child] = NameWithoutSharding(*edge.parent, wrappers);
    }
  }
  absl::flat_hash_map<std::string, int64_t> next;
  std::vector<CallPlace> out;
  for (size_t i = 0; i < dump.size(); ++i) {
    const absl::string_view name = dump.name(i);
    const auto parts = SplitCall(name);
    if (IsModule(name) || !parts.has_value()) continue;
    const std::string& module = module_of[name];
    CallPlace& place = out.emplace_back();
    place.name = name;
    place.outside = !IsModule(module);  // "optimizer", or nothing
    place.kind = absl::StrCat(module, "\n", parts->first,
                              parts->second.substr(parts->second.rfind('.')));
    place.ordinal = next[place.kind]++;
  }
  return out;
}

// Some rank has modules that another has not.
bool HasStages(absl::Span<const std::unique_ptr<DumpReader>> dumps) {
  absl::flat_hash_map<std::string, size_t> holders;
  for (const auto& dump : dumps) {
    absl::flat_hash_set<std::string> own;
    for (size_t i = 0; i < dump->size(); ++i) {
      if (IsModule(dump->name(i))) {
        own.insert(NameWithoutSharding(dump->name(i)));
      }
    }
    for (const std::string& name : own) ++holders[name];
  }
  return std::any_of(holders.begin(), holders.end(), [&](const auto& holder) {
    return holder.second < dumps.size();
  });
}

}  // namespace

std::vector<CallNames> StageNames(
    absl::Span<const std::unique_ptr<DumpReader>> dumps,
    absl::Span<const int64_t> ranks, const DumpReader& whole, int wrappers) {
  const auto has_tree = [](const DumpReader& dump) {
    return !dump.construct().empty();
  };
  if (!has_tree(whole) || !HasStages(dumps) ||
      !std::all_of(dumps.begin(), dumps.end(),
                   [&](const auto& dump) { return has_tree(*dump); })) {
    return {};
  }
  absl::flat_hash_map<std::string, absl::string_view> by_place;
  for (const CallPlace& place : PlacesOf(whole, 0)) {
    by_place.emplace(place.Key(), place.name);
  }
  std::vector<std::vector<CallPlace>> places;
  absl::flat_hash_map<std::string, absl::flat_hash_set<size_t>> callers;
  for (size_t i = 0; i < dumps.size(); ++i) {
    places.push_back(PlacesOf(*dumps[i], wrappers));
    for (const CallPlace& place : places[i]) {
      if (place.outside) callers[place.kind].insert(i);
    }
  }
  std::vector<CallNames> out(dumps.size());
  for (size_t i = 0; i < dumps.size(); ++i) {
    for (const CallPlace& place : places[i]) {
      const auto it = by_place.find(place.Key());
      if (it != by_place.end() &&
          !(place.outside && callers[place.kind].size() > 1)) {
        out[i].emplace(place.name, it->second);
        continue;
      }
      const auto parts = SplitCall(place.name);
      out[i].emplace(place.name, absl::StrCat(parts->first, "_rank", ranks[i],
                                              parts->second));
    }
  }
  return out;
}

}  // namespace rankprobe::analysis
