// SPDX-License-Identifier: Apache-2.0
// Reader of a csv file, row by row: cells quoted as in RFC 4180, UTF-8 with or
// without a byte order mark. The file is not trusted. A function without state.
// Returns INVALID_ARGUMENT with one line that begins with the path, or the
// unchanged status of `on_row`.
#ifndef RANKPROBE_WEB_JOBS_CSV_READER_H_
#define RANKPROBE_WEB_JOBS_CSV_READER_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/io/file_system.h"

namespace rankprobe {

struct CsvLimits {
  uint64_t rows = 1048576;
  size_t columns = 256;
  // Limit of the texts of one row.
  size_t row_bytes = 16 << 20;
};

// Called with the cells of a row, which are valid during the call; the first
// row is 0.
using CsvRowFn = std::function<absl::Status(
    uint64_t row, absl::Span<const absl::string_view> cells)>;

// Calls `on_row` for each row, within the limits.
absl::Status ReadCsv(FileSystem* file_system, const std::string& path,
                     const CsvLimits& limits, const CsvRowFn& on_row);

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_JOBS_CSV_READER_H_
