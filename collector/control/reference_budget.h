// SPDX-License-Identifier: Apache-2.0
// tensor.diff_nums of one run: one budget for all ranks under one plan epoch, or
// for those of each domain where ranks do not answer for each other.
// Counts since this collector began; a restart counts anew.
// Not thread-safe: guarded by ControlCore's lock.
#ifndef RANKPROBE_COLLECTOR_CONTROL_REFERENCE_BUDGET_H_
#define RANKPROBE_COLLECTOR_CONTROL_REFERENCE_BUDGET_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "common/config/plan.h"

namespace rankprobe {

class ReferenceBudget {
 public:
  // A switch that its ranks did not take is tried again so often.
  static constexpr int kMaxTries = 3;

  struct Key {
    uint64_t epoch = 0;
    // As Reach has it; empty: of all ranks.
    std::string domain;
    bool operator<(const Key& other) const {
      return std::tie(epoch, domain) < std::tie(other.epoch, other.domain);
    }
  };

  // One more difference under this plan; how many there are now.
  int64_t Add(const Key& key, const Plan& plan);
  // A plan that is to be switched off now, as one try; nothing when there is
  // none. Ask again after the switch: it may not have been agreed on.
  std::optional<Key> TakeSpent();
  // Nothing was counted.
  bool empty() const { return counts_.empty(); }
  // The plan is no longer in force, or was switched off.
  void Forget(const Key& key);

 private:
  static constexpr size_t kMaxCounts = 4096;

  std::map<Key, int64_t> counts_;
  std::map<Key, int> tries_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_REFERENCE_BUDGET_H_
