// SPDX-License-Identifier: Apache-2.0
// Collectives that one of two dumps has more of than the other. Pure functions.
#ifndef RANKPROBE_ANALYSIS_ROOT_CAUSE_COLLECTIVE_COUNTS_H_
#define RANKPROBE_ANALYSIS_ROOT_CAUSE_COLLECTIVE_COUNTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "dump_format/dump_reader.h"

namespace rankprobe::analysis {

// Returns a line for each operation that a rank calls more often on one side.
// Calls are paired by their number, so the calls after a missing one are
// compared with the wrong partners.
std::vector<std::string> CollectivesOfOneSide(int64_t rank,
                                              const DumpReader& target,
                                              const DumpReader& reference);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ROOT_CAUSE_COLLECTIVE_COUNTS_H_
