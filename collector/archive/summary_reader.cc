// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/summary_reader.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

constexpr size_t kTilePortion = 256;
constexpr auto kMaxStepNumber =
    static_cast<uint64_t>(std::numeric_limits<int64_t>::max());

// Steps of a slot, as a power of two.
int SlotBits(int level) { return (level - 1) * kSummaryBits; }

// The part of a requested range that is still to be read.
struct Gap {
  size_t range = 0;
  ProcessRange steps;
};

// Reads the rows of one level, and adds what they lack to `gaps`.
class LevelReader {
 public:
  LevelReader(
      int level, int wanted, SummaryStat stat,
      absl::FunctionRef<absl::Status(size_t, int64_t, const StepSummary&)> emit)
      : level_(level), wanted_(wanted), stat_(stat), emit_(emit) {}

  absl::Status Read(SeriesReader* series, uint32_t run,
                    const std::vector<Gap>& todo) {
    std::vector<ProcessRange> tiles;
    tiles.reserve(todo.size());
    std::vector<uint64_t> next;
    next.reserve(todo.size());
    const int bits = level_ * kSummaryBits;
    for (const Gap& gap : todo) {
      tiles.push_back({gap.steps.incarnation, gap.steps.first >> bits,
                       gap.steps.last >> bits});
      next.push_back(gap.steps.first);
    }
    size_t done = 0;
    const auto finish = [&](size_t until) {
      for (; done < until; ++done)
        AddGap(todo[done], next[done], todo[done].steps.last);
    };
    RP_RETURN_IF_ERROR(series->ForEachTileIn(
        run, level_, tiles,
        [&](size_t i, uint64_t tile, absl::string_view bytes) -> absl::Status {
          finish(i);
          RP_ASSIGN_OR_RETURN(const SummaryTileView view,
                              SummaryTileView::Parse(bytes, level_, tile));
          const uint64_t begin = tile << bits;
          const uint64_t end = begin + (uint64_t{1} << bits) - 1;
          const uint64_t first = std::max(begin, todo[i].steps.first);
          const uint64_t last = std::min(end, todo[i].steps.last);
          if (next[i] < first) AddGap(todo[i], next[i], first - 1);
          next[i] = last + 1;
          return ReadRow(todo[i], view, begin, first, last);
        }));
    finish(todo.size());
    return absl::OkStatus();
  }

  std::vector<Gap> gaps;

 private:
  void AddGap(const Gap& of, uint64_t first, uint64_t last) {
    if (first > last || first > kMaxStepNumber) return;
    gaps.push_back({of.range, {of.steps.incarnation, first, last}});
  }

  absl::Status ReadRow(const Gap& gap, const SummaryTileView& view,
                       uint64_t begin, uint64_t first, uint64_t last) {
    const int slot_bits = SlotBits(level_);
    const uint64_t slot_steps = uint64_t{1} << slot_bits;
    // Slots that are only partly requested are read at a lower level.
    uint64_t low = (first - begin) >> slot_bits;
    uint64_t high = (last - begin) >> slot_bits;
    const uint64_t low_begin = begin + (low << slot_bits);
    const uint64_t high_end = begin + ((high + 1) << slot_bits) - 1;
    if (low_begin < first || (low == high && high_end > last)) {
      AddGap(gap, first, std::min(last, low_begin + slot_steps - 1));
      ++low;
    }
    uint64_t tail = 0;
    bool has_tail = false;
    if (low <= high && high_end > last) {
      tail = begin + (high << slot_bits);
      has_tail = true;
      if (high == 0) low = 1;
      --high;
    }
    absl::Status status;
    if (low <= high && high < kTileSlots) {
      uint64_t slots = ~uint64_t{0} << low;
      if (high < kTileSlots - 1) slots &= (uint64_t{1} << (high + 1)) - 1;
      slots &= view.present();
      if (level_ <= wanted_) {
        if (slots != 0) {
          status = emit_(gap.range, static_cast<int64_t>(begin),
                         view.Reduce(slots, stat_));
        }
      } else {
        for (; slots != 0 && status.ok(); slots &= slots - 1) {
          const uint64_t slot = slots & -slots;
          uint64_t number = 0;
          while ((slot >> number & 1) == 0) ++number;
          status = emit_(gap.range,
                         static_cast<int64_t>(begin + (number << slot_bits)),
                         view.Reduce(slot, stat_));
        }
      }
    }
    if (has_tail) AddGap(gap, tail, last);
    return status;
  }

  const int level_, wanted_;
  const SummaryStat stat_;
  absl::FunctionRef<absl::Status(size_t, int64_t, const StepSummary&)> emit_;
};

}  // namespace

