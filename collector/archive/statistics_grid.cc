// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/statistics_grid.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

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
  // A count that is full says so by staying where it is.
  const auto add = [](uint32_t more, uint32_t* sum) {
    *sum += std::min(more, std::numeric_limits<uint32_t>::max() - *sum);
  };
  add(from.count, &into->count);
  add(from.non_finite, &into->non_finite);
}

absl::Status StatisticsGrid::Fit(size_t rows) {
  if (rows > limits_.cells) {
    return absl::ResourceExhaustedError(
        absl::StrCat("more than ", limits_.cells,
                     " rows: narrow them with a pattern, with ranks, or ask "
                     "for rows of modules or ranks"));
  }
  while (columns() > 1 && rows * columns() > limits_.cells) {
    steps_per_column_ *= 2;
    const auto halve = [](std::vector<int64_t>* steps, bool last) {
      const size_t half = (steps->size() + 1) / 2;
      for (size_t i = 0; i < half; ++i)
        (*steps)[i] =
            (*steps)[std::min(2 * i + (last ? 1 : 0), steps->size() - 1)];
      steps->resize(half);
    };
    halve(&first_steps_, /*last=*/false);
    halve(&last_steps_, /*last=*/true);
    for (RowOfCells& row : rows_) {
      const size_t half = (row.cells.size() + 1) / 2;
      for (size_t i = 0; i < half; ++i) {
        Cell joined = row.cells[2 * i];
        if (2 * i + 1 < row.cells.size()) Join(row.cells[2 * i + 1], &joined);
        row.cells[i] = joined;
      }
      row.cells.resize(half);
    }
  }
  return absl::OkStatus();
}

absl::Status StatisticsGrid::BeginStep(int64_t step) {
  if (!first_steps_.empty() && last_steps_.back() == step)
    return absl::OkStatus();
  // The columns before this one are full: they hold steps_per_column_ each.
  if (steps_++ % steps_per_column_ == 0) {
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
                                 double value) {
  RP_ASSIGN_OR_RETURN(const size_t index, FindRow(row));
  std::vector<Cell>& cells = rows_[index].cells;
  if (cells.size() < columns()) cells.resize(columns());
  Cell one;
  one.value = value;
  one.count = 1;
  one.non_finite = std::isfinite(value) ? 0 : 1;
  one.rank = reducer_ == v1::GRID_REDUCER_MEAN ? -1 : rank;
  Join(one, &cells.back());
  return absl::OkStatus();
}

void StatisticsGrid::FillHead(v1::GridHead* head) const {
  head->mutable_first_steps()->Assign(first_steps_.begin(), first_steps_.end());
  head->mutable_last_steps()->Assign(last_steps_.begin(), last_steps_.end());
  head->set_steps_per_column(steps_per_column_);
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
