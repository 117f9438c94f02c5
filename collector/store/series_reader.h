// SPDX-License-Identifier: Apache-2.0
// Per-step statistics that are derived from records (docs/storage.md, "Rollups"
// and "Summaries"): a rollup of each process' step, and tiles that summarise
// rollups. Queries over many steps read them instead of the records.
// Threads: thread-safe. Failure: a status; what is lost or damaged can be made
// again from the records.
#ifndef RANKPROBE_COLLECTOR_STORE_SERIES_READER_H_
#define RANKPROBE_COLLECTOR_STORE_SERIES_READER_H_

#include <cstddef>
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
#include "rankprobe/v1/archive.pb.h"
#include "rankprobe/v1/store.pb.h"

namespace rankprobe {

struct StoreCore;
class StoreReader;

// Steps, or tiles, of one process.
struct ProcessRange {
  uint64_t incarnation = 0;
  uint64_t first = 0, last = 0;
};

// A rollup is valid unless its step is named by ForEachUnrolled; then
// StepInfo.records may differ from RollupHead.records, and the records have to
// be read.
class SeriesReader {
 public:
  // An error of one ends the reading.
  using NameFn =
      std::function<absl::Status(uint32_t id, const v1::RollupName&)>;
  using LayoutFn =
      std::function<absl::Status(uint32_t number, const v1::RollupLayout&)>;
  using BytesFn = std::function<absl::Status(int64_t step, absl::string_view)>;
  using StepFn =
      std::function<absl::Status(int64_t step, uint64_t incarnation)>;
  using HeadFn = std::function<absl::Status(size_t range, int64_t step,
                                            const v1::RollupHead&)>;
  using TileFn = std::function<absl::Status(size_t range, uint64_t tile,
                                            absl::string_view)>;

  SeriesReader(StoreCore* core, StoreReader* reader)
      : core_(core), reader_(reader) {}

  // Returns the number of the run, for the calls below. NOT_FOUND if it does
  // not exist.
  absl::StatusOr<uint32_t> RunNumber(const std::string& run);
  absl::Status ForEachRollupName(uint32_t run, const NameFn& callback);
  absl::Status ForEachRollupLayout(uint32_t run, const LayoutFn& callback);
  // Returns nothing if there is no layout of this number.
  absl::StatusOr<std::optional<v1::RollupLayout>> FindRollupLayout(
      uint32_t run, uint32_t number);
  // Reads the rows of one process in ascending order of steps, from the first
  // to the last one given.
  absl::Status ForEachRollupColumn(uint32_t run, uint64_t incarnation,
                                   uint32_t block, uint8_t statistic,
                                   int64_t first_step, int64_t last_step,
                                   const BytesFn& callback);

  absl::Status ForEachUnrolled(uint32_t run, const StepFn& callback);
  // Returns those of these steps and incarnations that exist.
  absl::StatusOr<std::vector<v1::StepInfo>> FindSteps(
      uint32_t run, absl::Span<const std::pair<int64_t, uint64_t>> steps);
  // Reads ranges in ascending order; `range` is the position of the range.
  // Deleted steps have a head, too.
  absl::Status ForEachHeadIn(uint32_t run, absl::Span<const ProcessRange> steps,
                             const HeadFn& callback);
  // Reads rows of summaries. An existing row agrees with the heads of its
  // steps: it is deleted when one of them changes, and is then made again.
  absl::Status ForEachTileIn(uint32_t run, int level,
                             absl::Span<const ProcessRange> tiles,
                             const TileFn& callback);

 private:
  StoreCore* const core_;
  StoreReader* const reader_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_SERIES_READER_H_
