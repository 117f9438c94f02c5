// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/statistics_grid.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace rankprobe {

bool StatisticsGrid::Beats(double value, const Cell& cell) const {
  if (cell.count == 0) return true;
  if (std::isnan(cell.value)) return false;
  if (std::isnan(value)) return true;
  return reducer_ == v1::GRID_REDUCER_MIN ? value < cell.value
                                          : value > cell.value;
}

void StatisticsGrid::Join(const Cell& from, Cell* into) const {
  if (from.count == 0) return;
  if (reducer_ == v1::GRID_REDUCER_MEAN) {
    into->value += from.value;
  } else if (Beats(from.value, *into)) {
    into->value = from.value;
    into->rank = from.rank;
  }
  // Counts saturate.
  const auto add = [](uint32_t more, uint32_t* sum) {
    *sum += std::min(more, std::numeric_limits<uint32_t>::max() - *sum);
  };
  add(from.count, &into->count);
  add(from.non_finite, &into->non_finite);
}

absl::Status StatisticsGrid::TooManyRows(size_t cells) {
  return absl::ResourceExhaustedError(
      absl::StrCat("more than ", cells,
                   " rows: narrow them with a pattern, with ranks, or ask "
                   "for rows of modules or ranks"));
}

absl::Status StatisticsGrid::Fit(size_t rows) {
  if (rows > limits_.cells) return TooManyRows(limits_.cells);
  while (columns() > 1 && rows * columns() > limits_.cells) Coarsen();
  return absl::OkStatus();
}

void StatisticsGrid::Coarsen() {
  ++column_bits_;
  // For each column, the one that it is merged into.
  std::vector<size_t> into(columns());
  size_t count = 0;
  for (size_t i = 0; i < into.size(); ++i) {
    const bool joins = count > 0 && first_steps_[count - 1] >> column_bits_ ==
                                        first_steps_[i] >> column_bits_;
    if (!joins) first_steps_[count++] = first_steps_[i];
    into[i] = count - 1;
    last_steps_[count - 1] = last_steps_[i];
  }
  first_steps_.resize(count);
  last_steps_.resize(count);
  for (RowOfCells& row : rows_) {
    size_t used = 0;
    for (size_t i = 0; i < row.cells.size(); ++i) {
      if (into[i] < used) {
        Join(row.cells[i], &row.cells[into[i]]);
      } else {
        row.cells[into[i]] = row.cells[i];
        used = into[i] + 1;
      }
    }
    row.cells.resize(used);
  }
}

absl::Status StatisticsGrid::BeginStep(int64_t step) {
  if (!first_steps_.empty() && last_steps_.back() == step)
    return absl::OkStatus();
  ++steps_;
  if (first_steps_.empty() ||
      first_steps_.back() >> column_bits_ != step >> column_bits_) {
    first_steps_.push_back(step);
    last_steps_.push_back(step);
  } else {
    last_steps_.back() = step;
  }
  return Fit(rows_.size());
}

absl::StatusOr<size_t> StatisticsGrid::FindRow(absl::string_view name) {
  const auto it = row_of_name_.find(name);
  if (it != row_of_name_.end()) return it->second;
  name_bytes_ += name.size();
  if (name_bytes_ > limits_.name_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the names of the rows have more than ",
                     limits_.name_bytes, " bytes: narrow them"));
  }
  RP_RETURN_IF_ERROR(Fit(rows_.size() + 1));
  rows_.push_back({std::string(name), {}});
  return row_of_name_.emplace(name, rows_.size() - 1).first->second;
}

absl::Status StatisticsGrid::AddRow(absl::string_view row) {
  return FindRow(row).status();
}

absl::Status StatisticsGrid::Add(absl::string_view row, int64_t rank,
                                 double value, bool finite) {
  RP_ASSIGN_OR_RETURN(const size_t index, FindRow(row));
  std::vector<Cell>& cells = rows_[index].cells;
  if (cells.size() < columns()) cells.resize(columns());
  Cell one;
  one.value = value;
  one.count = 1;
  one.non_finite = finite ? 0 : 1;
  one.rank = reducer_ == v1::GRID_REDUCER_MEAN ? -1 : rank;
  Join(one, &cells.back());
  return absl::OkStatus();
}

void StatisticsGrid::FillHead(v1::GridHead* head) const {
  head->mutable_first_steps()->Assign(first_steps_.begin(), first_steps_.end());
  head->mutable_last_steps()->Assign(last_steps_.begin(), last_steps_.end());
  head->set_steps_per_column(uint64_t{1} << column_bits_);
  head->set_steps(steps_);
  head->set_rows(rows_.size());
}

v1::GridRow StatisticsGrid::Row(size_t row) const {
  v1::GridRow out;
  out.set_name(rows_[row].name);
  for (size_t i = 0; i < columns(); ++i) {
    const Cell cell =
        i < rows_[row].cells.size() ? rows_[row].cells[i] : Cell();
    const bool mean = reducer_ == v1::GRID_REDUCER_MEAN && cell.count > 0;
    out.add_cells(mean ? cell.value / cell.count : cell.value);
    out.add_counts(cell.count);
    out.add_non_finite(cell.non_finite);
    out.add_ranks(cell.rank);
  }
  return out;
}

}  // namespace rankprobe
