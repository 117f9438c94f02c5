// SPDX-License-Identifier: Apache-2.0
// Tables as CSV or XLSX files. A file appears under its name only once it is
// complete; until then it has a temporary name, and it is deleted if the sink
// is destroyed earlier. Not thread-safe.
#ifndef RANKPROBE_ANALYSIS_COMPARE_TABLE_SINK_H_
#define RANKPROBE_ANALYSIS_COMPARE_TABLE_SINK_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/io/file_system.h"

namespace rankprobe::analysis {

class TableSink {
 public:
  virtual ~TableSink() = default;
  virtual absl::Status AddRow(absl::Span<const std::string> cells) = 0;
  virtual absl::Status Finish() = 0;
};

// Puts a ' in front of a cell that a spreadsheet would run as a formula.
std::string WithoutFormula(const std::string& cell);

// Opens a csv file and writes its header.
absl::StatusOr<std::unique_ptr<TableSink>> OpenCsv(
    FileSystem* file_system, const std::string& path,
    absl::Span<const std::string> header);
// Opens a workbook. Numbers become number cells, rows whose `Result` is error
// or warning are coloured, and a full sheet continues in the next.
absl::StatusOr<std::unique_ptr<TableSink>> OpenXlsx(
    FileSystem* file_system, const std::string& path,
    absl::Span<const std::string> header);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_COMPARE_TABLE_SINK_H_
