// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/rollup_reader.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "collector/archive/ledger.h"
#include "collector/archive/rollup.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

// Limit for numbers in memory.
constexpr size_t kMaxNumbers = 1 << 22;
constexpr size_t kMaxLayoutPlaces = 1 << 22;

int64_t UnZigZag(uint64_t value) {
  return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
}

}  // namespace

absl::Status RollupReader::Open(const std::string& run, WantedName wanted) {
  if (series_ == nullptr) return absl::OkStatus();
  absl::Status status = ReadNames(run, wanted);
  if (!IsDamage(status)) return status;
  any_ = false;
  places_.clear();
  blocks_.clear();
  return absl::OkStatus();
}

absl::Status RollupReader::ReadNames(const std::string& run,
                                     WantedName wanted) {
  RP_ASSIGN_OR_RETURN(run_, series_->RunNumber(run));
  std::map<uint32_t, std::vector<uint32_t>> ids;
  RP_RETURN_IF_ERROR(series_->ForEachRollupName(
      run_, [&](uint32_t id, const v1::RollupName& name) {
        any_ = true;
        std::optional<std::string> value = wanted(id >= kFirstGivenValue, name);
        if (!value.has_value()) return absl::OkStatus();
        Place& place = places_[id];
        place.name.entry = name.entry();
        place.name.value = *std::move(value);
        ids[id / kRollupBlockValues].push_back(id);
        return absl::OkStatus();
      }));
  size_t next = 0;
  for (auto& [block, of_block] : ids) {
    for (const uint32_t id : of_block) places_[id].number = next++;
    blocks_.emplace_back(block, std::move(of_block));
  }
  return absl::OkStatus();
}

size_t RollupReader::portion() const {
  return std::max<size_t>(kMaxNumbers / (places_.size() * stats_.size() + 1),
                          1);
}

absl::Status RollupReader::Read(absl::Span<const v1::StepInfo> steps) {
  rows_.clear();
  if (!any_) return absl::OkStatus();
  absl::Status status = ReadRows(steps);
  if (!IsDamage(status)) return status;
  rows_.clear();
  return absl::OkStatus();
}

absl::Status RollupReader::ReadRows(absl::Span<const v1::StepInfo> steps) {
  rows_.reserve(steps.size());
  for (const v1::StepInfo& step : steps) {
    Row& row = rows_.emplace_back();
    row.incarnation = step.incarnation();
    row.step = step.step();
  }
  const auto before = [](const Row& a, const Row& b) {
    return std::tie(a.incarnation, a.step) < std::tie(b.incarnation, b.step);
  };
  if (!std::is_sorted(rows_.begin(), rows_.end(), before))
    std::sort(rows_.begin(), rows_.end(), before);
  of_rows_.assign(rows_.size() * places_.size() * stats_.size(), 0);
  there_.assign(of_rows_.size(), false);
  for (size_t begin = 0, end = 0; begin < rows_.size(); begin = end) {
    const uint64_t incarnation = rows_[begin].incarnation;
    while (end < rows_.size() && rows_[end].incarnation == incarnation) ++end;
    const int64_t first_step = rows_[begin].step;
    const int64_t last_step = rows_[end - 1].step;
    const ProcessRange steps_of{incarnation, static_cast<uint64_t>(first_step),
                                static_cast<uint64_t>(last_step)};
    RP_RETURN_IF_ERROR(series_->ForEachHeadIn(
        run_, {&steps_of, 1},
        [&](size_t, int64_t step, const v1::RollupHead& head) {
          const size_t at = FindRow(incarnation, step);
          if (at == rows_.size()) return absl::OkStatus();
          rows_[at].records = head.records();
          rows_[at].layout = head.layout();
          rows_[at].has_head = true;
          return absl::OkStatus();
        }));
    size_t first = 0;
    for (const auto& [block, of_block] : blocks_) {
      for (size_t stat = 0; stat < stats_.size(); ++stat) {
        RP_RETURN_IF_ERROR(series_->ForEachRollupColumn(
            run_, incarnation, block, static_cast<uint8_t>(stats_[stat]),
            first_step, last_step,
            [&, &ids = of_block](int64_t step, absl::string_view bytes) {
              const size_t row = FindRow(incarnation, step);
              if (row == rows_.size() || !rows_[row].has_head)
                return absl::OkStatus();
              return TakeNumbers(bytes, ids, first * stats_.size(), stat, row);
            }));
      }
      first += of_block.size();
    }
  }
  return absl::OkStatus();
}

