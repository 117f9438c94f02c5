// SPDX-License-Identifier: Apache-2.0
// Finds where something bad (an overflow, a difference) began, over all ranks
// and through communication. What "bad" is, the caller says. Pure functions.
#ifndef RANKPROBE_ANALYSIS_ROOT_CAUSE_ANOMALY_ORIGIN_H_
#define RANKPROBE_ANALYSIS_ROOT_CAUSE_ANOMALY_ORIGIN_H_

#include <cstdint>
#include <memory>
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
  // Of a communication that is asked about overflows: it was given infinities
  // that are no fault; a NaN came out.
  bool meant_infinity = false;
  bool nan_output = false;
};

// Of one rank, in the order of execution.
struct RankStates {
  int64_t rank = 0;
  const DumpReader* dump = nullptr;
  std::vector<NodeState> nodes;
};

struct FoundNode {
  int64_t rank = 0;
  size_t entry = 0;
};

// First the compute calls before any communication; then communication in its
// order, a group of linked calls at a time; then what no communication
// carried on. Empty: nothing is bad.
std::vector<FoundNode> FindFirstNodes(const std::vector<RankStates>& ranks,
                                      const CommLinks& links);

// "op_name", "data_info", "construct_info", "stack_info" of a call, as JSON.
absl::StatusOr<std::string> DescribeNode(const DumpReader& dump, size_t entry,
                                         int indent);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ROOT_CAUSE_ANOMALY_ORIGIN_H_
