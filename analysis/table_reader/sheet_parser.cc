// SPDX-License-Identifier: Apache-2.0
#include "analysis/table_reader/sheet_parser.h"

#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace rankprobe::analysis {
namespace {

// "AB12": the column, from 1; 0 if there is none or it is beyond `most`.
size_t ColumnOf(absl::string_view reference, size_t most) {
  size_t column = 0;
  for (const char c : reference) {
    if (c < 'A' || c > 'Z') break;
    column = column * 26 + static_cast<size_t>(c - 'A') + 1;
    if (column > most) return 0;
  }
  return column;
}

}  // namespace

SheetParser::SheetParser(size_t sheet, const TableLimits& limits,
                         const SharedTexts& shared, RowFn on_row)
    : sheet_(sheet),
      limits_(limits),
      shared_(shared),
      on_row_(std::move(on_row)) {}

absl::Status SheetParser::Bad(absl::string_view what) const {
  return absl::InvalidArgumentError(
      absl::StrCat("row ", row_ + 1, ", column ", column_ + 1, ": ", what));
}

absl::Status SheetParser::StartRow(const XmlAttributes& attributes) {
  const absl::string_view number = attributes.Find("r");
  column_ = 0;
  if (!number.empty()) {
    uint64_t row = 0;
    if (!absl::SimpleAtoi(number, &row) || row <= row_) {
      return Bad("a row of another place");
    }
    row_ = row - 1;
  }
  if (row_ >= limits_.rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("more than ", limits_.rows, " rows"));
  }
  in_row_ = true;
  text_.clear();
  parts_.clear();
  return absl::OkStatus();
}

absl::Status SheetParser::StartCell(const XmlAttributes& attributes) {
  const absl::string_view place = attributes.Find("r");
  if (!place.empty()) {
    const size_t column = ColumnOf(place, limits_.columns);
    if (column <= column_) return Bad("a cell of another place");
    column_ = column - 1;
  }
  if (column_ >= limits_.columns) {
    return absl::InvalidArgumentError(absl::StrCat(
        "row ", row_ + 1, ": more than ", limits_.columns, " columns"));
  }
  const absl::string_view type = attributes.Find("t");
  type_ = type.empty() || type == "n" ? Type::kNumber
          : type == "s"               ? Type::kShared
          : type == "inlineStr"       ? Type::kInline
          : type == "b"               ? Type::kBool
          : type == "e"               ? Type::kError
                                      : Type::kText;
  in_cell_ = true;
  phonetic_ = 0;
  begin_ = text_.size();
  return absl::OkStatus();
}

absl::Status SheetParser::EndCell() {
  Part part;
  part.begin = begin_;
  part.length = text_.size() - begin_;
  const absl::string_view text = absl::string_view(text_).substr(begin_);
  TableCell& cell = part.cell;
  using Kind = TableCell::Kind;
  if (!text.empty()) {
    size_t index = 0;
    switch (type_) {
      case Type::kNumber:
        cell.kind = Kind::kNumber;
        if (!absl::SimpleAtod(text, &cell.number) ||
            !std::isfinite(cell.number)) {
          return Bad("is no number");
        }
        break;
      case Type::kBool:
        cell.kind = Kind::kBool;
        cell.number = absl::StripAsciiWhitespace(text) == "1" ? 1 : 0;
        break;
      case Type::kError:
        cell.kind = Kind::kError;
        break;
      case Type::kShared:
        if (!absl::SimpleAtoi(text, &index) || index >= shared_.size()) {
          return Bad("a shared text that is not there");
        }
        part.shared = true;
        part.begin = index;
        cell.kind = shared_.at(index).empty() ? Kind::kEmpty : Kind::kText;
        break;
      case Type::kText:
      case Type::kInline:
        cell.kind = Kind::kText;
        break;
    }
  }
  parts_.resize(column_);
  parts_.push_back(part);
  ++column_;
  in_cell_ = false;
  return absl::OkStatus();
}

absl::Status SheetParser::EndRow() {
  cells_.clear();
  for (const Part& part : parts_) {
    TableCell cell = part.cell;
    if (cell.kind != TableCell::Kind::kEmpty) {
      cell.text = part.shared ? shared_.at(part.begin)
                              : absl::string_view(text_).substr(part.begin,
                                                                part.length);
    }
    cells_.push_back(cell);
  }
  in_row_ = false;
  return on_row_(sheet_, row_++, cells_);
}

absl::Status SheetParser::OnStart(absl::string_view name,
                                  const XmlAttributes& attributes) {
  if (name == "row") {
    return in_row_ ? Bad("a row in a row") : StartRow(attributes);
  }
  if (name == "c" && in_row_) {
    return in_cell_ ? Bad("a cell in a cell") : StartCell(attributes);
  }
  if (!in_cell_) return absl::OkStatus();
  if (name == "rPh") ++phonetic_;
  in_value_ =
      type_ == Type::kInline ? name == "t" && phonetic_ == 0 : name == "v";
  return absl::OkStatus();
}

absl::Status SheetParser::OnEnd(absl::string_view name) {
  in_value_ = false;
  if (in_cell_ && name == "rPh") --phonetic_;
  if (in_cell_ && name == "c") return EndCell();
  if (in_row_ && !in_cell_ && name == "row") return EndRow();
  return absl::OkStatus();
}

absl::Status SheetParser::OnText(absl::string_view text) {
  if (!in_value_) return absl::OkStatus();
  if (text_.size() + text.size() > limits_.row_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "row ", row_ + 1, ": more than ", limits_.row_bytes, " bytes"));
  }
  text_.append(text.data(), text.size());
  return absl::OkStatus();
}

}  // namespace rankprobe::analysis
