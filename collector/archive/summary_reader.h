// SPDX-License-Identifier: Apache-2.0
// Reads and makes the rows of summaries of a run (docs/storage.md, "Summaries").
// Threads: reading in several at once, making in one; ingest goes on.
// Failure: the store's errors, DATA_LOSS for rows that cannot be read. A row
// that is not there is no error: what is below it is read.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_SUMMARY_READER_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_SUMMARY_READER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "collector/store/step_summary.h"
#include "collector/store/store.h"

namespace rankprobe {

// Summaries of at most 64^`level` neighbouring steps, each within one such
// stretch of step numbers. `ranges` ascend; `emit` gets which, a step of the
// stretch and the summary.
absl::Status ReadSummaries(
    SeriesReader* series, uint32_t run, absl::Span<const ProcessRange> ranges,
    int level, SummaryStat stat,
    absl::FunctionRef<absl::Status(size_t, int64_t, const StepSummary&)> emit);

class SummaryMaker {
 public:
  explicit SummaryMaker(Store* store) : store_(store) {}

  // All rows that wait, until `cancelled`; the first time also those that
  // another process of the collector left undone. How many were made.
  absl::StatusOr<uint64_t> MakePending(absl::FunctionRef<bool()> cancelled);

 private:
  absl::Status FindMissing(const std::string& run,
                           absl::FunctionRef<bool()> cancelled);
  absl::StatusOr<std::string> Make(const SummaryTile& tile, bool with_heads);

  Store* const store_;
  // Of the runs that were there at the start those that were not searched yet:
  // an older collector's that are not reindexed, whose heads do not say all.
  std::optional<std::vector<std::string>> to_search_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_SUMMARY_READER_H_
