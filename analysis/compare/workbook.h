// SPDX-License-Identifier: Apache-2.0
// Shared parts of all workbooks that are written here: how one is opened, which
// texts fit into a cell, how the library's faults are told. Plain functions.
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

// An empty one at `path`, of rows that are written in order.
// RESOURCE_EXHAUSTED, or the file system's errors.
absl::StatusOr<Workbook> OpenWorkbook(FileSystem* file_system,
                                      const std::string& path);
// `text`, or what of it a cell takes and "...".
std::string CellText(const std::string& text);
// RESOURCE_EXHAUSTED naming `path`, or OK.
absl::Status WorkbookStatus(const std::string& path, lxw_error error);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_COMPARE_WORKBOOK_H_
