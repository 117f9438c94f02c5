// SPDX-License-Identifier: Apache-2.0
// Cutter of records that no frame can carry: the sections of a call end at the
// limit, marked with a CutValue. It is a last resort; front ends keep the
// limits of common/base/limits.h by counting, which is not exact. Thread-safe:
// pure functions.
#ifndef RANKPROBE_AGENT_RUNTIME_QUEUE_RECORD_CUTTER_H_
#define RANKPROBE_AGENT_RUNTIME_QUEUE_RECORD_CUTTER_H_

#include <cstddef>

#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

// Whether the record, whose encoded size is `bytes`, must go through CutRecord.
bool ExceedsLimits(const v1::Record& record, size_t bytes);

// Makes the record fit `limit` bytes. Returns false if it cannot; the record is
// then lost. `*loss` reports what was lost: payloads of tensors that were cut
// off, or the complete record.
bool CutRecord(size_t limit, v1::Record* record, v1::LossEvent* loss);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_QUEUE_RECORD_CUTTER_H_
