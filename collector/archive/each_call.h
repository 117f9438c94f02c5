// SPDX-License-Identifier: Apache-2.0
// The calls of one process' step, one after another. Pure function of the
// store; the step is held in memory meanwhile.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_EACH_CALL_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_EACH_CALL_H_

#include <functional>

#include "absl/status/status.h"
#include "collector/store/archive_reader.h"
#include "rankprobe/v1/archive.pb.h"

namespace rankprobe {

// Merges the phases of one step into dump.json entries, in order. `context`:
// with what stack.json and construct.json say of each.
absl::Status ForEachCall(
    ArchiveReader* store, const StepKey& key, bool context,
    const std::function<absl::Status(const v1::CallEntry&)>& callback);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_EACH_CALL_H_
