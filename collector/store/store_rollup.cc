// SPDX-License-Identifier: Apache-2.0
// StoreImpl: the rows of rollups. What is in them is collector/archive's.
#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collector/store/keys.h"
#include "collector/store/rollup_heads.h"
#include "collector/store/row_writer.h"
#include "collector/store/step_counts.h"
#include "collector/store/step_summary.h"
#include "collector/store/store_impl.h"

namespace rankprobe {
namespace {

// Steps to be rolled up that are in memory, some 64 bytes each.
constexpr size_t kMaxPendingRollups = 1 << 18;
// A step that does not go on for so long is rolled up though it has not ended.
constexpr absl::Duration kOpenRest = absl::Seconds(10);

}  // namespace

absl::Status StoreImpl::LoadPendingRollups() {
  more_pending_rollups_ = false;
  const absl::Status status = index_->Scan(
      "u", [this](absl::string_view key, absl::string_view) -> absl::Status {
        mutex_.AssertHeld();
        const std::optional<uint32_t> run = keys::ParseRun(key);
        const std::optional<keys::StepParts> step = keys::ParseStep(key);
        if (!run.has_value() || !step.has_value()) return absl::OkStatus();
        AddPendingRollup({*run, step->step, step->incarnation});
        return more_pending_rollups_ ? absl::CancelledError()
                                     : absl::OkStatus();
      });
  if (more_pending_rollups_) return absl::OkStatus();
  more_pending_rollups_ = !status.ok();
  return status;
}

void StoreImpl::AddPendingRollup(const StepId& id) {
  if (rollups_aside_.contains(id)) return;
  if (pending_rollups_.size() >= kMaxPendingRollups) {
    more_pending_rollups_ = true;
  } else {
    pending_rollups_.insert(id);
  }
}

void StoreImpl::QueueRestedSteps() {
  const int64_t before =
      clock_->MonotonicNanos() - absl::ToInt64Nanoseconds(kOpenRest);
  for (auto it = open_rollups_.begin(); it != open_rollups_.end();) {
    if (it->second > before) {
      ++it;
      continue;
    }
    AddPendingRollup(it->first);
    it = open_rollups_.erase(it);
  }
}

std::vector<PendingRollup> StoreImpl::PendingRollups(size_t most) {
  absl::MutexLock lock(&mutex_);
  std::vector<PendingRollup> out;
  if (!sticky_.ok()) return out;
  QueueRestedSteps();
  // What cannot be read now is asked for again with the next call.
  if (pending_rollups_.empty() && more_pending_rollups_)
    LoadPendingRollups().IgnoreError();
  std::map<uint32_t, absl::string_view> names;
  for (const auto& [name, row] : runs_) names[row.id()] = name;
  for (auto it = pending_rollups_.begin();
       it != pending_rollups_.end() && out.size() < most;) {
    const auto& [run, step, incarnation] = *it;
    const auto name = names.find(run);
    if (name == names.end()) {  // deleted
      it = pending_rollups_.erase(it);
      continue;
    }
    PendingRollup& pending = out.emplace_back();
    pending.run_number = run;
    pending.key.run = std::string(name->second);
    pending.key.step = step;
    pending.key.incarnation = incarnation;
    ++it;
  }
  return out;
}

void StoreImpl::SetRollupAside(const PendingRollup& step) {
  absl::MutexLock lock(&mutex_);
  const StepId id(step.run_number, step.key.step, step.key.incarnation);
  pending_rollups_.erase(id);
  rollups_aside_.insert(id);
}

absl::StatusOr<absl::flat_hash_map<int64_t, uint64_t>>
StoreImpl::CurrentRollups(uint32_t run, uint64_t incarnation) {
  absl::flat_hash_map<int64_t, uint64_t> records;
  const ProcessRange all{incarnation, 0, std::numeric_limits<int64_t>::max()};
  RP_RETURN_IF_ERROR(
      ForEachRollupHead(index_.get(), run, {&all, 1},
                        [&](size_t, int64_t step, const v1::RollupHead& head) {
                          if (head.version() == kRollupVersion)
                            records[step] = head.records();
                          return absl::OkStatus();
                        }));
  return records;
}

absl::Status StoreImpl::FindRowsWithoutHeads(
    uint32_t run, std::set<std::pair<uint64_t, uint64_t>>* tiles) {
  return index_->Scan(keys::SummaryLevel(run, 1), [&](absl::string_view key,
                                                      absl::string_view value) {
    const std::optional<uint64_t> tile = keys::ParseTile(key);
    const std::optional<uint64_t> incarnation = keys::ParseTileIncarnation(key);
    if (tile.has_value() && incarnation.has_value() &&
        !SummaryTileView::HasHeads(value))
      tiles->emplace(*incarnation, *tile);
    return absl::OkStatus();
  });
}

absl::StatusOr<v1::ReindexReport> StoreImpl::QueueRollups(
    const std::string& run) {
  RP_ASSIGN_OR_RETURN(const uint32_t number, RunNumber(run));
  absl::MutexLock rollup_lock(&rollup_mutex_);
  // Behind the lock, so that nothing is deleted between the two.
  RP_ASSIGN_OR_RETURN(std::vector<v1::StepInfo> steps, ListSteps(run));
  std::sort(steps.begin(), steps.end(),
            [](const v1::StepInfo& a, const v1::StepInfo& b) {
              return std::make_pair(a.incarnation(), a.step()) <
                     std::make_pair(b.incarnation(), b.step());
            });
  RowWriter rows(index_.get());
  v1::ReindexReport report;
  uint64_t queued = 0;
  std::map<uint64_t, std::pair<int64_t, int64_t>> ranges;
  std::set<std::pair<uint64_t, uint64_t>> stale_tiles;
  // Of the process that is looked at.
  absl::flat_hash_map<int64_t, uint64_t> records_of_current;
  for (const v1::StepInfo& step : steps) {
    const auto [range, is_new] =
        ranges.try_emplace(step.incarnation(), step.step(), step.step());
    range->second.second = step.step();
    if (is_new) {
      RP_ASSIGN_OR_RETURN(records_of_current,
                          CurrentRollups(number, step.incarnation()));
    }
    const auto head = records_of_current.find(step.step());
    const bool current = head != records_of_current.end();
    if (step.deleted()) {
      if (current) continue;
      RP_RETURN_IF_ERROR(PutDeletedHead(
          index_.get(), number, step.incarnation(), step.step(), &rows));
      stale_tiles.emplace(step.incarnation(),
                          static_cast<uint64_t>(step.step()) >> kSummaryBits);
      continue;
    }
    if (step.records() == 0) continue;
    report.set_rank_steps(report.rank_steps() + 1);
    if (current && head->second == step.records()) continue;
    RP_RETURN_IF_ERROR(rows.Put(
        keys::PendingRollup(number, step.step(), step.incarnation()), ""));
    ++queued;
  }
  RP_RETURN_IF_ERROR(FindRowsWithoutHeads(number, &stale_tiles));
  report.set_queued(queued);
  RP_RETURN_IF_ERROR(rows.Finish(/*sync=*/false));
  absl::MutexLock lock(&mutex_);
  for (const auto& [incarnation, tile] : stale_tiles)
    TouchTile(number, 1, incarnation, tile);
  RP_RETURN_IF_ERROR(MarkSummarised(run, ranges));
  rollups_aside_.clear();
  RP_RETURN_IF_ERROR(LoadPendingRollups());
  return report;
}

absl::Status StoreImpl::MarkSummarised(
    const std::string& run,
    const std::map<uint64_t, std::pair<int64_t, int64_t>>& ranges) {
  RP_RETURN_IF_ERROR(sticky_);
  RP_ASSIGN_OR_RETURN(v1::RunRow* const row, LoadRun(run, /*create=*/false));
  std::unique_ptr<IndexBatch> batch = index_->NewBatch();
  for (const auto& [incarnation, range] : ranges) {
    v1::Identity identity;
    identity.set_incarnation(incarnation);
    RP_ASSIGN_OR_RETURN(v1::IncarnationRow* const sender,
                        LoadIncarnation(row->id(), identity));
    sender->set_lowest_step(sender->has_lowest_step()
                                ? std::min(sender->lowest_step(), range.first)
                                : range.first);
    sender->set_highest_step(std::max(sender->highest_step(), range.second));
    batch->Put(keys::Incarnation(row->id(), incarnation),
               sender->SerializeAsString());
  }
  row->set_summarised(true);
  batch->Put(keys::Run(run), row->SerializeAsString());
  const absl::Status status = index_->Write(std::move(batch), /*sync=*/false);
  if (!status.ok() && !absl::IsResourceExhausted(status)) sticky_ = status;
  return status;
}

absl::Status StoreImpl::WriteRollup(const PendingRollup& step,
                                    const RollupRows& rows) {
  absl::MutexLock rollup_lock(&rollup_mutex_);
  const uint32_t run = step.run_number;
  const StepId id(run, step.key.step, step.key.incarnation);
  v1::RollupHead summary = rows.head;
  summary.set_version(kRollupVersion);
  bool holds = false;
  {
    absl::MutexLock lock(&mutex_);
    RP_RETURN_IF_ERROR(sticky_);
    const auto named = runs_.find(step.key.run);
    const bool known = named != runs_.end() && named->second.id() == run;
    v1::StepRow* row = nullptr;
    if (known) {
      RP_ASSIGN_OR_RETURN(row, LoadStep(id));
    }
    if (!known || row->deleted_unix_ns() != 0 || row->records() == 0) {
      pending_rollups_.erase(id);
      // It may still get records.
      if (known && row->deleted_unix_ns() == 0)
        open_rollups_[id] = std::numeric_limits<int64_t>::max();
      return absl::FailedPreconditionError("the step is not there any more");
    }
    if (!IsComplete(*row)) summary.set_incomplete(true);
    holds = row->records() == summary.records();
  }
  std::unique_ptr<IndexBatch> batch = index_->NewBatch();
  RP_ASSIGN_OR_RETURN(const StaleSummaries stale,
                      FindStaleSummaries(index_.get(), run,
                                         step.key.incarnation, step.key.step));
  const std::string head_key =
      keys::AtStep(keys::RollupHeads(run, step.key.incarnation), step.key.step);
  std::optional<v1::RollupHead> head_before = stale.head;
  if (!head_before.has_value()) {
    RP_ASSIGN_OR_RETURN(head_before,
                        GetMessage<v1::RollupHead>(index_.get(), head_key));
  }
  RP_ASSIGN_OR_RETURN(const std::vector<std::string> before,
                      RollupRowsOf(index_.get(), run, step.key.incarnation,
                                   step.key.step, head_before));
  for (const std::string& key : before) batch->Delete(key);
  for (const RollupColumnRow& column : rows.columns) {
    batch->Put(keys::AtStep(keys::RollupColumns(run, step.key.incarnation,
                                                column.block, column.statistic),
                            step.key.step),
               column.bytes);
  }
  for (const auto& [name_id, name] : rows.names)
    batch->Put(keys::RollupName(run, name_id), name.SerializeAsString());
  for (const auto& [number, layout] : rows.layouts)
    batch->Put(keys::RollupLayout(run, number), layout.SerializeAsString());
  for (const auto& [key, head] : stale.heads) batch->Put(key, head);
  for (const std::string& key : stale.keys) batch->Delete(key);
  batch->Put(head_key, summary.SerializeAsString());
  if (!holds) {
    batch->Put(keys::PendingRollup(run, step.key.step, step.key.incarnation),
               "");
  }
  absl::Status status = index_->Write(std::move(batch), /*sync=*/false);
  absl::MutexLock lock(&mutex_);
  if (status.ok()) {
    if (!holds) AddPendingRollup(id);
    TouchTile(run, 1, step.key.incarnation,
              static_cast<uint64_t>(step.key.step) >> kSummaryBits);
    RP_ASSIGN_OR_RETURN(const v1::StepRow* const row, LoadStep(id));
    // Else records came meanwhile, and it is rolled up again.
    if (row->records() == rows.head.records()) {
      batch = index_->NewBatch();
      batch->Delete(
          keys::PendingRollup(run, step.key.step, step.key.incarnation));
      status = index_->Write(std::move(batch), /*sync=*/false);
      if (status.ok()) {
        pending_rollups_.erase(id);
        open_rollups_.erase(id);
      }
    }
  }
  if (!status.ok() && !absl::IsResourceExhausted(status) && sticky_.ok())
    sticky_ = status;
  return status;
}

absl::StatusOr<uint32_t> StoreImpl::RunNumber(const std::string& run) {
  absl::MutexLock lock(&mutex_);
  RP_ASSIGN_OR_RETURN(const v1::RunRow* const row,
                      LoadRun(run, /*create=*/false));
  return row->id();
}

absl::Status StoreImpl::ForEachRollupName(
    uint32_t run,
    const std::function<absl::Status(uint32_t, const v1::RollupName&)>&
        callback) {
  v1::RollupName name;
  return index_->Scan(
      keys::TableOfRun('n', run),
      [&](absl::string_view key, absl::string_view value) -> absl::Status {
        const std::optional<uint32_t> id = keys::ParseRollupNumber(key);
        if (!id.has_value() ||
            !name.ParseFromArray(value.data(), static_cast<int>(value.size())))
          return absl::DataLossError("a name of a rollup cannot be read");
        return callback(*id, name);
      });
}

absl::Status StoreImpl::ForEachRollupLayout(
    uint32_t run,
    const std::function<absl::Status(uint32_t, const v1::RollupLayout&)>&
        callback) {
  v1::RollupLayout layout;
  return index_->Scan(
      keys::TableOfRun('o', run),
      [&](absl::string_view key, absl::string_view value) -> absl::Status {
        const std::optional<uint32_t> number = keys::ParseRollupNumber(key);
        if (!number.has_value() ||
            !layout.ParseFromArray(value.data(),
                                   static_cast<int>(value.size())))
          return absl::DataLossError("a layout of a rollup cannot be read");
        return callback(*number, layout);
      });
}

absl::StatusOr<std::optional<v1::RollupLayout>> StoreImpl::FindRollupLayout(
    uint32_t run, uint32_t number) {
  return GetMessage<v1::RollupLayout>(index_.get(),
                                      keys::RollupLayout(run, number));
}

absl::Status StoreImpl::ForEachStepBehind(
    const std::string& prefix, int64_t first_step, int64_t last_step,
    const std::function<absl::Status(int64_t, absl::string_view)>& callback) {
  return index_->ScanRange(
      keys::AtStep(prefix, first_step), keys::AtStep(prefix, last_step),
      [&](absl::string_view key, absl::string_view value) -> absl::Status {
        const std::optional<int64_t> step = keys::ParseRollupStep(key);
        if (!step.has_value())
          return absl::DataLossError("a block of a rollup cannot be read");
        return callback(*step, value);
      });
}

absl::Status StoreImpl::ForEachRollupColumn(
    uint32_t run, uint64_t incarnation, uint32_t block, uint8_t statistic,
    int64_t first_step, int64_t last_step,
    const std::function<absl::Status(int64_t, absl::string_view)>& callback) {
  return ForEachStepBehind(
      keys::RollupColumns(run, incarnation, block, statistic), first_step,
      last_step, callback);
}

absl::Status StoreImpl::ForEachRollupBlock(
    uint32_t run, uint64_t incarnation, uint32_t block, int64_t first_step,
    int64_t last_step,
    const std::function<absl::Status(int64_t, absl::string_view)>& callback) {
  return ForEachStepBehind(keys::RollupBlocks(run, incarnation, block),
                           first_step, last_step, callback);
}

}  // namespace rankprobe
