// SPDX-License-Identifier: Apache-2.0
// Tables that `compare` wrote, row by row: .xlsx (of rankprobe, msprobe or a
// spreadsheet) and .csv. The files are not trusted; what they may cost is in
// TableLimits and docs/analysis.md. Functions without state.
// Failure: INVALID_ARGUMENT in one line that begins with the path, or the status
// of `on_row` as it is.
#ifndef RANKPROBE_ANALYSIS_TABLE_READER_TABLE_READER_H_
#define RANKPROBE_ANALYSIS_TABLE_READER_TABLE_READER_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/io/file_system.h"

namespace rankprobe::analysis {

struct TableCell {
  enum class Kind : uint8_t { kEmpty, kNumber, kBool, kText, kError };
  Kind kind = Kind::kEmpty;
  // Of a number, or 0 and 1.
  double number = 0;
  // Of a text; of a number as it stands in the file. Valid during the call.
  absl::string_view text;
};

struct TableLimits {
  uint64_t file_bytes = uint64_t{1} << 30;
  // Of the XML of one sheet, and of a workbook's shared texts.
  uint64_t sheet_bytes = 0xFFFFFFFE;
  uint64_t shared_bytes = uint64_t{1} << 30;
  uint64_t rows = 1048576;
  size_t columns = 256;
  // The texts of one row.
  size_t row_bytes = 16 << 20;
  size_t sheets = 64;
};

// A sheet (a csv file is one), a row and its cells, both numbered from 0. Empty
// cells at the end of a row and empty rows may be left out.
using RowFn = std::function<absl::Status(size_t sheet, uint64_t row,
                                         absl::Span<const TableCell> cells)>;

// By the end of its name.
absl::Status ReadTable(FileSystem* file_system, const std::string& path,
                       const TableLimits& limits, const RowFn& on_row);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_TABLE_READER_TABLE_READER_H_
