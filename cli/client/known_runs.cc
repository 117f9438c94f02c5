// SPDX-License-Identifier: Apache-2.0
#include "cli/client/known_runs.h"

#include <cstdio>
#include <optional>
#include <set>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/client/client.h"
#include "cli/output/output.h"
#include "common/base/status_macros.h"
#include "common/text/nearest.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

constexpr char kNoRun[] = "no run named \"";

// Returns the runs with ranks and those in the archive, or nullopt if they
// cannot be listed.
std::optional<std::vector<std::string>> RunsThereAre(const Client& client) {
  std::set<std::string> names;
  {
    grpc::ClientContext context;
    client.Prepare(&context);
    v1::ListAgentsResponse agents;
    const grpc::Status status =
        client.control->ListAgents(&context, {}, &agents);
    // A store without a collector has no ranks.
    if (!status.ok() && status.error_code() != grpc::StatusCode::UNIMPLEMENTED)
      return std::nullopt;
    for (const v1::AgentInfo& agent : agents.agents())
      names.insert(agent.identity().run());
  }
  v1::ListRunsRequest request;
  for (;;) {
    grpc::ClientContext context;
    client.Prepare(&context);
    v1::ListRunsResponse runs;
    if (!client.archive->ListRuns(&context, request, &runs).ok())
      return std::nullopt;
    for (const v1::RunInfo& run : runs.runs()) names.insert(run.run());
    if (!runs.truncated() || runs.runs().empty()) break;
    request.set_after_run(runs.runs().rbegin()->run());
  }
  return std::vector<std::string>(names.begin(), names.end());
}

std::string ListOf(absl::string_view named,
                   const std::vector<std::string>& runs) {
  constexpr size_t kShown = 10;
  if (runs.empty())
    return "; there is none yet: a job is listed once it has made an optimizer "
           "or called its model";
  std::vector<std::string> shown;
  for (const std::string& run : runs) {
    if (shown.size() == kShown) break;
    shown.push_back(VisibleText(run));
  }
  return absl::StrCat(VisibleText(DidYouMean(named, runs)),
                      "; there are: ", absl::StrJoin(shown, ", "),
                      runs.size() > kShown
                          ? absl::StrCat(" and ", runs.size() - kShown,
                                         " more (`rankprobe runs` lists them)")
                          : "");
}

}  // namespace

absl::StatusOr<bool> HasPlan(const Client& client, const std::string& run) {
  grpc::ClientContext context;
  client.Prepare(&context);
  v1::GetConfigRequest request;
  request.set_run(run);
  v1::GetConfigResponse plan;
  const grpc::Status status =
      client.control->GetConfig(&context, request, &plan);
  if (status.error_code() == grpc::StatusCode::NOT_FOUND) return false;
  // The next call reports other errors. A collector that does not answer is
  // reported here, because the next call would wait for it again.
  const absl::Status said = client.ToStatus(status);
  if (absl::IsUnavailable(said)) return said;
  return true;
}

absl::Status CheckRunIsThere(const Client& client, const std::string& run,
                             absl::string_view advice) {
  RP_ASSIGN_OR_RETURN(const bool has_plan, HasPlan(client, run));
  if (has_plan) return absl::OkStatus();
  const auto runs = RunsThereAre(client);
  if (!runs.has_value() || absl::c_linear_search(*runs, run))
    return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat(kNoRun, VisibleText(run), "\"", ListOf(run, *runs), advice));
}

absl::Status SayNoSuchRun(const Client& client, const Globals& globals,
                          const std::string& run) {
  if (run.empty()) return absl::OkStatus();
  const absl::Status there = CheckRunIsThere(client, run, "");
  if (there.ok() || !globals.json) return there;
  Print(stderr, "rankprobe: %s\n", there.message());
  return absl::OkStatus();
}

absl::Status WithRunsThereAre(const Client& client,
                              const absl::Status& status) {
  if (!absl::IsNotFound(status) || !absl::StartsWith(status.message(), kNoRun))
    return status;
  absl::string_view name = status.message().substr(sizeof(kNoRun) - 1);
  name = name.substr(0, name.rfind('"'));
  const auto runs = RunsThereAre(client);
  if (!runs.has_value()) return status;
  return absl::NotFoundError(
      absl::StrCat(status.message(), ListOf(name, *runs)));
}

}  // namespace rankprobe
