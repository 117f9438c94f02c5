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

// Puts a request behind those there are: its rows follow theirs. `tokens` > 0.
void AddRequest(std::string id, int64_t tokens, std::optional<int64_t> position,
                v1::StepRequests* step);

// The request that a person calls `id`; null: it is not in this step. Of that id,
// else the first whose id is made of it: servers put "cmpl-" or "chatcmpl-"
// before it and "-" with a text of their own behind it.
const v1::RequestRows* FindRequest(const v1::StepRequests& step,
                                   absl::string_view id);

// What is sent of it: no more than a record may hold. `recorded` null: all are.
v1::StepRequests RequestsOfRecord(const v1::StepRequests& step,
                                  const v1::RequestRows* recorded);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_RECORDER_STEP_REQUESTS_H_
