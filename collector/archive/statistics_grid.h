// SPDX-License-Identifier: Apache-2.0
// Numbers over steps, collected into rows and columns within a limit on cells:
// beyond it, steps of neighbouring numbers share a column. Values are exact:
// nothing is clipped, a NaN stays a NaN, a missing value is not 0. Not
// thread-safe; owned by the query that fills it.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_STATISTICS_GRID_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_STATISTICS_GRID_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rankprobe/v1/query.pb.h"

namespace rankprobe {

class StatisticsGrid {
 public:
  struct Limits {
    // At least 1. A grid of one column with more rows is refused.
    size_t cells = 100000;
    // Limit for the names of rows.
    size_t name_bytes = size_t{64} << 20;
  };
  StatisticsGrid(v1::GridReducer reducer, const Limits& limits)
      : reducer_(reducer), limits_(limits) {}

  static absl::Status TooManyRows(size_t cells);

  // Begins a step; the values added next belong to it. Steps ascend.
  absl::Status BeginStep(int64_t step);
  // Adds a row, which is kept even without values.
  absl::Status AddRow(absl::string_view row);
  // `rank` is -1 if not known; `finite`: all elements of the value are finite.
  // RESOURCE_EXHAUSTED if more rows are added than fit.
  absl::Status Add(absl::string_view row, int64_t rank, double value,
                   bool finite);
  absl::Status Add(absl::string_view row, int64_t rank, double value) {
    return Add(row, rank, value, std::isfinite(value));
  }

  // Fills in columns and rows of the head; the caller fills in the rest.
  void FillHead(v1::GridHead* head) const;
  // Rows are in the order in which they were first added.
  size_t rows() const { return rows_.size(); }
  v1::GridRow Row(size_t row) const;

 private:
  struct Cell {
    // The largest, the smallest or the sum.
    double value = 0;
    uint32_t count = 0;
    uint32_t non_finite = 0;
    int64_t rank = -1;
  };
  struct RowOfCells {
    std::string name;
    // Cells up to the last column with a value.
    std::vector<Cell> cells;
  };

  // Returns whether `value` replaces that of the cell.
  bool Beats(double value, const Cell& cell) const;
  void Join(const Cell& from, Cell* into) const;
  // Returns the index of the row; adds a new one if there is none of this name.
  absl::StatusOr<size_t> FindRow(absl::string_view name);
  // Makes room by merging neighbouring columns.
  absl::Status Fit(size_t rows);
  void Coarsen();
  size_t columns() const { return first_steps_.size(); }

  const v1::GridReducer reducer_;
  const Limits limits_;
  // A column covers 2^column_bits_ step numbers, beginning at a multiple of
  // that.
  int column_bits_ = 0;
  uint64_t steps_ = 0;
  std::vector<int64_t> first_steps_, last_steps_;
  std::vector<RowOfCells> rows_;
  absl::flat_hash_map<std::string, size_t> row_of_name_;
  size_t name_bytes_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_STATISTICS_GRID_H_
