// SPDX-License-Identifier: Apache-2.0
// Compares two dumps rank by rank: the loop that the command line and Python
// share. What becomes of each table, the visitor decides. Used on one thread.
#ifndef RANKPROBE_ANALYSIS_COMPARE_RUN_COMPARE_H_
#define RANKPROBE_ANALYSIS_COMPARE_RUN_COMPARE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "analysis/compare/compare.h"
#include "common/io/file_system.h"
#include "dump_format/dump_layout.h"

namespace rankprobe::analysis {

// Called in the order of steps and ranks; the first status that is not OK ends
// the comparison.
class CompareVisitor {
 public:
  virtual ~CompareVisitor() = default;
  // The table of this rank; lives until EndRank. `stats`: its columns, those of
  // either side.
  virtual absl::StatusOr<TableSink*> BeginRank(const DumpPlace& target,
                                               const DumpReader& dump,
                                               StatSet stats) = 0;
  // Sees each entry after it was judged; null: none.
  virtual EntryFn OnEntry() { return nullptr; }
  virtual ProgressFn OnProgress(const DumpPlace& target) { return nullptr; }
  virtual absl::Status EndRank(const DumpPlace& target,
                               std::unique_ptr<DumpReader> dump,
                               const CompareCounts& counts,
                               bool last_of_step) = 0;
};

// Every step and rank that both sides have; `unpaired` gets the others' names.
// INVALID_ARGUMENT in one line when two dumps cannot be compared.
absl::Status RunCompare(FileSystem* file_system, const DumpLayout& target,
                        const DumpLayout& reference,
                        const MatchOptions& options, CompareVisitor* visitor,
                        std::vector<std::string>* unpaired);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_COMPARE_RUN_COMPARE_H_
