// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/rollup.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "collector/archive/load_step.h"
#include "collector/archive/rollup_block.h"
#include "common/base/status_macros.h"
#include "dump_format/statistics_json.h"

namespace rankprobe {
namespace {

// Limit for names of either kind in a run. If a run has more, its names do not
// repeat, so there is nothing to query over steps.
constexpr uint32_t kMaxNames = 1 << 20;
constexpr uint32_t kMaxLayouts = 1 << 20;
constexpr size_t kMaxDictionaries = 4;
constexpr size_t kPortion = 256;
constexpr int kMaxTries = 4;

std::string NameKey(bool given, absl::string_view entry,
                    absl::string_view value, uint32_t nth) {
  return absl::StrCat(given ? "<" : ">", nth, " ", entry.size(), " ", entry,
                      value);
}

std::string LayoutKey(const v1::RollupLayout& layout) {
  return layout.SerializeAsString();
}

uint64_t ZigZag(int64_t value) {
  return static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63);
}

}  // namespace

bool IsGiven(CallSection section) {
  return section == CallSection::kInputArgs ||
         section == CallSection::kInputKwargs ||
         section == CallSection::kParameters || section == CallSection::kInput;
}

void AddToSummary(bool given, const v1::TensorSummary& tensor,
                  StepSummary* summary) {
  ++summary->values;
  if (const auto number = StatisticOf(tensor, kMax); number.has_value())
    summary->max.Add(*number, /*smallest=*/false);
  if (const auto number = StatisticOf(tensor, kMin); number.has_value())
    summary->min.Add(*number, /*smallest=*/true);
  if (given) return;
  ++summary->made;
  if (const auto number = StatisticOf(tensor, kNorm); number.has_value())
    summary->norm.Add(*number, /*smallest=*/false);
}

// Returns the ids of a step's values in order. Steps usually have the same
// values in the same order: as long as they equal those of the step before, so
// do the ids, and no name is looked up.
class RollupMaker::IdsOfStep {
 public:
  explicit IdsOfStep(Dictionary* names) : names_(names) {}

  absl::StatusOr<uint32_t> Next(
      bool given, const std::string& entry, absl::string_view value,
      std::vector<std::pair<uint32_t, v1::RollupName>>* new_names) {
    std::vector<Dictionary::Value>& last = names_->last_step;
    if (as_before_ && next_ < last.size()) {
      const Dictionary::Value& before = last[next_];
      const absl::string_view names =
          absl::string_view(names_->last_names).substr(next_name_);
      if (before.given == given && before.entry_bytes == entry.size() &&
          before.value_bytes == value.size() &&
          absl::StartsWith(names, entry) &&
          absl::StartsWith(names.substr(entry.size()), value)) {
        ++next_;
        next_name_ += entry.size() + value.size();
        return before.id;
      }
    }
    if (std::exchange(as_before_, false)) {
      Shorten();
      for (const Dictionary::Value& before : last) seen_.insert(before.id);
    }
    RP_ASSIGN_OR_RETURN(const uint32_t id,
                        LookUp(given, entry, value, new_names));
    last.push_back({given, id, entry.size(), value.size()});
    absl::StrAppend(&names_->last_names, entry, value);
    return id;
  }
  // Called after the last value.
  void Finish() {
    if (as_before_) Shorten();
  }

 private:
  // Keeps the values that the step has in common with the one before.
  void Shorten() {
    names_->last_step.resize(next_);
    names_->last_names.resize(next_name_);
  }

  absl::StatusOr<uint32_t> LookUp(
      bool given, const std::string& entry, absl::string_view value,
      std::vector<std::pair<uint32_t, v1::RollupName>>* new_names) {
    for (uint32_t nth = 0;; ++nth) {
      const auto [it, is_new] =
          names_->ids.try_emplace(NameKey(given, entry, value, nth), 0);
      if (is_new) {
        uint32_t& next = given ? names_->next_given : names_->next_made;
        if (next % kFirstGivenValue >= kMaxNames) {
          return absl::OutOfRangeError(
              absl::StrCat("more than ", kMaxNames, " names of values"));
        }
        it->second = next++;
        v1::RollupName name;
        name.set_entry(entry);
        name.set_value(std::string(value));
        name.set_nth(nth);
        new_names->emplace_back(it->second, std::move(name));
      }
      if (seen_.insert(it->second).second) return it->second;
    }
  }

  Dictionary* const names_;
  // All values so far equal those of the step before; then seen_ is empty.
  bool as_before_ = true;
  size_t next_ = 0, next_name_ = 0;
  absl::flat_hash_set<uint32_t> seen_;
};

