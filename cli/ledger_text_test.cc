// SPDX-License-Identifier: Apache-2.0
#include "cli/output/ledger_text.h"

#include <cstdint>
#include <initializer_list>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::StepLedger LossOf(uint64_t records, uint64_t payloads) {
  v1::StepLedger ledger;
  ledger.set_state(v1::StepLedger::STATE_GAPS);
  v1::LedgerGap* const gap = ledger.add_gaps();
  gap->set_reason("AGENT_BUDGET");
  gap->set_records(records);
  gap->set_payloads(payloads);
  return ledger;
}

// Ranks report their own losses: a sum that overflows would show none.
TEST(LedgerTotalsTest, SumsOfWhatRanksClaimDoNotWrap) {
  LedgerTotals totals;
  totals.Add(LossOf(5, 7));
  totals.Add(LossOf(UINT64_MAX - 4, UINT64_MAX - 6));
  totals.Add(LossOf(3, 3));
  EXPECT_FALSE(totals.whole());
  EXPECT_THAT(totals.ToText(),
              HasSubstr("lost AGENT_BUDGET: 18446744073709551615 records, "
                        "18446744073709551615 payloads"));
  EXPECT_THAT(totals.ToText(), Not(HasSubstr("nothing lost")));
}

TEST(LedgerTotalsTest, ALossThatNobodyCountedIsOne) {
  LedgerTotals totals;
  EXPECT_TRUE(totals.whole());
  totals.Add(LossOf(0, 0));
  EXPECT_FALSE(totals.whole());
  EXPECT_THAT(totals.ToText(), HasSubstr("1 of unknown content"));
}

// A leaf that was not queried is not a rank.
TEST(LedgerTotalsTest, WhatIsOfNoRankNamesNone) {
  v1::StepLedger ledger;
  ledger.set_step(-1);
  EXPECT_EQ(LedgerRank(ledger), "-");
  ledger.set_pid(4711);
  EXPECT_EQ(LedgerRank(ledger), "proc4711");
  ledger.set_rank(3);
  EXPECT_EQ(LedgerRank(ledger), "3");
}

// Two starts of one script under one run name, or a restart.
TEST(LedgerTotalsTest, ARankOfTwoProcessesNamesBoth) {
  LedgerTotals totals;
  v1::StepLedger ledger;
  ledger.set_rank(0);
  ledger.set_host("node");
  const auto add = [&](int64_t step, int64_t pid) {
    ledger.set_step(step);
    ledger.set_pid(pid);
    ledger.set_incarnation(static_cast<uint64_t>(pid));
    totals.Add(ledger);
  };
  for (const int64_t step : {0, 1, 2}) add(step, 11);
  EXPECT_THAT(totals.ToText(), Not(HasSubstr("processes")));
  add(1, 12);
  EXPECT_THAT(totals.ToText(),
              HasSubstr("rank 0 was recorded by 2 processes: 11 on node (steps "
                        "0 to 2), 12 on node (steps 1 to 1); of a step of "
                        "several an export has the latest\n"));
}

}  // namespace
}  // namespace rankprobe
