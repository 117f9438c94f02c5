// SPDX-License-Identifier: Apache-2.0
// Per-step statistics that are derived from records (docs/storage.md, "Rollups"
// and "Summaries"): a rollup of each process' step, and tiles that summarise
// rollups. Queries over many steps read them instead of the records.
// Ownership: the archive's. Threads: all methods are thread-safe. Failure: a
// status; what is lost or damaged can be made again from the records.
#ifndef RANKPROBE_COLLECTOR_STORE_SERIES_STORE_H_
#define RANKPROBE_COLLECTOR_STORE_SERIES_STORE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "collector/store/archive_reader.h"
#include "rankprobe/v1/archive.pb.h"
#include "rankprobe/v1/store.pb.h"

namespace rankprobe {

// A process' step that ended, and that no rollup of all its records is there of.
struct PendingRollup {
  uint32_t run_number = 0;
  StepKey key;
};

// A statistic of the values of a block.
struct RollupColumnRow {
  uint32_t block = 0;
  uint8_t statistic = 0;
  std::string bytes;
};

// What a step is rolled up to (docs/storage.md, "Rollups"), and what the run
// needs to read it that is not stored yet.
struct RollupRows {
  v1::RollupHead head;
  // Of those that the layout names.
  std::vector<RollupColumnRow> columns;
  std::vector<std::pair<uint32_t, v1::RollupName>> names;
  std::vector<std::pair<uint32_t, v1::RollupLayout>> layouts;
};

// A row of summaries of one process: those of 64^level steps from tile * 64^level
// on (docs/storage.md, "Summaries").
struct SummaryTile {
  uint32_t run = 0;
  int level = 1;
  uint64_t incarnation = 0;
  uint64_t tile = 0;
};

// Steps, or tiles, of one process.
struct ProcessRange {
  uint64_t incarnation = 0;
  uint64_t first = 0, last = 0;
};

// A rollup is valid unless its step is named by ForEachUnrolled; then
// StepInfo.records may differ from RollupHead.records, and the records have to be
// read.
class SeriesReader {
 public:
  virtual ~SeriesReader() = default;

  // Of the run in all that follows. NOT_FOUND.
  virtual absl::StatusOr<uint32_t> RunNumber(const std::string& run) = 0;
  virtual absl::Status ForEachRollupName(
      uint32_t run,
      const std::function<absl::Status(uint32_t id, const v1::RollupName&)>&
          callback) = 0;
  virtual absl::Status ForEachRollupLayout(
      uint32_t run,
      const std::function<absl::Status(uint32_t number,
                                       const v1::RollupLayout&)>& callback) = 0;
  // Nothing where there is none of this number.
  virtual absl::StatusOr<std::optional<v1::RollupLayout>> FindRollupLayout(
      uint32_t run, uint32_t number) = 0;
  // Of one process, steps ascending, from the first to the last one given.
  virtual absl::Status ForEachRollupColumn(
      uint32_t run, uint64_t incarnation, uint32_t block, uint8_t statistic,
      int64_t first_step, int64_t last_step,
      const std::function<absl::Status(int64_t step, absl::string_view)>&
          callback) = 0;
  // The same of rows of older archives, which have all statistics.
  virtual absl::Status ForEachRollupBlock(
      uint32_t run, uint64_t incarnation, uint32_t block, int64_t first_step,
      int64_t last_step,
      const std::function<absl::Status(int64_t step, absl::string_view)>&
          callback) = 0;

  // Whether each step of the run has either a rollup that holds or is named by
  // ForEachUnrolled: not before QueueRollups in a run of an older collector.
  virtual absl::StatusOr<bool> IsSummarised(const std::string& run) = 0;
  virtual absl::Status ForEachUnrolled(
      uint32_t run,
      const std::function<absl::Status(int64_t step, uint64_t incarnation)>&
          callback) = 0;
  // Of these steps and incarnations, as far as they are there.
  virtual absl::StatusOr<std::vector<v1::StepInfo>> FindSteps(
      uint32_t run, absl::Span<const std::pair<int64_t, uint64_t>> steps) = 0;
  // Ranges in ascending order; `range`: which. Deleted steps have one, too.
  virtual absl::Status ForEachHeadIn(
      uint32_t run, absl::Span<const ProcessRange> steps,
      const std::function<absl::Status(size_t range, int64_t step,
                                       const v1::RollupHead&)>& callback) = 0;
  // Rows of summaries. One that is there says what the heads of its steps say:
  // it goes when one of them changes, and then waits to be made again.
  virtual absl::Status ForEachTileIn(
      uint32_t run, int level, absl::Span<const ProcessRange> tiles,
      const std::function<absl::Status(size_t range, uint64_t tile,
                                       absl::string_view)>& callback) = 0;
};

class SeriesStore : public SeriesReader {
 public:
  // Some of what is to be rolled up, the oldest steps of a run first.
  virtual std::vector<PendingRollup> PendingRollups(size_t most) = 0;
  // The step cannot be rolled up: not to be named again by this object.
  virtual void SetRollupAside(const PendingRollup& step) = 0;
  // Has every step of the run rolled up, whether it ended or not, that has no
  // rollup which holds.
  virtual absl::StatusOr<v1::ReindexReport> QueueRollups(
      const std::string& run) = 0;
  // Whole or not at all; replaces what the step was rolled up to before. Waits
  // for deletions, never holds up a Commit. FAILED_PRECONDITION: the step or
  // its run is not there any more.
  virtual absl::Status WriteRollup(const PendingRollup& step,
                                   const RollupRows& rows) = 0;
  // Some of those that wait and whose steps have rested, lowest level first.
  virtual std::vector<SummaryTile> TilesToMake(size_t most) = 0;
  virtual void AddTileToMake(const SummaryTile& tile) = 0;
  // `make` reads heads and lower tiles, which stay as they are meanwhile; empty
  // bytes: nothing is to be kept. `with_heads`: the process has come to steps
  // behind those of this row of level 1, and what is made is to hold their heads,
  // which go then. FAILED_PRECONDITION: the run is gone.
  virtual absl::Status WriteTile(
      const SummaryTile& tile,
      const std::function<absl::StatusOr<std::string>(bool with_heads)>&
          make) = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_SERIES_STORE_H_
