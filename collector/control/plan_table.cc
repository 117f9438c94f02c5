// SPDX-License-Identifier: Apache-2.0
#include "collector/control/plan_table.h"

#include <atomic>

#include "absl/strings/str_cat.h"
#include "common/base/monotonic_event.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

// A run's name has no zero byte, so keys of rows other than its plan contain
// one.
std::string KeyBeside(const std::string& run, const std::string& what) {
  return absl::StrCat(run, std::string(1, '\0'), what);
}

std::string RankKey(const std::string& run, int64_t rank) {
  return KeyBeside(run, absl::StrCat(rank));
}

std::string EpochKey(const std::string& run) { return KeyBeside(run, "epoch"); }

std::string TriggersKey(const std::string& run) {
  return KeyBeside(run, "watch");
}

}  // namespace

struct PlanTable::AwaitedSave {
  std::function<void()> when_saved;
  // Set when the rows survive this process, or saving them has failed.
  MonotonicEvent written;
  // Set when the queue has finished with the rows.
  MonotonicEvent settled;
  std::atomic<bool> ending{false};
  // Set after `status`.
  MonotonicEvent over;
  absl::Status status;

  // The first call decides the result; all calls return after that.
  void End(const absl::Status& how) {
    if (ending.exchange(true)) return over.Wait();
    if (how.ok()) when_saved();
    status = how;
    over.Set();
  }
};

absl::StatusOr<std::optional<v1::PlanSpec>> PlanTable::Load(
    const std::string& key) {
  if (registry_ == nullptr) return std::optional<v1::PlanSpec>();
  return registry_->LoadPlan(key);
}

absl::StatusOr<std::optional<v1::PlanSpec>> PlanTable::ForRun(
    const std::string& run) {
  return Load(run);
}

absl::StatusOr<std::optional<v1::PlanSpec>> PlanTable::ForRank(
    const std::string& run, int64_t rank) {
  return Load(RankKey(run, rank));
}

absl::StatusOr<uint64_t> PlanTable::HighestEpoch(const std::string& run) {
  RP_ASSIGN_OR_RETURN(const std::optional<v1::PlanSpec> row,
                      Load(EpochKey(run)));
  return row.has_value() ? row->epoch() : 0;
}

absl::StatusOr<std::optional<std::string>> PlanTable::Triggers(
    const std::string& run) {
  RP_ASSIGN_OR_RETURN(const std::optional<v1::PlanSpec> row,
                      Load(TriggersKey(run)));
  if (!row.has_value()) return std::optional<std::string>();
  return row->config_json();
}

void PlanTable::AddPlan(const std::string& run, std::optional<int64_t> rank,
                        const v1::PlanSpec& spec, Rows* rows) {
  rows->emplace_back(rank.has_value() ? RankKey(run, *rank) : run, spec);
}

PlanTable::Rows PlanTable::NewPlan(const std::string& run,
                                   const v1::PlanSpec& spec,
                                   const std::vector<int64_t>& ranks) {
  // The epoch is the first row: if only it is saved, the epoch is just not
  // used.
  Rows rows;
  rows.emplace_back(EpochKey(run), v1::PlanSpec())
      .second.set_epoch(spec.epoch());
  if (ranks.empty()) AddPlan(run, std::nullopt, spec, &rows);
  for (const int64_t rank : ranks) AddPlan(run, rank, spec, &rows);
  return rows;
}

PlanTable::Rows PlanTable::TriggerRows(const std::string& run,
                                       const std::string& json) {
  v1::PlanSpec row;
  row.set_config_json(json);
  return {{TriggersKey(run), row}};
}

absl::Status PlanTable::SaveRows(const Rows& rows) {
  if (registry_ == nullptr) {
    return absl::FailedPreconditionError(
        "this collector serves a read-only archive: it has no ranks, and saves "
        "no plans and no triggers");
  }
  for (const auto& [key, spec] : rows)
    RP_RETURN_IF_ERROR(registry_->SavePlan(key, spec));
  return absl::OkStatus();
}

void PlanTable::Save(Rows rows, Saved saved) {
  queue_->Add([this, rows = std::move(rows), saved = std::move(saved)] {
    const absl::Status status = SaveRows(rows);
    saved(status, /*synced=*/false);
    if (status.ok()) saved(registry_->SyncPlans(), /*synced=*/true);
  });
}

void PlanTable::SaveLater(std::function<Rows()> rows) {
  queue_->Add([this, rows = std::move(rows)] {
    // The archive itself reports a failed write.
    if (SaveRows(rows()).ok()) registry_->SyncPlans().IgnoreError();
  });
}

std::shared_ptr<PlanTable::AwaitedSave> PlanTable::QueueSave(
    Rows rows, std::function<void()> when_saved) {
  auto save = std::make_shared<AwaitedSave>();
  save->when_saved = std::move(when_saved);
  Save(std::move(rows), [save](const absl::Status& status, bool synced) {
    if (status.ok() && !synced) return save->written.Set();
    // Ends before the next save begins, so that decisions have the order of
    // saves.
    save->End(status);
    save->written.Set();
    save->settled.Set();
  });
  return save;
}

absl::Status PlanTable::Await(const std::shared_ptr<AwaitedSave>& save) {
  queue_->RunQueued();
  save->written.Wait();
  if (!save->settled.WaitFor(sync_wait_)) save->End(absl::OkStatus());
  save->over.Wait();
  return save->status;
}

}  // namespace rankprobe