absl::StatusOr<RollupMaker::Dictionary*> RollupMaker::Load(uint32_t run) {
  const auto it = dictionaries_.find(run);
  if (it != dictionaries_.end()) return &it->second;
  Dictionary dictionary;
  RP_RETURN_IF_ERROR(store_->ForEachRollupName(
      run, [&](uint32_t id, const v1::RollupName& name) {
        const bool given = id >= kFirstGivenValue;
        dictionary.ids[NameKey(given, name.entry(), name.value(), name.nth())] =
            id;
        uint32_t& next = given ? dictionary.next_given : dictionary.next_made;
        next = std::max(next, id + 1);
        return absl::OkStatus();
      }));
  RP_RETURN_IF_ERROR(store_->ForEachRollupLayout(
      run, [&](uint32_t number, const v1::RollupLayout& layout) {
        dictionary.layouts[LayoutKey(layout)] = number;
        dictionary.next_layout = std::max(dictionary.next_layout, number + 1);
        return absl::OkStatus();
      }));
  if (dictionaries_.size() >= kMaxDictionaries) dictionaries_.clear();
  return &(dictionaries_[run] = std::move(dictionary));
}

absl::Status RollupMaker::RollUp(const PendingRollup& step) {
  RP_ASSIGN_OR_RETURN(Dictionary* const names, Load(step.run_number));
  // Counted here, not taken from the row: a record that arrives while the step
  // is read must make the rollup invalid.
  RollupRows rows;
  uint64_t records = 0;
  RP_ASSIGN_OR_RETURN(const StepView view,
                      LoadStep(store_, step.key, &records));
  rows.head.set_records(records);
  std::map<uint32_t, RollupBlockWriter> blocks;
  IdsOfStep ids(names);
  v1::RollupLayout layout;
  int64_t last_made = -1, last_given = int64_t{kFirstGivenValue} - 1;
  StepSummary summary;
  absl::Status status;
  const auto add = [&](const std::string& entry, CallSection section,
                       absl::string_view value,
                       const v1::TensorSummary& tensor) -> absl::Status {
    const bool given = IsGiven(section);
    RP_ASSIGN_OR_RETURN(const uint32_t id,
                        ids.Next(given, entry, value, &rows.names));
    int64_t& last = given ? last_given : last_made;
    layout.add_order(ZigZag(int64_t{id} - last) << 1 | (given ? 1 : 0));
    last = id;
    RollupBlockWriter& block = blocks[id / kRollupBlockValues];
    AddToSummary(given, tensor, &summary);
    for (size_t stat = 0; stat < kStatCount; ++stat) {
      const std::optional<double> number =
          StatisticOf(tensor, static_cast<Stat>(stat));
      if (!number.has_value()) continue;
      block.Put(id % kRollupBlockValues, static_cast<Stat>(stat), *number);
    }
    return absl::OkStatus();
  };
  for (const v1::CallPhase& call : view.calls) {
    ForEachNamedTensor(call, [&](TensorPlace at, absl::string_view name,
                                 const v1::TensorSummary& tensor) {
      if (status.ok()) status = add(call.entry(), at.section, name, tensor);
    });
    RP_RETURN_IF_ERROR(status);
  }
  for (const auto& [block, writer] : blocks) {
    writer.AppendTo(block, &rows.columns);
    const int intervals = layout.blocks_size();
    if (intervals > 0 && layout.blocks(intervals - 1) + 1 == block) {
      layout.set_blocks(intervals - 1, block);
    } else {
      layout.add_blocks(block);
      layout.add_blocks(block);
    }
  }
  for (const RollupColumnRow& column : rows.columns)
    layout.set_statistics(layout.statistics() | 1u << column.statistic);
  const auto [it, is_new] =
      names->layouts.try_emplace(LayoutKey(layout), names->next_layout);
  if (is_new) {
    if (names->next_layout >= kMaxLayouts)
      return absl::OutOfRangeError("too many sets of calls");
    ++names->next_layout;
    rows.layouts.emplace_back(it->second, layout);
  }
  rows.head.set_layout(it->second);
  FillHead(summary, &rows.head);
  ids.Finish();
  return store_->WriteRollup(step, rows);
}

RollupMaker::Report RollupMaker::RollUpPending(
    absl::FunctionRef<bool()> cancelled) {
  Report report;
  // If records arrive while a step is rolled up, it is rolled up again.
  absl::flat_hash_map<std::pair<int64_t, uint64_t>, int> tries;
  for (;;) {
    const std::vector<PendingRollup> steps = store_->PendingRollups(kPortion);
    if (steps.empty()) return report;
    for (const PendingRollup& step : steps) {
      if (cancelled()) return report;
      absl::Status status = RollUp(step);
      if (++tries[{step.key.step, step.key.incarnation}] > kMaxTries)
        status = absl::AbortedError("its records change all the time");
      if (status.ok()) {
        ++report.steps;
        continue;
      }
      // Names that it has added may not have been stored.
      dictionaries_.erase(step.run_number);
      if (absl::IsFailedPrecondition(status)) continue;  // deleted meanwhile
      // The disk is full, or the store takes no writes: later steps would fail
      // too.
      if (absl::IsResourceExhausted(status) || absl::IsUnavailable(status))
        return report;
      store_->SetRollupAside(step);
      ++report.aside;
      report.why = status;
    }
  }
}

}  // namespace rankprobe
