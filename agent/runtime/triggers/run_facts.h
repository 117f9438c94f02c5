// SPDX-License-Identifier: Apache-2.0
// Facts of the run card as records of a step. Pure functions.
#ifndef RANKPROBE_AGENT_RUNTIME_TRIGGERS_RUN_FACTS_H_
#define RANKPROBE_AGENT_RUNTIME_TRIGGERS_RUN_FACTS_H_

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

// Adds the facts to as many cards of `add_card` as keep each record within a
// frame. Texts are cut at the limits of common/base/limits.h; facts without a
// section or name are left out. Returns whether any fact was added.
bool AddFacts(absl::Span<const v1::RunFact> facts,
              absl::FunctionRef<v1::RunCard*()> add_card);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_TRIGGERS_RUN_FACTS_H_
