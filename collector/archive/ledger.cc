// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/ledger.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "collector/archive/load_step.h"
#include "common/base/saturating_add.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

v1::StepLedger Head(const v1::StepInfo& info) {
  v1::StepLedger ledger;
  ledger.set_step(info.step());
  if (info.has_rank()) ledger.set_rank(info.rank());
  ledger.set_pid(info.pid());
  ledger.set_host(info.host());
  ledger.set_incarnation(info.incarnation());
  ledger.set_stored_records(info.stored_records());
  ledger.set_filtered_calls(info.filtered_calls());
  if (info.has_expected_records())
    ledger.set_expected_records(info.expected_records());
  if (info.has_expected_payloads())
    ledger.set_expected_payloads(info.expected_payloads());
  return ledger;
}

void AddGap(std::string reason, uint64_t records, uint64_t payloads,
            std::string detail, v1::StepLedger* ledger) {
  v1::LedgerGap* const gap = ledger->add_gaps();
  gap->set_reason(std::move(reason));
  gap->set_records(records);
  gap->set_payloads(payloads);
  gap->set_detail(std::move(detail));
}

// Adds the difference between the rank's own count and everything that is
// accounted for, and sets the state of the step. `lost_payloads` are those of
// lost records.
void Close(const v1::StepInfo& info, uint64_t lost_payloads,
           v1::StepLedger* ledger) {
  if (info.deleted()) {
    ledger->set_state(v1::StepLedger::STATE_DELETED);
    AddGap("DELETED", ledger->stored_records(), info.payloads(), "", ledger);
    ledger->set_stored_records(0);
    ledger->set_stored_payloads(0);
    return;
  }
  if (!info.has_expected_records()) {
    ledger->set_state(v1::StepLedger::STATE_OPEN);
    return;
  }
  uint64_t records = ledger->stored_records();
  for (const v1::LedgerGap& gap : ledger->gaps())
    records = SaturatingAdd(records, gap.records());
  // Each reference in a stored record is already counted as stored or as a gap.
  const uint64_t payloads = SaturatingAdd(info.payloads(), lost_payloads);
  const uint64_t expected_records =
      std::max(records, ledger->expected_records());
  const uint64_t expected_payloads =
      std::max(payloads, ledger->expected_payloads());
  if (expected_records > records || expected_payloads > payloads) {
    AddGap("NOT_RECEIVED", expected_records - records,
           expected_payloads - payloads,
           expected_records > records
               ? "the rank counted them, and they were never received"
               : "of records that were lost",
           ledger);
  }
  ledger->set_state(ledger->gaps().empty() ? v1::StepLedger::STATE_WHOLE
                                           : v1::StepLedger::STATE_GAPS);
}

std::string RefusedName() {
  return LossReasonName(v1::LOSS_REASON_COLLECTOR_REFUSED);
}

std::string RefusalText(const v1::RefusalRow& refusal) {
  std::string what;
  if (refusal.has_step()) {
    what = absl::StrCat(", ", refusal.records(), " records of step ",
                        refusal.step());
  } else if (!refusal.payload_digest().empty()) {
    what = absl::StrCat(", a piece of a payload of ", refusal.payload_bytes(),
                        " bytes");
  }
  return absl::StrCat("frame ", refusal.sequence(), what, ": ",
                      refusal.reason());
}

// Returns whether any of `first` to `last` is chosen.
bool AnyOf(const IntSet& steps, int64_t first, int64_t last) {
  return steps.all() ||
         absl::c_any_of(steps.intervals(), [&](IntInterval some) {
           return some.first <= last && first <= some.last;
         });
}

// Returns the losses that the process reported, without what has arrived since.
std::optional<v1::Undelivered> StillLost(const v1::IncarnationRow& row) {
  if (!row.has_undelivered()) return std::nullopt;
  v1::Undelivered left = row.undelivered();
  const uint64_t came = row.committed_sequence();
  if (left.last_sequence() == 0 || came <= left.after_sequence()) return left;
  if (came < left.last_sequence()) {
    left.set_reason(absl::StrCat(
        left.reason(), "; as the process said, and frames ",
        left.after_sequence() + 1, " to ", came, " of those up to ",
        left.last_sequence(), " arrived later: less is lost"));
    return left;
  }
  left.set_records(left.unframed_records());
  left.set_payloads(left.unframed_payloads());
  if (left.records() + left.payloads() == 0) return std::nullopt;
  return left;
}

}  // namespace

std::string ProcessDirectory(const v1::StepInfo& step) {
  return step.has_rank() ? absl::StrCat("rank", step.rank())
                         : absl::StrCat("proc", step.pid());
}

std::string LossReasonName(v1::LossReason reason) {
  // A newer agent may send a number that has no name here.
  if (!v1::LossReason_IsValid(reason))
    return absl::StrCat("REASON_", static_cast<int>(reason));
  return std::string(
      absl::StripPrefix(v1::LossReason_Name(reason), "LOSS_REASON_"));
}

