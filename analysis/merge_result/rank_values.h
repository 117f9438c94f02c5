// SPDX-License-Identifier: Apache-2.0
// The chosen rows of one rank's table. Read in one pass, with no more of the
// table in memory than what is chosen. Owned by the merge, immutable after.
#ifndef RANKPROBE_ANALYSIS_MERGE_RESULT_RANK_VALUES_H_
#define RANKPROBE_ANALYSIS_MERGE_RESULT_RANK_VALUES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "analysis/merge_result/column_values.h"
#include "analysis/merge_result/merge_config.h"
#include "analysis/merge_result/rank_tables.h"

namespace rankprobe::analysis {

struct RankValues {
  int64_t rank = 0;
  // Why the table is not merged; empty: it is.
  std::string left_out;
  // Names of rows: API by API in the order of the config, within one in that of
  // the table. A name that comes twice counts once, with its first row.
  std::vector<std::string> names;
  // values[index][name], as they are written; their texts.
  std::vector<std::vector<KeptCell>> values;
  TextPool texts;
  // APIs of the config of which the table has no row.
  std::vector<std::string> missing;
};

// `indices`: the columns to take; if there are none, all of this table, which
// are told there. INVALID_ARGUMENT when the table cannot be read, or has a text
// that a spreadsheet would run.
absl::StatusOr<RankValues> ReadRankValues(FileSystem* file_system,
                                          const RankTable& table,
                                          const std::vector<ApiPattern>& apis,
                                          std::vector<std::string>* indices);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_MERGE_RESULT_RANK_VALUES_H_
