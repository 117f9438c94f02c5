// SPDX-License-Identifier: Apache-2.0
// `replicas`: without a reference dump, what should be equal across ranks and is
// not: parameters and gradients of data-parallel replicas, results of
// collectives, what was sent against what was received.
#ifndef RANKPROBE_ANALYSIS_ROOT_CAUSE_REPLICAS_H_
#define RANKPROBE_ANALYSIS_ROOT_CAUSE_REPLICAS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/file_system.h"
#include "dump_format/dump_layout.h"

namespace rankprobe::analysis {

struct ReplicaOptions {
  // Ranks that hold the same parameters; empty: found from the numbers
  // (replica_groups.h).
  std::vector<std::vector<int64_t>> groups;
  // Gradients too: a rank's own, before they are averaged, differ by design.
  bool gradients = false;
};

// Of each parameter the groups of ranks that held the same of it in the first step
// that was looked at.
using HeldAlike = std::map<std::string, std::vector<std::vector<int64_t>>>;

struct ReplicaDifference {
  enum class Kind { kParameter, kGradient, kCollective, kTransfer };
  Kind kind = Kind::kParameter;
  int64_t step = 0;
  std::string row;
  // The call of the first rank that has the row, its module and its line of code;
  // these two are empty where the dump does not have them.
  std::string call, module, code_line;
  // Rank and what it holds, ranks with equal values together.
  std::vector<std::pair<std::vector<int64_t>, std::string>> values;
  // All that is known: the ranks held the same in an earlier step. Parts of a
  // model that each rank has for itself do, too, where they are initialised alike.
  bool only_alike_before = false;
};
const char* ReplicaKindName(ReplicaDifference::Kind kind);

struct ReplicaReport {
  int64_t rows_compared = 0;
  int64_t rows_on_one_rank = 0;  // nothing to compare with
  // Of which ranks hold parts, by their numbers; and the first of them.
  int64_t rows_of_shards = 0;
  std::string first_of_shards;
  int64_t rows_without_values = 0;
  int64_t transfers_compared = 0;
  int64_t collectives_compared = 0;
  int64_t collectives_unlinked = 0;
  std::vector<ReplicaDifference> differences;
};

absl::StatusOr<ReplicaReport> CheckReplicas(FileSystem* file_system,
                                            const std::string& dump,
                                            const ReplicaOptions& options);
// Of these ranks. alike: of the steps before these, and of these then; null: there
// are none before.
absl::StatusOr<ReplicaReport> CheckReplicas(FileSystem* file_system,
                                            DumpLayout layout,
                                            const ReplicaOptions& options,
                                            HeldAlike* alike = nullptr);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ROOT_CAUSE_REPLICAS_H_
