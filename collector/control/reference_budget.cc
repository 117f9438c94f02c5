// SPDX-License-Identifier: Apache-2.0
#include "collector/control/reference_budget.h"

namespace rankprobe {

int64_t ReferenceBudget::Add(const Key& key, const Plan& plan) {
  const int64_t count = ++counts_[key];
  // Epochs only grow, so the lowest belongs to a plan that is not in force.
  if (counts_.size() > kMaxCounts) counts_.erase(counts_.begin());
  if (plan.ComparesWithReference() && plan.diff_nums == count) tries_[key] = 0;
  return count;
}

std::optional<ReferenceBudget::Key> ReferenceBudget::TakeSpent() {
  if (tries_.empty()) return std::nullopt;
  const auto it = tries_.begin();
  Key key = it->first;
  if (++it->second >= kMaxTries) tries_.erase(it);
  return key;
}

void ReferenceBudget::Forget(const Key& key) { tries_.erase(key); }

}  // namespace rankprobe
