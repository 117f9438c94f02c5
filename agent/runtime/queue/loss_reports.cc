// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/queue/loss_reports.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/records/record_checksum.h"

namespace rankprobe {
namespace {

// Orders of records that the queue itself adds to a step: after all others.
constexpr uint64_t kLossOrderBase = uint64_t{1} << 62;
// Beyond this number, losses of one step and reason are added up.
constexpr size_t kMaxLossEvents = 1000;
constexpr uint64_t kMaxLines = 20;

const char* DetailOf(v1::LossReason reason) {
  switch (reason) {
    case v1::LOSS_REASON_AGENT_DEADLINE:
      return "the agent's byte budget stayed full for its block deadline";
    case v1::LOSS_REASON_COLLECTOR_SILENT:
      return "the agent's byte budget was full and the collector did not "
             "answer";
    default:
      return "the agent's byte budget was full";
  }
}

void Say(uint64_t nth, const std::string& what) {
  if (nth > kMaxLines) return;
  const std::string line = absl::StrCat(
      "rankprobe: ", what,
      nth == kMaxLines ? "; further ones are counted only" : "", "\n");
  std::fputs(line.c_str(), stderr);
}

}  // namespace

void LossReports::NoteShed(int64_t step, v1::LossReason reason,
                           uint64_t records) {
  lost_records_ += records;
  shed_[{step, reason}] += records;
}

void LossReports::Note(int64_t step, v1::LossEvent loss) {
  lost_records_ += loss.records();
  lost_payloads_ += loss.payloads();
  if (events_.size() >= kMaxLossEvents) {
    for (auto& [other, known] : events_) {
      if (other != step || known.reason() != loss.reason()) continue;
      known.set_records(known.records() + loss.records());
      known.set_payloads(known.payloads() + loss.payloads());
      return;
    }
  }
  events_.emplace_back(step, std::move(loss));
}

void LossReports::NoteRefused(uint64_t sequence, const EncodedBatch& records,
                              const std::string& why) {
  const BatchContent held = CountBatch(records.bytes);
  // A report of losses was counted before, and the collector counts the frame.
  if (held.records == 0) return;
  v1::LossEvent loss;
  loss.set_reason(v1::LOSS_REASON_COLLECTOR_REFUSED);
  loss.set_records(held.records);
  loss.set_payloads(held.payloads);
  loss.set_bytes(records.bytes.size());
  loss.set_detail(absl::StrCat("frame ", sequence, ": ", why));
  Note(held.step, std::move(loss));
  Say(++refused_frames_,
      absl::StrCat("the collector refuses ", held.records, " records of step ",
                   held.step, ", they are lost: ", why));
}

void LossReports::TellRefusedPayload(uint64_t bytes, const std::string& why) {
  Say(++refused_frames_, absl::StrCat("the collector refuses a payload of ",
                                      bytes, " bytes, it is lost: ", why));
}

void LossReports::TellNoRoom() {
  Say(++credit_lines_,
      "the collector's disk has no room for tensors: they are left out and "
      "counted until it has; statistics are recorded");
}

std::vector<EncodedBatch> LossReports::Take() {
  std::vector<EncodedBatch> batches;
  batches.reserve(shed_.size() + events_.size());
  const auto add = [&](int64_t step, v1::LossEvent loss) {
    v1::RecordBatch batch;
    batch.set_step(step);
    v1::Record* const record = batch.add_records();
    record->set_order(kLossOrderBase + orders_++);
    *record->mutable_loss() = std::move(loss);
    SealRecord(record);
    batches.emplace_back(batch.SerializeAsString());
  };
  for (const auto& [place, count] : shed_) {
    v1::LossEvent loss;
    loss.set_reason(place.second);
    loss.set_records(count);
    loss.set_detail(DetailOf(place.second));
    add(place.first, std::move(loss));
  }
  shed_.clear();
  for (auto& [step, loss] : events_) add(step, std::move(loss));
  events_.clear();
  return batches;
}

void LossReports::ForEach(
    const std::function<void(int64_t step, uint64_t records,
                             uint64_t payloads)>& add) const {
  for (const auto& [place, count] : shed_) add(place.first, count, 0);
  for (const auto& [step, loss] : events_)
    add(step, loss.records(), loss.payloads());
}

}  // namespace rankprobe
