// SPDX-License-Identifier: Apache-2.0
// Digest that identifies a plan: an agent reports the digest of the plan that
// it applied, and the collector checks that this is the agreed plan.
// Thread-safe: a pure function.
#ifndef RANKPROBE_COMMON_CONFIG_PLAN_DIGEST_H_
#define RANKPROBE_COMMON_CONFIG_PLAN_DIGEST_H_

#include <string>

#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

// Digest of epoch, configuration, list of functions, switch and number of
// steps: 16 bytes. It does not cover the step at which the plan takes effect,
// because that is settled later (from_first_step).
std::string PlanDigest(const v1::PlanSpec& spec);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_CONFIG_PLAN_DIGEST_H_
