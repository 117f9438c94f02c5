// SPDX-License-Identifier: Apache-2.0
// `merge_result`: the compare tables of many ranks as one, a sheet for each
// index and a column for each rank. What is merged and how it is told:
// docs/analysis.md, "Tables of many ranks". Functions without state.
#ifndef RANKPROBE_ANALYSIS_MERGE_RESULT_MERGE_RESULT_H_
#define RANKPROBE_ANALYSIS_MERGE_RESULT_MERGE_RESULT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "analysis/merge_result/merge_config.h"
#include "analysis/merge_result/rank_values.h"
#include "common/io/file_system.h"

namespace rankprobe::analysis {

struct MergedTables {
  std::vector<std::string> indices;
  std::vector<RankValues> ranks;
  // The rows of all ranks, sorted by their bytes (of one rank alone in its own
  // order), and where each stands in a rank, ranks[r].names[rows[r][i]]; -1:
  // nowhere.
  std::vector<std::string> names;
  std::vector<std::vector<int64_t>> rows;

  // Tables that are not merged, one line each.
  std::vector<std::string> left_out;
  // What else should be known.
  std::vector<std::string> warnings;
};

// INVALID_ARGUMENT in one line for a directory, a table or a config that cannot
// be read, and when no table is left to merge.
absl::StatusOr<MergedTables> MergeTables(FileSystem* file_system,
                                         const std::string& directory,
                                         const MergeConfig& config);

// The files appear under their names when they are whole. A sheet for each
// index; one of more rows than a sheet has goes on in {index}_part_1 and so on.
absl::Status WriteMergedXlsx(FileSystem* file_system, const std::string& path,
                             const MergedTables& tables);
// One table; its first column is the index.
absl::Status WriteMergedCsv(FileSystem* file_system, const std::string& path,
                            const MergedTables& tables);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_MERGE_RESULT_MERGE_RESULT_H_
