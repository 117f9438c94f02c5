// SPDX-License-Identifier: Apache-2.0
// Two runs of any layouts as dumps of one rank each, so that a comparison of
// these dumps compares the runs' logical tensors. Functions without state.
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
  // Steps that only one side has.
  std::vector<std::string> unpaired;
};

// Writes `directory`/target and `directory`/reference with the steps that both
// sides have; if each side has only one step, these two are paired. The side
// with fewer ranks is joined first, because it shows where the parts of the
// other side belong.
absl::StatusOr<LayoutReport> JoinDumps(FileSystem* file_system,
                                       const DumpLayout& target,
                                       const DumpLayout& reference,
                                       const LayoutOptions& options,
                                       const std::string& directory);

// Returns one line for each side, such as "target: 4 ranks, 210 tensors: 40 of
// shards, ..", followed by the refused tensors and the differing copies with
// examples.
std::vector<std::string> LayoutTexts(const LayoutReport& report);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_LAYOUT_JOINED_DUMPS_H_
