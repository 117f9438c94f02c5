// SPDX-License-Identifier: Apache-2.0
#include "collector/store/store_registry.h"

#include <memory>
#include <utility>

#include "collector/store/archive_reader.h"
#include "collector/store/keys.h"
#include "collector/store/rows.h"
#include "collector/store/store_core.h"
#include "common/base/same_bytes.h"

namespace rankprobe {
namespace {

constexpr int kMaxAbsentRanges = 256;

// Appends a range after the known ones.
void NoteAbsent(uint64_t first, uint64_t last, v1::IncarnationRow* row) {
  const int known = row->absent_size();
  if (known > 0 && (known >= kMaxAbsentRanges ||
                    row->absent(known - 1).last() + 1 == first)) {
    row->mutable_absent(known - 1)->set_last(last);
    return;
  }
  v1::FrameRange* const range = row->add_absent();
  range->set_first(first);
  range->set_last(last);
}

// Returns whether `identity` may continue `row`. The error does not reveal what
// is stored, because a refused caller does not own it.
absl::Status CheckSameProcess(const v1::IncarnationRow& row,
                              const v1::Identity& identity) {
  const v1::Identity& stored = row.identity();
  const bool same_rank = !stored.has_rank() || !identity.has_rank() ||
                         stored.rank() == identity.rank() ||
                         row.committed_sequence() == 0;
  if (same_rank && stored.host() == identity.host() &&
      stored.pid() == identity.pid())
    return absl::OkStatus();
  return absl::PermissionDeniedError(
      "this incarnation has another identity: host, pid and rank of a process "
      "do not change");
}

}  // namespace

absl::StatusOr<OpenedIncarnation> StoreRegistry::OpenIncarnation(
    const v1::Identity& identity, const IncarnationClaim& claim) {
  absl::MutexLock lock(&core_->mutex);
  RP_RETURN_IF_ERROR(core_->sticky);
  const v1::RunRow* const run = core_->runs.FindOrAdd(identity.run());
  const RunIncarnation id(run->id(), identity.incarnation());
  RP_ASSIGN_OR_RETURN(
      const std::optional<std::string> stored,
      core_->index->Get(keys::Incarnation(run->id(), identity.incarnation())));
  RP_ASSIGN_OR_RETURN(const v1::IncarnationRow* const row,
                      core_->runs.Incarnation(run->id(), identity));
  v1::IncarnationRow next = *row;
  OpenedIncarnation opened;
  if (!stored.has_value()) {
    *next.mutable_identity() = identity;
    next.set_secret_sha256(claim.secret_sha256);
    next.set_principal(claim.principal);
    opened.proved = true;
  } else {
    RP_RETURN_IF_ERROR(CheckSameProcess(*row, identity));
    if (claim.from_agent && !row->secret_sha256().empty()) {
      if (!SameBytes(row->secret_sha256(), claim.secret_sha256)) {
        return absl::PermissionDeniedError(
            "this incarnation is another process': its secret is another");
      }
      opened.proved = true;
    } else if (claim.from_agent) {
      // The incarnation was begun by an agent without a secret. The next
      // process may be a different one, so its secret is not stored.
      if (row->principal() != claim.principal) {
        return absl::PermissionDeniedError(
            "this incarnation was begun under another token");
      }
    }
    if (identity.has_rank() && (opened.proved || !claim.from_agent))
      next.mutable_identity()->set_rank(identity.rank());
    if (row->identity().world_size() <= 0)
      next.mutable_identity()->set_world_size(identity.world_size());
  }
  // The process has reconnected; its next step reports whether it is dumping.
  if (next.dumping_in() != 0) next.set_dumping_in(core_->life);
  opened.dumping = next.dumping_in() != 0;
  opened.committed = next.committed_sequence();
  opened.principal = next.principal();
  opened.refusals.assign(next.refusals().begin(), next.refusals().end());
  std::unique_ptr<IndexBatch> batch = core_->index->NewBatch();
  batch->Put(keys::Run(identity.run()), run->SerializeAsString());
  batch->Put(keys::Incarnation(run->id(), identity.incarnation()),
             next.SerializeAsString());
  RP_RETURN_IF_ERROR(core_->index->Write(std::move(batch), /*sync=*/false));
  core_->runs.Put(id, std::move(next));
  return opened;
}

absl::Status StoreRegistry::Change(
    const v1::Identity& identity, bool create, bool sync,
    const std::function<bool(v1::IncarnationRow*)>& change) {
  absl::MutexLock lock(&core_->mutex);
  RP_RETURN_IF_ERROR(core_->sticky);
  v1::RunRow* run = nullptr;
  if (create) {
    run = core_->runs.FindOrAdd(identity.run());
  } else {
    RP_ASSIGN_OR_RETURN(run, core_->runs.Find(identity.run()));
  }
  RP_ASSIGN_OR_RETURN(v1::IncarnationRow* const row,
                      core_->runs.Incarnation(run->id(), identity));
  if (!change(row)) return absl::OkStatus();
  return PutRow(core_->index.get(),
                keys::Incarnation(run->id(), identity.incarnation()),
                row->SerializeAsString(), /*sync=*/sync);
}

absl::Status StoreRegistry::NoteLostFrames(const v1::Identity& identity,
                                           uint64_t through_sequence) {
  return Change(
      identity, /*create=*/true, /*sync=*/false, [&](v1::IncarnationRow* row) {
        const uint64_t committed = row->committed_sequence();
        if (through_sequence <= committed) return false;
        row->set_lost_frames(row->lost_frames() + through_sequence - committed);
        NoteAbsent(committed + 1, through_sequence, row);
        row->set_committed_sequence(through_sequence);
        return true;
      });
}

absl::Status StoreRegistry::NoteUndelivered(
    const v1::Identity& identity, const v1::Undelivered& undelivered) {
  return Change(identity, /*create=*/true, /*sync=*/true,
                [&](v1::IncarnationRow* row) {
                  if (undelivered.records() + undelivered.payloads() == 0) {
                    row->clear_undelivered();
                  } else {
                    *row->mutable_undelivered() = undelivered;
                  }
                  return true;
                });
}

absl::Status StoreRegistry::NoteDumping(const v1::Identity& identity,
                                        Dumping dumping) {
  const uint64_t life = dumping == Dumping::kYes      ? core_->life
                        : dumping == Dumping::kCutOff ? kCutOffLife
                                                      : 0;
  return Change(identity, /*create=*/false, /*sync=*/false,
                [life](v1::IncarnationRow* row) {
                  row->set_dumping_in(life);
                  return true;
                });
}

absl::Status StoreRegistry::SavePlan(const std::string& run,
                                     const v1::PlanSpec& plan) {
  absl::MutexLock lock(&core_->mutex);
  RP_RETURN_IF_ERROR(core_->sticky);
  return PutRow(core_->index.get(), keys::Plan(run), plan.SerializeAsString(),
                /*sync=*/false);
}

absl::Status StoreRegistry::SyncPlans() {
  // Without the lock, because every frame and every Hello needs it.
  return core_->index->Sync();
}

absl::StatusOr<std::optional<v1::PlanSpec>> StoreRegistry::LoadPlan(
    const std::string& run) {
  return GetRow<v1::PlanSpec>(core_->index.get(), keys::Plan(run));
}

}  // namespace rankprobe
