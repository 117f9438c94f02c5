// SPDX-License-Identifier: Apache-2.0
// The table of `rankprobe compare`: one line for each value of the target dump
// and its partner in the reference dump. Columns: docs/analysis.md, "Tables".
#ifndef RANKPROBE_ANALYSIS_COMPARE_COMPARE_H_
#define RANKPROBE_ANALYSIS_COMPARE_COMPARE_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "analysis/compare/entry_match.h"
#include "analysis/compare/table_sink.h"
#include "common/io/file_system.h"
#include "dump_format/dump_reader.h"

namespace rankprobe::analysis {

struct CompareCounts {
  int64_t rows = 0;
  int64_t pass = 0;
  int64_t warning = 0;
  int64_t error = 0;
  int64_t unmatched = 0;
};

// Called with the number of finished entries and the number of all entries.
using ProgressFn = std::function<void(size_t, size_t)>;
// Called for each entry after its verdict, with its index in the target dump.
using EntryFn = std::function<absl::Status(const EntryComparison&, size_t)>;

// Returns the column titles. `stats` has the statistics of either dump.
std::vector<std::string> CompareHeader(DumpMode mode, StatSet stats,
                                       bool has_stack);

// Returns INVALID_ARGUMENT if the dumps cannot be compared: their tasks differ,
// or only one has md5 sums.
absl::Status CheckComparable(const DumpReader& target,
                             const DumpReader& reference);

// Writes a line for each row to `sink`. `sink` and `on_entry` may be null.
absl::StatusOr<CompareCounts> CompareDumps(
    FileSystem* file_system, const DumpReader& target,
    const DumpReader& reference, const MatchOptions& options, TableSink* sink,
    const EntryFn& on_entry, const ProgressFn& progress);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_COMPARE_COMPARE_H_
