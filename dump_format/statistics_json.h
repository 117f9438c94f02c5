// The statistics of a recorded tensor as dump.json has them. Used on one thread; the
// writer is the caller's.
#ifndef RANKPROBE_DUMP_FORMAT_STATISTICS_JSON_H_
#define RANKPROBE_DUMP_FORMAT_STATISTICS_JSON_H_

#include "common/text/json_text.h"
#include "dump_format/statistics.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

// What a step asked for; ids that this version does not know are passed over.
StatSet StatsOf(const v1::StepBegin& begin);

// The members of one tensor; null for what it lacks.
void WriteStatistics(const v1::TensorSummary& tensor, StatSet stats,
                     JsonTextWriter* json);

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_STATISTICS_JSON_H_
