// SPDX-License-Identifier: Apache-2.0
// Calls of a rank that made or received unintended NaN and infinities
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

// Kinds of values to search for.
struct OverflowKinds {
  bool nan = true;
  bool infinity = true;
};

struct OverflowStates {
  RankStates states;
  // A value that is not finite remains at the end of the recording: in a
  // gradient, an output of the model, or the last call. If false, each such
  // value was removed again, as `where` and `nan_to_num` do.
  bool goes_on = false;
};

// Reads the states of a rank and adds its communication to `links`. `dump` was
// opened with its notes and outlives the result. The outputs of the model
// follow from construct.json, if the dump has it.
absl::StatusOr<OverflowStates> ReadOverflowStates(int64_t rank,
                                                  const DumpReader& dump,
                                                  const OverflowKinds& kinds,
                                                  CommLinks* links);

// Returns the numbers of one record.
CallNumbers NumbersOf(const DumpReader& dump, absl::string_view entry,
                      const JsonValue& record);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ROOT_CAUSE_OVERFLOW_STATES_H_
