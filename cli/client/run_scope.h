// SPDX-License-Identifier: Apache-2.0
// The scope of a run: which analyses its recorded steps suffice for, so that
// `diagnose` calls nothing sound that could not be seen. Pure functions of plain values.
#ifndef RANKPROBE_CLI_CLIENT_RUN_SCOPE_H_
#define RANKPROBE_CLI_CLIENT_RUN_SCOPE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "analysis/scan/scan.h"

namespace rankprobe {

// Whether no step between the first and the last is missing.
bool FollowEachOther(const std::vector<int64_t>& steps);

// Whether the task monitor recorded each step with all its values: what is not
// there the program does not have.
bool IsMonitoredWhole(const analysis::ScanInput& input);

// "6 recorded steps" where `steps` are fewer than that, "10 successive steps"
// where they must follow each other and do not; else empty.
std::string StepsShort(size_t least, bool successive,
                       const std::vector<int64_t>& steps);

struct ScanScope {
  // "moves", "vanishes", ..
  std::vector<std::string> judged;
  // With what they need: "moves (6 recorded steps)".
  std::vector<std::string> unjudged;
};
ScanScope ScopeOf(const analysis::ScanInput& input);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_RUN_SCOPE_H_
