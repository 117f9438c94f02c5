// SPDX-License-Identifier: Apache-2.0
// A csv file, row by row: cells quoted as in RFC 4180, UTF-8 with or without a
// byte order mark. The file is not trusted. A function without state.
// Failure: INVALID_ARGUMENT in one line that begins with the path, or the status
// of `on_row` as it is.
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
  // The texts of one row.
  size_t row_bytes = 16 << 20;
};

// The cells of a row, the first row being 0; valid during the call.
using CsvRowFn = std::function<absl::Status(
    uint64_t row, absl::Span<const absl::string_view> cells)>;

absl::Status ReadCsv(FileSystem* file_system, const std::string& path,
                     const CsvLimits& limits, const CsvRowFn& on_row);

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_JOBS_CSV_READER_H_
