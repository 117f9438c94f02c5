// SPDX-License-Identifier: Apache-2.0
// replicas.
#include "analysis/root_cause/replicas.h"

#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "analysis/root_cause/report_messages.h"
#include "analysis/run_card/run_card.h"
#include "cli/app.h"
#include "cli/client/dump_input.h"
#include "cli/exit_codes.h"
#include "cli/flags/analysis_flags.h"
#include "cli/output/output.h"
#include "common/base/status_macros.h"
#include "common/text/counted.h"
#include "dump_format/dump_layout.h"

namespace rankprobe {
namespace {

struct ReplicaFlags {
  std::string dump;
  std::string groups;
  bool gradients = false;
  std::optional<int64_t> job;
  bool force = false;
};

absl::StatusOr<std::vector<std::vector<int64_t>>> ParseGroups(
    const std::string& text) {
  std::vector<std::vector<int64_t>> groups;
  if (text.empty()) return groups;
  for (const absl::string_view group : absl::StrSplit(text, ';')) {
    std::vector<int64_t>& out = groups.emplace_back();
    for (const absl::string_view rank : absl::StrSplit(group, ',')) {
      int64_t number = 0;
      if (!absl::SimpleAtoi(rank, &number) || number < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("--groups ", text, ": expected ranks like 0,2;1,3"));
      }
      out.push_back(number);
    }
  }
  return groups;
}

absl::Status Replicas(const Globals& globals, const ReplicaFlags& flags,
                      int* exit_code) {
  const std::unique_ptr<FileSystem> file_system = OpenInputs(flags.force);
  analysis::ReplicaOptions options;
  RP_ASSIGN_OR_RETURN(options.groups, ParseGroups(flags.groups));
  options.gradients = flags.gradients;
  RP_ASSIGN_OR_RETURN(const DumpInput dump,
                      DumpInput::Open(file_system.get(), globals, flags.dump,
                                      {.job = flags.job}));
  RP_ASSIGN_OR_RETURN(DumpLayout layout, dump.Find());
  PrintNote(layout);
  if (options.groups.empty())
    options.groups = analysis::ReplicasByCards(file_system.get(), layout);
  RP_ASSIGN_OR_RETURN(
      const analysis::ReplicaReport report,
      analysis::CheckReplicas(file_system.get(), std::move(layout), options));
  if (!report.differences.empty()) *exit_code = kPartial;
  if (PrintIf(globals.json, analysis::ToMessage(report)))
    return absl::OkStatus();
  for (const analysis::ReplicaDifference& d : report.differences) {
    Print(stdout, "step %d %s %s\n", d.step, analysis::ReplicaKindName(d.kind),
          d.row.c_str());
    for (const auto& [ranks, content] : d.values) {
      Print(stdout, "  rank %s: %s\n", absl::StrJoin(ranks, ",").c_str(),
            content.c_str());
    }
    if (!d.code_line.empty()) Print(stdout, "  at %s\n", d.code_line);
  }
  Print(stdout,
        "%s in %d parameters and gradients, %s, %s; %s on one rank only, %d "
        "without values\n",
        Counted(report.differences.size(), "difference"), report.rows_compared,
        Counted(report.transfers_compared, "transfer"),
        Counted(report.collectives_compared, "collective"),
        Counted(report.rows_on_one_rank, "row"), report.rows_without_values);
  if (report.rows_of_shards > 0) {
    Print(stdout,
          "%d parameters are treated as shards, because their numbers are not "
          "those of one tensor, and no earlier step here has them alike (the "
          "first: %s); if ranks should hold the same: --groups 0,1\n",
          report.rows_of_shards, report.first_of_shards.c_str());
  }
  return absl::OkStatus();
}

}  // namespace

void RegisterReplicasCommand(const Registry& to) {
  const auto [replicas, replica_flags] = to.Add<ReplicaFlags>(
      "replicas",
      "find values that should be equal across the ranks of a dump and "
      "are not",
      Replicas);
  AddInput(replicas, "dump", &replica_flags->dump, "a step or dump directory")
      ->required();
  replicas->add_option("--groups", replica_flags->groups,
                       "ranks that hold the same parameters, like 0,2;1,3");
  replicas->add_flag("--gradients", replica_flags->gradients,
                     "compare gradients too (those recorded before they are "
                     "averaged differ by design)");
  AddJob(replicas, &replica_flags->job);
  AddForce(replicas, &replica_flags->force);
}

}  // namespace rankprobe