std::optional<v1::StepLedger> AccountFrames(const v1::IncarnationRow& row,
                                            const IntSet& steps) {
  const std::optional<v1::Undelivered> left = StillLost(row);
  const bool undelivered =
      left.has_value() && (!left->has_first_step() ||
                           AnyOf(steps, left->first_step(), left->last_step()));
  // Steps with records report their own completeness.
  const bool unheard =
      row.dumping_in() != 0 && AnyOf(steps, row.last_step() + 1, INT64_MAX);
  const bool unnamed =
      row.lost_frames() > 0 ||
      row.refused_frames() > static_cast<uint64_t>(row.refusals_size());
  const bool refused =
      absl::c_any_of(row.refusals(), [&](const v1::RefusalRow& refusal) {
        return !refusal.has_step() || steps.all() ||
               steps.Contains(refusal.step());
      });
  if (!undelivered && !unheard && !unnamed && !refused) return std::nullopt;
  return AccountFrames(row);
}

std::optional<v1::StepLedger> AccountFrames(const v1::IncarnationRow& row) {
  const std::optional<v1::Undelivered> left = StillLost(row);
  if (row.lost_frames() == 0 && row.refused_frames() == 0 &&
      !left.has_value() && row.dumping_in() == 0)
    return std::nullopt;
  v1::StepLedger ledger;
  ledger.set_step(-1);
  if (row.identity().has_rank()) ledger.set_rank(row.identity().rank());
  ledger.set_pid(row.identity().pid());
  ledger.set_host(row.identity().host());
  ledger.set_incarnation(row.identity().incarnation());
  ledger.set_state(v1::StepLedger::STATE_GAPS);
  if (row.lost_frames() > 0) {
    AddGap("COLLECTOR_CRASH", 0, 0,
           absl::StrCat(row.lost_frames(),
                        " frames were committed, not synced, and went with the "
                        "collector's machine; or a leaf has them and has not "
                        "stored them"),
           &ledger);
  }
  const uint64_t named = static_cast<uint64_t>(row.refusals_size());
  if (row.refused_frames() > named) {
    AddGap(RefusedName(), 0, 0,
           absl::StrCat(row.refused_frames() - named,
                        " frames, before those that are named"),
           &ledger);
  }
  for (const v1::RefusalRow& refusal : row.refusals())
    AddGap(RefusedName(), 0, 0, RefusalText(refusal), &ledger);
  if (left.has_value()) {
    AddGap(LossReasonName(v1::LOSS_REASON_PROCESS_EXIT), left->records(),
           left->payloads(),
           absl::StrCat(left->has_first_step()
                            ? absl::StrCat("steps ", left->first_step(), " to ",
                                           left->last_step(), ": ")
                            : "",
                        left->reason()),
           &ledger);
  }
  if (row.dumping_in() != 0) {
    AddGap("NOT_HEARD_OF", 0, 0,
           absl::StrCat("it was dumping when ",
                        row.dumping_in() == kCutOffLife
                            ? "its connection ended without a goodbye"
                            : "the collector ended",
                        ", and has not come back: ",
                        row.committed_sequence() > 0
                            ? absl::StrCat("its newest records here are of "
                                           "step ",
                                           row.last_step())
                            : "none of its records is here",
                        ", what it recorded after that is not known"),
           &ledger);
  }
  return ledger;
}

bool IsDamage(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsOutOfRange(status);
}

std::string UnreadableText(const v1::StepInfo& step, const absl::Status& why) {
  return absl::StrCat("step ", step.step(), " of ",
                      step.has_rank() ? absl::StrCat("rank ", step.rank())
                                      : absl::StrCat("process ", step.pid()),
                      " cannot be read and is left out: ", why.message());
}

v1::StepLedger AccountUnreadable(const v1::StepInfo& info,
                                 const absl::Status& why) {
  v1::StepLedger ledger = Head(info);
  AddGap(LossReasonName(v1::LOSS_REASON_CORRUPT), info.stored_records(),
         info.payloads(),
         absl::StrCat("its records cannot be read: ", why.message()), &ledger);
  ledger.set_stored_records(0);
  ledger.set_state(v1::StepLedger::STATE_GAPS);
  return ledger;
}

v1::StepLedger AccountAway(const std::string& why) {
  v1::StepLedger ledger;
  ledger.set_step(-1);
  ledger.set_state(v1::StepLedger::STATE_GAPS);
  AddGap("LEAF_AWAY", 0, 0, why, &ledger);
  return ledger;
}

v1::StepLedger AccountFault(const std::string& why) {
  v1::StepLedger ledger;
  ledger.set_step(-1);
  ledger.set_state(v1::StepLedger::STATE_GAPS);
  AddGap(LossReasonName(v1::LOSS_REASON_CORRUPT), 0, 0, why, &ledger);
  return ledger;
}

