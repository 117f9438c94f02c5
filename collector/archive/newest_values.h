// SPDX-License-Identifier: Apache-2.0
// Statistics of chosen values at the newest ended step of each rank, for a
// monitor that polls.
// Threads: may run in several threads at once over one Store.
// Failure: INVALID_ARGUMENT for an invalid pattern; else the store's first
// error. A run that does not exist has no values.
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

// Statistics in the order of NewestValue::numbers.
inline constexpr std::array<Stat, 4> kNewestStats = {kNorm, kMax, kMin, kMean};

struct NewestStep {
  std::string run;
  // "rank0"; for a process without a rank the name that an export uses.
  std::string process;
  int64_t step = 0;
};

struct NewestValue {
  // Index into NewestValues::steps.
  size_t step = 0;
  // For example "Module.fc.Linear.forward.0.output.0".
  std::string name;
  std::array<std::optional<double>, kNewestStats.size()> numbers;
};

struct NewestValues {
  std::vector<NewestStep> steps;
  std::vector<NewestValue> values;
  // Selected values beyond `max_values`, or with a name of more than 1,024
  // bytes.
  uint64_t left_out = 0;
  // False if `stopped` ended the reading.
  bool complete = true;
};

// `patterns` are like QueryGridRequest.match, over outputs of calls and
// gradients of parameters. `stopped` is called before each rank's step is read.
absl::StatusOr<NewestValues> ReadNewestValues(
    const QuerySources& sources, absl::Span<const std::string> runs,
    absl::Span<const std::string> patterns, size_t max_values,
    absl::FunctionRef<bool()> stopped);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_NEWEST_VALUES_H_
