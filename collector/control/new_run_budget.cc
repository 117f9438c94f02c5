// SPDX-License-Identifier: Apache-2.0
#include "collector/control/new_run_budget.h"

#include <algorithm>

namespace rankprobe {
namespace {

constexpr absl::Duration kComesBack = absl::Seconds(10);
// Of a plan's text, as one run.
constexpr double kPlanBytes = 4096;
// Principals that are kept at once without looking who owes nothing any more.
constexpr size_t kMaxAccounts = 1024;

}  // namespace

NewRunBudget::Account& NewRunBudget::Look(const std::string& principal,
                                          absl::Time now) {
  const auto settle = [now](Account* account) {
    account->used = std::max(
        account->used - absl::FDivDuration(now - account->at, kComesBack), 0.0);
    account->at = now;
  };
  if (accounts_.size() >= kMaxAccounts && accounts_.count(principal) == 0) {
    for (auto it = accounts_.begin(); it != accounts_.end();) {
      settle(&it->second);
      it = it->second.used == 0 ? accounts_.erase(it) : std::next(it);
    }
  }
  Account& account =
      accounts_.try_emplace(principal, Account{0, now}).first->second;
  settle(&account);
  return account;
}

bool NewRunBudget::Has(const std::string& principal, absl::Time now) {
  return Look(principal, now).used + 1 <= burst_;
}

void NewRunBudget::TakeRun(const std::string& principal, absl::Time now) {
  Look(principal, now).used += 1;
}

void NewRunBudget::TakePlan(const std::string& principal, uint64_t bytes,
                            absl::Time now) {
  Look(principal, now).used += static_cast<double>(bytes) / kPlanBytes;
}

}  // namespace rankprobe
