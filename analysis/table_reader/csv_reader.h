// SPDX-License-Identifier: Apache-2.0
// A csv file, cells quoted as in RFC 4180, UTF-8 with or without a mark. What is
// a finite number becomes one, as in the workbook that `compare --xlsx` writes
// of the same table. Failure as in table_reader.h, without the path.
#ifndef RANKPROBE_ANALYSIS_TABLE_READER_CSV_READER_H_
#define RANKPROBE_ANALYSIS_TABLE_READER_CSV_READER_H_

#include "analysis/table_reader/table_reader.h"

namespace rankprobe::analysis {

absl::Status ReadCsv(const RandomAccessFile& file, uint64_t file_size,
                     const TableLimits& limits, const RowFn& on_row);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_TABLE_READER_CSV_READER_H_
