// SPDX-License-Identifier: Apache-2.0
#include "analysis/layout/call_names.h"

#include <algorithm>
#include <map>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "analysis/layout/joined_step.h"

namespace rankprobe::analysis {
namespace {

constexpr absl::string_view kForward = ".forward";

bool IsModule(absl::string_view name) {
  return absl::StartsWith(name, "Module.");
}

// Turns "Tensor.pow.2" into "Tensor.pow".
absl::string_view FunctionOf(absl::string_view call) {
  return call.substr(0, std::min(call.rfind('.'), call.size()));
}

// Turns "File /a/b.py, line 7, in forward, \n x = y" into "forward, \n x = y".
// The installation path and the line number, which edits above shift, do not
// identify a line.
absl::string_view LineOf(const DumpReader& dump, absl::string_view name) {
  const std::vector<std::string>* const frames = dump.Stack(name);
  if (frames == nullptr || frames->empty()) return "";
  const absl::string_view frame = (*frames)[0];
  constexpr absl::string_view kIn = ", in ";
  const size_t number = frame.find(", line ");
  const size_t in = frame.find(
      kIn, number == absl::string_view::npos ? frame.size() : number);
  return in == absl::string_view::npos ? frame : frame.substr(in + kIn.size());
}

struct CallPlace {
  absl::string_view call;  // without its direction
  std::string module;      // the module that calls it; empty outside of all
  std::string kind;        // module and function
  absl::string_view line;  // empty where no stack was recorded

  bool outside() const { return !IsModule(module); }  // "optimizer", or nothing
};

// Returns each call of a function, that is, without the calls of modules, in
// order. The forward entry determines the place: if a call returned its input
// (a cast to the same dtype), its gradients are those of the call before it and
// are recorded in that call's module.
std::vector<CallPlace> PlacesOf(const DumpReader& dump, int wrappers) {
  absl::flat_hash_map<absl::string_view, absl::string_view> parent_of;
  for (const ConstructEdge& edge : dump.construct()) {
    if (edge.parent.has_value()) parent_of[edge.child] = *edge.parent;
  }
  std::vector<CallPlace> out;
  absl::flat_hash_set<absl::string_view> known;
  const auto add = [&](absl::string_view name, absl::string_view call) {
    if (!known.insert(call).second) return;
    CallPlace& place = out.emplace_back();
    place.call = call;
    place.line = LineOf(dump, name);
    if (const auto it = parent_of.find(name); it != parent_of.end()) {
      place.module = NameWithoutSharding(it->second, wrappers);
    }
    place.kind = absl::StrCat(place.module, "\n", FunctionOf(call));
  };
  for (const bool forward : {true, false}) {
    for (size_t i = 0; i < dump.size(); ++i) {
      const absl::string_view name = dump.name(i);
      const auto [call, direction] = SplitDirection(name);
      if (IsModule(name) || direction.empty()) continue;
      if (!forward || direction == kForward) add(name, call);
    }
  }
  return out;
}

using Indices = std::vector<size_t>;  // of places

absl::flat_hash_map<absl::string_view, Indices> ByKind(
    const std::vector<CallPlace>& places) {
  absl::flat_hash_map<absl::string_view, Indices> out;
  for (size_t i = 0; i < places.size(); ++i) {
    out[places[i].kind].push_back(i);
  }
  return out;
}

// Finds the partner of each call of `own` that has one. All calls are of one
// kind.
class KindMatch {
 public:
  KindMatch(const std::vector<CallPlace>& places, const Indices& own,
            const std::vector<CallPlace>& whole_places, const Indices& whole)
      : own_(places, own), whole_(whole_places, whole) {
    Indices rest;
    Indices whole_rest;
    if (own_.has_lines && whole_.has_lines) {
      for (const auto& [line, calls] : own_.of_line) {
        const auto it = whole_.of_line.find(line);
        if (it == whole_.of_line.end()) {
          rest.insert(rest.end(), calls.begin(), calls.end());
        } else {
          Pair(calls, it->second);
        }
      }
      for (const auto& [line, calls] : whole_.of_line) {
        if (own_.of_line.count(line) == 0) {
          whole_rest.insert(whole_rest.end(), calls.begin(), calls.end());
        }
      }
      // Equally many on both sides are the same calls in a changed program.
      // Otherwise some belong to one run only, and it is unknown which.
      if (rest.size() != whole_rest.size()) return;
      std::sort(rest.begin(), rest.end());
      std::sort(whole_rest.begin(), whole_rest.end());
      Pair(rest, whole_rest);
    } else {
      Pair(own, whole);
    }
  }