size_t RollupReader::FindRow(uint64_t incarnation, int64_t step) {
  const auto is = [&](size_t at) {
    return at < rows_.size() && rows_[at].step == step &&
           rows_[at].incarnation == incarnation;
  };
  if (!is(next_row_)) {
    const auto it = std::lower_bound(
        rows_.begin(), rows_.end(), std::make_pair(incarnation, step),
        [](const Row& row, const std::pair<uint64_t, int64_t>& wanted) {
          return std::tie(row.incarnation, row.step) <
                 std::tie(wanted.first, wanted.second);
        });
    next_row_ = static_cast<size_t>(it - rows_.begin());
    if (!is(next_row_)) return rows_.size();
  }
  return next_row_++;
}

absl::Status RollupReader::TakeNumbers(absl::string_view column_row,
                                       absl::Span<const uint32_t> ids,
                                       size_t first, size_t stat, size_t row) {
  RP_ASSIGN_OR_RETURN(const RollupColumn column,
                      RollupColumn::Parse(column_row, stats_[stat]));
  const size_t begin = row * places_.size() * stats_.size();
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint32_t slot = ids[i] % kRollupBlockValues;
    if ((column.present() >> slot & 1) == 0) continue;
    const size_t at = begin + first + i * stats_.size() + stat;
    of_rows_[at] = column.At(slot);
    there_[at] = true;
  }
  return absl::OkStatus();
}

absl::StatusOr<const RollupReader::Layout*> RollupReader::LayoutOf(
    uint32_t number) {
  const auto it = layouts_.find(number);
  if (it != layouts_.end()) return &it->second;
  RP_ASSIGN_OR_RETURN(const std::optional<v1::RollupLayout> stored,
                      series_->FindRollupLayout(run_, number));
  if (!stored.has_value())
    return absl::DataLossError("the layout of a rollup is missing");
  Layout layout;
  int64_t last_made = -1, last_given = int64_t{kFirstGivenValue} - 1;
  for (const uint64_t code : stored->order()) {
    int64_t& last = (code & 1) != 0 ? last_given : last_made;
    last += UnZigZag(code >> 1);
    const auto place = places_.find(static_cast<uint32_t>(last));
    if (place != places_.end()) layout.push_back(&place->second);
  }
  // Bounds the memory if each step has different calls.
  if (layouts_.size() * (places_.size() + 1) > kMaxLayoutPlaces)
    layouts_.clear();
  return &(layouts_[number] = std::move(layout));
}

absl::StatusOr<bool> RollupReader::ForEachValue(
    const v1::StepInfo& step,
    absl::FunctionRef<absl::Status(const Name&,
                                   absl::Span<const std::optional<double>>)>
        visit) {
  const size_t number = FindRow(step.incarnation(), step.step());
  if (number == rows_.size() || rows_[number].records == 0 ||
      rows_[number].records != step.records())
    return false;
  const Row& row = rows_[number];
  const size_t begin = number * places_.size() * stats_.size();
  const absl::StatusOr<const Layout*> layout = LayoutOf(row.layout);
  if (IsDamage(layout.status())) return false;
  RP_RETURN_IF_ERROR(layout.status());
  for (const Place* const place : **layout) {
    for (size_t stat = 0; stat < stats_.size(); ++stat) {
      const size_t at = begin + place->number * stats_.size() + stat;
      numbers_[stat].reset();
      if (there_[at]) numbers_[stat] = of_rows_[at];
    }
    RP_RETURN_IF_ERROR(visit(place->name, numbers_));
  }
  return true;
}

}  // namespace rankprobe
