// SPDX-License-Identifier: Apache-2.0
// Two runs of any layouts as dumps of one rank each, so that every comparison
// of dumps is one of the runs' logical tensors. Functions without state.
#ifndef RANKPROBE_ANALYSIS_LAYOUT_JOINED_DUMPS_H_
#define RANKPROBE_ANALYSIS_LAYOUT_JOINED_DUMPS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "analysis/layout/joined_step.h"
#include "common/io/file_system.h"
#include "dump_format/dump_layout.h"

namespace rankprobe::analysis {

struct LayoutReport {
  LayoutCounts target;
  LayoutCounts reference;
  // Steps that one side only has.
  std::vector<std::string> unpaired;
};

// Writes `directory`/target and `directory`/reference: steps that both sides
// have, and where each has one step only, those. The side of fewer ranks is put
// together first; it tells where the other's parts are.
absl::StatusOr<LayoutReport> JoinDumps(FileSystem* file_system,
                                       const DumpLayout& target,
                                       const DumpLayout& reference,
                                       const LayoutOptions& options,
                                       const std::string& directory);

// One line a side: "target: 4 ranks, 210 tensors: 40 of shards, ..". Then what
// was refused and which copies differ, with examples.
std::vector<std::string> LayoutTexts(const LayoutReport& report);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_LAYOUT_JOINED_DUMPS_H_