  const std::vector<std::pair<size_t, size_t>>& pairs() const { return pairs_; }

 private:
  struct Side {
    Side(const std::vector<CallPlace>& places, const Indices& of_kind) {
      for (const size_t i : of_kind) {
        has_lines = has_lines && !places[i].line.empty();
        of_line[places[i].line].push_back(i);
      }
    }
    bool has_lines = true;
    std::map<absl::string_view, Indices> of_line;
  };

  void Pair(const Indices& own, const Indices& whole) {
    for (size_t i = 0; i < std::min(own.size(), whole.size()); ++i) {
      pairs_.emplace_back(own[i], whole[i]);
    }
  }

  const Side own_;
  const Side whole_;
  std::vector<std::pair<size_t, size_t>> pairs_;
};

// Whether some rank has modules that another does not have.
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

std::pair<absl::string_view, absl::string_view> SplitDirection(
    absl::string_view name) {
  const size_t direction = name.rfind('.');
  if (direction == absl::string_view::npos || direction == 0 ||
      name.rfind('.', direction - 1) == absl::string_view::npos) {
    return {name, {}};
  }
  return {name.substr(0, direction), name.substr(direction)};
}

std::vector<CallNames> NamesInWhole(
    absl::Span<const std::unique_ptr<DumpReader>> dumps,
    absl::Span<const int64_t> ranks, const DumpReader& whole, int wrappers) {
  const auto has_tree = [](const DumpReader& dump) {
    return !dump.construct().empty();
  };
  if (!has_tree(whole) ||
      !std::all_of(dumps.begin(), dumps.end(),
                   [&](const auto& dump) { return has_tree(*dump); })) {
    return {};
  }
  const bool stages = HasStages(dumps);
  const std::vector<CallPlace> of_whole = PlacesOf(whole, 0);
  const auto kinds_of_whole = ByKind(of_whole);
  absl::flat_hash_set<absl::string_view> taken;
  for (const CallPlace& place : of_whole) taken.insert(place.call);
  std::vector<std::vector<CallPlace>> places;
  absl::flat_hash_map<absl::string_view, absl::flat_hash_set<size_t>> callers;
  for (const auto& dump : dumps) places.push_back(PlacesOf(*dump, wrappers));
  for (size_t i = 0; i < dumps.size(); ++i) {
    for (const CallPlace& place : places[i]) {
      if (stages && place.outside()) callers[place.kind].insert(i);
    }
  }
  std::vector<CallNames> out(dumps.size());
  for (size_t i = 0; i < dumps.size(); ++i) {
    for (const auto& [kind, calls] : ByKind(places[i])) {
      const auto it = kinds_of_whole.find(kind);
      const auto of_stages = callers.find(kind);
      if (it == kinds_of_whole.end() ||
          (of_stages != callers.end() && of_stages->second.size() > 1)) {
        continue;
      }
      const KindMatch match(places[i], calls, of_whole, it->second);
      for (const auto& [own, partner] : match.pairs()) {
        out[i].emplace(places[i][own].call, of_whole[partner].call);
      }
    }
    const std::string mark =
        stages ? absl::StrCat("_rank", ranks[i]) : std::string("_extra");
    for (const CallPlace& place : places[i]) {
      if (!stages && !taken.contains(place.call)) continue;
      // A name that the other run does not use; emplace() keeps the partners
      // that were found above.
      const absl::string_view function = FunctionOf(place.call);
      out[i].emplace(
          place.call,
          absl::StrCat(function, mark, place.call.substr(function.size())));
    }
  }
  return out;
}

}  // namespace rankprobe::analysis
