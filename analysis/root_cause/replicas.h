// SPDX-License-Identifier: Apache-2.0
// `replicas`: values that should be equal across ranks and are not, found
// without a reference dump: parameters and gradients of data-parallel replicas,
// results of collectives, and data sent and received.
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
  // Ranks that hold the same parameters. If empty, they are found from the
  // numbers (replica_groups.h).
  std::vector<std::vector<int64_t>> groups;
  // Also checks gradients. Before they are averaged, those of different ranks
  // differ by design.
  bool gradients = false;
};

// For each parameter, the groups of ranks that held equal values in the first
// step that was checked.
using HeldAlike = std::map<std::string, std::vector<std::vector<int64_t>>>;

struct ReplicaDifference {
  enum class Kind { kParameter, kGradient, kCollective, kTransfer };
  Kind kind = Kind::kParameter;
  int64_t step = 0;
  std::string row;
  // The call of the first rank that has the row, its module and its line of
  // code. The last two are empty if the dump does not have them.
  std::string call, module, code_line;
  // Ranks and the value they hold; ranks with equal values are listed together.
  std::vector<std::pair<std::vector<int64_t>, std::string>> values;
  // The only evidence is that the ranks held equal values in an earlier step.
  // That is also true for parts of a model that are local to each rank but
  // initialised equally.
  bool only_alike_before = false;
};
const char* ReplicaKindName(ReplicaDifference::Kind kind);

struct ReplicaReport {
  int64_t rows_compared = 0;
  int64_t rows_on_one_rank = 0;  // nothing to compare with
  // Rows that, by their numbers, are sharded over ranks; and the first of them.
  int64_t rows_of_shards = 0;
  std::string first_of_shards;
  int64_t rows_without_values = 0;
  int64_t transfers_compared = 0;
  int64_t collectives_compared = 0;
  int64_t collectives_unlinked = 0;
  std::vector<ReplicaDifference> differences;
};

// Checks a dump, given by its path. Returns INVALID_ARGUMENT if it has only one
// rank.
absl::StatusOr<ReplicaReport> CheckReplicas(FileSystem* file_system,
                                            const std::string& dump,
                                            const ReplicaOptions& options);
// Checks the given ranks. `alike` holds the groups of earlier steps and is
// updated; null if there are no earlier steps.
absl::StatusOr<ReplicaReport> CheckReplicas(FileSystem* file_system,
                                            DumpLayout layout,
                                            const ReplicaOptions& options,
                                            HeldAlike* alike = nullptr);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ROOT_CAUSE_REPLICAS_H_
