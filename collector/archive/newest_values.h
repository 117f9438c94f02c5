// SPDX-License-Identifier: Apache-2.0
// Statistics of chosen values at the newest step of each rank that has ended: for
// a monitor that asks again and again.
// Threads: may run in several threads at once over one Store.
// Failure: INVALID_ARGUMENT for a pattern that cannot be asked for; else the
// store's first error. A run that is not there, or is an older collector's and not
// reindexed, has no values.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_NEWEST_VALUES_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_NEWEST_VALUES_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "collector/archive/query_sources.h"
#include "dump_format/statistics.h"

namespace rankprobe {

// As they are asked for and given.
inline constexpr std::array<Stat, 4> kNewestStats = {kNorm, kMax, kMin, kMean};

struct NewestStep {
  std::string run;
  // "rank0", or of a process without a rank as in an export.
  std::string process;
  int64_t step = 0;
};

struct NewestValue {
  // Of NewestValues::steps.
  size_t step = 0;
  // "Module.fc.Linear.forward.0.output.0"
  std::string name;
  std::array<std::optional<double>, kNewestStats.size()> numbers;
};

struct NewestValues {
  std::vector<NewestStep> steps;
  std::vector<NewestValue> values;
  // Values that were wanted and are more than `max_values`, or have a name of more
  // than 1,024 bytes.
  uint64_t left_out = 0;
  // Not `stopped` before all was read.
  bool whole = true;
};

// `patterns`: as QueryGridRequest.match; of what calls made and of gradients of
// parameters. `stopped` is asked before each rank's step is read.
absl::StatusOr<NewestValues> ReadNewestValues(
    const QuerySources& sources, absl::Span<const std::string> runs,
    absl::Span<const std::string> patterns, size_t max_values,
    absl::FunctionRef<bool()> stopped);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_NEWEST_VALUES_H_
