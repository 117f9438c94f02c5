// SPDX-License-Identifier: Apache-2.0
// status: the ranks of a collector, or the private collectors of a directory.
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/app.h"
#include "cli/client/known_runs.h"
#include "cli/client/private_collectors.h"
#include "cli/client/run_jobs.h"
#include "cli/output/ledger_text.h"
#include "cli/output/output.h"
#include "common/base/status_macros.h"
#include "common/text/counted.h"
#include "common/text/shell_word.h"

namespace rankprobe {
namespace {

std::string RankText(const v1::Identity& identity) {
  return identity.has_rank() ? absl::StrCat(identity.rank())
                             : absl::StrCat("proc", identity.pid());
}

std::string DumpText(const v1::AgentInfo& agent) {
  const auto text = [](bool on) { return on ? "on" : "off"; };
  if (!agent.has_switches_at_step()) return text(agent.dumping());
  return absl::StrCat(text(agent.dumping()), ", ", text(!agent.dumping()),
                      " at ", agent.switches_at_step());
}

// Prints nothing if there is enough space and always was.
void PrintDisk(const v1::DiskState& disk) {
  const std::string whose = disk.collector().empty()
                                ? "the collector"
                                : absl::StrCat("the leaf ", disk.collector());
  const char* taken = nullptr;
  switch (disk.level()) {
    case v1::DiskState::LEVEL_FULL:
      // Below --min-free-bytes, which counts as 100 %.
      taken = disk.used_percent() >= 100 ? "nothing is taken"
                                         : "records alone are taken";
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
    Print(stdout, "; refused: %s (%s)",
          Counted(disk.refused_payloads(), "tensor"),
          HumanBytes(disk.refused_payload_bytes()));
  }
  Print(stdout, "\n");
}

void PrintAgents(const v1::ListAgentsResponse& response) {
  Table table({"RUN", "RANK", "HOST", "PID", "STATE", "STEP", "PLAN", "DUMP",
               "BYTES", "PENDING", "LAG", "LOST", "SILENT"});
  for (const v1::AgentInfo& agent : response.agents()) {
    table.Add({agent.identity().run(), RankText(agent.identity()),
               agent.identity().host(), absl::StrCat(agent.identity().pid()),
               agent.connected() ? "connected" : "gone",
               absl::StrCat(agent.step()), absl::StrCat(agent.plan_epoch()),
               DumpText(agent), HumanBytes(agent.received_bytes()),
               HumanBytes(agent.pending_bytes()),
               Counted(agent.lag_steps(), "step"),
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
    Print(stdout, "payloads of %s come through %s\n", Counted(ranks, "rank"),
          how);
  }
  for (const v1::DiskState& disk : response.disks()) PrintDisk(disk);
}

absl::Status PrintJobs(const Client& client, const std::string& run) {
  RP_ASSIGN_OR_RETURN(const std::vector<RunJob> jobs, ReadJobs(client, run));
  if (jobs.size() > 1) {
    Print(stdout, "%d jobs had the name of this run: %s\n", jobs.size(),
          JobsText(jobs));
  }
  return absl::OkStatus();
}

absl::Status Agents(const Globals& globals, const std::string& run) {
  const Client client(globals);
  RP_ASSIGN_OR_RETURN(const v1::ListAgentsResponse response,
                      client.ListAgents(run));
  if (response.agents().empty())
    RP_RETURN_IF_ERROR(SayNoSuchRun(client, globals, run));
  if (PrintIf(globals.json, response)) return absl::OkStatus();
  PrintAgents(response);
  if (run.empty()) return absl::OkStatus();
  RP_RETURN_IF_ERROR(PrintLedgerSummary(client, run));
  return PrintJobs(client, run);
}

// Prints the private collectors of a directory and the next commands.
absl::Status Directory(Globals globals, const std::string& directory) {
  RP_ASSIGN_OR_RETURN(const PrivateCollectors found,
                      FindPrivateCollectors(directory));
  v1::ListAgentsResponse all;
  size_t answered = 0;
  absl::Status failure;
  for (const PrivateCollector& one : found.served) {
    globals.collector = one.address;
    const auto response = Client(globals).ListAgents(/*run=*/"");
    if (!response.ok()) {
      Print(stderr, "rankprobe: %s: %s\n", one.dump_path,
            response.status().message());
      failure = response.status();
      continue;
    }
    ++answered;
    all.MergeFrom(*response);
    if (globals.json) continue;
    const std::string path = ShellWord(one.dump_path);
    Print(stdout, "%s: run %s records here, into a private collector\n",
          one.dump_path, one.run);
    PrintAgents(*response);
    Print(stdout,
          "Next: rankprobe top --collector %s\n"
          "       rankprobe enable --collector %s --for-steps 1\n"
          "       rankprobe diagnose --collector %s %s\n",
          path, path, path, ShellWord(absl::StrCat("run:", one.run)));
  }
  if (answered == 0 && !failure.ok()) return failure;
  if (found.served.empty()) {
    RP_ASSIGN_OR_RETURN(const std::string there, WhatIsThere(found));
    if (!globals.json) Print(stdout, "%s", Lines{there});
  }
  if (globals.json) PrintJson(ToJson(all));
  return absl::OkStatus();
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
  RP_ASSIGN_OR_RETURN(std::vector<v1::StepInfo> steps,
                      Client(globals).ListSteps(run));
  v1::ListStepsResponse all;
  for (v1::StepInfo& step : steps) all.add_steps()->Swap(&step);
  if (globals.json) {
    PrintJson(ToJson(all));
  } else {
    PrintSteps(all);
  }
  return absl::OkStatus();
}

struct StatusFlags {
  std::string run, directory;
  bool steps = false;
};

absl::Status Status(const Globals& globals, const StatusFlags& flags) {
  if (!flags.directory.empty()) {
    if (!flags.run.empty())
      return absl::InvalidArgumentError(
          "of a directory, or of a run of a collector (--run), not both");
    return Directory(globals, flags.directory);
  }
  if (flags.steps) return Steps(globals, flags.run);
  const absl::Status status = Agents(globals, flags.run);
  // The user named no collector, and a job of this directory has a private one.
  if (absl::IsUnavailable(status) && flags.run.empty() &&
      IsUsualCollector(globals)) {
    const auto here = FindPrivateCollectors(".");
    if (here.ok() && !here->served.empty()) return Directory(globals, ".");
  }
  return status;
}

}  // namespace

void RegisterStatusCommand(const Registry& to) {
  const auto [verb, flags] = to.Add<StatusFlags>(
      "status", "list the ranks: host, step, recording or not, lag", Status);
  verb->add_option(
      "directory", flags->directory,
      "a dump_path, or a directory with some: the jobs that record "
      "there with a private collector, or what they left");
  CLI::Option* const run =
      verb->add_option("--run", flags->run, "only this run");
  verb->add_flag("--steps", flags->steps, "the recorded steps instead")
      ->needs(run);
}

}  // namespace rankprobe
