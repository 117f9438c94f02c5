// SPDX-License-Identifier: Apache-2.0
// Who an incarnation is: registered once, kept.
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "collector/store/keys.h"
#include "collector/store/store_impl.h"
#include "common/base/random_bytes.h"
#include "common/base/same_bytes.h"

namespace rankprobe {
namespace {

// Whether `row` may go on as `identity`. Says nothing of what is stored: it is
// not the caller's if it is refused.
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

absl::StatusOr<OpenedIncarnation> StoreImpl::OpenIncarnation(
    const v1::Identity& identity, const IncarnationClaim& claim) {
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(sticky_);
  RP_ASSIGN_OR_RETURN(v1::RunRow* const run,
                      LoadRun(identity.run(), /*create=*/true));
  const RunIncarnation id(run->id(), identity.incarnation());
  RP_ASSIGN_OR_RETURN(
      const std::optional<std::string> stored,
      index_->Get(keys::Incarnation(run->id(), identity.incarnation())));
  RP_ASSIGN_OR_RETURN(v1::IncarnationRow* const row,
                      LoadIncarnation(run->id(), identity));
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
      // An agent that knew of no secrets began it. Whoever comes next may be
      // somebody else: no secret of his is kept.
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
  // It has come back; whether it is dumping now it says with its next step.
  if (next.dumping_in() != 0) next.set_dumping_in(life_);
  opened.dumping = next.dumping_in() != 0;
  opened.committed = next.committed_sequence();
  opened.principal = next.principal();
  opened.refusals.assign(next.refusals().begin(), next.refusals().end());
  std::unique_ptr<IndexBatch> batch = index_->NewBatch();
  batch->Put(keys::Run(identity.run()), run->SerializeAsString());
  batch->Put(keys::Incarnation(run->id(), identity.incarnation()),
             next.SerializeAsString());
  RP_RETURN_IF_ERROR(index_->Write(std::move(batch), /*sync=*/false));
  incarnations_[id] = std::move(next);
  return opened;
}

uint64_t StoreImpl::NewLife() {
  uint64_t life = 0;
  const std::string random = RandomBytes(sizeof(life));
  std::memcpy(&life, random.data(), sizeof(life));
  return life | 1;  // never 0
}

absl::Status StoreImpl::NoteDumping(const v1::Identity& identity,
                                    Dumping dumping) {
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(sticky_);
  RP_ASSIGN_OR_RETURN(v1::RunRow* const run,
                      LoadRun(identity.run(), /*create=*/false));
  RP_ASSIGN_OR_RETURN(v1::IncarnationRow* const row,
                      LoadIncarnation(run->id(), identity));
  row->set_dumping_in(dumping == Dumping::kYes      ? life_
                      : dumping == Dumping::kCutOff ? kCutOffLife
                                                    : 0);
  std::unique_ptr<IndexBatch> batch = index_->NewBatch();
  batch->Put(keys::Incarnation(run->id(), identity.incarnation()),
             row->SerializeAsString());
  return index_->Write(std::move(batch), /*sync=*/false);
}

}  // namespace rankprobe
