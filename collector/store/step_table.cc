// SPDX-License-Identifier: Apache-2.0
#include "collector/store/step_table.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/store/frame_store.h"
#include "collector/store/keys.h"
#include "collector/store/rows.h"
#include "collector/store/step_counts.h"
#include "common/base/limits.h"
#include "common/records/record_checksum.h"

namespace rankprobe {
namespace {

// Orders of records that the store itself adds to a step, after those of agents
// (kFirstAddedOrder) and of the gate (3 << 61). A sequence number is committed
// once, so they never collide.
constexpr uint64_t kStoreOrderBase = uint64_t{1} << 63;
constexpr int kStoreOrderBits = 20;
// Limit for open steps in memory; others need index lookups.
constexpr size_t kMaxKnownSteps = 100000;

uint64_t StoreOrder(uint64_t sequence, uint64_t nth) {
  return kStoreOrderBase + (sequence << kStoreOrderBits) + nth;
}

}  // namespace

absl::StatusOr<v1::StepRow*> StepTable::Load(const StepId& id) {
  const auto it = steps_.find(id);
  if (it != steps_.end()) return &it->second;
  RP_ASSIGN_OR_RETURN(
      std::optional<v1::StepRow> row,
      GetRow<v1::StepRow>(index_, keys::Step(id.run, id.step, id.incarnation)));
  return &(steps_[id] = row.has_value() ? *std::move(row) : v1::StepRow());
}

void StepTable::EraseRun(uint32_t run) {
  const auto of_run = [run](const auto& row) { return row.first.run == run; };
  std::erase_if(steps_, of_run);
  std::erase_if(next_orders_, of_run);
}

void StepTable::Trim() {
  if (steps_.size() <= trim_at_) return;
  for (auto it = steps_.begin(); it != steps_.end();) {
    if (it->second.has_end()) {
      next_orders_.erase(it->first);
      it = steps_.erase(it);
    } else {
      ++it;
    }
  }
  if (steps_.size() > kMaxKnownSteps) {
    steps_.clear();
    next_orders_.clear();
  }
  // If many steps are open, this avoids trimming in each commit.
  trim_at_ = std::max(kUsual, 2 * steps_.size());
}

absl::StatusOr<bool> StepTable::IsThere(const StepId& id, uint64_t order,
                                        uint64_t* next_order,
                                        CommitWork* work) {
  if (order >= kStoreOrderBase) return true;  // reserved for the store
  OrderSet& added = work->orders[id];
  // Orders usually ascend, so the index need not be read.
  if (order < kFirstAddedOrder && order >= *next_order) {
    *next_order = order + 1;
    added.Add(order);
    return false;
  }
  if (added.Contains(order)) return true;
  RP_ASSIGN_OR_RETURN(
      const std::optional<std::string> stored,
      index_->Get(keys::Record(id.run, id.step, id.incarnation, order)));
  if (!stored.has_value()) added.Add(order);
  return stored.has_value();
}

absl::Status StepTable::AddRecord(v1::RunRow* run, const StepId& id,
                                  const v1::Record& record, v1::StepRow* step,
                                  CommitWork* work) {
  if (!EncodeRecord(record, &encoded_).ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("record ", record.order(), " of step ", id.step,
                     " does not match its checksum"));
  }
  if (record.has_loss())
    work->lost_records[record.loss().reason()] += record.loss().records();
  CountRecord(
      record,
      [&](const v1::PayloadRef& payload) {
        run->set_offered_payload_bytes(run->offered_payload_bytes() +
                                       payload.length_bytes());
        if (payload.digest().size() != kPayloadDigestBytes) return;
        work->batch->Put(
            keys::Reference(run->id(), payload.digest(), payload.length_bytes(),
                            id.step, id.incarnation),
            "");
      },
      step);
  work->batch->Put(
      keys::Record(run->id(), id.step, id.incarnation, record.order()),
      encoded_);
  run->set_records(run->records() + 1);
  return absl::OkStatus();
}

absl::Status StepTable::AddBatch(v1::RunRow* run, uint64_t incarnation,
                                 const v1::UploadFrame& frame,
                                 CommitWork* work) {
  const v1::RecordBatch& records = frame.batch();
  const StepId id{run->id(), records.step(), incarnation};
  RP_ASSIGN_OR_RETURN(v1::StepRow* const step, Load(id));
  work->steps.insert(id);
  if (step->deleted_unix_ns() != 0) {
    // Records for a deleted step are counted, not stored.
    step->set_rank_records(step->rank_records() +
                           static_cast<uint64_t>(records.records_size()));
    return absl::OkStatus();
  }
  // If another process of the collector began the step, its highest order is
  // not known: the index is read for each record.
  uint64_t& next_order =
      next_orders_.try_emplace(id, step->records() == 0 ? 0 : kFirstAddedOrder)
          .first->second;
  // Records that were received again.
  v1::StepRow refused;
  uint64_t first_refused = 0, store_orders = 0;
  for (const v1::Record& record : records.records()) {
    RP_ASSIGN_OR_RETURN(const bool there,
                        IsThere(id, record.order(), &next_order, work));
    if (!there) {
      RP_RETURN_IF_ERROR(AddRecord(run, id, record, step, work));
    } else if (record.has_loss() && store_orders + 2 < uint64_t{1}
                                                           << kStoreOrderBits) {
      // A loss has no position among the calls: it is kept, with another order.
      v1::Record moved = record;
      moved.set_order(StoreOrder(frame.sequence(), ++store_orders));
      moved.clear_crc32c();
      RP_RETURN_IF_ERROR(AddRecord(run, id, moved, step, work));
    } else {
      if (refused.records() == 0) first_refused = record.order();
      CountRecord(
          record, [](const v1::PayloadRef&) {}, &refused);
    }
  }
  if (refused.records() > 0) {
    v1::Record lost;
    lost.set_order(StoreOrder(frame.sequence(), 0));
    lost.mutable_loss()->set_reason(v1::LOSS_REASON_COLLECTOR_REFUSED);
    lost.mutable_loss()->set_records(refused.records());
    lost.mutable_loss()->set_payloads(refused.payloads());
    lost.mutable_loss()->set_detail(
        absl::StrCat("the step has a record of order ", first_refused,
                     " already, the first one stays"));
    RP_RETURN_IF_ERROR(AddRecord(run, id, lost, step, work));
  }
  step->set_updated_unix_ns(run->updated_unix_ns());
  return absl::OkStatus();
}

}  // namespace rankprobe
