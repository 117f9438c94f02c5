// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/rollup_reader.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "collector/archive/rollup.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

// Numbers in memory at a time.
constexpr size_t kMaxNumbers = 1 << 22;
constexpr size_t kMaxLayoutPlaces = 1 << 22;

int64_t UnZigZag(uint64_t value) {
  return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
}

}  // namespace

absl::Status RollupReader::Open(const std::string& run,
                                absl::FunctionRef<std::optional<std::string>(
                                    bool given, const v1::RollupName& name)>
                                    wanted) {
  RP_ASSIGN_OR_RETURN(run_, store_->RunNumber(run));
  std::map<uint32_t, std::vector<uint32_t>> ids;
  RP_RETURN_IF_ERROR(store_->ForEachRollupName(
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
  struct Range {
    int64_t first = std::numeric_limits<int64_t>::max(), last = 0;
  };
  std::map<uint64_t, Range> ranges;
  for (const v1::StepInfo& step : steps) {
    Range& range = ranges[step.incarnation()];
    range.first = std::min(range.first, step.step());
    range.last = std::max(range.last, step.step());
    rows_.try_emplace({step.incarnation(), step.step()});
  }
  for (const auto& [incarnation, range] : ranges) {
    const auto find = [&, of = incarnation](int64_t step) -> Row* {
      const auto it = rows_.find(std::make_pair(of, step));
      return it == rows_.end() ? nullptr : &it->second;
    };
    const ProcessRange steps_of{incarnation, static_cast<uint64_t>(range.first),
                                static_cast<uint64_t>(range.last)};
    RP_RETURN_IF_ERROR(store_->ForEachHeadIn(
        run_, {&steps_of, 1},
        [&](size_t, int64_t step, const v1::RollupHead& head) {
          Row* const row = find(step);
          if (row == nullptr) return absl::OkStatus();
          row->records = head.records();
          row->layout = head.layout();
          row->numbers.resize(places_.size() * stats_.size());
          row->there.resize(row->numbers.size());
          return absl::OkStatus();
        }));
    size_t first = 0;
    for (const auto& [block, of_block] : blocks_) {
      RP_RETURN_IF_ERROR(store_->ForEachRollupBlock(
          run_, incarnation, block, range.first, range.last,
          [&, &ids = of_block](int64_t step, absl::string_view bytes) {
            Row* const row = find(step);
            if (row == nullptr || row->numbers.empty()) return absl::OkStatus();
            return TakeNumbers(bytes, ids, first * stats_.size(), row);
          }));
      first += of_block.size();
    }
  }
  return absl::OkStatus();
}

absl::Status RollupReader::TakeNumbers(absl::string_view block,
                                       absl::Span<const uint32_t> ids,
                                       size_t first, Row* row) const {
  for (size_t stat = 0; stat < stats_.size(); ++stat) {
    RP_ASSIGN_OR_RETURN(const RollupColumn column,
                        RollupColumn::Find(block, stats_[stat]));
    for (size_t i = 0; i < ids.size(); ++i) {
      const uint32_t slot = ids[i] % kRollupBlockValues;
      if ((column.present() >> slot & 1) == 0) continue;
      const size_t at = first + i * stats_.size() + stat;
      row->numbers[at] = column.At(slot);
      row->there[at] = true;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<const RollupReader::Layout*> RollupReader::LayoutOf(
    uint32_t number) {
  const auto it = layouts_.find(number);
  if (it != layouts_.end()) return &it->second;
  RP_ASSIGN_OR_RETURN(const std::optional<v1::RollupLayout> stored,
                      store_->FindRollupLayout(run_, number));
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
  // Calls that are others in each step would fill the memory.
  if (layouts_.size() * (places_.size() + 1) > kMaxLayoutPlaces)
    layouts_.clear();
  return &(layouts_[number] = std::move(layout));
}

absl::StatusOr<bool> RollupReader::ForEachValue(
    const v1::StepInfo& step,
    absl::FunctionRef<absl::Status(const Name&,
                                   absl::Span<const std::optional<double>>)>
        visit) {
  const auto it = rows_.find(std::make_pair(step.incarnation(), step.step()));
  if (it == rows_.end() || it->second.records == 0 ||
      it->second.records != step.records())
    return false;
  const Row& row = it->second;
  RP_ASSIGN_OR_RETURN(const Layout* const layout, LayoutOf(row.layout));
  for (const Place* const place : *layout) {
    for (size_t stat = 0; stat < stats_.size(); ++stat) {
      const size_t at = place->number * stats_.size() + stat;
      numbers_[stat].reset();
      if (row.there[at]) numbers_[stat] = row.numbers[at];
    }
    RP_RETURN_IF_ERROR(visit(place->name, numbers_));
  }
  return true;
}

}  // namespace rankprobe