absl::Status ReadSummaries(
    SeriesReader* series, uint32_t run, absl::Span<const ProcessRange> ranges,
    int level, SummaryStat stat,
    absl::FunctionRef<absl::Status(size_t, int64_t, const StepSummary&)> emit) {
  std::vector<Gap> todo;
  todo.reserve(ranges.size());
  for (size_t i = 0; i < ranges.size(); ++i) todo.push_back({i, ranges[i]});
  for (int row = std::min(level + 1, kSummaryLevels); row >= 1; --row) {
    LevelReader reader(row, level, stat, emit);
    RP_RETURN_IF_ERROR(reader.Read(series, run, todo));
    todo = std::move(reader.gaps);
  }
  std::vector<ProcessRange> steps;
  steps.reserve(todo.size());
  for (const Gap& gap : todo) steps.push_back(gap.steps);
  return series->ForEachHeadIn(
      run, steps, [&](size_t i, int64_t step, const v1::RollupHead& head) {
        return emit(todo[i].range, step, SummaryOf(step, head));
      });
}

absl::StatusOr<std::string> SummaryMaker::Make(const SummaryTile& tile,
                                               bool with_heads) {
  const int bits = tile.level * kSummaryBits;
  const uint64_t begin = tile.tile << bits;
  const ProcessRange range{
      tile.incarnation, begin,
      std::min(begin + (uint64_t{1} << bits) - 1, kMaxStepNumber)};
  SummaryTileWriter writer(tile.level, with_heads);
  if (tile.level == 1) {
    RP_RETURN_IF_ERROR(store_->ForEachHeadIn(
        tile.run, {&range, 1},
        [&](size_t, int64_t step, const v1::RollupHead& head) {
          writer.PutHead(
              static_cast<uint32_t>(static_cast<uint64_t>(step) - begin), step,
              head);
          return absl::OkStatus();
        }));
  } else {
    RP_RETURN_IF_ERROR(ReadSummaries(
        store_, tile.run, {&range, 1}, tile.level - 1, SummaryStat::kAll,
        [&](size_t, int64_t step, const StepSummary& summary) {
          writer.Put(
              static_cast<uint32_t>((static_cast<uint64_t>(step) - begin) >>
                                    SlotBits(tile.level)),
              summary);
          return absl::OkStatus();
        }));
  }
  return writer.Encode(tile.tile);
}

absl::Status SummaryMaker::FindMissing(const std::string& run,
                                       absl::FunctionRef<bool()> cancelled) {
  RP_ASSIGN_OR_RETURN(const uint32_t number, store_->RunNumber(run));
  std::vector<uint64_t> incarnations;
  RP_RETURN_IF_ERROR(
      store_->ForEachIncarnation(run, [&](const v1::IncarnationRow& row) {
        incarnations.push_back(row.identity().incarnation());
      }));
  for (const uint64_t incarnation : incarnations) {
    for (uint64_t from = 0; from <= kMaxStepNumber;) {
      if (cancelled()) return absl::CancelledError();
      std::optional<uint64_t> step;
      const ProcessRange rest{incarnation, from, kMaxStepNumber};
      const absl::Status found = store_->ForEachHeadIn(
          number, {&rest, 1}, [&](size_t, int64_t at, const v1::RollupHead&) {
            step = static_cast<uint64_t>(at);
            return absl::CancelledError();
          });
      if (!step.has_value()) {
        RP_RETURN_IF_ERROR(found);
        break;
      }
      // If a row exists, so do those below it.
      int level = kSummaryLevels;
      for (; level >= 1; --level) {
        const uint64_t tile = *step >> (level * kSummaryBits);
        const ProcessRange row{incarnation, tile, tile};
        bool there = false;
        RP_RETURN_IF_ERROR(store_->ForEachTileIn(
            number, level, {&row, 1}, [&](size_t, uint64_t, absl::string_view) {
              there = true;
              return absl::OkStatus();
            }));
        if (there) break;
        store_->AddTileToMake({number, level, incarnation, tile});
      }
      const int bits = std::max(level, 1) * kSummaryBits;
      from = ((*step >> bits) + 1) << bits;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> SummaryMaker::MakePending(
    absl::FunctionRef<bool()> cancelled) {
  if (!has_searched_) {
    for (const std::string& run : store_->RunNames()) {
      const absl::Status status = FindMissing(run, cancelled);
      if (absl::IsCancelled(status)) return uint64_t{0};
      // An error is ignored: the run may have been deleted, or its rows may be
      // damaged, and the others still need their rows.
    }
    has_searched_ = true;
  }
  uint64_t made = 0;
  for (;;) {
    const std::vector<SummaryTile> tiles = store_->TilesToMake(kTilePortion);
    if (tiles.empty()) return made;
    for (const SummaryTile& tile : tiles) {
      if (cancelled()) return made;
      const absl::Status status = store_->WriteTile(
          tile, [&](bool with_heads) { return Make(tile, with_heads); });
      if (absl::IsResourceExhausted(status) || absl::IsUnavailable(status))
        return made;
      // Without the row, readers use the level below.
      if (status.ok()) ++made;
    }
  }
}

}  // namespace rankprobe
