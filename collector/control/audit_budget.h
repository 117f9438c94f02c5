// SPDX-License-Identifier: Apache-2.0
// Budget of audit lines that agents may cause: so many lines at once for each
// principal, and so many a second after that. On an open port everybody is one
// principal. Not thread-safe: guarded by the ControlPlane's lock.
#ifndef RANKPROBE_COLLECTOR_CONTROL_AUDIT_BUDGET_H_
#define RANKPROBE_COLLECTOR_CONTROL_AUDIT_BUDGET_H_

#include <map>
#include <string>

#include "absl/time/time.h"

namespace rankprobe {

class AuditBudget {
 public:
  // Takes one line's worth. False: the principal has used up what it may.
  bool Take(const std::string& principal, absl::Time now);

 private:
  struct Account {
    double used = 0;
    absl::Time at;
  };
  std::map<std::string, Account> accounts_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_AUDIT_BUDGET_H_
