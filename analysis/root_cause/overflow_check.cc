// SPDX-License-Identifier: Apache-2.0
#include "analysis/root_cause/overflow_check.h"

#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "analysis/root_cause/anomaly_origin.h"
#include "common/base/status_macros.h"
#include "dump_format/dump_layout.h"

namespace rankprobe::analysis {
namespace {

absl::StatusOr<std::unique_ptr<DumpReader>> OpenRank(FileSystem* file_system,
                                                     const DumpPlace& place) {
  DumpReader::Options options;
  options.construct = file_system->Exists(place.directory + "/construct.json");
  options.notes = true;
  auto dump = DumpReader::Open(file_system, place.directory, options);
  if (dump.ok() || !options.construct) return dump;
  // An empty construct.json only costs the path in the report.
  options.construct = false;
  return DumpReader::Open(file_system, place.directory, options);
}

}  // namespace

absl::StatusOr<std::vector<OverflowOrigin>> CheckOverflow(
    FileSystem* file_system, const std::string& path) {
  RP_ASSIGN_OR_RETURN(const DumpLayout layout, FindDumps(file_system, path));
  if (layout.kind == DumpLayout::Kind::kSteps && layout.Steps().size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(layout.path, ": has several steps; name one, such as ",
                     layout.path, "/step", layout.Steps()[0]));
  }
  absl::flat_hash_map<int64_t, std::unique_ptr<DumpReader>> dumps;
  std::vector<RankStates> states;
  CommLinks links(layout.Ranks().size() > 1 ? layout.Ranks()
                                            : std::vector<int64_t>());
  for (const DumpPlace& place : layout.places) {
    RP_ASSIGN_OR_RETURN(auto dump, OpenRank(file_system, place));
    RP_ASSIGN_OR_RETURN(RankStates rank,
                        ReadOverflowStates(place.rank, *dump, &links));
    states.push_back(std::move(rank));
    dumps[place.rank] = std::move(dump);
  }
  links.Match();
  std::vector<OverflowOrigin> origins;
  for (const FoundNode& node : FindFirstNodes(states, links)) {
    const DumpReader& dump = *dumps.at(node.rank);
    RP_ASSIGN_OR_RETURN(std::string details, DescribeNode(dump, node.entry, 2));
    origins.push_back(
        {node.rank, std::string(dump.name(node.entry)), std::move(details)});
  }
  return origins;
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
