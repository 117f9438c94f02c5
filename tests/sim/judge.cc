// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/judge.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/archive/ledger.h"
#include "collector/store/store.h"

namespace rankprobe::sim {
namespace {

constexpr size_t kMaxFaults = 20;

}  // namespace

// Those for which there was no room; and those that a rank took for stored when
// they went with the collector's machine.
bool Judge::MayBeMissing(const v1::LedgerGap& gap) const {
  if (gap.reason() == LossReasonName(v1::LOSS_REASON_COLLECTOR_DISK))
    return facts_->disk_was_full;
  return gap.reason() == "NOT_STORED" && facts_->machine_crashed;
}

Judge::Judge(const Facts* facts) : facts_(facts) {
  for (const Told& told : facts_->told) {
    if (told.for_steps == 0) continue;
    bool loose = told.result.ranks().empty() || told.result.waits();
    for (const Life& life : facts_->lives) {
      loose = loose || (!life.plans.empty() &&
                        life.plans.front().epoch == told.result.epoch());
    }
    if (loose) loose_epochs_.insert(told.result.epoch());
  }
}

void Judge::Fault(std::string text) {
  if (faults_.size() < kMaxFaults) faults_.push_back(std::move(text));
}

uint64_t Judge::CheckRecords(ArchiveReader* store, const std::string& place,
                             const Life& life, int64_t step,
                             const v1::StepInfo& info, bool whole) {
  const std::vector<Payload> payloads = PayloadsOf(life.rank, step);
  StepKey key;
  key.run = kRun;
  key.step = step;
  key.rank = life.rank;
  key.pid = life.pid;
  key.incarnation = life.incarnation;
  std::set<uint64_t> orders;
  uint64_t right = 0;
  const absl::Status read =
      store->ForEachRecord(key, [&](const v1::Record& record) {
        if (record.order() >= kFirstAddedOrder) return absl::OkStatus();
        if (!orders.insert(record.order()).second) {
          Fault(absl::StrCat(place, "record ", record.order(), " twice"));
          return absl::OkStatus();
        }
        const bool is_call =
            record.order() > 0 && record.order() < kRecordsPerStep - 1;
        if (is_call != record.has_call()) {
          Fault(absl::StrCat(place, "record ", record.order(), " is another"));
          return absl::OkStatus();
        }
        if (!is_call) {
          ++right;
          return absl::OkStatus();
        }
        const int call = static_cast<int>(record.order()) - 1;
        const Payload& payload =
            payloads[static_cast<size_t>(call) % payloads.size()];
        if (record.call().entry() != EntryOf(call) ||
            record.call().output().items_size() != 1) {
          Fault(absl::StrCat(place, "call ", call, " is ",
                             record.call().entry()));
          return absl::OkStatus();
        }
        const v1::PayloadRef& ref =
            record.call().output().items(0).tensor().payload();
        if (ref.lost() != v1::LOSS_REASON_UNSPECIFIED) return absl::OkStatus();
        if (ref.digest() !=
            std::string(payload.digest.begin(), payload.digest.end())) {
          Fault(absl::StrCat(place, "call ", call, " has another digest"));
          return absl::OkStatus();
        }
        std::string data;
        const absl::Status got =
            store->ReadPayload(kRun, ref.digest(), ref.length_bytes(),
                               [&](absl::string_view piece) {
                                 data.append(piece.data(), piece.size());
                                 return absl::OkStatus();
                               });
        if (got.ok() && data != payload.data) {
          Fault(absl::StrCat(place, "call ", call, " has other bytes"));
        } else if (!got.ok() && whole) {
          Fault(absl::StrCat(place, "call ", call, ": ", got.message()));
        } else {
          ++right;
        }
        return absl::OkStatus();
      });
  if (!read.ok()) Fault(absl::StrCat(place, read.message()));
  (void)info;
  return right;
}

void Judge::CheckStep(ArchiveReader* store, const Life& life, int64_t step,
                      const StepFact& fact, const v1::StepInfo* info) {
  const std::string place = absl::StrCat(
      "rank ", life.rank, " step ", step, " (epoch ", fact.epoch,
      fact.synced      ? ", synced"
      : fact.committed ? ", committed"
                       : "",
      fact.at_risk ? ", at risk" : "", fact.shed ? ", shed" : "", "): ");
  const bool must =
      (fact.synced || (fact.committed && !fact.at_risk)) && !fact.shed;
  if (info == nullptr) {
    if (must) Fault(absl::StrCat(place, "acknowledged, and not there"));
    return;
  }
  const absl::StatusOr<v1::StepLedger> ledger =
      AccountStep(store, kRun, *info, {});
  if (!ledger.ok())
    return Fault(absl::StrCat(place, ledger.status().message()));
  uint64_t lost = 0;
  // Payloads alone, for a reason that the ledger gives.
  bool named = true;
  std::string gaps;
  for (const v1::LedgerGap& gap : ledger->gaps()) {
    lost += gap.records();
    named = named && gap.records() == 0 && MayBeMissing(gap);
    absl::StrAppend(&gaps, GapText(gap), "; ");
  }
  const bool whole = ledger->state() == v1::StepLedger::STATE_WHOLE;
  if (must && !whole && loose_epochs_.count(fact.epoch) == 0 &&
      !(named && !gaps.empty())) {
    Fault(absl::StrCat(place, "acknowledged, and ",
                       v1::StepLedger::State_Name(ledger->state()), ", ",
                       ledger->stored_records(), " records; ", gaps));
  }
  if (ledger->filtered_calls() > 0 && loose_epochs_.count(fact.epoch) == 0)
    Fault(absl::StrCat(place, ledger->filtered_calls(), " calls left out"));
  if (ledger->has_expected_records() &&
      (ledger->expected_records() != kRecordsPerStep ||
       ledger->stored_records() + lost != kRecordsPerStep)) {
    Fault(absl::StrCat(place, "the ledger does not add up: ",
                       ledger->stored_records(), " stored, ", lost, " lost of ",
                       ledger->expected_records(), "; ", gaps));
  }
  const uint64_t right =
      CheckRecords(store, place, life, step, *info, whole && must);
  if (must && whole && right != kRecordsPerStep)
    Fault(absl::StrCat(place, "whole, and ", right, " records can be read"));
  if (must && whole) ++whole_;
}

void Judge::CheckArchive(ArchiveReader* archive) {
  std::map<std::pair<uint64_t, int64_t>, v1::StepInfo> infos;
  if (const auto steps = archive->ListSteps(kRun); steps.ok()) {
    for (const v1::StepInfo& info : *steps) {
      if (!infos.emplace(std::pair(info.incarnation(), info.step()), info)
               .second)
        Fault(absl::StrCat("step ", info.step(), " is listed twice"));
    }
  } else if (!absl::IsNotFound(steps.status())) {
    Fault(absl::StrCat("steps: ", steps.status().message()));
  }
  for (const Life& life : facts_->lives) {
    for (const auto& [step, fact] : life.steps) {
      const auto info = infos.find({life.incarnation, step});
      CheckStep(archive, life, step, fact,
                info == infos.end() ? nullptr : &info->second);
      if (info != infos.end()) infos.erase(info);
    }
  }
  for (const auto& [key, info] : infos) {
    Fault(absl::StrCat("rank ", info.rank(), " step ", info.step(),
                       ": nobody recorded it"));
  }
}

v1::VerifyRequest ReadAllData() {
  v1::VerifyRequest request;
  request.set_read_data(true);
  return request;
}

void Judge::CheckFiles(Store* store) {
  CheckReport("store",
              store->Verify(ReadAllData(), [](const v1::VerifyReport&) {
                return absl::OkStatus();
              }));
}

void Judge::CheckReport(const char* of,
                        const absl::StatusOr<v1::VerifyReport>& report) {
  if (!report.ok())
    return Fault(absl::StrCat("verify ", of, ": ", report.status().message()));
  for (const std::string& fault : report->faults())
    Fault(absl::StrCat("verify ", of, ": ", fault));
}

bool Judge::Followed(const Told& told) {
  return std::any_of(told.result.ranks().begin(), told.result.ranks().end(),
                     [](const v1::RankSwitch& rank) {
                       return rank.state() == v1::RankSwitch::STATE_APPLIED ||
                              rank.state() == v1::RankSwitch::STATE_PREPARED;
                     });
}

void Judge::CheckAnswer(const Told& told) {
  const uint64_t epoch = told.result.epoch();
  const int64_t step = told.result.effective_at_step();
  for (const v1::RankSwitch& rank : told.result.ranks()) {
    if (rank.state() != v1::RankSwitch::STATE_APPLIED) {
      if (rank.reason().empty() &&
          rank.state() != v1::RankSwitch::STATE_PREPARED) {
        Fault(absl::StrCat("epoch ", epoch, ": rank ", rank.rank(),
                           " did not follow and no reason is given"));
      }
      continue;
    }
    ++applied_;
    const PlanFact* first = nullptr;
    // It had no step before: that is no later than the one that was announced.
    bool begins = false;
    for (const Life& life : facts_->lives) {
      if (life.pid != rank.pid()) continue;
      for (const PlanFact& fact : life.plans) {
        if (fact.epoch != epoch || first != nullptr) continue;
        first = &fact;
        begins = first == &life.plans.front();
      }
    }
    const std::string place =
        absl::StrCat("epoch ", epoch, ": rank ", rank.rank());
    if (first == nullptr) {
      Fault(absl::StrCat(place, " was reported and never ran it"));
    } else if (first->step != rank.applied_step()) {
      Fault(absl::StrCat(place, " was reported at step ", rank.applied_step(),
                         " and ran it at ", first->step));
    } else if (first->step != step && !begins && rank.reason().empty()) {
      Fault(absl::StrCat(place, " ran it at step ", first->step, " and not at ",
                         step, ", and is not named"));
    } else if (first->enabled != told.On(first->step)) {
      Fault(absl::StrCat(place, " ran it the wrong way round"));
    }
  }
}

void Judge::CheckLife(const Life& life,
                      const std::map<uint64_t, const Told*>& by_epoch) {
  uint64_t newest = 0;
  for (const PlanFact& fact : life.plans) {
    const std::string place = absl::StrCat("rank ", life.rank, ", step ",
                                           fact.step, ", epoch ", fact.epoch);
    if (fact.epoch < newest)
      Fault(absl::StrCat(place, ": it had been in ", newest));
    newest = std::max(newest, fact.epoch);
    const auto it = by_epoch.find(fact.epoch);
    if (it == by_epoch.end()) continue;
    const Told& told = *it->second;
    if (loose_epochs_.count(fact.epoch) > 0) continue;
    if (fact.step < told.result.effective_at_step()) {
      Fault(absl::StrCat(place, ": before its step ",
                         told.result.effective_at_step()));
    }
    if (fact.enabled != told.On(fact.step)) {
      Fault(absl::StrCat(place, ": dumping is ", fact.enabled,
                         ", announced was ", told.On(fact.step)));
    }
  }
}

void Judge::CheckSwitches() {
  std::map<uint64_t, const Told*> by_epoch;
  for (const Told& told : facts_->told) {
    CheckAnswer(told);
    // One that nobody followed may have gone with the machine, and its number
    // is given again.
    const Told*& known = by_epoch[told.result.epoch()];
    if (known != nullptr && Followed(*known))
      Fault(absl::StrCat("epoch ", told.result.epoch(), " was given twice"));
    known = &told;
  }
  std::map<uint64_t, std::string> plans;
  // What nobody was said to follow may not have been agreed on, and its number
  // may have been given again to a switch that was never answered.
  std::erase_if(by_epoch, [](const auto& one) {
    return !one.second->result.ranks().empty() && !Followed(*one.second);
  });
  for (const Life& life : facts_->lives) {
    CheckLife(life, by_epoch);
    for (const PlanFact& fact : life.plans) {
      if (fact.epoch == 0) continue;
      const auto [it, fresh] = plans.emplace(fact.epoch, fact.plan);
      if (!fresh && it->second != fact.plan) {
        Fault(absl::StrCat("epoch ", fact.epoch, " is ", it->second,
                           " and, in rank ", life.rank, ", ", fact.plan));
      }
    }
  }
}

}  // namespace rankprobe::sim
