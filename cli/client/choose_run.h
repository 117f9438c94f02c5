// SPDX-License-Identifier: Apache-2.0
// Questions that commands ask before they call the collector. Without state,
// except for the call.
#ifndef RANKPROBE_CLI_CLIENT_CHOOSE_RUN_H_
#define RANKPROBE_CLI_CLIENT_CHOOSE_RUN_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "cli/client/client.h"
#include "common/config/plan.h"

namespace rankprobe {

// Whether a command accepts a run that does not exist.
enum class NewRun { kRefuse, kOffer, kTake };

// The run of a command: the named one, or the only one with connected ranks.
// NOT_FOUND for a named one that is not there, unless `unknown` is kTake; with
// kOffer the line says that --create takes it. UNAVAILABLE if the collector does not
// answer within --timeout, so that no call that waits longer follows.
absl::StatusOr<std::string> ChooseRun(const Client& client,
                                      const std::string& named,
                                      NewRun unknown = NewRun::kRefuse);

// Text of a config.json, which needs no dump_path. INVALID_ARGUMENT with every
// fault and unknown key; warnings go to standard error.
absl::StatusOr<std::string> ReadConfigFile(const std::string& path);

// The plan of the run. Nothing if no collector answers or the run does not
// exist.
std::optional<Plan> PlanOfRun(const Client& client, const std::string& run);

// `config` with the dump_path of the run where it names none: that of a job in
// progress stays in force.
std::string ConfigForRun(const Client& client, const std::string& run,
                         const std::string& config);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_CHOOSE_RUN_H_
