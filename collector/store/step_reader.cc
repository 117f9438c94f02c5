// SPDX-License-Identifier: Apache-2.0
#include "collector/store/step_reader.h"

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "collector/store/keys.h"
#include "collector/store/rows.h"
#include "collector/store/step_counts.h"

namespace rankprobe {

absl::Status StepReader::Add(absl::string_view key, absl::string_view value) {
  RP_ASSIGN_OR_RETURN(v1::StepInfo info, Read(key, value));
  out_.push_back(std::move(info));
  return absl::OkStatus();
}

absl::StatusOr<v1::StepInfo> StepReader::Read(absl::string_view key,
                                              absl::string_view value) {
  v1::StepRow row;
  const std::optional<keys::StepParts> parts = keys::ParseStep(key);
  if (!parts.has_value() || !ParseRow(value, &row))
    return absl::DataLossError("the row of a step cannot be read");
  RP_ASSIGN_OR_RETURN(const v1::Identity* const identity,
                      IdentityOf(parts->incarnation));
  v1::StepInfo info;
  info.set_step(parts->step);
  if (identity->has_rank()) info.set_rank(identity->rank());
  info.set_pid(identity->pid());
  info.set_host(identity->host());
  info.set_incarnation(parts->incarnation);
  DescribeCounts(row, &info);
  info.set_updated_unix_ns(row.updated_unix_ns());
  info.set_deleted(row.deleted_unix_ns() != 0);
  return info;
}

std::vector<v1::StepInfo> StepReader::TakeSorted() {
  std::stable_sort(
      out_.begin(), out_.end(),
      [](const v1::StepInfo& a, const v1::StepInfo& b) {
        const auto rank = [](const v1::StepInfo& s) {
          return s.has_rank() ? s.rank() : INT64_MAX;
        };
        return std::make_tuple(a.step(), rank(a), a.pid(), a.incarnation()) <
               std::make_tuple(b.step(), rank(b), b.pid(), b.incarnation());
      });
  return std::move(out_);
}

// Looked up, not scanned: their rows are rewritten with each commit, and a scan
// passes all that LevelDB still holds of them.
absl::StatusOr<const v1::Identity*> StepReader::IdentityOf(
    uint64_t incarnation) {
  const auto [it, is_new] = identities_.try_emplace(incarnation);
  if (!is_new) return &it->second;
  RP_ASSIGN_OR_RETURN(const std::optional<std::string> value,
                      index_->Get(keys::Incarnation(run_, incarnation)));
  v1::IncarnationRow row;
  if (value.has_value() && !ParseRow(*value, &row))
    return absl::DataLossError("the row of an incarnation cannot be read");
  it->second = row.identity();
  return &it->second;
}

}  // namespace rankprobe
