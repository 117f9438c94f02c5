// SPDX-License-Identifier: Apache-2.0
// The merged tables as files.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "analysis/compare/table_sink.h"
#include "analysis/compare/temporary_file.h"
#include "analysis/compare/workbook.h"
#include "analysis/merge_result/merge_result.h"
#include "common/base/status_macros.h"

namespace rankprobe::analysis {
namespace {

// Rows of a sheet, as msprobe cuts them; the longest name of one.
constexpr size_t kSheetRows = 1048500;
constexpr size_t kSheetName = 31;

constexpr KeptCell kBlank;

const KeptCell& At(const MergedTables& tables, size_t index, size_t rank,
                   size_t row) {
  const int64_t at = tables.rows[rank][row];
  return at < 0 ? kBlank
                : tables.ranks[rank].values[index][static_cast<size_t>(at)];
}

// What a sheet may not be called, and the end of names that are too long.
std::string SheetName(absl::string_view index, absl::string_view end) {
  std::string name(index.substr(0, kSheetName - end.size()));
  for (char& c : name) {
    if (absl::string_view("[]:*?/\\'").find(c) != absl::string_view::npos) {
      c = '_';
    }
  }
  return absl::StrCat(name, end);
}

class Book {
 public:
  Book(FileSystem* file_system, const std::string& path)
      : file_system_(file_system), temporary_(file_system, path) {}

  absl::Status Open() {
    RP_ASSIGN_OR_RETURN(book_, OpenWorkbook(file_system_, temporary_.name()));
    bold_ = workbook_add_format(book_.get());
    format_set_bold(bold_);
    return absl::OkStatus();
  }

  absl::Status AddSheet(const MergedTables& tables, size_t index, size_t begin,
                        size_t end, const std::string& name) {
    const lxw_error fits =
        workbook_validate_sheet_name(book_.get(), name.c_str());
    sheet_ = fits == LXW_NO_ERROR
                 ? workbook_add_worksheet(book_.get(), name.c_str())
                 : nullptr;
    if (sheet_ == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "no sheet can be called ", name, ": ", lxw_strerror(fits)));
    }
    RP_RETURN_IF_ERROR(Text(0, 0, "NPU Name", bold_));
    for (size_t rank = 0; rank < tables.ranks.size(); ++rank) {
      RP_RETURN_IF_ERROR(Text(
          0, rank + 1, absl::StrCat("rank", tables.ranks[rank].rank), bold_));
    }
    for (size_t i = begin; i < end; ++i) {
      const size_t row = i - begin + 1;
      RP_RETURN_IF_ERROR(Text(row, 0, tables.names[i], nullptr));
      for (size_t rank = 0; rank < tables.ranks.size(); ++rank) {
        RP_RETURN_IF_ERROR(Cell(row, rank + 1, At(tables, index, rank, i),
                                tables.ranks[rank].texts));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Finish() {
    RP_RETURN_IF_ERROR(Told(workbook_close(book_.release())));
    return temporary_.Rename();
  }

 private:
  absl::Status Told(lxw_error error) const {
    return WorkbookStatus(temporary_.name(), error);
  }
  absl::Status Text(size_t row, size_t column, const std::string& text,
                    lxw_format* format) {
    return Told(worksheet_write_string(sheet_, static_cast<lxw_row_t>(row),
                                       static_cast<lxw_col_t>(column),
                                       CellText(text).c_str(), format));
  }
  absl::Status Cell(size_t row, size_t column, const KeptCell& cell,
                    const TextPool& texts) {
    const auto at = static_cast<lxw_row_t>(row);
    const auto in = static_cast<lxw_col_t>(column);
    switch (cell.kind) {
      case TableCell::Kind::kNumber:
        return Told(
            worksheet_write_number(sheet_, at, in, cell.number, nullptr));
      case TableCell::Kind::kBool:
        return Told(worksheet_write_boolean(sheet_, at, in,
                                            cell.number != 0 ? 1 : 0, nullptr));
      case TableCell::Kind::kText:
        return Text(row, column, texts.at(cell.text), nullptr);
      case TableCell::Kind::kEmpty:
      case TableCell::Kind::kError:
        break;
    }
    return absl::OkStatus();
  }

  FileSystem* const file_system_;
  TemporaryFile temporary_;
  Workbook book_;
  lxw_worksheet* sheet_ = nullptr;
  lxw_format* bold_ = nullptr;
};

std::string CsvText(const KeptCell& cell, const TextPool& texts) {
  switch (cell.kind) {
    case TableCell::Kind::kNumber:
      // As many digits as a workbook has.
      return absl::StrFormat("%.16g", cell.number);
    case TableCell::Kind::kBool:
      return cell.number != 0 ? "True" : "False";
    case TableCell::Kind::kText:
      return texts.at(cell.text);
    case TableCell::Kind::kEmpty:
    case TableCell::Kind::kError:
      break;
  }
  return "";
}

}  // namespace

absl::Status WriteMergedXlsx(FileSystem* file_system, const std::string& path,
                             const MergedTables& tables) {
  Book book(file_system, path);
  RP_RETURN_IF_ERROR(book.Open());
  const size_t rows = tables.names.size();
  const size_t parts =
      rows < kSheetRows ? 1 : (rows + kSheetRows - 1) / kSheetRows;
  const size_t size = (rows + parts - 1) / parts;
  for (size_t index = 0; index < tables.indices.size(); ++index) {
    for (size_t part = 0; part < parts; ++part) {
      RP_RETURN_IF_ERROR(book.AddSheet(
          tables, index, part * size, std::min(rows, (part + 1) * size),
          SheetName(tables.indices[index],
                    rows < kSheetRows ? "" : absl::StrCat("_part_", part))));
    }
  }
  return book.Finish();
}

absl::Status WriteMergedCsv(FileSystem* file_system, const std::string& path,
                            const MergedTables& tables) {
  std::vector<std::string> cells = {"Index", "NPU Name"};
  for (const RankValues& rank : tables.ranks) {
    cells.push_back(absl::StrCat("rank", rank.rank));
  }
  RP_ASSIGN_OR_RETURN(const auto sink, OpenCsv(file_system, path, cells));
  for (size_t index = 0; index < tables.indices.size(); ++index) {
    for (size_t row = 0; row < tables.names.size(); ++row) {
      cells = {tables.indices[index], tables.names[row]};
      for (size_t rank = 0; rank < tables.ranks.size(); ++rank) {
        cells.push_back(
            CsvText(At(tables, index, rank, row), tables.ranks[rank].texts));
      }
      RP_RETURN_IF_ERROR(sink->AddRow(cells));
    }
  }
  return sink->Finish();
}

}  // namespace rankprobe::analysis
