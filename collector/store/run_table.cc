// SPDX-License-Identifier: Apache-2.0
#include "collector/store/run_table.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collector/store/keys.h"
#include "collector/store/rows.h"

namespace rankprobe {

absl::Status RunTable::Load() {
  RP_RETURN_IF_ERROR(
      index_->Scan("r", [this](absl::string_view key, absl::string_view value) {
        v1::RunRow row;
        if (!ParseRow(value, &row))
          return absl::DataLossError("the row of a run cannot be read");
        last_run_id_ = std::max(last_run_id_, row.id());
        runs_[std::string(key.substr(1))] = std::move(row);
        return absl::OkStatus();
      }));
  return index_->Scan("t", [this](absl::string_view, absl::string_view value) {
    v1::RunTombstone row;
    if (ParseRow(value, &row))
      last_run_id_ = std::max(last_run_id_, row.run().id());
    return absl::OkStatus();
  });
}

absl::StatusOr<v1::RunRow*> RunTable::Find(const std::string& run) {
  const auto it = runs_.find(run);
  if (it != runs_.end()) return &it->second;
  return absl::NotFoundError(absl::StrCat("no run named \"", run, "\""));
}

v1::RunRow* RunTable::FindOrAdd(const std::string& run) {
  const auto [it, is_new] = runs_.try_emplace(run);
  v1::RunRow& row = it->second;
  if (is_new) {
    row.set_id(++last_run_id_);
    row.set_created_unix_ns(absl::ToUnixNanos(clock_->Now()));
    row.set_updated_unix_ns(row.created_unix_ns());
  }
  return &row;
}

bool RunTable::Has(uint32_t run) const {
  return std::any_of(runs_.begin(), runs_.end(),
                     [run](const auto& row) { return row.second.id() == run; });
}

absl::StatusOr<v1::IncarnationRow*> RunTable::Incarnation(
    uint32_t run, const v1::Identity& identity) {
  const RunIncarnation id(run, identity.incarnation());
  const auto it = incarnations_.find(id);
  if (it != incarnations_.end()) return &it->second;
  RP_ASSIGN_OR_RETURN(
      std::optional<v1::IncarnationRow> row,
      GetRow<v1::IncarnationRow>(
          index_, keys::Incarnation(run, identity.incarnation())));
  if (!row.has_value()) *row.emplace().mutable_identity() = identity;
  return &(incarnations_[id] = *std::move(row));
}

absl::StatusOr<v1::IncarnationRow*> RunTable::Incarnation(
    uint32_t run, uint64_t incarnation) {
  v1::Identity identity;
  identity.set_incarnation(incarnation);
  return Incarnation(run, identity);
}

void RunTable::Erase(const std::string& run) {
  const auto it = runs_.find(run);
  if (it == runs_.end()) return;
  const auto of_run = [id = it->second.id()](const auto& row) {
    return row.first.first == id;
  };
  std::erase_if(incarnations_, of_run);
  std::erase_if(heard_, of_run);
  runs_.erase(it);
}

void RunTable::Undo(const CommitWork& work) {
  for (const RunIncarnation& id : work.incarnations) incarnations_.erase(id);
  for (const auto& [name, before] : work.runs) runs_[name] = before;
}

absl::flat_hash_set<uint64_t> RunTable::HeardSince(uint32_t run,
                                                   int64_t since) const {
  absl::flat_hash_set<uint64_t> heard;
  for (auto it = heard_.lower_bound({run, 0});
       it != heard_.end() && it->first.first == run; ++it) {
    if (it->second > since) heard.insert(it->first.second);
  }
  return heard;
}

}  // namespace rankprobe
