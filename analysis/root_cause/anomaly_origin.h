// SPDX-License-Identifier: Apache-2.0
// Search for the origin of something bad (an overflow, a difference) over all
// ranks and through communication. The caller defines "bad". Pure functions.
#ifndef RANKPROBE_ANALYSIS_ROOT_CAUSE_ANOMALY_ORIGIN_H_
#define RANKPROBE_ANALYSIS_ROOT_CAUSE_ANOMALY_ORIGIN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "analysis/calls/comm_links.h"
#include "dump_format/dump_reader.h"

namespace rankprobe::analysis {

struct NodeState {
  size_t entry = 0;  // in the rank's dump
  bool communication = false;
  bool bad_input = false;
  bool bad_output = false;
  // Set for a communication in a search for overflows: its input had infinities
  // that are not a fault; its output has a NaN.
  bool meant_infinity = false;
  bool nan_output = false;
};

// States of one rank's calls, in the order of execution.
struct RankStates {
  int64_t rank = 0;
  const DumpReader* dump = nullptr;
  std::vector<NodeState> nodes;
};

struct FoundNode {
  int64_t rank = 0;
  size_t entry = 0;
};

// Returns the first bad calls: the compute calls before any communication, then
// communication in its order, one group of linked calls at a time, then bad
// calls that no communication passed on. Empty if no call is bad.
std::vector<FoundNode> FindFirstNodes(const std::vector<RankStates>& ranks,
                                      const CommLinks& links);

// Returns "op_name", "data_info", "construct_info" and "stack_info" of a call
// as JSON.
absl::StatusOr<std::string> DescribeNode(const DumpReader& dump, size_t entry,
                                         int indent);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ROOT_CAUSE_ANOMALY_ORIGIN_H_
