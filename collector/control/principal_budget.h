// SPDX-License-Identifier: Apache-2.0
// Budget for each principal: a burst, and a rate after that (a leaky bucket).
//
// Not thread-safe: guarded by its owner's lock. Never fails.
#ifndef RANKPROBE_COLLECTOR_CONTROL_PRINCIPAL_BUDGET_H_
#define RANKPROBE_COLLECTOR_CONTROL_PRINCIPAL_BUDGET_H_

#include <map>
#include <string>

#include "absl/time/time.h"

namespace rankprobe {

class PrincipalBudget {
 public:
  PrincipalBudget(double burst, double per_second)
      : burst_(burst), per_second_(per_second) {}

  // Returns whether one more may be taken.
  bool HasOne(const std::string& principal, absl::Time now) {
    return Used(principal, now) + 1 <= burst_;
  }
  // Takes `amount`, even beyond the burst.
  void Take(const std::string& principal, double amount, absl::Time now) {
    Used(principal, now) += amount;
  }

 private:
  struct Account {
    double used = 0;
    absl::Time at;
  };
  void Settle(absl::Time now, Account* account) const;
  // Returns the used amount after the rate since the last call is subtracted;
  // drops empty accounts.
  double& Used(const std::string& principal, absl::Time now);

  const double burst_;
  const double per_second_;
  std::map<std::string, Account> accounts_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_PRINCIPAL_BUDGET_H_
