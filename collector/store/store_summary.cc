// SPDX-License-Identifier: Apache-2.0
// StoreImpl: the rows of summaries, and what is read beside them. What is in
// them is collector/archive's.
#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collector/store/keys.h"
#include "collector/store/rollup_heads.h"
#include "collector/store/step_summary.h"
#include "collector/store/store_impl.h"

namespace rankprobe {
namespace {

// Rows whose steps changed a shorter while ago are about to change again.
constexpr absl::Duration kTileRest = absl::Seconds(5);

// Tables of rollups and summaries, but for names and layouts, which are a run's.
constexpr const char* kRollupTables[] = {"a", "h", "j"};

using KeyRanges = std::vector<std::pair<std::string, std::string>>;

}  // namespace

uint64_t StoreImpl::RollupBytes() {
  uint64_t bytes = 0;
  for (const char* const table : kRollupTables)
    bytes += index_->ApproximateBytes(table);
  return bytes;
}

void StoreImpl::CompactRollups() {
  for (const char* const table : kRollupTables) index_->Compact(table);
}

std::vector<std::string> StoreImpl::RunNames() {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> names;
  for (const auto& [name, row] : runs_) names.push_back(name);
  return names;
}

absl::StatusOr<bool> StoreImpl::IsSummarised(const std::string& run) {
  absl::MutexLock lock(&mutex_);
  RP_ASSIGN_OR_RETURN(const v1::RunRow* const row,
                      LoadRun(run, /*create=*/false));
  return row->summarised();
}

// A scan would walk over all rows of the table that were deleted, which are as
// many as the steps that were rolled up.
std::optional<std::vector<std::pair<int64_t, uint64_t>>>
StoreImpl::KnownUnrolled(uint32_t run) {
  if (more_pending_rollups_) return std::nullopt;
  std::vector<std::pair<int64_t, uint64_t>> out;
  const StepId first(run, std::numeric_limits<int64_t>::min(), 0);
  for (const std::set<StepId>* const some :
       {&pending_rollups_, &rollups_aside_}) {
    for (auto it = some->lower_bound(first);
         it != some->end() && std::get<0>(*it) == run; ++it)
      out.emplace_back(std::get<1>(*it), std::get<2>(*it));
  }
  for (auto it = open_rollups_.lower_bound(first);
       it != open_rollups_.end() && std::get<0>(it->first) == run; ++it)
    out.emplace_back(std::get<1>(it->first), std::get<2>(it->first));
  return out;
}

absl::Status StoreImpl::ForEachUnrolled(
    uint32_t run,
    const std::function<absl::Status(int64_t, uint64_t)>& callback) {
  std::optional<std::vector<std::pair<int64_t, uint64_t>>> known;
  {
    absl::MutexLock lock(&mutex_);
    known = KnownUnrolled(run);
  }
  if (known.has_value()) {
    std::sort(known->begin(), known->end());
    known->erase(std::unique(known->begin(), known->end()), known->end());
    for (const auto& [step, incarnation] : *known)
      RP_RETURN_IF_ERROR(callback(step, incarnation));
    return absl::OkStatus();
  }
  return index_->Scan(
      keys::TableOfRun('u', run),
      [&](absl::string_view key, absl::string_view) -> absl::Status {
        const std::optional<keys::StepParts> step = keys::ParseStep(key);
        if (!step.has_value())
          return absl::DataLossError("a row of table u cannot be read");
        return callback(step->step, step->incarnation);
      });
}

absl::Status StoreImpl::ForEachHeadIn(
    uint32_t run, absl::Span<const ProcessRange> steps,
    const std::function<absl::Status(size_t, int64_t, const v1::RollupHead&)>&
        callback) {
  return ForEachRollupHead(index_.get(), run, steps, callback);
}

absl::Status StoreImpl::ForEachTileIn(
    uint32_t run, int level, absl::Span<const ProcessRange> tiles,
    const std::function<absl::Status(size_t, uint64_t, absl::string_view)>&
        callback) {
  KeyRanges ranges;
  ranges.reserve(tiles.size());
  for (const ProcessRange& range : tiles) {
    ranges.emplace_back(
        keys::SummaryTile(run, level, range.incarnation, range.first),
        keys::SummaryTile(run, level, range.incarnation, range.last));
  }
  return index_->ScanRanges(
      ranges,
      [&](size_t range, absl::string_view key,
          absl::string_view value) -> absl::Status {
        const std::optional<uint64_t> tile = keys::ParseTile(key);
        if (!tile.has_value())
          return absl::DataLossError("a row of summaries cannot be read");
        return callback(range, *tile, value);
      });
}

void StoreImpl::TouchTile(uint32_t run, int level, uint64_t incarnation,
                          uint64_t tile) {
  missing_tiles_[{level, run, incarnation, tile}] = clock_->MonotonicNanos();
}

void StoreImpl::AddTileToMake(const SummaryTile& tile) {
  absl::MutexLock lock(&mutex_);
  // As if it had rested.
  missing_tiles_.try_emplace(
      {tile.level, tile.run, tile.incarnation, tile.tile},
      clock_->MonotonicNanos() - absl::ToInt64Nanoseconds(kTileRest));
}

std::vector<SummaryTile> StoreImpl::TilesToMake(size_t most) {
  absl::MutexLock lock(&mutex_);
  std::vector<SummaryTile> out;
  if (!sticky_.ok()) return out;
  const int64_t before =
      clock_->MonotonicNanos() - absl::ToInt64Nanoseconds(kTileRest);
  for (const auto& [id, touched] : missing_tiles_) {
    if (out.size() == most) break;
    if (touched > before) continue;
    const auto& [level, run, incarnation, tile] = id;
    out.push_back({run, level, incarnation, tile});
  }
  return out;
}

absl::StatusOr<bool> StoreImpl::IsPassed(const SummaryTile& tile) {
  v1::Identity identity;
  identity.set_incarnation(tile.incarnation);
  RP_ASSIGN_OR_RETURN(const v1::IncarnationRow* const row,
                      LoadIncarnation(tile.run, identity));
  return row->has_highest_step() &&
         static_cast<uint64_t>(row->highest_step()) >> kSummaryBits > tile.tile;
}

absl::Status StoreImpl::WriteTile(
    const SummaryTile& tile,
    const std::function<absl::StatusOr<std::string>(bool)>& make) {
  absl::MutexLock rollup_lock(&rollup_mutex_);
  const TileId id{tile.level, tile.run, tile.incarnation, tile.tile};
  const auto run_is_there = [&] {
    mutex_.AssertHeld();
    for (const auto& [name, row] : runs_) {
      if (row.id() == tile.run) return true;
    }
    return false;
  };
  bool with_heads = false;
  {
    absl::MutexLock lock(&mutex_);
    RP_RETURN_IF_ERROR(sticky_);
    missing_tiles_.erase(id);
    if (!run_is_there())
      return absl::FailedPreconditionError("the run is not there any more");
    if (tile.level == 1) {
      RP_ASSIGN_OR_RETURN(with_heads, IsPassed(tile));
    }
  }
  RP_ASSIGN_OR_RETURN(const std::string bytes, make(with_heads));
  if (bytes.empty()) return absl::OkStatus();
  const std::string key =
      keys::SummaryTile(tile.run, tile.level, tile.incarnation, tile.tile);
  RP_ASSIGN_OR_RETURN(const auto before, index_->Get(key));
  std::unique_ptr<IndexBatch> batch = index_->NewBatch();
  batch->Put(key, bytes);
  if (tile.level == 1 && SummaryTileView::HasHeads(bytes)) {
    RP_ASSIGN_OR_RETURN(const SummaryTileView view,
                        SummaryTileView::Parse(bytes, tile.level, tile.tile));
    const std::string heads = keys::RollupHeads(tile.run, tile.incarnation);
    RP_RETURN_IF_ERROR(view.ForEachHead(
        ~uint64_t{0}, [&](int64_t step, const v1::RollupHead&) {
          batch->Delete(keys::AtStep(heads, step));
          return absl::OkStatus();
        }));
  }
  const absl::Status status = index_->Write(std::move(batch), /*sync=*/false);
  absl::MutexLock lock(&mutex_);
  if (!status.ok()) {
    if (!absl::IsResourceExhausted(status) && sticky_.ok()) sticky_ = status;
    TouchTile(tile.run, tile.level, tile.incarnation, tile.tile);
    return status;
  }
  if (tile.level == 1) CloseOlderTile(tile, with_heads);
  // It says what the one before said, which those above it count.
  if (tile.level < kSummaryLevels && !before.has_value()) {
    TouchTile(tile.run, tile.level + 1, tile.incarnation,
              tile.tile >> kSummaryBits);
  }
  return absl::OkStatus();
}

void StoreImpl::CloseOlderTile(const SummaryTile& tile, bool with_heads) {
  const RunIncarnation process{tile.run, tile.incarnation};
  const auto open = open_tiles_.find(process);
  if (open != open_tiles_.end() && open->second < tile.tile) {
    TouchTile(tile.run, 1, tile.incarnation, open->second);
    open_tiles_.erase(open);
  } else if (open != open_tiles_.end() && open->second == tile.tile &&
             with_heads) {
    open_tiles_.erase(open);
  }
  if (!with_heads) open_tiles_[process] = tile.tile;
}

}  // namespace rankprobe
