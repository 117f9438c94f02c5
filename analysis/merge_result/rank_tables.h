// SPDX-License-Identifier: Apache-2.0
// The compare tables of a directory, one of each rank, and what their heads say.
// Pure functions.
#ifndef RANKPROBE_ANALYSIS_MERGE_RESULT_RANK_TABLES_H_
#define RANKPROBE_ANALYSIS_MERGE_RESULT_RANK_TABLES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/io/file_system.h"

namespace rankprobe::analysis {

struct RankTable {
  int64_t rank = 0;
  std::string path;
};

// By rank. Workbooks, or where there are none csv files. `warnings`: a table of
// no rank. INVALID_ARGUMENT when another workbook lies there, when a rank has
// two tables, and when there are fewer than two.
absl::StatusOr<std::vector<RankTable>> FindRankTables(
    FileSystem* file_system, const std::string& directory,
    std::vector<std::string>* warnings);

struct TableHead {
  enum class Task { kStatistics, kTensor, kMd5 };
  Task task = Task::kStatistics;
  size_t name = 0;
  size_t npu_max = 0;
  size_t bench_max = 0;
  // What says how two values differ, in the order of the table.
  std::vector<std::string> indices;
  std::vector<size_t> columns;
};

// INVALID_ARGUMENT when it is the head of no compare table.
absl::StatusOr<TableHead> ReadTableHead(absl::Span<const std::string> header);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_MERGE_RESULT_RANK_TABLES_H_
