// SPDX-License-Identifier: Apache-2.0
#include "cli/client/live_capture.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/monotonic_time.h"
#include "common/base/status_macros.h"
#include "common/text/counted.h"

namespace rankprobe {
namespace {

constexpr int kAttempts = 5;
constexpr absl::Duration kPoll = absl::Milliseconds(100);

struct State {
  LiveRun request;
  v1::GetConfigResponse before;
  std::string config;
  std::set<int64_t> pids;
  int64_t furthest = 0;
  int64_t step_ns = 0;
};

absl::StatusOr<std::vector<v1::AgentInfo>> Connected(const Client& client,
                                                     const std::string& run) {
  RP_ASSIGN_OR_RETURN(const v1::ListAgentsResponse response,
                      client.ListAgents(run));
  std::vector<v1::AgentInfo> out;
  for (const v1::AgentInfo& agent : response.agents()) {
    if (agent.connected()) out.push_back(agent);
  }
  return out;
}

absl::Status ReadAgents(const Client& client, State* state) {
  RP_ASSIGN_OR_RETURN(const std::vector<v1::AgentInfo> agents,
                      Connected(client, state->request.run));
  if (agents.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("run ", state->request.run,
                     " is not in progress: no rank of it is "
                     "connected"));
  }
  state->pids.clear();
  for (const v1::AgentInfo& agent : agents) {
    state->pids.insert(agent.identity().pid());
    state->furthest = std::max(state->furthest, agent.step());
    state->step_ns = std::max(state->step_ns, agent.step_ns());
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::SwitchResult> Switch(const Client& client,
                                        const State& state, bool enable,
                                        const std::string& config, int64_t step,
                                        int64_t for_steps) {
  v1::SetDumpEnableRequest request;
  request.set_run(state.request.run);
  request.set_enable(enable);
  request.set_config_json(config);
  if (step >= 0) request.mutable_options()->set_at_step(step);
  request.mutable_options()->set_for_steps(for_steps);
  request.mutable_options()->set_no_wait(true);
  client.Introduce(config.size());
  return client.Act(&ControlStub::SetDumpEnable, request, 10);
}

// Agrees with all runs on a step that each of them can still reach.
absl::StatusOr<int64_t> AgreeOnStep(const Client& client,
                                    std::vector<State>* states) {
  int64_t margin = 2;
  std::string why;
  for (int attempt = 0; attempt < kAttempts; ++attempt, margin *= 4) {
    int64_t step = 0;
    for (State& state : *states) {
      RP_RETURN_IF_ERROR(ReadAgents(client, &state));
      // As many steps as take about half a second.
      const int64_t ahead =
          state.step_ns > 0
              ? std::clamp<int64_t>(500'000'000 / state.step_ns, 1, 1000)
              : 1;
      step = std::max(step, state.furthest + margin + ahead);
    }
    bool agreed = true;
    for (const State& state : *states) {
      const absl::StatusOr<v1::SwitchResult> result =
          Switch(client, state, true, state.config, step, 1);
      if (!result.ok()) {
        // A rank passed the step while it was being requested.
        if (!absl::IsInvalidArgument(result.status()) &&
            !absl::IsFailedPrecondition(result.status())) {
          return result.status();
        }
        why = std::string(result.status().message());
        agreed = false;
        break;
      }
      for (const v1::RankSwitch& rank : result->ranks()) {
        if (rank.state() == v1::RankSwitch::STATE_PREPARED ||
            rank.state() == v1::RankSwitch::STATE_APPLIED) {
          continue;
        }
        why = absl::StrCat("run ", state.request.run, ": ", result->summary(),
                           " ", rank.reason());
        agreed = false;
      }
    }
    if (agreed) return step;
  }
  return absl::DeadlineExceededError(
      absl::StrCat("no step was found that all ranks can still reach: ", why));
}

absl::Status WaitForStep(const Client& client, const State& state, int64_t step,
                         MonotonicTime deadline) {
  for (;;) {
    v1::ListStepsRequest request;
    request.set_run(state.request.run);
    request.set_after_step(step - 1);
    request.set_limit(1);
    RP_ASSIGN_OR_RETURN(const v1::ListStepsResponse response,
                        client.Ask(&ArchiveStub::ListSteps, request));
    std::set<int64_t> missing = state.pids;
    for (const v1::StepInfo& info : response.steps()) {
      if (info.step() == step && info.complete()) missing.erase(info.pid());
    }
    if (missing.empty()) return absl::OkStatus();
    if (MonotonicNow() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "run ", state.request.run, ": step ", step, " of ", missing.size(),
          " of ", Counted(state.pids.size(), "rank"),
          " did not reach the archive in "
          "time"));
    }
    absl::SleepFor(kPoll);
  }
}

absl::StatusOr<int64_t> CaptureAndWait(const Client& client,
                                       std::vector<State>* states,
                                       double wait_seconds) {
  RP_ASSIGN_OR_RETURN(const int64_t step, AgreeOnStep(client, states));
  const MonotonicTime deadline = MonotonicAfter(absl::Seconds(wait_seconds));
  for (const State& state : *states) {
    RP_RETURN_IF_ERROR(WaitForStep(client, state, step, deadline));
  }
  return step;
}

}  // namespace

