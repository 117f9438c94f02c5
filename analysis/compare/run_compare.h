// SPDX-License-Identifier: Apache-2.0
// Comparison of two dumps rank by rank: the loop that the command line and
// Python share. The visitor decides where each table is written. Used on one
// thread.
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

// Called in the order of steps and ranks; the first error ends the comparison.
class CompareVisitor {
 public:
  virtual ~CompareVisitor() = default;
  // Returns the table of this rank, which stays valid until EndRank. `stats`
  // are its columns, those of either side.
  virtual absl::StatusOr<TableSink*> BeginRank(const DumpPlace& target,
                                               const DumpReader& dump,
                                               StatSet stats) = 0;
  // Returns a function that is called for each entry after its verdict, or
  // null.
  virtual EntryFn OnEntry() { return nullptr; }
  virtual ProgressFn OnProgress(const DumpPlace& target) { return nullptr; }
  virtual absl::Status EndRank(const DumpPlace& target,
                               std::unique_ptr<DumpReader> dump,
                               const CompareCounts& counts,
                               bool last_of_step) = 0;
};

// Compares every step and rank that both sides have; the names of all others
// are added to `unpaired`. Returns INVALID_ARGUMENT with one line if two dumps
// cannot be compared.
absl::Status RunCompare(FileSystem* file_system, const DumpLayout& target,
                        const DumpLayout& reference,
                        const MatchOptions& options, CompareVisitor* visitor,
                        std::vector<std::string>* unpaired);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_COMPARE_RUN_COMPARE_H_
