// SPDX-License-Identifier: Apache-2.0
// Contribution of one record to the counts of its step. Pure functions.
#ifndef RANKPROBE_COLLECTOR_STORE_STEP_COUNTS_H_
#define RANKPROBE_COLLECTOR_STORE_STEP_COUNTS_H_

#include "absl/functional/function_ref.h"
#include "rankprobe/v1/archive.pb.h"
#include "rankprobe/v1/store.pb.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

// `on_payload` is called for each payload the record refers to, lost ones
// included.
void CountRecord(const v1::Record& record,
                 absl::FunctionRef<void(const v1::PayloadRef&)> on_payload,
                 v1::StepRow* step);

// Fills in the counts for readers. The caller fills in the process and the
// times.
void DescribeCounts(const v1::StepRow& step, v1::StepInfo* info);

// Returns whether the step has its beginning, its end and all calls that its
// end counts.
bool IsComplete(const v1::StepRow& step);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_STEP_COUNTS_H_
