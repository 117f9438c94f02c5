// SPDX-License-Identifier: Apache-2.0
#include "collector/store/rollup_heads.h"

#include <algorithm>
#include <memory>

#include "collector/store/keys.h"
#include "collector/store/rows.h"
#include "collector/store/step_summary.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

// Rows of summaries that are in memory at a time, some 60 kB.
constexpr size_t kMaxRowsAtOnce = 64;
// No step has more; a layout that names more is invalid.
constexpr size_t kMaxRollupBlocks = 1 << 16;
// There are eight; each has a bit in RollupLayout.statistics.
constexpr uint8_t kMaxStatistics = 16;

uint64_t FirstStepOf(uint64_t tile) { return tile << kSummaryBits; }
uint64_t LastStepOf(uint64_t tile) {
  return FirstStepOf(tile) + (uint64_t{1} << kSummaryBits) - 1;
}

// Returns the slots of the row of level 1 that belong to these steps.
uint64_t SlotsOf(uint64_t tile, uint64_t first, uint64_t last) {
  const uint64_t begin = FirstStepOf(tile);
  uint64_t slots = ~uint64_t{0};
  if (first > begin) slots &= ~uint64_t{0} << (first - begin);
  if (last < LastStepOf(tile)) slots &= ~(~uint64_t{0} << (last - begin + 1));
  return slots;
}

class HeadReader {
 public:
  HeadReader(IndexSnapshot* snapshot, uint32_t run, size_t range,
             uint64_t incarnation, const SeriesReader::HeadFn& callback)
      : snapshot_(snapshot),
        run_(run),
        range_(range),
        incarnation_(incarnation),
        callback_(callback) {}

  absl::Status Read(uint64_t first, uint64_t last) {
    // Often only one head is requested, or the first of many, so the first read
    // is one row.
    size_t rows = 1;
    for (uint64_t next = first; next <= last;) {
      RP_ASSIGN_OR_RETURN(const bool more, FindRows(next, last, rows));
      for (const auto& [tile, bytes] : rows_) {
        RP_RETURN_IF_ERROR(ReadTable(next, FirstStepOf(tile)));
        RP_ASSIGN_OR_RETURN(const SummaryTileView view,
                            SummaryTileView::Parse(bytes, 1, tile));
        RP_RETURN_IF_ERROR(
            view.ForEachHead(SlotsOf(tile, first, last),
                             [&](int64_t step, const v1::RollupHead& head) {
                               return callback_(range_, step, head);
                             }));
        next = LastStepOf(tile) + 1;
      }
      if (!more) return ReadTable(next, last + 1);
      rows = std::min(rows * 4, kMaxRowsAtOnce);
    }
    return absl::OkStatus();
  }

 private:
  // Reads the next rows that contain heads; returns false after the last.
  absl::StatusOr<bool> FindRows(uint64_t first, uint64_t last, size_t most) {
    rows_.clear();
    const absl::Status status = snapshot_->ScanRange(
        keys::SummaryTile(run_, 1, incarnation_, first >> kSummaryBits),
        keys::SummaryTile(run_, 1, incarnation_, last >> kSummaryBits),
        [&](absl::string_view key, absl::string_view value) -> absl::Status {
          const std::optional<uint64_t> tile = keys::ParseTile(key);
          if (!tile.has_value())
            return absl::DataLossError("a row of summaries cannot be read");
          if (!SummaryTileView::HasHeads(value)) return absl::OkStatus();
          if (rows_.size() == most) return absl::CancelledError();
          rows_.emplace_back(*tile, value);
          return absl::OkStatus();
        });
    if (rows_.size() == most && absl::IsCancelled(status)) return true;
    RP_RETURN_IF_ERROR(status);
    return false;
  }

  // Reads heads of table h from `first` to before `end`.
  absl::Status ReadTable(uint64_t first, uint64_t end) {
    if (first >= end) return absl::OkStatus();
    const std::string prefix = keys::RollupHeads(run_, incarnation_);
    return snapshot_->ScanRange(
        keys::AtStep(prefix, static_cast<int64_t>(first)),
        keys::AtStep(prefix, static_cast<int64_t>(end - 1)),
        [&](absl::string_view key, absl::string_view value) -> absl::Status {
          const std::optional<int64_t> step = keys::ParseRollupStep(key);
          if (!step.has_value() || !ParseRow(value, &head_))
            return absl::DataLossError("a rollup cannot be read");
          return callback_(range_, *step, head_);
        });
  }

  IndexSnapshot* const snapshot_;
  const uint32_t run_;
  const size_t range_;
  const uint64_t incarnation_;
  const SeriesReader::HeadFn& callback_;
  std::vector<std::pair<uint64_t, std::string>> rows_;
  v1::RollupHead head_;
};

}  // namespace

