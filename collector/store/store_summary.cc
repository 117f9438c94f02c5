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
  KeyRanges ranges;
  ranges.reserve(steps.size());
  for (const ProcessRange& range : steps) {
    const std::string prefix = keys::RollupHeads(run, range.incarnation);
    ranges.emplace_back(keys::AtStep(prefix, static_cast<int64_t>(range.first)),
                        keys::AtStep(prefix, static_cast<int64_t>(range.last)));
  }
  v1::RollupHead head;
  return index_->ScanRanges(
      ranges,
      [&](size_t range, absl::string_view key,
          absl::string_view value) -> absl::Status {
        const std::optional<int64_t> step = keys::ParseRollupStep(key);
        if (!step.has_value() ||
            !head.ParseFromArray(value.data(), static_cast<int>(value.size())))
          return absl::DataLossError("a rollup cannot be read");
        return callback(range, *step, head);
      });
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

absl::Status StoreImpl::WriteTile(
    const SummaryTile& tile,
    const std::function<absl::StatusOr<std::string>()>& make) {
  absl::MutexLock rollup_lock(&rollup_mutex_);
  const TileId id{tile.level, tile.run, tile.incarnation, tile.tile};
  const auto run_is_there = [&] {
    mutex_.AssertHeld();
    for (const auto& [name, row] : runs_) {
      if (row.id() == tile.run) return true;
    }
    return false;
  };
  {
    absl::MutexLock lock(&mutex_);
    RP_RETURN_IF_ERROR(sticky_);
    missing_tiles_.erase(id);
    if (!run_is_there())
      return absl::FailedPreconditionError("the run is not there any more");
  }
  RP_ASSIGN_OR_RETURN(const std::string bytes, make());
  if (bytes.empty()) return absl::OkStatus();
  std::unique_ptr<IndexBatch> batch = index_->NewBatch();
  batch->Put(
      keys::SummaryTile(tile.run, tile.level, tile.incarnation, tile.tile),
      bytes);
  const absl::Status status = index_->Write(std::move(batch), /*sync=*/false);
  absl::MutexLock lock(&mutex_);
  if (!status.ok()) {
    if (!absl::IsResourceExhausted(status) && sticky_.ok()) sticky_ = status;
    TouchTile(tile.run, tile.level, tile.incarnation, tile.tile);
    return status;
  }
  if (tile.level < kSummaryLevels) {
    TouchTile(tile.run, tile.level + 1, tile.incarnation,
              tile.tile >> kSummaryBits);
  }
  return absl::OkStatus();
}

}  // namespace rankprobe
