// SPDX-License-Identifier: Apache-2.0
#include "collector/sealed/unite.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <tuple>
#include <utility>

#include "collector/sealed/order_ranges.h"
#include "collector/store/step_counts.h"
#include "common/base/saturating_add.h"

namespace rankprobe::sealed {
namespace {

// The limit of a collector.
constexpr size_t kMaxRefusals = 32;

uint64_t Less(uint64_t a, uint64_t b) { return a - std::min(a, b); }

uint64_t CountAbsent(const v1::IncarnationRow& row) {
  uint64_t count = 0;
  for (const v1::FrameRange& range : row.absent())
    count = SaturatingAdd(count, Less(range.last() + 1, range.first()));
  return count;
}

// Adds the frames that the collector of this row has, or has refused.
void AddHeld(const v1::IncarnationRow& row, OrderRanges* held) {
  uint64_t next = 1;
  for (const v1::FrameRange& range : row.absent()) {
    if (range.first() > next) held->Add(next, range.first() - 1);
    next = std::max(next, range.last() + 1);
  }
  if (row.committed_sequence() >= next)
    held->Add(next, row.committed_sequence());
}

void SetAbsent(const OrderRanges& held, v1::IncarnationRow* row) {
  row->clear_absent();
  uint64_t next = 1;
  for (const auto& [first, last] : held.ranges()) {
    if (first > next) {
      v1::FrameRange* const range = row->add_absent();
      range->set_first(next);
      range->set_last(first - 1);
    }
    next = last + 1;
  }
}

const v1::LossCount* LossOf(
    const google::protobuf::RepeatedPtrField<v1::LossCount>& losses,
    v1::LossReason reason) {
  for (const v1::LossCount& loss : losses)
    if (loss.reason() == reason) return &loss;
  return nullptr;
}

// Adds losses that a collector counted and has no record of.
void AddOwnLosses(const v1::StepInfo& info, const v1::StepRow& records,
                  v1::StepInfo* all) {
  for (const v1::LossCount& loss : info.losses()) {
    const v1::LossCount* const told = LossOf(records.losses(), loss.reason());
    v1::LossCount own = loss;
    if (told != nullptr) {
      own.set_records(Less(loss.records(), told->records()));
      own.set_payloads(Less(loss.payloads(), told->payloads()));
      own.set_referred_payloads(
          Less(loss.referred_payloads(), told->referred_payloads()));
    }
    if (own.records() + own.payloads() + own.referred_payloads() == 0) continue;
    all->set_lost(SaturatingAdd(all->lost(), own.records() + own.payloads()));
    bool known = false;
    for (v1::LossCount& sum : *all->mutable_losses()) {
      if (sum.reason() != own.reason()) continue;
      known = true;
      sum.set_records(SaturatingAdd(sum.records(), own.records()));
      sum.set_payloads(SaturatingAdd(sum.payloads(), own.payloads()));
      sum.set_referred_payloads(
          SaturatingAdd(sum.referred_payloads(), own.referred_payloads()));
    }
    if (!known) *all->add_losses() = own;
  }
}

}  // namespace

v1::IncarnationRow UniteRows(std::vector<v1::IncarnationRow> rows) {
  if (rows.size() == 1) return std::move(rows[0]);
  // The collector that the process connected to last knows how it ended.
  std::sort(rows.begin(), rows.end(),
            [](const v1::IncarnationRow& a, const v1::IncarnationRow& b) {
              const auto since = [](const v1::IncarnationRow& row) {
                const int ranges = row.absent_size();
                return ranges == 0 ? 0 : row.absent(ranges - 1).last();
              };
              return std::make_tuple(since(a), a.committed_sequence()) <
                     std::make_tuple(since(b), b.committed_sequence());
            });
  v1::IncarnationRow all = rows.back();
  OrderRanges held;
  uint64_t without_place = 0, unnamed = 0;
  std::map<uint64_t, v1::RefusalRow> refusals;
  for (v1::IncarnationRow& row : rows) {
    AddHeld(row, &held);
    all.set_committed_sequence(
        std::max(all.committed_sequence(), row.committed_sequence()));
    without_place =
        SaturatingAdd(without_place, Less(row.lost_frames(), CountAbsent(row)));
    unnamed +=
        Less(row.refused_frames(), static_cast<uint64_t>(row.refusals_size()));
    for (v1::RefusalRow& refusal : *row.mutable_refusals())
      refusals[refusal.sequence()].Swap(&refusal);
    if (!all.has_undelivered() && row.has_undelivered())
      *all.mutable_undelivered() = row.undelivered();
    if (!all.identity().has_rank() && row.identity().has_rank())
      all.mutable_identity()->set_rank(row.identity().rank());
    if (row.has_lowest_step() && all.has_lowest_step())
      all.set_lowest_step(std::min(all.lowest_step(), row.lowest_step()));
    if (row.has_highest_step() && all.has_highest_step())
      all.set_highest_step(std::max(all.highest_step(), row.highest_step()));
  }
  SetAbsent(held, &all);
  all.set_lost_frames(SaturatingAdd(CountAbsent(all), without_place));
  all.set_refused_frames(unnamed + refusals.size());
  all.clear_refusals();
  const size_t left_out = Less(refusals.size(), kMaxRefusals);
  for (auto it =
           std::next(refusals.begin(), static_cast<std::ptrdiff_t>(left_out));
       it != refusals.end(); ++it)
    all.add_refusals()->Swap(&it->second);
  return all;
}

void StepUnion::Add(int log, const v1::Record& record) {
  const auto ignore = [](const v1::PayloadRef&) {};
  CountRecord(record, ignore, &of_log_[log]);
  if (orders_.insert(record.order()).second) CountRecord(record, ignore, &all_);
}

v1::StepInfo StepUnion::Describe(
    const std::map<int, v1::StepInfo>& infos) const {
  v1::StepInfo all;
  const v1::StepInfo& first = infos.begin()->second;
  all.set_step(first.step());
  all.set_pid(first.pid());
  all.set_host(first.host());
  all.set_incarnation(first.incarnation());
  all.set_job(first.job());
  DescribeCounts(all_, &all);
  for (const auto& [log, info] : infos) {
    if (info.has_rank()) all.set_rank(info.rank());
    all.set_updated_unix_ns(
        std::max(all.updated_unix_ns(), info.updated_unix_ns()));
    const auto records = of_log_.find(log);
    AddOwnLosses(
        info, records == of_log_.end() ? v1::StepRow() : records->second, &all);
  }
  return all;
}

bool IsStepBefore(const v1::StepInfo& a, const v1::StepInfo& b) {
  const auto rank = [](const v1::StepInfo& s) {
    return s.has_rank() ? s.rank() : INT64_MAX;
  };
  return std::make_tuple(a.step(), rank(a), a.pid(), a.incarnation()) <
         std::make_tuple(b.step(), rank(b), b.pid(), b.incarnation());
}

void RunCounter::Add(const v1::StepInfo& step) {
  first_ns_ = std::min(first_ns_, step.updated_unix_ns());
  last_ns_ = std::max(last_ns_, step.updated_unix_ns());
  if (step.deleted()) return;
  processes_.Add(step);
  steps_.insert(step.step());
  records_ = SaturatingAdd(records_, step.records());
}

void RunCounter::Describe(v1::RunInfo* run) const {
  run->set_created_unix_ns(first_ns_ == INT64_MAX ? 0 : first_ns_);
  run->set_updated_unix_ns(last_ns_);
  processes_.Describe(run);
  run->set_steps(steps_.size());
  run->set_records(records_);
}

}  // namespace rankprobe::sealed
