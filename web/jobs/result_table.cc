// SPDX-License-Identifier: Apache-2.0
#include "web/jobs/result_table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "web/jobs/csv_reader.h"

namespace rankprobe {
namespace {

constexpr absl::string_view kResultColumn = "Result";
constexpr absl::string_view kPartnerColumn = "Bench Name";
constexpr absl::string_view kMissing = "N/A";
constexpr absl::string_view kNoPartner = "no partner";
// Columns with the names of a row: those of the target and of its partner.
constexpr size_t kNameColumns = 2;
constexpr size_t kMaxFindBytes = 4096;

// Sort key of a cell: "12.5%" and "1e-3" are numbers. Values that are not
// finite are above all numbers, because users look for them first. Texts are
// separate, after the numbers.
struct SortKey {
  int kind = 2;  // 0: a number, 1: not finite, 2: a text
  double number = 0;
};

SortKey KeyOf(absl::string_view text) {
  SortKey key;
  absl::string_view digits = text;
  if (absl::EndsWith(digits, "%")) digits.remove_suffix(1);
  if (!absl::SimpleAtod(digits, &key.number)) return key;
  key.kind = std::isfinite(key.number) ? 0 : 1;
  if (std::isnan(key.number))
    key.number = std::numeric_limits<double>::infinity();
  return key;
}

bool Before(const SortKey& a, const SortKey& b) {
  return a.kind != b.kind ? a.kind < b.kind : a.number < b.number;
}

}  // namespace

absl::StatusOr<std::shared_ptr<ResultTable>> ResultTable::Read(
    FileSystem* file_system, const std::string& path, uint64_t max_file_bytes) {
  if (!absl::EndsWith(path, ".csv"))
    return absl::InvalidArgumentError("only csv files are shown as tables");
  RP_ASSIGN_OR_RETURN(const uint64_t size, file_system->FileSize(path));
  const absl::Status too_large = absl::ResourceExhaustedError(
      "the table is larger than the page can show: save it");
  if (size > max_file_bytes) return too_large;
  auto table = std::shared_ptr<ResultTable>(new ResultTable());
  RP_RETURN_IF_ERROR(ReadCsv(
      file_system, path, CsvLimits(),
      [&](uint64_t row,
          absl::Span<const absl::string_view> cells) -> absl::Status {
        if (row == 0) {
          for (const absl::string_view cell : cells)
            table->columns_.emplace_back(cell);
          return absl::OkStatus();
        }
        const size_t columns = table->columns_.size();
        if (cells.size() > columns)
          return absl::InvalidArgumentError("a row is longer than its head");
        if (table->cells_.size() + columns >
            std::min<uint64_t>(kMaxCells, max_file_bytes / 8))
          return too_large;
        for (size_t i = 0; i < columns; ++i) {
          const absl::string_view text =
              i < cells.size() ? cells[i] : absl::string_view();
          table->cells_.emplace_back(table->text_.size(), text.size());
          absl::StrAppend(&table->text_, text);
        }
        return absl::OkStatus();
      }));
  if (table->columns_.empty())
    return absl::InvalidArgumentError("the table has no head");
  table->result_column_ =
      absl::c_find(table->columns_, kResultColumn) - table->columns_.begin();
  table->partner_column_ =
      absl::c_find(table->columns_, kPartnerColumn) - table->columns_.begin();
  return table;
}

absl::string_view ResultTable::ResultOf(size_t row) const {
  if (partner_column_ < columns_.size() &&
      Cell(row, partner_column_) == kMissing) {
    return kNoPartner;
  }
  return result_column_ < columns_.size() ? Cell(row, result_column_)
                                          : absl::string_view();
}

absl::Status ResultTable::CheckRequest(const v1::JobRowsRequest& request,
                                       size_t* sort_column) const {
  if (request.count() > kMaxWindow) {
    return absl::InvalidArgumentError(
        absl::StrCat("a window has at most ", kMaxWindow, " rows"));
  }
  if (request.find().size() > kMaxFindBytes)
    return absl::InvalidArgumentError("find: the text is too long");
  *sort_column = columns_.size();
  if (!request.sort().empty()) {
    *sort_column = absl::c_find(columns_, request.sort()) - columns_.begin();
    if (*sort_column == columns_.size())
      return absl::InvalidArgumentError("sort: there is no such column");
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::JobRows> ResultTable::Rows(
    const v1::JobRowsRequest& request) {
  size_t sort_column = 0;
  RP_RETURN_IF_ERROR(CheckRequest(request, &sort_column));
  const absl::MutexLock lock(&mutex_);
  v1::JobRowsRequest key = request;
  key.clear_offset();
  key.clear_count();
  key.clear_id();
  key.clear_file();
  const std::string wanted = key.SerializeAsString();
  if (chosen_for_ != wanted || chosen_for_.empty()) {
    Choose(request, sort_column);
    chosen_for_ = wanted;
  }
  v1::JobRows out;
  out.mutable_columns()->Assign(columns_.begin(), columns_.end());
  out.set_total(row_count());
  out.set_matching(chosen_.size());
  for (const auto& [result, count] : results_)
    (*out.mutable_results())[result] = count;
  const uint64_t begin = std::min<uint64_t>(request.offset(), chosen_.size());
  const uint64_t end =
      std::min<uint64_t>(begin + request.count(), chosen_.size());
  for (uint64_t i = begin; i < end; ++i) {
    v1::JobRow* const row = out.add_rows();
    row->set_row(chosen_[i]);
    for (size_t column = 0; column < columns_.size(); ++column)
      row->add_cells(std::string(Cell(chosen_[i], column)));
  }
  return out;
}

void ResultTable::Choose(const v1::JobRowsRequest& request,
                         size_t sort_column) {
  chosen_.clear();
  std::map<absl::string_view, uint64_t> counts;
  const std::string find = absl::AsciiStrToLower(request.find());
  const auto found = [&](size_t row) {
    if (find.empty()) return true;
    for (size_t i = 0; i < std::min(kNameColumns, columns_.size()); ++i) {
      if (absl::StrContains(absl::AsciiStrToLower(Cell(row, i)), find))
        return true;
    }
    return false;
  };
  const bool has_result = result_column_ < columns_.size();
  for (size_t row = 0; row < row_count(); ++row) {
    if (!found(row)) continue;
    const absl::string_view result = ResultOf(row);
    if (has_result) ++counts[result];
    if (request.results().empty() ||
        absl::c_linear_search(request.results(), result)) {
      chosen_.push_back(static_cast<uint32_t>(row));
    }
  }
  results_.clear();
  for (const auto& [result, count] : counts)
    results_.emplace_back(std::string(result), count);
  if (sort_column < columns_.size()) Sort(sort_column, request.descending());
}

void ResultTable::Sort(size_t column, bool descending) {
  std::vector<SortKey> keys(row_count());
  for (const uint32_t row : chosen_) keys[row] = KeyOf(Cell(row, column));
  const auto before = [&](uint32_t a, uint32_t b) {
    if (Before(keys[a], keys[b])) return true;
    if (Before(keys[b], keys[a])) return false;
    return keys[a].kind == 2 && Cell(a, column) < Cell(b, column);
  };
  // Equal rows keep the order of execution in both directions.
  if (descending) {
    // Texts, "unsupported" and what is empty, stay behind.
    absl::c_stable_sort(chosen_, [&](uint32_t a, uint32_t b) {
      if ((keys[a].kind == 2) != (keys[b].kind == 2)) return keys[b].kind == 2;
      return before(b, a);
    });
  } else {
    absl::c_stable_sort(chosen_, before);
  }
}

}  // namespace rankprobe