absl::StatusOr<bool> IsLive(const Client& client, const std::string& run) {
  RP_ASSIGN_OR_RETURN(const std::vector<v1::AgentInfo> agents,
                      Connected(client, run));
  return !agents.empty();
}

absl::StatusOr<std::string> CaptureConfig(
    const std::string& config_json, const std::vector<std::string>& calls) {
  using google::protobuf::Struct;
  Struct config;
  if (!google::protobuf::util::JsonStringToMessage(
           config_json.empty() ? "{}" : config_json, &config)
           .ok()) {
    return absl::InvalidArgumentError("the run's config.json is not an object");
  }
  auto& fields = *config.mutable_fields();
  bool modules = false;
  bool apis = false;
  Struct section;
  auto* const list = (*section.mutable_fields())["list"].mutable_list_value();
  for (const std::string& call : calls) {
    list->add_values()->set_string_value(call);
    (absl::StartsWith(call, "Module.") ? modules : apis) = true;
  }
  (*section.mutable_fields())["data_mode"]
      .mutable_list_value()
      ->add_values()
      ->set_string_value("all");
  (*section.mutable_fields())["scope"].mutable_list_value();
  fields.erase("statistics");
  fields["task"].set_string_value("tensor");
  *fields["tensor"].mutable_struct_value() = section;
  fields["level"].set_string_value(modules && apis ? "mix"
                                   : modules       ? "L0"
                                                   : "L1");
  fields["step"].mutable_list_value()->Clear();
  fields["rank"].mutable_list_value()->Clear();
  if (!fields.contains("dump_path")) {
    fields["dump_path"].set_string_value("./dump");
  }
  std::string out;
  if (!google::protobuf::util::MessageToJsonString(config, &out).ok()) {
    return absl::InternalError("the config.json cannot be written");
  }
  return out;
}

absl::StatusOr<int64_t> CaptureCalls(const Client& client,
                                     const std::vector<LiveRun>& runs,
                                     double wait_seconds) {
  std::vector<State> states;
  for (const LiveRun& run : runs) {
    State& state = states.emplace_back();
    state.request = run;
    RP_RETURN_IF_ERROR(ReadAgents(client, &state));
    v1::GetConfigRequest request;
    request.set_run(run.run);
    RP_ASSIGN_OR_RETURN(state.before,
                        client.Ask(&ControlStub::GetConfig, request));
    RP_ASSIGN_OR_RETURN(state.config,
                        CaptureConfig(state.before.config_json(), run.calls));
  }
  const absl::StatusOr<int64_t> step =
      CaptureAndWait(client, &states, wait_seconds);
  // Restored even if the capture failed, because some runs may already have
  // been switched.
  absl::Status restored;
  for (const State& state : states) {
    restored.Update(Switch(client, state, state.before.enabled(),
                           state.before.config_json(), -1, 0)
                        .status());
  }
  if (!step.ok()) return step;
  if (!restored.ok()) {
    return absl::Status(restored.code(),
                        absl::StrCat("the step was recorded, but the run's own "
                                     "config.json could not be restored: ",
                                     restored.message()));
  }
  return step;
}

}  // namespace rankprobe
