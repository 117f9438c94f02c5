// SPDX-License-Identifier: Apache-2.0
// One step of a run's ranks, written as the dump of one rank: every tensor put
// together by its placements (layout_plan.h), what cannot be is in the dump with
// the reason in place of values. Functions without state but the file system's.
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
  // LayoutFacts::split_batch
  bool split_batch = false;
  // For runs whose dumps do not say how their tensors lie.
  std::optional<LayoutFile> file;
};

// What became of the tensors of one side.
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
  // The first of each, with the reason.
  std::vector<std::string> differing;
  std::vector<std::string> refusals;
  // GivenLayout::Unused
  std::vector<std::string> unused_rules;
  // Of its names, for the other run's sake.
  int wrappers_left_out = 0;
};

// The name that a call has in a run on one rank: FSDP2 puts its own name before
// that of a module's class; what wraps a whole model (DistributedDataParallel,
// Float16Module) puts `module.` before every path, as many times as `wrappers`.
std::string NameWithoutSharding(absl::string_view entry, int wrappers = 0);

// How many wrappers the modules of a run are below: each calls what it wraps
// `module`. 0 where no module is below one.
int CountWrappers(const DumpReader& dump);

// `ranks`: those of one step. `whole`: the same step of another layout, or null:
// it tells where parts are that no placement was recorded of, and the order of
// calls that no rank has all of. `given`: of this run, or null. `directory` is
// made. `counts`: its wrappers_left_out are what NameWithoutSharding leaves out.
absl::Status JoinStep(FileSystem* file_system,
                      absl::Span<const DumpPlace> ranks,
                      const DumpReader* whole, const LayoutOptions& options,
                      GivenLayout* given, const std::string& directory,
                      LayoutCounts* counts);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_LAYOUT_JOINED_STEP_H_
