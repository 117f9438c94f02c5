// SPDX-License-Identifier: Apache-2.0
// The requests of a server's step, and the rows of its tensors that belong to
// each. Pure functions.
#ifndef RANKPROBE_AGENT_RUNTIME_RECORDER_STEP_REQUESTS_H_
#define RANKPROBE_AGENT_RUNTIME_RECORDER_STEP_REQUESTS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

// Appends a request: its rows follow those of the existing ones. `tokens` > 0.
void AddRequest(std::string id, int64_t tokens, std::optional<int64_t> position,
                v1::StepRequests* step);

// Returns the request that a person calls `id`, or null if it is not in this
// step: the one with that id, otherwise the first whose id is derived from it.
// Servers prepend "cmpl-" or "chatcmpl-" and append "-" with a text of their
// own.
const v1::RequestRows* FindRequest(const v1::StepRequests& step,
                                   absl::string_view id);

// Returns the part that is sent, within the limits of a record. `recorded` is
// null if all are recorded.
v1::StepRequests RequestsOfRecord(const v1::StepRequests& step,
                                  const v1::RequestRows* recorded);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_RECORDER_STEP_REQUESTS_H_
