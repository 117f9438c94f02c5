// SPDX-License-Identifier: Apache-2.0
#include "collector/store/series_writer.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "collector/store/keys.h"
#include "collector/store/rollup_heads.h"
#include "collector/store/row_writer.h"
#include "collector/store/rows.h"
#include "collector/store/step_counts.h"
#include "collector/store/step_summary.h"

namespace rankprobe {
namespace {

StepId IdOf(const PendingRollup& step) {
  return {step.run_number, step.key.step, step.key.incarnation};
}

}  // namespace

std::vector<PendingRollup> SeriesWriter::PendingRollups(size_t most) {
  absl::MutexLock lock(&core_->mutex);
  if (!core_->sticky.ok()) return {};
  return core_->series.NextRollups(most, core_->runs.rows());
}

void SeriesWriter::SetRollupAside(const PendingRollup& step) {
  absl::MutexLock lock(&core_->mutex);
  core_->series.SetAside(IdOf(step));
}

absl::StatusOr<bool> SeriesWriter::Describe(const PendingRollup& step,
                                            v1::RollupHead* head) {
  absl::MutexLock lock(&core_->mutex);
  RP_RETURN_IF_ERROR(core_->sticky);
  const StepId id = IdOf(step);
  const absl::StatusOr<v1::RunRow*> run = core_->runs.Find(step.key.run);
  const bool known = run.ok() && (*run)->id() == id.run;
  v1::StepRow* row = nullptr;
  if (known) {
    RP_ASSIGN_OR_RETURN(row, core_->steps.Load(id));
  }
  if (!known || row->deleted_unix_ns() != 0 || row->records() == 0) {
    core_->series.Gone(id, /*for_good=*/!known || row->deleted_unix_ns() != 0);
    return absl::FailedPreconditionError("the step no longer exists");
  }
  if (!IsComplete(*row)) head->set_incomplete(true);
  return row->records() == head->records();
}

absl::Status SeriesWriter::WriteRollup(const PendingRollup& step,
                                       const RollupRows& rows) {
  absl::MutexLock rollup_lock(&core_->rollup_mutex);
  const StepId id = IdOf(step);
  v1::RollupHead summary = rows.head;
  RP_ASSIGN_OR_RETURN(const bool holds, Describe(step, &summary));
  std::unique_ptr<IndexBatch> batch = core_->index->NewBatch();
  RP_ASSIGN_OR_RETURN(
      const StaleSummaries stale,
      FindStaleSummaries(core_->index.get(), id.run, id.incarnation, id.step));
  const std::string head_key =
      keys::AtStep(keys::RollupHeads(id.run, id.incarnation), id.step);
  std::optional<v1::RollupHead> head_before = stale.head;
  if (!head_before.has_value()) {
    RP_ASSIGN_OR_RETURN(head_before,
                        GetRow<v1::RollupHead>(core_->index.get(), head_key));
  }
  RP_ASSIGN_OR_RETURN(const std::vector<std::string> before,
                      RollupRowsOf(core_->index.get(), id.run, id.incarnation,
                                   id.step, head_before));
  for (const std::string& key : before) batch->Delete(key);
  for (const RollupColumnRow& column : rows.columns) {
    batch->Put(keys::AtStep(keys::RollupColumns(id.run, id.incarnation,
                                                column.block, column.statistic),
                            id.step),
               column.bytes);
  }
  for (const auto& [name_id, name] : rows.names)
    batch->Put(keys::RollupName(id.run, name_id), name.SerializeAsString());
  for (const auto& [number, layout] : rows.layouts)
    batch->Put(keys::RollupLayout(id.run, number), layout.SerializeAsString());
  for (const auto& [key, head] : stale.heads) batch->Put(key, head);
  for (const std::string& key : stale.keys) batch->Delete(key);
  batch->Put(head_key, summary.SerializeAsString());
  // The step has more records than the rollup, so it stays queued.
  if (!holds) {
    batch->Put(keys::PendingRollup(id.run, id.step, id.incarnation), "");
  }
  absl::Status status = core_->index->Write(std::move(batch), /*sync=*/false);
  absl::MutexLock lock(&core_->mutex);
  if (status.ok()) {
    if (!holds) core_->series.Add(id);
    core_->series.TouchTileOf(id);
    RP_ASSIGN_OR_RETURN(const v1::StepRow* const row, core_->steps.Load(id));
    // Otherwise records arrived meanwhile, and the step is rolled up again.
    if (row->records() == rows.head.records()) {
      batch = core_->index->NewBatch();
      batch->Delete(keys::PendingRollup(id.run, id.step, id.incarnation));
      status = core_->index->Write(std::move(batch), /*sync=*/false);
      if (status.ok()) core_->series.Done(id);
    }
  }
  return core_->NoteWrite(status);
}

std::vector<SummaryTile> SeriesWriter::TilesToMake(size_t most) {
  absl::MutexLock lock(&core_->mutex);
  if (!core_->sticky.ok()) return {};
  return core_->series.NextTiles(most);
}

void SeriesWriter::AddTileToMake(const SummaryTile& tile) {
  absl::MutexLock lock(&core_->mutex);
  core_->series.AddTile(tile);
}

absl::StatusOr<bool> SeriesWriter::IsPassed(const SummaryTile& tile) {
  RP_ASSIGN_OR_RETURN(const v1::IncarnationRow* const row,
                      core_->runs.Incarnation(tile.run, tile.incarnation));
  return row->has_highest_step() &&
         static_cast<uint64_t>(row->highest_step()) >> kSummaryBits > tile.tile;
}

absl::Status SeriesWriter::WriteTile(
    const SummaryTile& tile,
    const std::function<absl::StatusOr<std::string>(bool)>& make) {
  absl::MutexLock rollup_lock(&core_->rollup_mutex);
  bool with_heads = false;
  {
    absl::MutexLock lock(&core_->mutex);
    RP_RETURN_IF_ERROR(core_->sticky);
    core_->series.EraseTile(tile);
    if (!core_->runs.Has(tile.run))
      return absl::FailedPreconditionError("the run no longer exists");
    if (tile.level == 1) {
      RP_ASSIGN_OR_RETURN(with_heads, IsPassed(tile));
    }
  }
  RP_ASSIGN_OR_RETURN(const std::string bytes, make(with_heads));
  if (bytes.empty()) return absl::OkStatus();
  const std::string key =
      keys::SummaryTile(tile.run, tile.level, tile.incarnation, tile.tile);
  RP_ASSIGN_OR_RETURN(const auto before, core_->index->Get(key));
  std::unique_ptr<IndexBatch> batch = core_->index->NewBatch();
  batch->Put(key, bytes);
  if (tile.level == 1 && SummaryTileView::HasHeads(bytes)) {
    RP_ASSIGN_OR_RETURN(const SummaryTileView view,
                        SummaryTileView::Parse(bytes, tile.level, tile.tile));
    const std::string heads = keys::RollupHeads(tile.run, tile.incarnation);
    // Heads move from table h into the row in one batch, so that none is
    // missing after a crash.
    RP_RETURN_IF_ERROR(view.ForEachHead(
        ~uint64_t{0}, [&](int64_t step, const v1::RollupHead&) {
          batch->Delete(keys::AtStep(heads, step));
          return absl::OkStatus();
        }));
  }
  const absl::Status status =
      core_->index->Write(std::move(batch), /*sync=*/false);
  absl::MutexLock lock(&core_->mutex);
  if (!status.ok()) {
    core_->series.Touch(tile);
    return core_->NoteWrite(status);
  }
  if (tile.level == 1) core_->series.CloseOlderTile(tile, with_heads);
  // If the row existed before, it has not changed, so the rows above it are
  // still valid.
  if (tile.level < kSummaryLevels && !before.has_value()) {
    core_->series.Touch({tile.run, tile.level + 1, tile.incarnation,
                         tile.tile >> kSummaryBits});
  }
  return absl::OkStatus();
}

}  // namespace rankprobe