absl::Status ForEachRollupHead(Index* index, uint32_t run,
                               absl::Span<const ProcessRange> ranges,
                               const SeriesReader::HeadFn& callback) {
  if (ranges.empty()) return absl::OkStatus();
  RP_ASSIGN_OR_RETURN(const std::unique_ptr<IndexSnapshot> snapshot,
                      index->Snapshot());
  for (size_t i = 0; i < ranges.size(); ++i) {
    RP_RETURN_IF_ERROR(
        HeadReader(snapshot.get(), run, i, ranges[i].incarnation, callback)
            .Read(ranges[i].first, ranges[i].last));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<v1::RollupHead>> FindRollupHead(
    Index* index, uint32_t run, uint64_t incarnation, int64_t step) {
  std::optional<v1::RollupHead> found;
  RP_ASSIGN_OR_RETURN(
      std::optional<std::string> bytes,
      index->Get(keys::AtStep(keys::RollupHeads(run, incarnation), step)));
  if (bytes.has_value()) {
    if (!found.emplace().ParseFromString(*bytes))
      return absl::DataLossError("a rollup cannot be read");
    return found;
  }
  const auto number = static_cast<uint64_t>(step);
  const uint64_t tile = number >> kSummaryBits;
  RP_ASSIGN_OR_RETURN(bytes,
                      index->Get(keys::SummaryTile(run, 1, incarnation, tile)));
  if (!bytes.has_value() || !SummaryTileView::HasHeads(*bytes)) return found;
  RP_ASSIGN_OR_RETURN(const SummaryTileView view,
                      SummaryTileView::Parse(*bytes, 1, tile));
  RP_RETURN_IF_ERROR(view.ForEachHead(SlotsOf(tile, number, number),
                                      [&](int64_t, const v1::RollupHead& head) {
                                        found = head;
                                        return absl::OkStatus();
                                      }));
  return found;
}

absl::StatusOr<std::vector<std::string>> RollupRowsOf(
    Index* index, uint32_t run, uint64_t incarnation, int64_t step,
    const std::optional<v1::RollupHead>& head) {
  std::vector<std::string> rows;
  if (!head.has_value() || head->deleted()) return rows;
  RP_ASSIGN_OR_RETURN(const std::optional<std::string> bytes,
                      index->Get(keys::RollupLayout(run, head->layout())));
  if (!bytes.has_value()) return rows;
  const auto bad = [] {
    return absl::DataLossError("the layout of a rollup cannot be read");
  };
  v1::RollupLayout layout;
  if (!ParseRow(*bytes, &layout) || layout.statistics() >> kMaxStatistics != 0)
    return bad();
  size_t blocks = 0;
  for (int i = 0; i + 1 < layout.blocks_size(); i += 2) {
    for (uint64_t at = layout.blocks(i); at <= layout.blocks(i + 1); ++at) {
      if (++blocks > kMaxRollupBlocks) return bad();
      const auto block = static_cast<uint32_t>(at);
      for (uint8_t stat = 0; stat < kMaxStatistics; ++stat) {
        if ((layout.statistics() >> stat & 1) == 0) continue;
        rows.push_back(keys::AtStep(
            keys::RollupColumns(run, incarnation, block, stat), step));
      }
    }
  }
  return rows;
}

absl::StatusOr<StaleSummaries> FindStaleSummaries(Index* index, uint32_t run,
                                                  uint64_t incarnation,
                                                  int64_t step) {
  StaleSummaries stale;
  for (int level = 1; level <= kSummaryLevels; ++level) {
    const uint64_t tile = static_cast<uint64_t>(step) >> (level * kSummaryBits);
    std::string key = keys::SummaryTile(run, level, incarnation, tile);
    RP_ASSIGN_OR_RETURN(const std::optional<std::string> bytes,
                        index->Get(key));
    if (!bytes.has_value()) continue;
    stale.keys.push_back(std::move(key));
    if (level != 1 || !SummaryTileView::HasHeads(*bytes)) continue;
    RP_ASSIGN_OR_RETURN(const SummaryTileView view,
                        SummaryTileView::Parse(*bytes, level, tile));
    const std::string prefix = keys::RollupHeads(run, incarnation);
    RP_RETURN_IF_ERROR(view.ForEachHead(
        ~uint64_t{0}, [&](int64_t of, const v1::RollupHead& head) {
          stale.heads.emplace_back(keys::AtStep(prefix, of),
                                   head.SerializeAsString());
          if (of == step) stale.head = head;
          return absl::OkStatus();
        }));
  }
  return stale;
}

absl::Status PutDeletedHead(Index* index, uint32_t run, uint64_t incarnation,
                            int64_t step, RowWriter* rows) {
  RP_ASSIGN_OR_RETURN(const StaleSummaries stale,
                      FindStaleSummaries(index, run, incarnation, step));
  // Heads are written first, so that each head exists all the time even if the
  // batch is split.
  for (const auto& [key, head] : stale.heads)
    RP_RETURN_IF_ERROR(rows->Put(key, head));
  for (const std::string& key : stale.keys)
    RP_RETURN_IF_ERROR(rows->Delete(key));
  v1::RollupHead deleted;
  deleted.set_deleted(true);
  RP_RETURN_IF_ERROR(
      rows->Put(keys::AtStep(keys::RollupHeads(run, incarnation), step),
                deleted.SerializeAsString()));
  // Written now: for another step of the same row the caller would find the row
  // again, and put its heads over this one.
  return stale.heads.empty() ? absl::OkStatus() : rows->Finish(/*sync=*/false);
}

}  // namespace rankprobe
