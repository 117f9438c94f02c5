// SPDX-License-Identifier: Apache-2.0
// The rows of one entry: its tensors and values, flattened in the order and
// with the names msprobe's tables have. Rows point into the JsonDocument they
// were made from. Pure functions.
#ifndef RANKPROBE_DUMP_FORMAT_DUMP_ROWS_H_
#define RANKPROBE_DUMP_FORMAT_DUMP_ROWS_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "dump_format/json_value.h"
#include "dump_format/statistics.h"

namespace rankprobe {

// Key of a record that was not assembled from the parts of several ranks
// (analysis/layout); its value is the reason. The numbers that the record has
// are right; the others are not known.
inline constexpr absl::string_view kNotPutTogether = "not_put_together";

enum class RowState { kInput, kParameters, kOutput, kParametersGrad, kDebug };

struct DumpRow {
  absl::string_view name;
  RowState state = RowState::kInput;
  // Null for a null in the dump; that row has no dtype, shape and md5.
  const JsonValue* record = nullptr;
  const JsonValue* p2p = nullptr;  // the P2POp around the tensor
  bool has_dtype = false;
  // For an object without dtype: the row was derived from its value.
  bool derived = false;
  // The statistics are the value itself.
  bool derived_stats = false;
  // The statistics are those of several ranks, not the record's.
  bool merged_stats = false;
  absl::string_view dtype;
  absl::string_view shape;
  PerStat<JsonValue> stats;
  // "True", "False" or null.
  JsonValue requires_grad;
  absl::string_view data_name = "-1";
  absl::string_view md5;
  absl::string_view not_put_together;
};

// Reads rows in table order: inputs, parameters, outputs, parameters_grad.
// `stats`: the statistics that the dump has; others stay null.
absl::Status ReadRows(absl::string_view entry, StatSet stats,
                      JsonDocument* record, std::vector<DumpRow>* rows);
// Reads rows in the order of the record, as graphs show them.
absl::Status ReadRowsInRecordOrder(absl::string_view entry, StatSet stats,
                                   JsonDocument* record,
                                   std::vector<DumpRow>* rows);

bool IsParametersGradEntry(absl::string_view entry);

// Whether a record of this name belongs to a call, and so is an object of
// sections.
bool IsCallEntry(absl::string_view entry);

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_DUMP_ROWS_H_
