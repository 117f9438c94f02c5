// SPDX-License-Identifier: Apache-2.0
// Shared parts of all workbooks: opening, texts that fit into a cell, and
// errors of the library. Plain functions.
#ifndef RANKPROBE_ANALYSIS_COMPARE_WORKBOOK_H_
#define RANKPROBE_ANALYSIS_COMPARE_WORKBOOK_H_

#include <xlsxwriter.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/file_system.h"

namespace rankprobe::analysis {

struct CloseWorkbook {
  void operator()(lxw_workbook* book) const { (void)workbook_close(book); }
};
using Workbook = std::unique_ptr<lxw_workbook, CloseWorkbook>;

// Creates an empty workbook at `path` whose rows are written in order. Returns
// RESOURCE_EXHAUSTED or the file system's errors.
absl::StatusOr<Workbook> OpenWorkbook(FileSystem* file_system,
                                      const std::string& path);
// Returns `text`, shortened with "..." to what fits into a cell.
std::string CellText(const std::string& text);
// Returns OK, or RESOURCE_EXHAUSTED with `path`.
absl::Status WorkbookStatus(const std::string& path, lxw_error error);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_COMPARE_WORKBOOK_H_
