// SPDX-License-Identifier: Apache-2.0
#include "analysis/compare/run_compare.h"

#include <utility>

#include "analysis/compare/mapping_files.h"
#include "common/base/status_macros.h"

namespace rankprobe::analysis {

absl::Status RunCompare(FileSystem* file_system, const DumpLayout& target,
                        const DumpLayout& reference,
                        const MatchOptions& options, CompareVisitor* visitor,
                        std::vector<std::string>* unpaired) {
  RP_RETURN_IF_ERROR(CheckMappings(target, options));
  RP_ASSIGN_OR_RETURN(const auto pairs, PairDumps(target, reference, unpaired));
  DumpReader::Options open;
  open.debug = target.debug;
  open.monitored = true;
  // Layers are paired by their place in the module tree.
  open.construct = options.layers.has_value();
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto& [place, partner] = pairs[i];
    RP_ASSIGN_OR_RETURN(auto dump,
                        DumpReader::Open(file_system, place.directory, open));
    RP_ASSIGN_OR_RETURN(const auto reference_dump,
                        DumpReader::Open(file_system, partner.directory, open));
    RP_RETURN_IF_ERROR(CheckComparable(*dump, *reference_dump));
    RP_ASSIGN_OR_RETURN(
        TableSink* const sink,
        visitor->BeginRank(place, *dump,
                           dump->stats() | reference_dump->stats()));
    RP_ASSIGN_OR_RETURN(
        const CompareCounts counts,
        CompareDumps(file_system, *dump, *reference_dump, options, sink,
                     visitor->OnEntry(), visitor->OnProgress(place)));
    const bool last_of_step =
        i + 1 == pairs.size() || pairs[i + 1].first.step != place.step;
    RP_RETURN_IF_ERROR(
        visitor->EndRank(place, std::move(dump), counts, last_of_step));
  }
  return absl::OkStatus();
}

}  // namespace rankprobe::analysis
