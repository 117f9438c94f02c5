// SPDX-License-Identifier: Apache-2.0
#include "analysis/compare/workbook.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace rankprobe::analysis {
namespace {

constexpr size_t kMaxCellBytes = 32767;

}  // namespace

absl::StatusOr<Workbook> OpenWorkbook(FileSystem* file_system,
                                      const std::string& path) {
  // Creates the file with this project's file mode, not the library's.
  RP_ASSIGN_OR_RETURN(
      const auto file,
      file_system->OpenForWrite(path, FileSystem::OpenMode::kTruncate));
  RP_RETURN_IF_ERROR(file->Close());
  lxw_workbook_options options{};
  options.constant_memory = LXW_TRUE;
  Workbook book(workbook_new_opt(path.c_str(), &options));
  if (book == nullptr)
    return absl::ResourceExhaustedError("the workbook cannot be made");
  return book;
}

std::string CellText(const std::string& text) {
  if (text.size() <= kMaxCellBytes) return text;
  size_t end = kMaxCellBytes - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80)
    --end;
  return absl::StrCat(text.substr(0, end), "...");
}

absl::Status WorkbookStatus(const std::string& path, lxw_error error) {
  if (error == LXW_NO_ERROR) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(path, ": ", lxw_strerror(error)));
}

}  // namespace rankprobe::analysis
