// SPDX-License-Identifier: Apache-2.0
#include "analysis/root_cause/value_sources.h"

#include "absl/strings/str_cat.h"
#include "analysis/root_cause/values_text.h"
#include "dump_format/statistics.h"

namespace rankprobe::analysis {
namespace {

// Returns an empty key for rows without statistics and for tensors whose
// elements are all equal, which no reordering changes.
std::string KeyOf(const DumpRow& row) {
  if (row.record == nullptr || row.derived || !row.stats[kMax].is_number() ||
      !row.stats[kMin].is_number() ||
      row.stats[kMax].number == row.stats[kMin].number) {
    return "";
  }
  std::string key;
  for (size_t i = 0; i < kUsualStatCount; ++i)
    absl::StrAppend(&key, row.stats[i].text, " ");
  return key;
}

}  // namespace

void ValueSources::Clear() {
  makers_.clear();
  last_call_.clear();
}

void ValueSources::Add(absl::string_view call,
                       absl::Span<const RowPair> pairs) {
  for (const RowPair& pair : pairs) {
    std::string key = KeyOf(*pair.target);
    if (key.empty()) continue;
    std::string& maker = makers_[std::move(key)];
    // Only a row with a partner can be known to have the same value in the
    // reference.
    if (maker.empty() && pair.target->state == RowState::kOutput &&
        pair.reference != nullptr)
      maker = std::string(call);
  }
  last_call_ = std::string(call);
}

std::string ValueSources::MakerOf(const DumpRow& row) const {
  const auto it = makers_.find(KeyOf(row));
  return it == makers_.end() ? "" : it->second;
}

std::vector<std::string> ValueSources::Unmade(
    absl::string_view call, absl::Span<const RowPair> pairs) const {
  std::vector<std::string> unmade;
  for (const RowPair& pair : pairs) {
    // The order of elements can differ only for tensors of two or more
    // dimensions.
    if (pair.target->state != RowState::kInput) continue;
    const std::string key = KeyOf(*pair.target);
    if (!key.empty() && !makers_.contains(key))
      unmade.emplace_back(PlaceOf(call, *pair.target));
  }
  return unmade;
}

}  // namespace rankprobe::analysis
