// SPDX-License-Identifier: Apache-2.0
// One step of a run's ranks, written as the dump of one rank. Every tensor is
// assembled by its placements (layout_plan.h); a tensor that cannot be
// assembled has the reason in the dump instead of values. Functions without
// state except the file system's.
#ifndef RANKPROBE_ANALYSIS_LAYOUT_JOINED_STEP_H_
#define RANKPROBE_ANALYSIS_LAYOUT_JOINED_STEP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "analysis/layout/given_layout.h"
#include "analysis/layout/layout_file.h"
#include "common/io/file_system.h"
#include "dump_format/dump_layout.h"
#include "dump_format/dump_reader.h"

namespace rankprobe::analysis {

struct LayoutOptions {
  // The value for LayoutFacts::split_batch.
  bool split_batch = false;
  // For runs whose dumps do not record how tensors are sharded.
  std::optional<LayoutFile> file;
};

// Counts of how the tensors of one side were joined.
struct LayoutCounts {
  int64_t ranks = 0;
  int64_t steps = 0;
  int64_t tensors = 0;
  int64_t shards = 0;    // by recorded placements, or a file's
  int64_t by_shape = 0;  // by the other run's shape
  int64_t by_batch = 0;
  int64_t sums = 0;
  int64_t copies = 0;
  int64_t copies_differ = 0;
  int64_t refused = 0;
  int64_t calls_alone = 0;  // the other run has no such call
  // The first examples of each, with the reason.
  std::vector<std::string> differing;
  std::vector<std::string> refusals;
  // The result of GivenLayout::Unused.
  std::vector<std::string> unused_rules;
  // Wrappers left out of its names to match the other run.
  int wrappers_left_out = 0;
};

// Returns the name that a call has in a run on one rank. FSDP2 inserts its own
// name before that of a module's class; each of the `wrappers` around a
// complete model (DistributedDataParallel, Float16Module) prepends `module.` to
// every path.
std::string NameWithoutSharding(absl::string_view entry, int wrappers = 0);

// Returns the number of wrappers around the modules of a run. Each wrapper
// names the wrapped object `module`.
int CountWrappers(const DumpReader& dump);

// Joins `ranks`, which belong to one step, and writes the result to
// `directory`, which is created. `whole` is the same step of another layout, or
// null; it shows where parts without recorded placements belong and the order
// of calls that no rank has completely. `given` belongs to this run, or is
// null. `counts`->wrappers_left_out is passed to NameWithoutSharding.
absl::Status JoinStep(FileSystem* file_system,
                      absl::Span<const DumpPlace> ranks,
                      const DumpReader* whole, const LayoutOptions& options,
                      GivenLayout* given, const std::string& directory,
                      LayoutCounts* counts);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_LAYOUT_JOINED_STEP_H_
