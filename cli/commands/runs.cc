// SPDX-License-Identifier: Apache-2.0
// runs, status, config get.
#include <cstdio>
#include <memory>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "cli/app.h"
#include "cli/client/away_notes.h"
#include "cli/client/known_runs.h"
#include "cli/exit_codes.h"
#include "cli/output/ledger_text.h"
#include "cli/output/output.h"
#include "common/base/status_macros.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

std::string RankText(const v1::Identity& identity) {
  return identity.has_rank() ? absl::StrCat(identity.rank())
                             : absl::StrCat("proc", identity.pid());
}

// One rank of two processes was started again, or two jobs have one name.
std::string RanksText(const v1::RunInfo& run) {
  if (run.processes() <= run.ranks()) return absl::StrCat(run.ranks());
  return absl::StrCat(run.ranks(), " of ", run.processes(), " processes");
}

absl::Status Runs(const Globals& globals, int* exit_code) {
  const Client client(globals);
  v1::ListRunsResponse response;
  for (bool more = true; more;) {
    v1::ListRunsRequest request;
    if (!response.runs().empty())
      request.set_after_run(response.runs().rbegin()->run());
    v1::ListRunsResponse page;
    const absl::Status status = client.Ask([&](grpc::ClientContext* context) {
      const grpc::Status said =
          client.archive->ListRuns(context, request, &page);
      // Those that are listed are all that could be read.
      if (said.ok() && SayAway(*context)) *exit_code = kPartial;
      return said;
    });
    if (!status.ok()) return status;
    // An empty page would be asked for again and again.
    more = page.truncated() && !page.runs().empty();
    if (more && page.runs().rbegin()->run() <= request.after_run()) {
      return absl::DataLossError(
          "the collector sends the same runs again and again");
    }
    response.mutable_runs()->MergeFrom(page.runs());
  }
  if (globals.json) {
    PrintJson(ToJson(response));
    return absl::OkStatus();
  }
  Table table(
      {"RUN", "RANKS", "STEPS", "RECORDS", "STORED", "OFFERED", "UPDATED"});
  for (const v1::RunInfo& run : response.runs()) {
    table.Add({run.run(), RanksText(run), absl::StrCat(run.steps()),
               absl::StrCat(run.records()),
               HumanBytes(run.stored_payload_bytes()),
               HumanBytes(run.offered_payload_bytes()),
               absl::FormatTime("%Y-%m-%d %H:%M:%S",
                                absl::FromUnixNanos(run.updated_unix_ns()),
                                absl::LocalTimeZone())});
  }
  Print(stdout, "%s", Lines{table.ToText()});
  if (!response.runs().empty()) {
    Print(stdout,
          "STORED and OFFERED count payloads (values of tensors) only; "
          "statistics are in RECORDS\n");
  }
  return absl::OkStatus();
}

std::string DumpText(const v1::AgentInfo& agent) {
  const auto text = [](bool on) { return on ? "on" : "off"; };
  if (!agent.has_switches_at_step()) return text(agent.dumping());
  return absl::StrCat(text(agent.dumping()), ", ", text(!agent.dumping()),
                      " at ", agent.switches_at_step());
}

// Nothing where there is room and there always was.
void PrintDisk(const v1::DiskState& disk) {
  const std::string whose = disk.collector().empty()
                                ? "the collector"
                                : absl::StrCat("the leaf ", disk.collector());
  const char* taken = nullptr;
  switch (disk.level()) {
    case v1::DiskState::LEVEL_FULL:
      taken = "records alone are taken";
      break;
    case v1::DiskState::LEVEL_HIGH:
      taken = "no tensors are taken";
      break;
    default:
      if (disk.refused_payloads() == 0) return;
      taken = "all is taken";
  }
  Print(stdout, "the disk of %s is %d %% full: %s", whose, disk.used_percent(),
        std::string(taken));
  if (disk.refused_payloads() > 0) {
    Print(stdout, "; %d tensors (%s) were refused", disk.refused_payloads(),
          HumanBytes(disk.refused_payload_bytes()));
  }
  Print(stdout, "\n");
}