absl::StatusOr<RefusedPayloads> RefusedPayloadsOf(ArchiveReader* store,
                                                  const std::string& run) {
  RefusedPayloads refused;
  RP_RETURN_IF_ERROR(
      store->ForEachIncarnation(run, [&](const v1::IncarnationRow& row) {
        for (const v1::RefusalRow& refusal : row.refusals()) {
          if (!refusal.payload_digest().empty())
            refused.try_emplace(refusal.payload_digest(), RefusalText(refusal));
        }
      }));
  return refused;
}

v1::StepLedger SummarizeStep(const v1::StepInfo& info) {
  v1::StepLedger ledger = Head(info);
  uint64_t lost_payloads = 0;
  if (!info.deleted()) {
    for (const v1::LossCount& loss : info.losses()) {
      lost_payloads = SaturatingAdd(lost_payloads, loss.payloads());
      AddGap(LossReasonName(loss.reason()), loss.records(),
             SaturatingAdd(loss.payloads(), loss.referred_payloads()), "",
             &ledger);
    }
  }
  Close(info, lost_payloads, &ledger);
  return ledger;
}

v1::StepLedger AccountStep(
    const v1::StepInfo& info, const StepView& view,
    const std::vector<PayloadFile>& missing,
    const absl::flat_hash_set<const v1::TensorSummary*>& unreadable,
    const DamageFn& damage, const RefusedPayloads& refused) {
  v1::StepLedger ledger = Head(info);
  uint64_t lost_payloads = 0;
  if (!info.deleted()) {
    for (const PayloadFile& file : missing) {
      const v1::LossReason lost = file.tensor->payload().lost();
      std::string why = damage(*file.tensor);
      std::string reason = LossReasonName(lost);
      if (unreadable.contains(file.tensor) || !why.empty()) {
        reason = "CORRUPT";
      } else if (lost == v1::LOSS_REASON_UNSPECIFIED) {
        const auto refusal = refused.find(file.tensor->payload().digest());
        reason = refusal == refused.end() ? "NOT_STORED" : RefusedName();
        if (refusal != refused.end()) why = refusal->second;
      }
      AddGap(reason, 0, 1,
             why.empty() ? file.file_name
                         : absl::StrCat(file.file_name, ": ", why),
             &ledger);
      ledger.mutable_gaps(ledger.gaps_size() - 1)->set_entry(file.entry);
    }
    ledger.set_stored_payloads(info.payloads() -
                               std::min(info.payloads(), missing.size()));
    for (const v1::LossEvent& loss : view.losses) {
      // What the plan leaves out is not a gap. A loss with only bytes belongs
      // to a payload whose records are here and count it.
      if (loss.reason() == v1::LOSS_REASON_FILTERED ||
          (loss.records() == 0 && loss.payloads() == 0 && loss.bytes() == 0))
        continue;
      lost_payloads = SaturatingAdd(lost_payloads, loss.payloads());
      AddGap(LossReasonName(loss.reason()), loss.records(), loss.payloads(),
             loss.detail(), &ledger);
      ledger.mutable_gaps(ledger.gaps_size() - 1)->set_entry(loss.entry());
    }
  }
  Close(info, lost_payloads, &ledger);
  return ledger;
}

DamageFn DamageOf(ArchiveReader* store, const std::string& run) {
  return [store, run](const v1::TensorSummary& tensor) {
    return store->PayloadDamage(run, tensor.payload().digest(),
                                tensor.payload().length_bytes());
  };
}

absl::StatusOr<v1::StepLedger> AccountStep(ArchiveReader* store,
                                           const std::string& run,
                                           const v1::StepInfo& info,
                                           const RefusedPayloads& refused) {
  if (info.deleted()) return SummarizeStep(info);
  StepKey key{
      .run = run, .step = info.step(), .incarnation = info.incarnation()};
  const absl::StatusOr<StepView> loaded = LoadStep(store, key);
  if (IsDamage(loaded.status()))
    return AccountUnreadable(info, loaded.status());
  RP_RETURN_IF_ERROR(loaded.status());
  const StepView& view = *loaded;
  std::vector<PayloadFile> files, missing;
  // Only the writer of dump.json knows a tensor's entry and file.
  DumpJson(
      view, "",
      [&](const v1::TensorSummary& tensor) {
        return store->HasPayload(run, tensor.payload().digest(),
                                 tensor.payload().length_bytes());
      },
      &files, &missing);
  return AccountStep(info, view, missing, {}, DamageOf(store, run), refused);
}

std::string GapText(const v1::LedgerGap& gap) {
  std::string text = absl::StrCat("lost ", gap.reason(), ":");
  if (gap.records() > 0) absl::StrAppend(&text, " ", gap.records(), " records");
  if (gap.payloads() > 0) {
    absl::StrAppend(&text, gap.records() > 0 ? "," : "", " ", gap.payloads(),
                    " payloads");
  }
  if (!gap.entry().empty()) absl::StrAppend(&text, " of ", gap.entry());
  if (!gap.detail().empty()) absl::StrAppend(&text, " (", gap.detail(), ")");
  return text;
}

}  // namespace rankprobe
