// SPDX-License-Identifier: Apache-2.0
// The XML of one sheet of a workbook, cell by cell, to rows. Used by the reader
// of workbooks only, on one thread. Failure: INVALID_ARGUMENT that names the
// cell.
#ifndef RANKPROBE_ANALYSIS_TABLE_READER_SHEET_PARSER_H_
#define RANKPROBE_ANALYSIS_TABLE_READER_SHEET_PARSER_H_

#include <string>
#include <vector>

#include "analysis/table_reader/table_reader.h"
#include "analysis/table_reader/xml_parser.h"

namespace rankprobe::analysis {

// The texts that cells refer to by number, one behind the other.
class SharedTexts {
 public:
  void Append(absl::string_view text) {
    bytes_.append(text.data(), text.size());
  }
  void End() { ends_.push_back(bytes_.size()); }
  size_t size() const { return ends_.size(); }
  size_t bytes() const { return bytes_.size(); }
  absl::string_view at(size_t i) const {
    const size_t begin = i == 0 ? 0 : ends_[i - 1];
    return absl::string_view(bytes_).substr(begin, ends_[i] - begin);
  }

 private:
  std::string bytes_;
  std::vector<size_t> ends_;
};

class SheetParser : public XmlHandler {
 public:
  // `limits` and `shared` outlive the object.
  SheetParser(size_t sheet, const TableLimits& limits,
              const SharedTexts& shared, RowFn on_row);
  absl::Status OnStart(absl::string_view name,
                       const XmlAttributes& attributes) override;
  absl::Status OnEnd(absl::string_view name) override;
  absl::Status OnText(absl::string_view text) override;

 private:
  enum class Type { kNumber, kShared, kText, kInline, kBool, kError };
  // A cell of the row; its text lies in text_ or among the shared ones.
  struct Part {
    TableCell cell;
    size_t begin = 0;
    size_t length = 0;
    bool shared = false;
  };

  absl::Status StartRow(const XmlAttributes& attributes);
  absl::Status StartCell(const XmlAttributes& attributes);
  absl::Status EndCell();
  absl::Status EndRow();
  absl::Status Bad(absl::string_view what) const;

  const size_t sheet_;
  const TableLimits& limits_;
  const SharedTexts& shared_;
  const RowFn on_row_;

  // Numbers of the next row and the next cell.
  uint64_t row_ = 0;
  size_t column_ = 0;
  bool in_row_ = false;
  bool in_cell_ = false;
  // In a <v>, or in a <t> that is no phonetic hint.
  bool in_value_ = false;
  int phonetic_ = 0;
  Type type_ = Type::kNumber;
  // Where the text of the open cell begins.
  size_t begin_ = 0;
  std::string text_;
  std::vector<Part> parts_;
  std::vector<TableCell> cells_;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_TABLE_READER_SHEET_PARSER_H_
