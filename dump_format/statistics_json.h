// SPDX-License-Identifier: Apache-2.0
// The statistics of a recorded tensor as in dump.json. Used on one thread; the
// writer is the caller's.
#ifndef RANKPROBE_DUMP_FORMAT_STATISTICS_JSON_H_
#define RANKPROBE_DUMP_FORMAT_STATISTICS_JSON_H_

#include <optional>

#include "common/text/json_text.h"
#include "dump_format/statistics.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

// The statistics that a step requested; ids that this version does not know are
// ignored.
StatSet StatsOf(const v1::StepBegin& begin);

// One statistic as a number, with integers beyond 2^53 rounded; nullopt if the
// tensor lacks it.
std::optional<double> StatisticOf(const v1::TensorSummary& tensor, Stat stat);

// Writes the members of one tensor; null for missing statistics.
void WriteStatistics(const v1::TensorSummary& tensor, StatSet stats,
                     JsonTextWriter* json);

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_STATISTICS_JSON_H_
