// SPDX-License-Identifier: Apache-2.0
// The statistics of a recorded tensor as dump.json has them. Used on one thread; the
// writer is the caller's.
#ifndef RANKPROBE_DUMP_FORMAT_STATISTICS_JSON_H_
#define RANKPROBE_DUMP_FORMAT_STATISTICS_JSON_H_

#include <optional>

#include "common/text/json_text.h"
#include "dump_format/statistics.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

// What a step asked for; ids that this version does not know are passed over.
StatSet StatsOf(const v1::StepBegin& begin);

// One of them as a number, integers beyond 2^53 rounded; none where the tensor
// lacks it.
std::optional<double> StatisticOf(const v1::TensorSummary& tensor, Stat stat);

// The members of one tensor; null for what it lacks.
void WriteStatistics(const v1::TensorSummary& tensor, StatSet stats,
                     JsonTextWriter* json);

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_STATISTICS_JSON_H_
