// SPDX-License-Identifier: Apache-2.0
#include "collector/control/principal_budget.h"

#include <algorithm>
#include <iterator>

namespace rankprobe {
namespace {

// Above this number of accounts those without debt are removed.
constexpr size_t kMaxAccounts = 1024;

}  // namespace

void PrincipalBudget::Settle(absl::Time now, Account* account) const {
  const double back = per_second_ * absl::ToDoubleSeconds(now - account->at);
  account->used = std::max(account->used - back, 0.0);
  account->at = now;
}

double& PrincipalBudget::Used(const std::string& principal, absl::Time now) {
  if (accounts_.size() >= kMaxAccounts && accounts_.count(principal) == 0) {
    for (auto it = accounts_.begin(); it != accounts_.end();) {
      Settle(now, &it->second);
      it = it->second.used == 0 ? accounts_.erase(it) : std::next(it);
    }
  }
  Account& account =
      accounts_.try_emplace(principal, Account{0, now}).first->second;
  Settle(now, &account);
  return account.used;
}

}  // namespace rankprobe