absl::Status Agents(const Globals& globals, const std::string& run) {
  const Client client(globals);
  v1::ListAgentsRequest request;
  request.set_run(run);
  v1::ListAgentsResponse response;
  absl::Status status = client.Ask([&](grpc::ClientContext* context) {
    return client.control->ListAgents(context, request, &response);
  });
  if (!status.ok()) return status;
  if (response.agents().empty())
    RP_RETURN_IF_ERROR(SayNoSuchRun(client, globals, run));
  if (globals.json) {
    PrintJson(ToJson(response));
    return absl::OkStatus();
  }
  Table table({"RUN", "RANK", "HOST", "PID", "STATE", "STEP", "PLAN", "DUMP",
               "BYTES", "PENDING", "LAG", "LOST", "SILENT"});
  for (const v1::AgentInfo& agent : response.agents()) {
    table.Add({agent.identity().run(), RankText(agent.identity()),
               agent.identity().host(), absl::StrCat(agent.identity().pid()),
               agent.connected() ? "connected" : "gone",
               absl::StrCat(agent.step()), absl::StrCat(agent.plan_epoch()),
               DumpText(agent), HumanBytes(agent.received_bytes()),
               HumanBytes(agent.pending_bytes()),
               absl::StrCat(agent.lag_steps(), " steps"),
               absl::StrCat(agent.lost_records() + agent.lost_payloads()),
               absl::StrFormat("%.1f s",
                               static_cast<double>(agent.silent_ms()) / 1000)});
  }
  Print(stdout, "%s", Lines{table.ToText()});
  for (const v1::AgentInfo& agent : response.agents()) {
    if (agent.config_fault().empty()) continue;
    Print(stdout,
          "rank %s of %s records nothing because its configuration is invalid: "
          "%s\n",
          RankText(agent.identity()), agent.identity().run(),
          agent.config_fault());
  }
  for (const v1::AgentInfo& agent : response.agents()) {
    if (agent.other_plan().empty()) continue;
    Print(stdout, "rank %s of %s: %s\n", RankText(agent.identity()),
          agent.identity().run(), agent.other_plan());
  }
  std::map<std::string, int> lanes;
  for (const v1::AgentInfo& agent : response.agents())
    if (agent.connected() && !agent.lane().empty()) ++lanes[agent.lane()];
  for (const auto& [how, ranks] : lanes) {
    Print(stdout, "payloads of %d ranks come through %s\n", ranks, how);
  }
  for (const v1::DiskState& disk : response.disks()) PrintDisk(disk);
  return run.empty() ? absl::OkStatus() : PrintLedgerSummary(client, run);
}

void PrintSteps(const v1::ListStepsResponse& response) {
  Table table(
      {"STEP", "RANK", "HOST", "PID", "RECORDS", "PAYLOADS", "LOST", "STATE"});
  for (const v1::StepInfo& step : response.steps()) {
    table.Add({absl::StrCat(step.step()),
               step.has_rank() ? absl::StrCat(step.rank())
                               : absl::StrCat("proc", step.pid()),
               step.host(), absl::StrCat(step.pid()),
               absl::StrCat(step.records()), absl::StrCat(step.payloads()),
               absl::StrCat(step.lost()),
               step.complete() ? "complete" : "incomplete"});
  }
  Print(stdout, "%s", Lines{table.ToText()});
}

absl::Status Steps(const Globals& globals, const std::string& run) {
  const Client client(globals);
  v1::ListStepsRequest request;
  request.set_run(run);
  // A long run has more steps than one answer holds.
  v1::ListStepsResponse all;
  for (;;) {
    v1::ListStepsResponse response;
    RP_RETURN_IF_ERROR(client.Ask([&](grpc::ClientContext* context) {
      return client.archive->ListSteps(context, request, &response);
    }));
    for (v1::StepInfo& step : *response.mutable_steps())
      all.add_steps()->Swap(&step);
    if (!response.truncated() || response.steps().empty()) break;
    request.set_after_step(all.steps().rbegin()->step());
  }
  if (globals.json) {
    PrintJson(ToJson(all));
  } else {
    PrintSteps(all);
  }
  return absl::OkStatus();
}

}  // namespace

void RegisterRunCommands(CLI::App* app, Globals* globals,
                         ParsedCommand* command) {
  CLI::App* const runs =
      app->add_subcommand("runs", "list the runs in the archive");
  AddGlobals(runs, globals);
  runs->callback([command] {
    command->run = [](const Globals& g, int* exit_code) {
      return Runs(g, exit_code);
    };
  });

  CLI::App* const status = app->add_subcommand(
      "status", "list the ranks: host, step, recording or not, lag");
  AddGlobals(status, globals);
  auto run = std::make_shared<std::string>();
  auto steps = std::make_shared<bool>(false);
  CLI::Option* const run_option =
      status->add_option("--run", *run, "only this run");
  status->add_flag("--steps", *steps, "the recorded steps instead")
      ->needs(run_option);
  status->callback([command, run, steps] {
    command->run = [run, steps](const Globals& g, int*) {
      return *steps ? Steps(g, *run) : Agents(g, *run);
    };
  });
}

}  // namespace rankprobe
