// SPDX-License-Identifier: Apache-2.0
// The scope of a run: the analyses for which enough of its steps were recorded.
// `diagnose` lists the others as not judged. Pure functions of plain values.
#ifndef RANKPROBE_CLI_CLIENT_RUN_SCOPE_H_
#define RANKPROBE_CLI_CLIENT_RUN_SCOPE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "analysis/scan/scan.h"
#include "common/config/plan.h"

namespace rankprobe {

// Whether no step between the first and the last is missing.
bool FollowEachOther(const std::vector<int64_t>& steps);

// Returns the recorded steps in which a GradScaler skipped the optimizer's
// step: they have a loss scale, gradients that are not finite and no value of
// an optimizer.
std::vector<int64_t> StepsSkippedByScaler(const analysis::ScanInput& input);
// Returns the number of values that are not finite if, up to the last skipped
// step, all of them are gradients and the optimizer took a step afterwards: the
// scaler then lowered its scale as intended. Otherwise returns 0.
size_t OverflowsOfScaler(const analysis::ScanInput& input,
                         const std::vector<int64_t>& skipped);

// Whether task monitor recorded each step with all values, so that a missing
// value does not exist: the program has none, or each step was skipped.
bool IsMonitoredWhole(const analysis::ScanInput& input);
// The same by the plan of the run, for a program that ended before it had
// values.
bool MonitorsWhole(const Plan& plan);

// Whether a value whose name begins with `prefix` was recorded.
bool HasValuesOf(const analysis::ScanInput& input, absl::string_view prefix);

// The command that records more of a program than other commands do.
inline constexpr char kMonitorCommand[] =
    "rankprobe run --run NAME --monitor --every 1 -- PROGRAM";
// Returns "6 recorded steps" if `steps` has fewer, "10 successive steps" if
// they must be successive and are not; otherwise an empty text.
std::string StepsShort(size_t least, bool successive,
                       const std::vector<int64_t>& steps);

struct ScanScope {
  // Analyses such as "moves" and "vanishes".
  std::vector<std::string> judged;
  // Analyses with their requirement: "moves (needs 6 recorded steps)".
  std::vector<std::string> unjudged;
};
ScanScope ScopeOf(const analysis::ScanInput& input);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_RUN_SCOPE_H_
