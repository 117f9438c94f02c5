// SPDX-License-Identifier: Apache-2.0
#include "common/tensor/statistics.h"

namespace rankprobe {

StatValue StatValue::Float(double v) {
  StatValue s;
  s.kind = Kind::kFloat;
  s.f = v;
  return s;
}

StatValue StatValue::Int(int64_t v) {
  StatValue s;
  s.kind = Kind::kInt;
  s.i = v;
  return s;
}

StatValue StatValue::Bool(bool v) {
  StatValue s;
  s.kind = Kind::kBool;
  s.b = v;
  return s;
}

bool ExtraSet::AddWord(absl::string_view word) {
  bool known = false;
  for (const ExtraStatistic& extra : kExtraStatistics) {
    if (extra.word != word) continue;
    bits_ |= uint32_t{1} << extra.id;
    known = true;
  }
  return known;
}

std::vector<absl::string_view> ExtraSet::Words() const {
  std::vector<absl::string_view> words;
  for (const ExtraStatistic& extra : kExtraStatistics) {
    // Statistics of one word are adjacent.
    if (Has(extra.id) && (words.empty() || words.back() != extra.word))
      words.push_back(extra.word);
  }
  return words;
}

std::vector<v1::StatisticId> ExtraSet::Ids() const {
  std::vector<v1::StatisticId> ids;
  for (const ExtraStatistic& extra : kExtraStatistics) {
    if (Has(extra.id)) ids.push_back(extra.id);
  }
  return ids;
}

std::vector<absl::string_view> ExtraStatisticWords() {
  ExtraSet all;
  for (const ExtraStatistic& extra : kExtraStatistics) all.AddWord(extra.word);
  return all.Words();
}

}  // namespace rankprobe
