#include "collector/control/reference_budget.h"

namespace rankprobe {

int64_t ReferenceBudget::Add(uint64_t epoch, const Plan& plan) {
  const int64_t count = ++counts_[epoch];
  // Epochs only grow: the lowest is of no plan in force.
  if (counts_.size() > kMaxEpochs) counts_.erase(counts_.begin());
  if (plan.ComparesWithReference() && plan.diff_nums == count)
    tries_[epoch] = 0;
  return count;
}

std::optional<uint64_t> ReferenceBudget::TakeSpent() {
  if (tries_.empty()) return std::nullopt;
  const auto it = tries_.begin();
  const uint64_t epoch = it->first;
  if (++it->second >= kMaxTries) tries_.erase(it);
  return epoch;
}

void ReferenceBudget::Forget(uint64_t epoch) { tries_.erase(epoch); }

}  // namespace rankprobe
