// SPDX-License-Identifier: Apache-2.0
// Statistics of chosen values of a run, step by step, from its rollups.
// Ownership: one per query; the store outlives it. Threads: one.
// Failure: the store's errors. A damaged or outdated rollup is treated as
// missing; the caller then reads the step's records, which give the same
// numbers.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_ROLLUP_READER_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_ROLLUP_READER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "collector/archive/rollup_block.h"
#include "collector/store/series_reader.h"

namespace rankprobe {

class RollupReader {
 public:
  // `series` may be null: then no step has a rollup.
  RollupReader(SeriesReader* series, std::vector<Stat> stats)
      : series_(series), stats_(std::move(stats)), numbers_(stats_.size()) {}

  struct Name {
    std::string entry;
    // The result of `wanted`.
    std::string value;
  };
  // Called for each value of the run. Returns its name in the result, or
  // nothing if it is not selected.
  using WantedName = absl::FunctionRef<std::optional<std::string>(
      bool given, const v1::RollupName& name)>;
  absl::Status Open(const std::string& run, WantedName wanted);
  // Returns the maximum number of steps of one Read.
  size_t portion() const;
  // Reads the rollups of these steps; ascending, as returned by ChooseSteps.
  absl::Status Read(absl::Span<const v1::StepInfo> steps);
  // Visits the values of a step of the last Read in the order of dump.json,
  // including those without a statistic, with a number for each statistic.
  // Returns false if there is no valid rollup.
  absl::StatusOr<bool> ForEachValue(
      const v1::StepInfo& step,
      absl::FunctionRef<absl::Status(const Name&,
                                     absl::Span<const std::optional<double>>)>
          visit);

 private:
  struct Place {
    Name name;
    // Index among the values that are read.
    size_t number = 0;
  };
  using Layout = std::vector<const Place*>;
  struct Row {
    uint64_t incarnation = 0;
    int64_t step = 0;
    uint64_t records = 0;
    uint32_t layout = 0;
    bool has_head = false;
  };
  // DATA_LOSS if the rows are damaged; then nothing read from them is valid.
  absl::Status ReadNames(const std::string& run, WantedName wanted);
  absl::Status ReadRows(absl::Span<const v1::StepInfo> steps);
  // Returns the position of the row; rows_.size() if there is none. Fast if
  // rows are searched in their order.
  size_t FindRow(uint64_t incarnation, int64_t step);
  absl::StatusOr<const Layout*> LayoutOf(uint32_t number);
  // Stores a statistic of the values `ids` of a block from index `first` on.
  absl::Status TakeNumbers(absl::string_view column_row,
                           absl::Span<const uint32_t> ids, size_t first,
                           size_t stat, size_t row);

  SeriesReader* const series_;
  const std::vector<Stat> stats_;
  // Numbers of the visited value.
  std::vector<std::optional<double>> numbers_;
  uint32_t run_ = 0;
  absl::flat_hash_map<uint32_t, Place> places_;
  // Ids of values by block, ascending; their numbers are in this order.
  std::vector<std::pair<uint32_t, std::vector<uint32_t>>> blocks_;
  absl::flat_hash_map<uint32_t, Layout> layouts_;
  bool any_ = false;
  // Rows of the last Read, by incarnation and step.
  std::vector<Row> rows_;
  // The position after the row that was found last.
  size_t next_row_ = 0;
  // Statistics of the values of each row, and which of them are present.
  std::vector<double> of_rows_;
  std::vector<bool> there_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_ROLLUP_READER_H_
