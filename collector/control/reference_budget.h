// SPDX-License-Identifier: Apache-2.0
// tensor.diff_nums of one run: one budget for all ranks under one plan epoch,
// or for those of each domain if a token is bound to ranks. Counts since this
// collector started.
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
  // Attempts to switch a plan off if its ranks do not accept the switch.
  static constexpr int kMaxTries = 3;

  struct Key {
    uint64_t epoch = 0;
    // The value of Reach::domain; empty: all ranks.
    std::string domain;
    bool operator<(const Key& other) const {
      return std::tie(epoch, domain) < std::tie(other.epoch, other.domain);
    }
  };

  // Adds one difference under this plan and returns the new count.
  int64_t Add(const Key& key, const Plan& plan);
  // Returns a plan that is to be switched off now, and counts it as one
  // attempt; nothing if there is none. Call it again after the switch, which
  // may have failed.
  std::optional<Key> TakeSpent();
  // Returns whether nothing was counted.
  bool empty() const { return counts_.empty(); }
  // Called when the plan is no longer in force, or was switched off.
  void Forget(const Key& key);

 private:
  static constexpr size_t kMaxCounts = 4096;

  std::map<Key, int64_t> counts_;
  std::map<Key, int> tries_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_REFERENCE_BUDGET_H_
