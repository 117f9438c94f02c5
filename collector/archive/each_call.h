// SPDX-License-Identifier: Apache-2.0
// The calls of one process' step, in order. Pure function of the store; holds
// the step in memory.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_EACH_CALL_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_EACH_CALL_H_

#include <functional>

#include "absl/status/status.h"
#include "collector/store/archive_reader.h"
#include "rankprobe/v1/archive.pb.h"

namespace rankprobe {

// Merges the phases of one step into dump.json entries and calls `callback` for
// each, in order. With `context`, entries contain what stack.json and
// construct.json have of the call.
absl::Status ForEachCall(
    ArchiveReader* store, const StepKey& key, bool context,
    const std::function<absl::Status(const v1::CallEntry&)>& callback);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_EACH_CALL_H_
