// SPDX-License-Identifier: Apache-2.0
#include "cli/output/ledger_text.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "cli/client/answer_stream.h"
#include "cli/output/output.h"
#include "common/base/saturating_add.h"
#include "common/base/status_macros.h"
#include "common/text/counted.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxListed = 8;

}  // namespace

void LedgerTotals::Add(const v1::StepLedger& ledger) {
  // Negative numbers are frames whose steps are unknown.
  if (ledger.step() >= 0) ++steps_;
  if (ledger.step() >= 0 && ledger.has_rank() && ledger.incarnation() != 0) {
    auto& lives = lives_[ledger.rank()];
    const auto [it, is_new] = lives.try_emplace(
        ledger.incarnation(),
        Life{ledger.pid(), ledger.host(), ledger.step(), ledger.step()});
    Life& life = it->second;
    life.first_step = std::min(life.first_step, ledger.step());
    life.last_step = std::max(life.last_step, ledger.step());
  }
  if (ledger.state() == v1::StepLedger::STATE_OPEN) ++open_;
  stored_records_ += ledger.stored_records();
  filtered_ += ledger.filtered_calls();
  for (const v1::LedgerGap& gap : ledger.gaps()) {
    Lost& lost = lost_[gap.reason()];
    // Ranks report these numbers; a sum that overflows would show no loss.
    lost.records = SaturatingAdd(lost.records, gap.records());
    lost.payloads = SaturatingAdd(lost.payloads, gap.payloads());
    if (gap.records() == 0 && gap.payloads() == 0) ++lost.uncounted;
  }
}

std::string LedgerTotals::ToText() const {
  std::string text =
      absl::StrCat("ledger: ", Counted(stored_records_, "record"), " of ",
                   Counted(steps_, "rank-step"), " stored");
  if (open_ > 0)
    absl::StrAppend(&text, ", ", Counted(open_, "rank-step"), " unfinished");
  if (filtered_ > 0)
    absl::StrAppend(&text, ", ", Counted(filtered_, "call"),
                    " left out by the plan");
  absl::StrAppend(&text, lost_.empty() ? ", nothing lost\n" : "\n");
  for (const auto& [reason, lost] : lost_) {
    absl::StrAppend(&text, "  lost ", VisibleText(reason), ": ",
                    Counted(lost.records, "record"), ", ",
                    Counted(lost.payloads, "payload"));
    if (lost.uncounted > 0)
      absl::StrAppend(&text, ", ", lost.uncounted, " of unknown content");
    absl::StrAppend(&text, "\n");
  }
  size_t listed = 0;
  for (const auto& [rank, lives] : lives_) {
    if (lives.size() < 2) continue;
    if (++listed > kMaxListed) {
      absl::StrAppend(&text, "  and further ranks\n");
      break;
    }
    absl::StrAppend(&text, "  rank ", rank, " was recorded by ", lives.size(),
                    " processes:");
    size_t named = 0;
    for (const auto& [incarnation, life] : lives) {
      if (++named > kMaxListed) {
        absl::StrAppend(&text, ", ..");
        break;
      }
      absl::StrAppend(&text, named == 1 ? " " : ", ", life.pid, " on ",
                      VisibleText(life.host), " (steps ", life.first_step,
                      " to ", life.last_step, ")");
    }
    absl::StrAppend(&text, "; of a step of several an export has the latest\n");
  }
  return text;
}

void EndedRanks::Add(const v1::StepLedger& ledger) {
  Life& life = lives_[ledger.incarnation()];
  life.name = LedgerRank(ledger);
  if (ledger.has_rank()) life.name = absl::StrCat("rank ", life.name);
  life.newest = std::max(life.newest, ledger.step());
  for (const v1::LedgerGap& gap : ledger.gaps())
    life.has_ended = life.has_ended || gap.reason() == "NOT_HEARD_OF";
}

std::string EndedRankText(absl::string_view name, int64_t newest_step) {
  return newest_step < 0
             ? absl::StrCat(name, " (no step here)")
             : absl::StrCat(name, " (newest step here: ", newest_step, ")");
}

std::string EndedRanks::ToText() const {
  std::string text;
  for (const auto& [incarnation, life] : lives_) {
    if (!life.has_ended) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ",
                    EndedRankText(life.name, life.newest));
  }
  return text;
}

std::string LedgerRank(const v1::StepLedger& ledger) {
  if (ledger.has_rank()) return absl::StrCat(ledger.rank());
  return ledger.step() < 0 && ledger.pid() == 0
             ? "-"
             : absl::StrCat("proc", ledger.pid());
}

absl::StatusOr<std::string> ReadEndedRanks(
    const Client& client, const std::string& run,
    const std::set<uint64_t>& incarnations) {
  v1::GetLedgerRequest request;
  request.set_run(run);
  AnswerStream<v1::StepLedger> reader(client, /*extra_seconds=*/3600,
                                      &ArchiveStub::GetLedger, request);
  EndedRanks ended;
  v1::StepLedger ledger;
  while (reader.Read(&ledger)) {
    if (incarnations.empty() || incarnations.contains(ledger.incarnation()))
      ended.Add(ledger);
  }
  RP_RETURN_IF_ERROR(reader.Finish());
  return ended.ToText();
}

absl::Status PrintLedgerSummary(const Client& client, const std::string& run) {
  v1::GetLedgerRequest request;
  request.set_run(run);
  AnswerStream<v1::StepLedger> reader(client, /*extra_seconds=*/0,
                                      &ArchiveStub::GetLedger, request);
  LedgerTotals totals;
  v1::StepLedger ledger;
  bool any = false;
  while (reader.Read(&ledger)) {
    totals.Add(ledger);
    any = true;
  }
  const absl::Status status = reader.Finish();
  if (absl::IsNotFound(status)) return absl::OkStatus();
  RP_RETURN_IF_ERROR(status);
  if (any) Print(stdout, "%s", Lines{totals.ToText()});
  return absl::OkStatus();
}

}  // namespace rankprobe
