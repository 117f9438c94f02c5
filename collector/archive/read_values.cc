// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/read_values.h"

#include <bit>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "collector/archive/statistics_walk.h"
#include "common/base/little_endian.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

constexpr uint32_t kBatchRows = 8192;
// Keeps a message far below gRPC's limit.
constexpr size_t kBatchNameBytes = size_t{256} << 10;

class Batches : public StatisticsVisitor {
 public:
  explicit Batches(absl::FunctionRef<absl::Status(v1::ValuesReply)> write)
      : write_(write) {}

  absl::Status OnBegin(const std::vector<v1::StepInfo>&) override {
    return absl::OkStatus();
  }

  absl::Status OnRankStep(const v1::StepInfo& step) override {
    step_ = step.step();
    rank_ = step.has_rank() ? step.rank() : -1;
    pid_ = step.pid();
    return absl::OkStatus();
  }

  absl::Status OnValue(const WalkedValue& value) override {
    AppendLittleEndian(static_cast<uint64_t>(step_), batch_.mutable_steps());
    AppendLittleEndian(static_cast<uint64_t>(rank_), batch_.mutable_ranks());
    AppendLittleEndian(static_cast<uint64_t>(pid_), batch_.mutable_pids());
    AppendLittleEndian(NumberOf(value), batch_.mutable_name_numbers());
    const uint32_t row = batch_.rows();
    for (size_t stat = 0; stat < kStatCount; ++stat) {
      const std::optional<double>& number = value.numbers[stat];
      if (!number.has_value()) continue;
      v1::StatisticColumn& column = columns_[stat];
      // Earlier rows have no value in this column.
      column.mutable_numbers()->resize(row * sizeof(double));
      column.mutable_present()->resize(row / 8 + 1);
      AppendLittleEndian(std::bit_cast<uint64_t>(*number),
                         column.mutable_numbers());
      char& bits = (*column.mutable_present())[row / 8];
      bits =
          static_cast<char>(static_cast<unsigned char>(bits) | 1u << (row % 8));
    }
    batch_.set_rows(row + 1);
    return row + 1 == kBatchRows || name_bytes_ >= kBatchNameBytes
               ? Flush()
               : absl::OkStatus();
  }

  absl::Status Finish(const WalkReport& report) {
    RP_RETURN_IF_ERROR(Flush());
    v1::ValuesReply reply;
    v1::ValuesEnd* const end = reply.mutable_end();
    end->set_rows(rows_);
    end->set_rank_steps(report.rank_steps);
    end->set_incomplete_rank_steps(report.incomplete_rank_steps);
    end->set_deleted_rank_steps(report.deleted_rank_steps);
    return write_(std::move(reply));
  }

 private:
  uint32_t NumberOf(const WalkedValue& value) {
    // The separator after the entry makes the keys of two values differ.
    key_.assign(value.name.data(), value.name.size());
    if (value.entry.size() < key_.size()) key_[value.entry.size()] = '\0';
    const auto it = numbers_.find(key_);
    if (it != numbers_.end()) return it->second;
    const auto number = static_cast<uint32_t>(numbers_.size());
    numbers_.emplace(key_, number);
    v1::ValueName* const name = batch_.add_names();
    name->set_entry(value.entry.data(), value.entry.size());
    if (value.entry.size() < value.name.size()) {
      const absl::string_view rest = value.name.substr(value.entry.size() + 1);
      name->set_value(rest.data(), rest.size());
    }
    name_bytes_ += value.name.size();
    return number;
  }

  absl::Status Flush() {
    if (batch_.rows() == 0) return absl::OkStatus();
    const size_t rows = batch_.rows();
    for (size_t stat = 0; stat < kStatCount; ++stat) {
      v1::StatisticColumn& column = columns_[stat];
      if (column.present().empty()) continue;
      column.set_key(kStatInfo[stat].key.data(), kStatInfo[stat].key.size());
      column.mutable_numbers()->resize(rows * sizeof(double));
      column.mutable_present()->resize((rows + 7) / 8);
      *batch_.add_columns() = std::move(column);
      column.Clear();
    }
    rows_ += rows;
    name_bytes_ = 0;
    v1::ValuesReply reply;
    *reply.mutable_batch() = std::move(batch_);
    batch_.Clear();
    return write_(std::move(reply));
  }

  const absl::FunctionRef<absl::Status(v1::ValuesReply)> write_;
  absl::flat_hash_map<std::string, uint32_t> numbers_;
  std::string key_;
  v1::ValueBatch batch_;
  PerStat<v1::StatisticColumn> columns_;
  size_t name_bytes_ = 0;
  uint64_t rows_ = 0;
  int64_t step_ = 0, rank_ = -1, pid_ = 0;
};

}  // namespace

absl::Status ReadValues(const QuerySources& sources,
                        const v1::ReadValuesRequest& request,
                        absl::FunctionRef<bool()> cancelled,
                        absl::FunctionRef<absl::Status(v1::ValuesReply)> write,
                        std::vector<std::string>* unreadable) {
  ValueSelection selection;
  selection.run = request.run();
  selection.steps = IntSet({request.steps().begin(), request.steps().end()});
  selection.ranks = IntSet({request.ranks().begin(), request.ranks().end()});
  selection.match = request.match();
  selection.values = request.values();
  std::vector<Stat> stats;
  for (size_t stat = 0; stat < kStatCount; ++stat)
    stats.push_back(static_cast<Stat>(stat));
  Batches batches(write);
  RP_ASSIGN_OR_RETURN(
      const WalkReport report,
      WalkStatistics(sources, selection, stats, cancelled, &batches));
  if (unreadable != nullptr) *unreadable = report.unreadable;
  return batches.Finish(report);
}

}  // namespace rankprobe
