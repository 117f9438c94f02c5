// SPDX-License-Identifier: Apache-2.0
// ledger: the fate of every record and payload of a run.
#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"
#include "cli/app.h"
#include "cli/client/answer_stream.h"
#include "cli/exit_codes.h"
#include "cli/flags/ranges.h"
#include "cli/output/ledger_text.h"
#include "cli/output/output.h"
#include "common/base/status_macros.h"
#include "common/text/counted.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

struct LedgerFlags {
  std::string run, steps, ranks;
  bool counts = false;
};

std::string StateText(v1::StepLedger::State state) {
  return absl::AsciiStrToLower(
      absl::StripPrefix(v1::StepLedger::State_Name(state), "STATE_"));
}

std::string CountText(bool known, uint64_t value) {
  // 0 would mean that it was counted.
  return known ? absl::StrCat(value) : "?";
}

absl::Status Ledger(const Globals& globals, const LedgerFlags& flags,
                    int* exit_code) {
  v1::GetLedgerRequest request;
  request.set_run(flags.run);
  request.set_details(!flags.counts);
  RP_ASSIGN_OR_RETURN(const std::vector<int64_t> steps,
                      ParseRanges("--steps", flags.steps));
  RP_ASSIGN_OR_RETURN(const std::vector<int64_t> ranks,
                      ParseRanges("--ranks", flags.ranks));
  request.mutable_steps()->Assign(steps.begin(), steps.end());
  request.mutable_ranks()->Assign(ranks.begin(), ranks.end());
  const Client client(globals);
  // With details the collector reads the records of the run, however
  // many there are.
  AnswerStream<v1::StepLedger> reader(client, /*extra_seconds=*/3600,
                                      &ArchiveStub::GetLedger, request);
  Table table({"STEP", "RANK", "STATE", "RECORDS", "EXPECTED", "PAYLOADS",
               "EXPECTED", "FILTERED"});
  std::string gaps;
  LedgerTotals totals;
  v1::StepLedger ledger;
  while (reader.Read(&ledger)) {
    totals.Add(ledger);
    // Programs get each line as it comes; a table waits for its widths.
    if (PrintIf(globals.json, ledger)) continue;
    const std::string rank = LedgerRank(ledger);
    table.Add(
        // Refused frames have step -1 (docs/wire.md, "Wire").
        {ledger.step() < 0 ? "-" : absl::StrCat(ledger.step()), rank,
         StateText(ledger.state()), absl::StrCat(ledger.stored_records()),
         CountText(ledger.has_expected_records(), ledger.expected_records()),
         CountText(ledger.has_stored_payloads(), ledger.stored_payloads()),
         CountText(ledger.has_expected_payloads(), ledger.expected_payloads()),
         absl::StrCat(ledger.filtered_calls())});
    for (const v1::LedgerGap& gap : ledger.gaps()) {
      if (ledger.step() >= 0)
        absl::StrAppend(&gaps, "step ", ledger.step(), " ");
      if (rank != "-") absl::StrAppend(&gaps, "rank ", rank, ": ");
      absl::StrAppend(&gaps, "lost ", VisibleText(gap.reason()), ":");
      if (gap.records() > 0 || gap.payloads() > 0) {
        absl::StrAppend(&gaps, " ", Counted(gap.records(), "record"), ", ",
                        Counted(gap.payloads(), "payload"));
      }
      absl::StrAppend(
          &gaps, gap.entry().empty() ? "" : " of ", VisibleText(gap.entry()),
          gap.detail().empty() ? "" : " (", VisibleText(gap.detail()),
          gap.detail().empty() ? "\n" : ")\n");
    }
  }
  RP_RETURN_IF_ERROR(reader.Finish());
  if (!totals.whole()) *exit_code = kPartial;
  if (globals.json) return absl::OkStatus();
  Print(stdout, "%s", Lines{table.ToText()});
  Print(stdout, "%s", Lines{gaps});
  Print(stdout, "%s", Lines{totals.ToText()});
  return absl::OkStatus();
}

}  // namespace

void RegisterLedgerCommand(const Registry& to) {
  const auto [verb, flags] = to.Add<LedgerFlags>(
      "ledger",
      "account for every record and payload: stored, left out or lost", Ledger);
  verb->add_option("--run", flags->run, "the run")->required();
  verb->add_option("--steps", flags->steps, "like 0,4-6; all if left out")
      ->check(WhyNoRanges);
  verb->add_option("--ranks", flags->ranks, "like 0,2-3; all if left out")
      ->check(WhyNoRanges);
  verb->add_flag("--counts", flags->counts,
                 "only the counts kept while recording; quick");
}

}  // namespace rankprobe
