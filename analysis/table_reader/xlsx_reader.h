// SPDX-License-Identifier: Apache-2.0
// The sheets of a workbook (.xlsx) in their order. Values only: a formula is
// what it last gave, a date the number it is. Failure as in table_reader.h,
// without the path.
#ifndef RANKPROBE_ANALYSIS_TABLE_READER_XLSX_READER_H_
#define RANKPROBE_ANALYSIS_TABLE_READER_XLSX_READER_H_

#include "analysis/table_reader/table_reader.h"

namespace rankprobe::analysis {

absl::Status ReadXlsx(const RandomAccessFile& file, uint64_t file_size,
                      const TableLimits& limits, const RowFn& on_row);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_TABLE_READER_XLSX_READER_H_
