// SPDX-License-Identifier: Apache-2.0
#include "cli/client/choose_run.h"

#include <cstdio>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_join.h"
#include "cli/client/known_runs.h"
#include "cli/output/output.h"
#include "common/base/status_macros.h"
#include "common/config/request_config.h"
#include "common/rpc/channel_security.h"

namespace rankprobe {
namespace {

constexpr absl::string_view kAnyPath = "./dump";

}  // namespace

absl::StatusOr<std::string> ReadConfigFile(const std::string& path) {
  RP_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path));
  // Reports every fault of a configuration at once; the collector checks it
  // again.
  const auto parsed =
      ParseConfigFile(path, WithDumpPath(text, kAnyPath), UnknownKeys::kRefuse);
  RP_RETURN_IF_ERROR(parsed.status());
  for (const std::string& warning : parsed->warnings)
    Print(stderr, "rankprobe: warning: %s\n", warning);
  return text;
}

std::optional<Plan> PlanOfRun(const Client& client, const std::string& run) {
  v1::GetConfigRequest request;
  request.set_run(run);
  const auto response = client.Ask(&ControlStub::GetConfig, request);
  if (!response.ok()) return std::nullopt;
  auto parsed = ParseConfig(response->config_json(), {});
  if (!parsed.ok()) return std::nullopt;
  return std::move(parsed->plan);
}

std::string ConfigForRun(const Client& client, const std::string& run,
                         const std::string& config) {
  const std::string anywhere = WithDumpPath(config, kAnyPath);
  if (anywhere == config) return config;  // it names one
  const std::optional<Plan> plan = PlanOfRun(client, run);
  return plan.has_value() ? WithDumpPath(config, plan->dump_path) : anywhere;
}

absl::StatusOr<std::string> ChooseRun(const Client& client,
                                      const std::string& named,
                                      NewRun unknown) {
  if (!named.empty()) {
    if (unknown == NewRun::kTake) {
      RP_RETURN_IF_ERROR(HasPlan(client, named).status());
      return named;
    }
    RP_RETURN_IF_ERROR(CheckRunIsThere(
        client, named,
        unknown == NewRun::kOffer
            ? "; --create prepares a run that does not exist yet"
            : ""));
    return named;
  }
  RP_ASSIGN_OR_RETURN(
      const v1::ListAgentsResponse agents,
      client.Ask(&ControlStub::ListAgents, v1::ListAgentsRequest()));
  std::set<std::string> runs;
  for (const v1::AgentInfo& agent : agents.agents()) {
    if (agent.connected()) runs.insert(agent.identity().run());
  }
  if (runs.size() == 1) return *runs.begin();
  if (runs.empty())
    return absl::NotFoundError("no rank is connected; name a run with --run");
  return absl::InvalidArgumentError(
      absl::StrCat("more than one run is connected, name one with --run: ",
                   absl::StrJoin(runs, ", ")));
}

}  // namespace rankprobe
