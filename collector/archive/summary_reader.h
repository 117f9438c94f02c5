// SPDX-License-Identifier: Apache-2.0
// Reader and maker of the rows of summaries of a run (docs/storage.md,
// "Summaries").
// Threads: reading in several at once, making in one; ingest continues.
// Failure: the store's errors, DATA_LOSS for rows that cannot be read. A
// missing row is not an error: the level below it is read.
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

// Reads summaries of at most 64^`level` neighbouring steps, each within one
// aligned range of step numbers. `ranges` ascend; `emit` gets the index of the
// range, a step of the aligned range and the summary.
absl::Status ReadSummaries(
    SeriesReader* series, uint32_t run, absl::Span<const ProcessRange> ranges,
    int level, SummaryStat stat,
    absl::FunctionRef<absl::Status(size_t, int64_t, const StepSummary&)> emit);

class SummaryMaker {
 public:
  explicit SummaryMaker(Store* store) : store_(store) {}

  // Makes all waiting rows, until `cancelled`; the first call also finds those
  // that an earlier process of the collector did not finish. Returns how many
  // were made.
  absl::StatusOr<uint64_t> MakePending(absl::FunctionRef<bool()> cancelled);

 private:
  absl::Status FindMissing(const std::string& run,
                           absl::FunctionRef<bool()> cancelled);
  absl::StatusOr<std::string> Make(const SummaryTile& tile, bool with_heads);

  Store* const store_;
  // Whether the runs that existed at the start were searched.
  bool has_searched_ = false;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_SUMMARY_READER_H_
