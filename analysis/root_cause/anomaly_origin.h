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

// NaN or an infinity in Max or Min of a tensor, at any depth.
bool HasOverflow(const JsonValue& value);

// Anomalies of every call of a rank. `links` gets its communication.
absl::StatusOr<RankStates> ReadOverflowStates(int64_t rank,
                                              const DumpReader& dump,
                                              CommLinks* links);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ROOT_CAUSE_ANOMALY_ORIGIN_H_
