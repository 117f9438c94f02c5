// SPDX-License-Identifier: Apache-2.0
// Budget of runs that a principal may begin by Hello. A run's row, its first
// plan and the secrets of its incarnations are on disk before the Welcome,
// because a collector that is killed must know them again; so somebody who only
// says Hello writes too, and this bounds how much: so many runs at once, and a
// new one every ten seconds. The text of plans that agents bring counts as
// well.
//
// Not thread-safe: guarded by the ControlPlane's lock.
#ifndef RANKPROBE_COLLECTOR_CONTROL_NEW_RUN_BUDGET_H_
#define RANKPROBE_COLLECTOR_CONTROL_NEW_RUN_BUDGET_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/time/time.h"

namespace rankprobe {

class NewRunBudget {
 public:
  explicit NewRunBudget(size_t burst) : burst_(static_cast<double>(burst)) {}

  // Whether the principal has something left.
  bool Has(const std::string& principal, absl::Time now);
  // It has begun a run, or brought a plan of so many bytes; may go below zero.
  void TakeRun(const std::string& principal, absl::Time now);
  void TakePlan(const std::string& principal, uint64_t bytes, absl::Time now);

 private:
  struct Account {
    double used = 0;
    absl::Time at;
  };
  // With what has come back since; forgets those that owe nothing.
  Account& Look(const std::string& principal, absl::Time now);

  const double burst_;
  std::map<std::string, Account> accounts_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_NEW_RUN_BUDGET_H_
