// SPDX-License-Identifier: Apache-2.0
// Queries that commands make before they call the collector. Without state,
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

// Returns the run of a command: the named one, or the only one with connected
// ranks. Returns NOT_FOUND if the named run does not exist, unless `unknown` is
// kTake; with kOffer the message suggests --create. Returns UNAVAILABLE if the
// collector does not answer within --timeout, so that no call that waits longer
// follows.
absl::StatusOr<std::string> ChooseRun(const Client& client,
                                      const std::string& named,
                                      NewRun unknown = NewRun::kRefuse);

// Returns the text of a config.json, which does not need a dump_path. Returns
// INVALID_ARGUMENT with every fault and unknown key; warnings are printed on
// standard error.
absl::StatusOr<std::string> ReadConfigFile(const std::string& path);

// Returns the plan of the run, or nullopt if no collector answers or the run
// does not exist.
std::optional<Plan> PlanOfRun(const Client& client, const std::string& run);

// Returns `config`, with the run's dump_path if it has none: the dump_path of a
// job in progress stays in force.
std::string ConfigForRun(const Client& client, const std::string& run,
                         const std::string& config);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_CHOOSE_RUN_H_
