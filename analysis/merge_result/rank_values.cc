// SPDX-License-Identifier: Apache-2.0
#include "analysis/merge_result/rank_values.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "analysis/compare/table_sink.h"
#include "common/base/status_macros.h"

namespace rankprobe::analysis {
namespace {

constexpr TableCell kNoCell;

// "N/A", "unsupported", "Nan": the metric says nothing, the values do.
bool SaysNothing(absl::string_view text) {
  return text == "N/A" || text == "unsupported" || text == "Nan";
}

class RankReader {
 public:
  RankReader(const RankTable& table, const std::vector<ApiPattern>& apis,
             std::vector<std::string>* indices)
      : table_(table),
        apis_(apis),
        indices_(*indices),
        found_(apis.size(), false) {}

  absl::Status OnRow(size_t sheet, uint64_t row,
                     absl::Span<const TableCell> cells) {
    if (sheet != sheet_ || !begun_) return BeginSheet(sheet, row, cells);
    if (skipped_) return absl::OkStatus();
    // What follows the last row that has something is no row.
    if (std::all_of(cells.begin(), cells.end(), [](const TableCell& cell) {
          return cell.kind == TableCell::Kind::kEmpty;
        })) {
      return absl::OkStatus();
    }
    for (; next_row_ < row; ++next_row_) AddRow({});
    AddRow(cells);
    ++next_row_;
    return Choose(cells);
  }

  absl::StatusOr<RankValues> Finish() {
    RankValues out;
    out.rank = table_.rank;
    out.left_out = left_out_;
    if (out.left_out.empty() && types_.empty()) out.left_out = "has no rows";
    if (!out.left_out.empty()) return out;
    for (size_t i = 0; i < apis_.size(); ++i) {
      if (!found_[i]) out.missing.push_back(apis_[i].api());
    }
    std::vector<size_t> order(names_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [this](size_t a, size_t b) {
      return first_api_[a] < first_api_[b];
    });
    const size_t width = types_.size();
    out.values.resize(indices_.size());
    for (const size_t row : order) {
      RP_RETURN_IF_ERROR(Check(names_[row]));
      const KeptCell* const kept = &cells_[row * width];
      std::optional<std::string> both;
      for (size_t i = 0; i < indices_.size(); ++i) {
        KeptCell value = types_[i].Value(kept[i], &texts_);
        if (value.kind == TableCell::Kind::kText) {
          RP_RETURN_IF_ERROR(Check(texts_.at(value.text)));
          if (SaysNothing(texts_.at(value.text))) {
            if (!both.has_value()) {
              both = absl::StrCat(
                  "NPU:", types_[width - 2].Text(kept[width - 2], texts_),
                  "  Bench:", types_[width - 1].Text(kept[width - 1], texts_));
            }
            value.text = texts_.Add(*both);
          }
        }
        out.values[i].push_back(value);
      }
      out.names.push_back(std::move(names_[row]));
    }
    out.texts = std::move(texts_);
    return out;
  }

 private:
  absl::Status LeaveOut(std::string why) {
    left_out_ = std::move(why);
    // Ends the reading; the caller knows.
    return absl::CancelledError("");
  }

  absl::Status BeginSheet(size_t sheet, uint64_t row,
                          absl::Span<const TableCell> cells) {
    const bool first = !begun_;
    begun_ = true;
    sheet_ = sheet;
    next_row_ = 1;
    std::vector<std::string> header;
    for (const TableCell& cell : cells) header.emplace_back(cell.text);
    if (!first) {
      // A table that is longer than a sheet goes on in the next.
      skipped_ = row != 0 || header != header_;
      return absl::OkStatus();
    }
    header_ = std::move(header);
    const absl::StatusOr<TableHead> head =
        row == 0 ? ReadTableHead(header_)
                 : absl::InvalidArgumentError("begins with an empty row");
    if (!head.ok()) return LeaveOut(std::string(head.status().message()));
    if (head->task == TableHead::Task::kMd5) {
      return LeaveOut("is of checksums (md5), which are not merged");
    }
    if (indices_.empty()) indices_ = head->indices;
    std::vector<std::string> lacking;
    for (const std::string& index : indices_) {
      const auto at =
          std::find(head->indices.begin(), head->indices.end(), index);
      if (at == head->indices.end()) {
        lacking.push_back(index);
      } else {
        columns_.push_back(
            head->columns[static_cast<size_t>(at - head->indices.begin())]);
      }
    }
    if (!lacking.empty()) {
      return LeaveOut(absl::StrCat("has no ", absl::StrJoin(lacking, ", "),
                                   " to compare by"));
    }
    columns_.push_back(head->npu_max);
    columns_.push_back(head->bench_max);
    name_ = head->name;
    return absl::OkStatus();
  }

  static const TableCell& At(absl::Span<const TableCell> cells, size_t i) {
    return i < cells.size() ? cells[i] : kNoCell;
  }

  void AddRow(absl::Span<const TableCell> cells) {
    types_.resize(columns_.size());
    for (size_t i = 0; i < columns_.size(); ++i) {
      types_[i].Add(At(cells, columns_[i]));
    }
  }

  absl::Status Choose(absl::Span<const TableCell> cells) {
    const TableCell& name = At(cells, name_);
    if (name.kind != TableCell::Kind::kText) return absl::OkStatus();
    std::optional<size_t> api;
    for (size_t i = 0; i < apis_.size(); ++i) {
      if (api.has_value() && found_[i]) continue;
      if (!apis_[i].Matches(name.text)) continue;
      found_[i] = true;
      if (!api.has_value()) api = i;
    }
    if (!api.has_value() || !seen_.insert(std::string(name.text)).second) {
      return absl::OkStatus();
    }
    names_.emplace_back(name.text);
    first_api_.push_back(*api);
    for (const size_t column : columns_) {
      cells_.push_back(Keep(At(cells, column), &texts_));
    }
    return absl::OkStatus();
  }

  absl::Status Check(const std::string& text) const {
    if (WithoutFormula(text) == text) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        table_.path,
        ": a cell that a spreadsheet would run: ", text.substr(0, 200)));
  }

  const RankTable& table_;
  const std::vector<ApiPattern>& apis_;
  std::vector<std::string>& indices_;
  std::string left_out_;

  bool begun_ = false;
  bool skipped_ = false;
  size_t sheet_ = 0;
  uint64_t next_row_ = 0;
  std::vector<std::string> header_;
  size_t name_ = 0;
  // Of the indices, and behind them the two maxima.
  std::vector<size_t> columns_;
  std::vector<ColumnType> types_;

  std::vector<bool> found_;
  absl::flat_hash_set<std::string> seen_;
  std::vector<std::string> names_;
  std::vector<size_t> first_api_;
  // columns_.size() a row.
  std::vector<KeptCell> cells_;
  TextPool texts_;
};

}  // namespace

absl::StatusOr<RankValues> ReadRankValues(FileSystem* file_system,
                                          const RankTable& table,
                                          const std::vector<ApiPattern>& apis,
                                          std::vector<std::string>* indices) {
  RankReader reader(table, apis, indices);
  const absl::Status read = ReadTable(
      file_system, table.path, TableLimits(),
      [&reader](size_t sheet, uint64_t row, absl::Span<const TableCell> cells) {
        return reader.OnRow(sheet, row, cells);
      });
  if (!read.ok() && !absl::IsCancelled(read)) return read;
  return reader.Finish();
}

}  // namespace rankprobe::analysis
