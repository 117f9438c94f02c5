// SPDX-License-Identifier: Apache-2.0
// A leaf's answer to its root about data that is not stored yet. Thread-safe;
// only reads the archive.
#ifndef RANKPROBE_COLLECTOR_SEALED_ANSWER_LIVE_H_
#define RANKPROBE_COLLECTOR_SEALED_ANSWER_LIVE_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "collector/store/archive_reader.h"
#include "rankprobe/v1/leaf.pb.h"

namespace rankprobe {

// Returns whether the step is in the store with all that `info` counts. Must
// not return true before the entry of the log is in the store.
using IsStoredFn =
    std::function<bool(const std::string& run, const v1::StepInfo& info)>;

// Passes the parts to `write`, whose error ends the call. Returns the status of
// the answer.
absl::Status AnswerLive(
    ArchiveReader* store, const IsStoredFn& is_stored,
    const v1::LiveQuestion& question,
    const std::function<absl::Status(v1::LiveAnswer)>& write);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_ANSWER_LIVE_H_
