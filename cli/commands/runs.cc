// SPDX-License-Identifier: Apache-2.0
// runs.
#include <cstdio>

#include "absl/time/time.h"
#include "cli/app.h"
#include "cli/client/away_notes.h"
#include "cli/exit_codes.h"
#include "cli/output/output.h"
#include "common/text/shell_word.h"

namespace rankprobe {
namespace {

// More processes than ranks: a rank was restarted, or two jobs have one name.
std::string RanksText(const v1::RunInfo& run) {
  if (run.processes() <= run.ranks()) return absl::StrCat(run.ranks());
  return absl::StrCat(run.ranks(), " of ", run.processes(), " processes");
}

struct NoFlags {};

absl::Status Runs(const Globals& globals, const NoFlags& /*flags*/,
                  int* exit_code) {
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
      // The listed runs are all that could be read.
      if (said.ok() && SayAway(*context)) *exit_code = kPartial;
      return said;
    });
    if (!status.ok()) return status;
    // An empty page would be requested again forever.
    more = page.truncated() && !page.runs().empty();
    if (more && page.runs().rbegin()->run() <= request.after_run()) {
      return absl::DataLossError(
          "the collector sends the same runs again and again");
    }
    response.mutable_runs()->MergeFrom(page.runs());
  }
  if (PrintIf(globals.json, response)) return absl::OkStatus();
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
  for (const v1::RunInfo& run : response.runs()) {
    if (run.jobs() < 2) continue;
    Print(stdout,
          "%s: %d jobs had this name; `rankprobe status --run %s` says which "
          "steps are whose, `rankprobe diagnose %s` judges the newest\n",
          run.run(), run.jobs(), ShellWord(run.run()),
          ShellWord(absl::StrCat("run:", run.run())));
  }
  return absl::OkStatus();
}

}  // namespace

void RegisterRunCommands(const Registry& to) {
  to.Add<NoFlags>("runs", "list the runs in the archive", Runs);
}

}  // namespace rankprobe
