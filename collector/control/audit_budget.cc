// SPDX-License-Identifier: Apache-2.0
#include "collector/control/audit_budget.h"

#include <algorithm>
#include <iterator>

namespace rankprobe {
namespace {

// As many as a principal may begin runs: each has a line.
constexpr double kAuditBurst = 1024;
constexpr double kAuditLinesPerSecond = 2;
// Principals that are kept without looking who owes nothing any more.
constexpr size_t kMaxAuditAccounts = 1024;

}  // namespace

bool AuditBudget::Take(const std::string& principal, absl::Time now) {
  const auto settle = [now](Account* account) {
    account->used =
        std::max(account->used - kAuditLinesPerSecond *
                                     absl::ToDoubleSeconds(now - account->at),
                 0.0);
    account->at = now;
  };
  if (accounts_.size() >= kMaxAuditAccounts &&
      accounts_.count(principal) == 0) {
    for (auto it = accounts_.begin(); it != accounts_.end();) {
      settle(&it->second);
      it = it->second.used == 0 ? accounts_.erase(it) : std::next(it);
    }
  }
  Account& account =
      accounts_.try_emplace(principal, Account{0, now}).first->second;
  settle(&account);
  if (account.used + 1 > kAuditBurst) return false;
  account.used += 1;
  return true;
}

}  // namespace rankprobe
