// SPDX-License-Identifier: Apache-2.0
#include "analysis/root_cause/overflow_check.h"

#include <cmath>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "analysis/calls/call_place.h"
#include "analysis/calls/node_names.h"
#include "analysis/root_cause/anomaly_origin.h"
#include "analysis/root_cause/values_text.h"
#include "common/base/status_macros.h"
#include "dump_format/dump_layout.h"

namespace rankprobe::analysis {
namespace {

bool IsNotFinite(const DumpRow& row) {
  return (row.stats[kMax].is_number() &&
          !std::isfinite(row.stats[kMax].number)) ||
         (row.stats[kMin].is_number() &&
          !std::isfinite(row.stats[kMin].number));
}

// Whether only forward calls of modules were recorded, some of them before
// `entry`.
bool IsBetweenModules(const DumpReader& dump, size_t entry) {
  bool is_behind = false;
  for (size_t i = 0; i < dump.size(); ++i) {
    const absl::string_view name = dump.name(i);
    if (DirectionOf(name).direction != "forward") continue;
    if (!absl::StartsWith(name, "Module.")) return false;
    is_behind = is_behind || i < entry;
  }
  return is_behind;
}

absl::StatusOr<OverflowOrigin> Describe(const DumpReader& dump,
                                        const FoundNode& node) {
  OverflowOrigin origin;
  origin.rank = node.rank;
  origin.call = std::string(dump.name(node.entry));
  RP_ASSIGN_OR_RETURN(origin.details, DescribeNode(dump, node.entry, 2));
  origin.is_between_modules = IsBetweenModules(dump, node.entry);
  const CallPlaces places(dump);
  origin.module = places.ModuleOf(origin.call);
  origin.chain = places.ChainOf(origin.call);
  const std::vector<std::string>* stack = dump.Stack(origin.call);
  // A backward call has the place of its forward call.
  if (stack == nullptr || stack->empty())
    stack = dump.Stack(WithDirection(origin.call, "forward"));
  origin.code_line = CodeLineOf(stack);
  JsonDocument record;
  RP_RETURN_IF_ERROR(dump.Read(node.entry, &record));
  const CallNumbers numbers = NumbersOf(dump, origin.call, record.root());
  if (!numbers.inputs.nan && !numbers.parameters.any())
    origin.made = numbers.outputs.Text();
  std::vector<DumpRow> rows;
  RP_RETURN_IF_ERROR(ReadRows(origin.call, dump.stats(), &record, &rows));
  for (const DumpRow& row : rows) {
    const bool output = row.state == RowState::kOutput ||
                        row.state == RowState::kParametersGrad;
    const absl::string_view place = PlaceOf(origin.call, row);
    if (!output && origin.made.empty() && origin.came_with.empty() &&
        IsNotFinite(row))
      origin.came_with = std::string(place);
    (output ? origin.outputs : origin.inputs)
        .push_back(absl::StrCat(place, " ", ValuesText(row)));
  }
  return origin;
}

// Whether the call is like "Tensor.add_.0.forward" outside of any module, which
// an optimizer makes.
bool IsInPlaceOutside(const OverflowOrigin& origin) {
  return origin.module.empty() && absl::StartsWith(origin.call, "Tensor.") &&
         absl::StrContains(origin.call, "_.");
}

}  // namespace

absl::StatusOr<OverflowFindings> CheckOverflow(FileSystem* file_system,
                                               const std::string& path,
                                               const OverflowKinds& kinds) {
  RP_ASSIGN_OR_RETURN(const DumpLayout layout, FindDumps(file_system, path));
  return CheckOverflow(file_system, layout, kinds);
}

absl::StatusOr<OverflowFindings> CheckOverflow(FileSystem* file_system,
                                               const DumpLayout& layout,
                                               const OverflowKinds& kinds) {
  if (layout.kind == DumpLayout::Kind::kSteps && layout.Steps().size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        layout.path, ": has several steps; name one, such as ", layout.path,
        "/step", layout.Steps()[0], "; `rankprobe diagnose ", layout.path,
        "` finds the first bad one"));
  }
  absl::flat_hash_map<int64_t, std::unique_ptr<DumpReader>> dumps;
  std::vector<RankStates> states;
  CommLinks links(layout.Ranks().size() > 1 ? layout.Ranks()
                                            : std::vector<int64_t>());
  OverflowFindings findings;
  bool goes_on = false;
  for (const DumpPlace& place : layout.places) {
    DumpReader::Options options;
    options.notes = true;
    RP_ASSIGN_OR_RETURN(auto dump,
                        OpenWithModules(file_system, place.directory, options));
    RP_ASSIGN_OR_RETURN(OverflowStates rank,
                        ReadOverflowStates(place.rank, *dump, kinds, &links));
    goes_on = goes_on || rank.goes_on;
    findings.calls += dump->size();
    states.push_back(std::move(rank.states));
    dumps[place.rank] = std::move(dump);
  }
  links.Match();
  for (const FoundNode& node : FindFirstNodes(states, links)) {
    RP_ASSIGN_OR_RETURN(OverflowOrigin origin,
                        Describe(*dumps.at(node.rank), node));
    if (layout.kind == DumpLayout::Kind::kSingle)
      origin.rank = RankOf(layout.places.front());
    (goes_on ? findings.found : findings.ended).push_back(std::move(origin));
  }
  return findings;
}

std::string CameInText(const OverflowOrigin& origin) {
  constexpr absl::string_view kOutside =
      "no recorded call made it; it came in from outside with ";
  if (origin.came_with.empty())
    return absl::StrCat(kOutside, "an argument or a parameter");
  if (origin.is_between_modules &&
      absl::StartsWith(origin.came_with, "input.") &&
      absl::StrContains(origin.call, ".forward")) {
    return absl::StrCat(
        "no recorded call made what ", origin.came_with,
        " holds: an operator between the modules did, which level mix "
        "records, or it came in with the batch");
  }
  const absl::string_view look =
      absl::StartsWith(origin.came_with, "parameters.")
          ? "a parameter: look at the step before, whose update wrote it"
      : IsInPlaceOutside(origin)
          ? "an argument: a gradient, or what another rank gave to it"
      : absl::StrContains(origin.call, ".backward")
          ? "a gradient: look at the loss and at its targets"
      : origin.came_with == "input.0"
          ? "an argument: look at the batch and at how it is made"
          : "an argument: look at the batch, or if it is a weight at the step "
            "before";
  return absl::StrCat(kOutside, origin.came_with, ", ", look);
}

std::string AnomalyJson(const std::vector<OverflowOrigin>& origins) {
  std::string text = "{";
  int64_t last_rank = -1;
  for (const OverflowOrigin& origin : origins) {
    if (origin.rank == last_rank) {
      text.append(",\n  ");
    } else {
      absl::StrAppend(&text, last_rank >= 0 ? "\n ],\n" : "\n", " \"rank_",
                      origin.rank, "\": [\n  ");
    }
    last_rank = origin.rank;
    text.append(origin.details);
  }
  text.append("\n ]\n}");
  return text;
}

}  // namespace rankprobe::analysis
