// SPDX-License-Identifier: Apache-2.0
#include "analysis/compare/table_sink.h"

#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "analysis/compare/temporary_file.h"
#include "analysis/compare/workbook.h"
#include "common/base/status_macros.h"

namespace rankprobe::analysis {
namespace {

constexpr size_t kFlushBytes = 1 << 20;
constexpr lxw_row_t kMaxSheetRows = 1048576;

class CsvSink : public TableSink {
 public:
  CsvSink(FileSystem* file_system, const std::string& path)
      : file_system_(file_system), temporary_(file_system, path) {}

  absl::Status Start(absl::Span<const std::string> header) {
    RP_ASSIGN_OR_RETURN(
        file_, file_system_->OpenForWrite(temporary_.name(),
                                          FileSystem::OpenMode::kTruncate));
    return AddRow(header);
  }
  absl::Status AddRow(absl::Span<const std::string> cells) override {
    for (size_t i = 0; i < cells.size(); ++i) {
      if (i > 0) buffer_.push_back(',');
      AddCell(cells[i]);
    }
    buffer_.push_back('\n');
    return buffer_.size() < kFlushBytes ? absl::OkStatus() : Flush();
  }
  absl::Status Finish() override {
    RP_RETURN_IF_ERROR(Flush());
    RP_RETURN_IF_ERROR(file_->Close());
    return temporary_.Rename();
  }

 private:
  absl::Status Flush() {
    RP_RETURN_IF_ERROR(file_->Append(buffer_));
    buffer_.clear();
    return absl::OkStatus();
  }
  void AddCell(const std::string& raw) {
    const std::string cell = WithoutFormula(raw);
    if (cell.find_first_of(",\"\n\r") == std::string::npos) {
      buffer_.append(cell);
      return;
    }
    buffer_.push_back('"');
    for (const char c : cell) {
      if (c == '"') buffer_.push_back('"');
      buffer_.push_back(c);
    }
    buffer_.push_back('"');
  }

  FileSystem* const file_system_;
  TemporaryFile temporary_;
  std::unique_ptr<WritableFile> file_;
  std::string buffer_;
};

class XlsxSink : public TableSink {
 public:
  XlsxSink(FileSystem* file_system, const std::string& path,
           absl::Span<const std::string> header)
      : file_system_(file_system),
        temporary_(file_system, path),
        header_(header.begin(), header.end()) {}

  absl::Status Start() {
    RP_ASSIGN_OR_RETURN(book_, OpenWorkbook(file_system_, temporary_.name()));
    error_ = workbook_add_format(book_.get());
    format_set_bg_color(error_, 0xFF704D);
    warning_ = workbook_add_format(book_.get());
    format_set_bg_color(warning_, 0xFFDC7F);
    for (size_t i = 0; i < header_.size(); ++i) {
      if (header_[i] == "Result") result_column_ = static_cast<int>(i);
    }
    return AddSheet();
  }
  absl::Status AddRow(absl::Span<const std::string> cells) override {
    if (row_ == kMaxSheetRows) RP_RETURN_IF_ERROR(AddSheet());
    lxw_format* format = nullptr;
    if (result_column_ >= 0) {
      const std::string& result = cells[static_cast<size_t>(result_column_)];
      format = result == "error"     ? error_
               : result == "warning" ? warning_
                                     : nullptr;
    }
    for (size_t i = 0; i < cells.size(); ++i) {
      RP_RETURN_IF_ERROR(AddCell(static_cast<lxw_col_t>(i), cells[i], format));
    }
    ++row_;
    return absl::OkStatus();
  }
  absl::Status Finish() override {
    RP_RETURN_IF_ERROR(Told(workbook_close(book_.release())));
    return temporary_.Rename();
  }

 private:
  absl::Status Told(lxw_error error) const {
    return WorkbookStatus(temporary_.name(), error);
  }
  absl::Status AddSheet() {
    sheet_ = workbook_add_worksheet(book_.get(), nullptr);
    if (sheet_ == nullptr) return Told(LXW_ERROR_MEMORY_MALLOC_FAILED);
    row_ = 0;
    for (size_t i = 0; i < header_.size(); ++i) {
      RP_RETURN_IF_ERROR(
          AddCell(static_cast<lxw_col_t>(i), header_[i], nullptr));
    }
    ++row_;
    return absl::OkStatus();
  }
  absl::Status AddCell(lxw_col_t column, const std::string& cell,
                       lxw_format* format) {
    double number = 0;
    if (absl::SimpleAtod(cell, &number) && std::isfinite(number)) {
      return Told(worksheet_write_number(sheet_, row_, column, number, format));
    }
    return Told(worksheet_write_string(sheet_, row_, column,
                                       CellText(cell).c_str(), format));
  }

  FileSystem* const file_system_;
  TemporaryFile temporary_;
  const std::vector<std::string> header_;
  Workbook book_;
  lxw_worksheet* sheet_ = nullptr;
  lxw_format* error_ = nullptr;
  lxw_format* warning_ = nullptr;
  lxw_row_t row_ = 0;
  int result_column_ = -1;
};

}  // namespace

std::string WithoutFormula(const std::string& cell) {
  if (cell.empty()) return cell;
  bool suspicious = absl::StrContains("=+-@%", cell.substr(0, 1));
  for (const absl::string_view wide : {"＋", "－", "＝", "％", "＠"}) {
    suspicious = suspicious || absl::StartsWith(cell, wide);
  }
  for (size_t at = cell.find(';'); at != std::string::npos && !suspicious;
       at = cell.find(';', at + 1)) {
    suspicious = at + 1 < cell.size() &&
                 absl::StrContains("=+-@%", cell.substr(at + 1, 1));
  }
  double number = 0;
  if (!suspicious || absl::SimpleAtod(cell, &number)) return cell;
  return absl::StrCat("'", cell);
}

absl::StatusOr<std::unique_ptr<TableSink>> OpenCsv(
    FileSystem* file_system, const std::string& path,
    absl::Span<const std::string> header) {
  auto sink = std::make_unique<CsvSink>(file_system, path);
  RP_RETURN_IF_ERROR(sink->Start(header));
  return sink;
}

absl::StatusOr<std::unique_ptr<TableSink>> OpenXlsx(
    FileSystem* file_system, const std::string& path,
    absl::Span<const std::string> header) {
  auto sink = std::make_unique<XlsxSink>(file_system, path, header);
  RP_RETURN_IF_ERROR(sink->Start());
  return sink;
}

}  // namespace rankprobe::analysis
