// SPDX-License-Identifier: Apache-2.0
#include "analysis/table_reader/table_reader.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "analysis/table_reader/csv_reader.h"
#include "analysis/table_reader/xlsx_reader.h"
#include "common/base/status_macros.h"

namespace rankprobe::analysis {

absl::Status ReadTable(FileSystem* file_system, const std::string& path,
                       const TableLimits& limits, const RowFn& on_row) {
  const auto bad = [&path](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
  };
  RP_ASSIGN_OR_RETURN(const auto file, file_system->OpenForRead(path));
  RP_ASSIGN_OR_RETURN(const uint64_t size, file_system->FileSize(path));
  if (size > limits.file_bytes) {
    return bad(absl::StrCat("has ", size, " bytes; at most ", limits.file_bytes,
                            " are read"));
  }
  // What the caller found in a row stays what he said of it.
  absl::Status from_row;
  const RowFn watched = [&](size_t sheet, uint64_t row,
                            absl::Span<const TableCell> cells) {
    from_row = on_row(sheet, row, cells);
    return from_row;
  };
  const absl::Status read = absl::EndsWith(path, ".csv")
                                ? ReadCsv(*file, size, limits, watched)
                                : ReadXlsx(*file, size, limits, watched);
  if (read.ok() || !from_row.ok()) return read;
  return absl::IsInvalidArgument(read) ? bad(read.message()) : read;
}

}  // namespace rankprobe::analysis
