// SPDX-License-Identifier: Apache-2.0
// Finds calls of a rank that made or received unintended NaN and infinities
// (common/records/non_finite.h). Pure functions of a dump.
#ifndef RANKPROBE_ANALYSIS_ROOT_CAUSE_OVERFLOW_STATES_H_
#define RANKPROBE_ANALYSIS_ROOT_CAUSE_OVERFLOW_STATES_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "analysis/calls/comm_links.h"
#include "analysis/root_cause/anomaly_origin.h"
#include "common/records/non_finite.h"
#include "dump_format/dump_reader.h"

namespace rankprobe::analysis {

// What is looked for.
struct OverflowKinds {
  bool nan = true;
  bool infinity = true;
};

struct OverflowStates {
  RankStates states;
  // Something that is not finite is left at the end of what was recorded: in a
  // gradient, an output of the model, the last call. Otherwise what was made
  // was taken out again, as `where` and `nan_to_num` do.
  bool goes_on = false;
};

// `dump` was opened with its notes, outlives the result, and tells the outputs
// of the model by construct.json where it has that. `links` gets its
// communication.
absl::StatusOr<OverflowStates> ReadOverflowStates(int64_t rank,
                                                  const DumpReader& dump,
                                                  const OverflowKinds& kinds,
                                                  CommLinks* links);

// The numbers of one record.
CallNumbers NumbersOf(const DumpReader& dump, absl::string_view entry,
                      const JsonValue& record);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ROOT_CAUSE_OVERFLOW_STATES_H_
