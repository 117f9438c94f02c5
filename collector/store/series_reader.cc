// SPDX-License-Identifier: Apache-2.0
#include "collector/store/series_reader.h"

#include <algorithm>

#include "collector/store/keys.h"
#include "collector/store/rollup_heads.h"
#include "collector/store/rows.h"
#include "collector/store/store_core.h"
#include "collector/store/store_reader.h"

namespace rankprobe {

absl::StatusOr<uint32_t> SeriesReader::RunNumber(const std::string& run) {
  return core_->RunNumber(run);
}

absl::Status SeriesReader::ForEachRollupName(uint32_t run,
                                             const NameFn& callback) {
  v1::RollupName name;
  return core_->index->Scan(
      keys::TableOfRun('n', run),
      [&](absl::string_view key, absl::string_view value) -> absl::Status {
        const std::optional<uint32_t> id = keys::ParseRollupNumber(key);
        if (!id.has_value() || !ParseRow(value, &name))
          return absl::DataLossError("a name of a rollup cannot be read");
        return callback(*id, name);
      });
}

absl::Status SeriesReader::ForEachRollupLayout(uint32_t run,
                                               const LayoutFn& callback) {
  v1::RollupLayout layout;
  return core_->index->Scan(
      keys::TableOfRun('o', run),
      [&](absl::string_view key, absl::string_view value) -> absl::Status {
        const std::optional<uint32_t> number = keys::ParseRollupNumber(key);
        if (!number.has_value() || !ParseRow(value, &layout))
          return absl::DataLossError("a layout of a rollup cannot be read");
        return callback(*number, layout);
      });
}

absl::StatusOr<std::optional<v1::RollupLayout>> SeriesReader::FindRollupLayout(
    uint32_t run, uint32_t number) {
  return GetRow<v1::RollupLayout>(core_->index.get(),
                                  keys::RollupLayout(run, number));
}

absl::Status SeriesReader::ForEachRollupColumn(
    uint32_t run, uint64_t incarnation, uint32_t block, uint8_t statistic,
    int64_t first_step, int64_t last_step, const BytesFn& callback) {
  const std::string prefix =
      keys::RollupColumns(run, incarnation, block, statistic);
  return core_->index->ScanRange(
      keys::AtStep(prefix, first_step), keys::AtStep(prefix, last_step),
      [&](absl::string_view key, absl::string_view value) -> absl::Status {
        const std::optional<int64_t> step = keys::ParseRollupStep(key);
        if (!step.has_value())
          return absl::DataLossError("a block of a rollup cannot be read");
        return callback(*step, value);
      });
}

// Uses the steps in memory if all are known: a scan would pass all deleted rows
// of the table, as many as there are rolled-up steps.
absl::Status SeriesReader::ForEachUnrolled(uint32_t run,
                                           const StepFn& callback) {
  std::optional<std::vector<std::pair<int64_t, uint64_t>>> known;
  {
    absl::MutexLock lock(&core_->mutex);
    known = core_->series.Known(run);
  }
  if (known.has_value()) {
    std::sort(known->begin(), known->end());
    known->erase(std::unique(known->begin(), known->end()), known->end());
    for (const auto& [step, incarnation] : *known)
      RP_RETURN_IF_ERROR(callback(step, incarnation));
    return absl::OkStatus();
  }
  return core_->index->Scan(
      keys::TableOfRun('u', run),
      [&](absl::string_view key, absl::string_view) -> absl::Status {
        const std::optional<keys::StepParts> step = keys::ParseStep(key);
        if (!step.has_value())
          return absl::DataLossError("a row of table u cannot be read");
        return callback(step->step, step->incarnation);
      });
}

absl::Status SeriesReader::ForEachHeadIn(uint32_t run,
                                         absl::Span<const ProcessRange> steps,
                                         const HeadFn& callback) {
  return ForEachRollupHead(core_->index.get(), run, steps, callback);
}

absl::Status SeriesReader::ForEachTileIn(uint32_t run, int level,
                                         absl::Span<const ProcessRange> tiles,
                                         const TileFn& callback) {
  std::vector<std::pair<std::string, std::string>> ranges;
  ranges.reserve(tiles.size());
  for (const ProcessRange& range : tiles) {
    ranges.emplace_back(
        keys::SummaryTile(run, level, range.incarnation, range.first),
        keys::SummaryTile(run, level, range.incarnation, range.last));
  }
  return core_->index->ScanRanges(
      ranges,
      [&](size_t range, absl::string_view key,
          absl::string_view value) -> absl::Status {
        const std::optional<uint64_t> tile = keys::ParseTile(key);
        if (!tile.has_value())
          return absl::DataLossError("a row of summaries cannot be read");
        return callback(range, *tile, value);
      });
}

absl::StatusOr<std::vector<v1::StepInfo>> SeriesReader::FindSteps(
    uint32_t run, absl::Span<const std::pair<int64_t, uint64_t>> steps) {
  return reader_->FindSteps(run, steps);
}

}  // namespace rankprobe
