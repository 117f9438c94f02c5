// SPDX-License-Identifier: Apache-2.0
// A leaf's answer to its root about data that is not stored yet. Thread-safe;
// reads the archive alone.
#ifndef RANKPROBE_COLLECTOR_SEALED_ANSWER_LIVE_H_
#define RANKPROBE_COLLECTOR_SEALED_ANSWER_LIVE_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "collector/store/archive_reader.h"
#include "rankprobe/v1/leaf.pb.h"

namespace rankprobe {

// Whether a step lies in the store as `info` says it. It must be true of nothing
// whose entry of the log is not there.
using IsStoredFn =
    std::function<bool(const std::string& run, const v1::StepInfo& info)>;

// The parts go to `write`, whose error ends it. The status is what the question
// comes to.
absl::Status AnswerLive(
    ArchiveReader* store, const IsStoredFn& is_stored,
    const v1::LiveQuestion& question,
    const std::function<absl::Status(v1::LiveAnswer)>& write);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_ANSWER_LIVE_H_
