// SPDX-License-Identifier: Apache-2.0
#include "web/jobs/csv_reader.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "google/protobuf/stubs/common.h"

namespace rankprobe {
namespace {

constexpr size_t kReadBytes = 256 << 10;
constexpr absl::string_view kMark = "\xEF\xBB\xBF";

class CsvRows {
 public:
  CsvRows(const CsvLimits& limits, const CsvRowFn* on_row)
      : limits_(limits), on_row_(on_row) {}

  absl::Status Feed(absl::string_view piece) {
    for (const char c : piece) RP_RETURN_IF_ERROR(Add(c));
    return absl::OkStatus();
  }
  absl::Status Finish() {
    if (state_ == State::kQuoted) {
      return absl::InvalidArgumentError(
          absl::StrCat("row ", row_ + 1, ": a quotation mark has no partner"));
    }
    return row_text_.empty() && ends_.empty() ? absl::OkStatus() : EndRow();
  }

  // The last status of `on_row`.
  const absl::Status& from_row() const { return from_row_; }

 private:
  enum class State { kBegin, kPlain, kQuoted, kQuoteInQuoted };

  absl::Status Add(char c) {
    if (c == '\0') {
      return absl::InvalidArgumentError(
          absl::StrCat("row ", row_ + 1, ": a NUL byte"));
    }
    if (state_ == State::kQuoted) {
      if (c == '"') {
        state_ = State::kQuoteInQuoted;
        return absl::OkStatus();
      }
      return Keep(c);
    }
    if (state_ == State::kQuoteInQuoted && c == '"') {
      state_ = State::kQuoted;
      return Keep(c);
    }
    switch (c) {
      case ',':
        return EndCell();
      // Rows may end in CR LF.
      case '\r':
        return absl::OkStatus();
      case '\n':
        return EndRow();
      case '"':
        if (state_ == State::kBegin) {
          state_ = State::kQuoted;
          return absl::OkStatus();
        }
        break;
      default:
        break;
    }
    state_ = State::kPlain;
    return Keep(c);
  }
  absl::Status Keep(char c) {
    if (row_text_.size() == limits_.row_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "row ", row_ + 1, ": more than ", limits_.row_bytes, " bytes"));
    }
    row_text_.push_back(c);
    return absl::OkStatus();
  }
  absl::Status EndCell() {
    if (ends_.size() == limits_.columns) {
      return absl::InvalidArgumentError(absl::StrCat(
          "row ", row_ + 1, ": more than ", limits_.columns, " columns"));
    }
    ends_.push_back(row_text_.size());
    state_ = State::kBegin;
    return absl::OkStatus();
  }
  absl::Status EndRow() {
    RP_RETURN_IF_ERROR(EndCell());
    if (row_ == limits_.rows) {
      return absl::InvalidArgumentError(
          absl::StrCat("more than ", limits_.rows, " rows"));
    }
    if (!google::protobuf::internal::IsStructurallyValidUTF8(
            row_text_.data(), static_cast<int>(row_text_.size()))) {
      return absl::InvalidArgumentError(
          absl::StrCat("row ", row_ + 1, ": text that is not UTF-8"));
    }
    cells_.clear();
    size_t begin = 0;
    for (const size_t end : ends_) {
      cells_.push_back(absl::string_view(row_text_).substr(begin, end - begin));
      begin = end;
    }
    from_row_ = (*on_row_)(row_++, cells_);
    row_text_.clear();
    ends_.clear();
    return from_row_;
  }

  const CsvLimits& limits_;
  const CsvRowFn* const on_row_;
  State state_ = State::kBegin;
  uint64_t row_ = 0;
  // The concatenated cells of the row, and the end of each.
  std::string row_text_;
  std::vector<size_t> ends_;
  std::vector<absl::string_view> cells_;
  absl::Status from_row_;
};

}  // namespace

absl::Status ReadCsv(FileSystem* file_system, const std::string& path,
                     const CsvLimits& limits, const CsvRowFn& on_row) {
  RP_ASSIGN_OR_RETURN(const auto file, file_system->OpenForRead(path));
  RP_ASSIGN_OR_RETURN(const uint64_t size, file_system->FileSize(path));
  CsvRows rows(limits, &on_row);
  const auto read = [&]() -> absl::Status {
    std::string bytes;
    for (uint64_t at = 0; at < size; at += bytes.size()) {
      bytes.resize(std::min<uint64_t>(size - at, kReadBytes));
      RP_RETURN_IF_ERROR(file->Read(at, absl::MakeSpan(bytes)));
      absl::string_view piece = bytes;
      if (at == 0) absl::ConsumePrefix(&piece, kMark);
      RP_RETURN_IF_ERROR(rows.Feed(piece));
    }
    return rows.Finish();
  }();
  // Faults of the file are reported with its path; a status of `on_row` is
  // returned unchanged.
  if (!absl::IsInvalidArgument(read) || !rows.from_row().ok()) return read;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", read.message()));
}

}  // namespace rankprobe
