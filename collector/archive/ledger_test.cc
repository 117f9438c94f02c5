// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/ledger.h"

#include <string>
#include <vector>

#include "collector/testing/frames.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::DigestOf;
using testing::Frames;
using testing::MakeIdentity;

class LedgerTest : public testing::TempDirTest {
 protected:
  v1::Record* Add(Frames* frames, uint64_t order) {
    v1::Record* const record = frames->AddBatch(3)->add_records();
    record->set_order(order);
    return record;
  }
  void AddCall(Frames* frames, uint64_t order, const std::string& payload,
               v1::LossReason lost = v1::LOSS_REASON_UNSPECIFIED) {
    v1::CallPhase* const call = Add(frames, order)->mutable_call();
    call->set_entry("Torch.add." + std::to_string(order) + ".forward");
    call->set_kind(v1::CALL_KIND_API_FORWARD);
    v1::TensorSummary* const tensor =
        call->mutable_output()->add_items()->mutable_tensor();
    tensor->set_dtype(v1::DTYPE_INT8);
    tensor->add_shape(static_cast<int64_t>(payload.size()));
    tensor->mutable_payload()->set_length_bytes(payload.size());
    tensor->mutable_payload()->set_lost(lost);
    if (lost == v1::LOSS_REASON_UNSPECIFIED)
      tensor->mutable_payload()->set_digest(DigestOf(payload));
  }
  void AddEnd(Frames* frames, uint64_t order, uint64_t calls,
              uint64_t payloads) {
    v1::StepEnd* const end = Add(frames, order)->mutable_step_end();
    end->set_call_phases(calls);
    end->set_payloads(payloads);
    end->set_filtered_calls(7);
  }

  // Both accounts of the only step in the store.
  struct Accounts {
    v1::StepLedger exact, summary;
  };
  Accounts Account(Store* store, const RefusedPayloads& refused = {}) {
    const std::vector<v1::StepInfo> steps = *store->ListSteps("run");
    EXPECT_EQ(steps.size(), 1u);
    const auto exact = AccountStep(store, "run", steps[0], refused);
    EXPECT_TRUE(exact.ok()) << exact.status();
    return {*exact, SummarizeStep(steps[0])};
  }
  static const v1::LedgerGap* Find(const v1::StepLedger& ledger,
                                   const std::string& reason) {
    for (const v1::LedgerGap& gap : ledger.gaps()) {
      if (gap.reason() == reason) return &gap;
    }
    return nullptr;
  }
};

TEST_F(LedgerTest, AWholeStep) {
  Frames frames(MakeIdentity("run", 0, 1));
  frames.AddPayload("abcd");
  Add(&frames, 0)->mutable_step_begin();
  AddCall(&frames, 1, "abcd");
  AddEnd(&frames, 2, 1, 1);
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  const Accounts accounts = Account(store.get());
  EXPECT_EQ(accounts.exact.state(), v1::StepLedger::STATE_WHOLE);
  EXPECT_EQ(accounts.summary.state(), v1::StepLedger::STATE_WHOLE);
  EXPECT_EQ(accounts.exact.expected_records(), 3u);
  EXPECT_EQ(accounts.exact.stored_records(), 3u);
  EXPECT_EQ(accounts.exact.stored_payloads(), 1u);
  EXPECT_EQ(accounts.exact.filtered_calls(), 7u);
}

// Every expected item is counted in exactly one place.
TEST_F(LedgerTest, ExpectedIsStoredAndGaps) {
  Frames frames(MakeIdentity("run", 0, 1));
  frames.AddPayload("abcd");
  Add(&frames, 0)->mutable_step_begin();
  AddCall(&frames, 1, "abcd");
  AddCall(&frames, 2, "never sent");
  AddCall(&frames, 3, "shed", v1::LOSS_REASON_AGENT_BUDGET);
  // Records 4 to 6 were dropped, with a payload; 7 is missing for an unknown
  // reason.
  v1::LossEvent* const loss = Add(&frames, kFirstAddedOrder)->mutable_loss();
  loss->set_reason(v1::LOSS_REASON_AGENT_DEADLINE);
  loss->set_records(3);
  v1::LossEvent* const gate =
      Add(&frames, kFirstAddedOrder + 1)->mutable_loss();
  gate->set_reason(v1::LOSS_REASON_FILTERED);
  gate->set_records(2);
  AddEnd(&frames, 8, 6, 5);
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  const Accounts accounts = Account(store.get());
  for (const v1::StepLedger* ledger : {&accounts.exact, &accounts.summary}) {
    EXPECT_EQ(ledger->state(), v1::StepLedger::STATE_GAPS);
    EXPECT_EQ(ledger->expected_records(), 9u);
    EXPECT_EQ(ledger->stored_records(), 5u);
    EXPECT_EQ(ledger->filtered_calls(), 9u);
    uint64_t lost = 0;
    for (const v1::LedgerGap& gap : ledger->gaps()) lost += gap.records();
    EXPECT_EQ(ledger->stored_records() + lost, ledger->expected_records());
    ASSERT_NE(Find(*ledger, "AGENT_DEADLINE"), nullptr);
    EXPECT_EQ(Find(*ledger, "AGENT_DEADLINE")->records(), 3u);
    ASSERT_NE(Find(*ledger, "NOT_RECEIVED"), nullptr);
    EXPECT_EQ(Find(*ledger, "NOT_RECEIVED")->records(), 1u);
    EXPECT_EQ(Find(*ledger, "NOT_RECEIVED")->payloads(), 2u);
    ASSERT_NE(Find(*ledger, "AGENT_BUDGET"), nullptr);
    EXPECT_EQ(Find(*ledger, "AGENT_BUDGET")->payloads(), 1u);
    EXPECT_EQ(Find(*ledger, "AGENT_BUDGET")->records(), 0u);
    EXPECT_EQ(Find(*ledger, "FILTERED"), nullptr);
  }
  EXPECT_EQ(accounts.exact.stored_payloads(), 1u);
  uint64_t lost = 0;
  for (const v1::LedgerGap& gap : accounts.exact.gaps()) lost += gap.payloads();
  EXPECT_EQ(accounts.exact.stored_payloads() + lost,
            accounts.exact.expected_payloads());
  ASSERT_NE(Find(accounts.exact, "NOT_STORED"), nullptr);
  EXPECT_EQ(Find(accounts.exact, "NOT_STORED")->entry(), "Torch.add.2.forward");
  EXPECT_EQ(GapText(*Find(accounts.exact, "AGENT_DEADLINE")),
            "lost AGENT_DEADLINE: 3 records");
}

// Frames whose steps are not known have a separate account, which counts
// nothing twice.
TEST_F(LedgerTest, RefusedFramesAreNamed) {
  Frames frames(MakeIdentity("run", 3, 1));
  Add(&frames, 0)->mutable_step_begin();
  for (int i = 0; i < 40; ++i) frames.AddBatch(3);
  std::unique_ptr<Store> store = OpenStore();
  std::vector<FrameToStore> all = frames.Range(0, 1);
  v1::RefusalRow refusal;
  refusal.set_reason("too deep");
  refusal.set_step(3);
  refusal.set_records(20);
  std::vector<v1::RefusalRow> refusals(40, refusal);
  std::vector<v1::UploadFrame> empty(40);
  for (size_t i = 0; i < 40; ++i) {
    empty[i].set_sequence(i + 2);
    refusals[i].set_sequence(i + 2);
    all.push_back({&frames.identity(), &empty[i], "", &refusals[i]});
  }
  ASSERT_TRUE(store->Commit(all).ok());
  ASSERT_TRUE(store->Commit(all).ok()) << "duplicates";
  for (int life = 0; life < 2; ++life) {
    std::vector<v1::IncarnationRow> rows;
    ASSERT_TRUE(store
                    ->ForEachIncarnation("run",
                                         [&](const v1::IncarnationRow& row) {
                                           rows.push_back(row);
                                         })
                    .ok());
    ASSERT_EQ(rows.size(), 1u);
    EXPECT_EQ(rows[0].refused_frames(), 40u);
    EXPECT_EQ(rows[0].refusals_size(), 32) << "the newest";
    const std::optional<v1::StepLedger> ledger = AccountFrames(rows[0]);
    ASSERT_TRUE(ledger.has_value());
    EXPECT_EQ(ledger->step(), -1);
    EXPECT_EQ(ledger->rank(), 3);
    EXPECT_EQ(ledger->state(), v1::StepLedger::STATE_GAPS);
    ASSERT_EQ(ledger->gaps_size(), 33);
    EXPECT_EQ(
        GapText(ledger->gaps(0)),
        "lost COLLECTOR_REFUSED: (8 frames, before those that are named)");
    EXPECT_EQ(ledger->gaps(32).detail(),
              "frame 41, 20 records of step 3: too deep");
    EXPECT_EQ(ledger->gaps(32).records(), 0u) << "gaps of the step count them";
    store.reset();
    store = OpenStore();
  }
  EXPECT_FALSE(AccountFrames(v1::IncarnationRow()).has_value());
}

TEST(AccountFramesTest, WhatMayBeMissingOfTheChosenSteps) {
  v1::IncarnationRow row;
  row.set_committed_sequence(4);
  row.set_last_step(12);
  row.set_dumping_in(7);
  const auto ledger = AccountFrames(row);
  ASSERT_TRUE(ledger.has_value());
  ASSERT_EQ(ledger->gaps_size(), 1);
  EXPECT_EQ(GapText(ledger->gaps(0)),
            "lost NOT_HEARD_OF: (it was dumping when the collector ended, and "
            "has not come back: its newest records here are of step 12, what "
            "it recorded after that is not known)");
  EXPECT_TRUE(AccountFrames(row, IntSet()).has_value()) << "all";
  EXPECT_TRUE(AccountFrames(row, IntSet({3, 13})).has_value());
  EXPECT_FALSE(AccountFrames(row, IntSet({3, 12})).has_value())
      << "what is here of these says itself how whole it is";
  row.clear_dumping_in();
  row.mutable_undelivered()->set_first_step(5);
  row.mutable_undelivered()->set_last_step(9);
  EXPECT_TRUE(AccountFrames(row, IntSet({9})).has_value());
  EXPECT_FALSE(AccountFrames(row, IntSet({4, 10})).has_value());
}

TEST(AccountFramesTest, AConnectionThatEndedWithoutAGoodbye) {
  v1::IncarnationRow row;
  row.set_committed_sequence(4);
  row.set_last_step(12);
  row.set_dumping_in(kCutOffLife);
  const auto ledger = AccountFrames(row);
  ASSERT_TRUE(ledger.has_value());
  EXPECT_EQ(ledger->state(), v1::StepLedger::STATE_GAPS);
  EXPECT_EQ(
      GapText(ledger->gaps(0)),
      "lost NOT_HEARD_OF: (it was dumping when its connection ended without "
      "a goodbye, and has not come back: its newest records here are of "
      "step 12, what it recorded after that is not known)");
}

// The acks of some frames never reached the process, which counts them as lost.
TEST(AccountFramesTest, WhatCameAfterTheFarewellIsNotLost) {
  v1::IncarnationRow row;
  row.set_committed_sequence(4);
  v1::Undelivered* const left = row.mutable_undelivered();
  left->set_records(30);
  left->set_payloads(3);
  left->set_reason("no answer");
  left->set_after_sequence(4);
  left->set_last_sequence(9);
  const auto text = [&row] {
    const auto ledger = AccountFrames(row);
    return ledger.has_value() ? GapText(ledger->gaps(0)) : "nothing";
  };
  EXPECT_EQ(text(), "lost PROCESS_EXIT: 30 records, 3 payloads (no answer)");
  row.set_committed_sequence(7);
  EXPECT_EQ(text(),
            "lost PROCESS_EXIT: 30 records, 3 payloads (no answer; as the "
            "process said, and frames 5 to 7 of those up to 9 arrived later: "
            "less is lost)");
  row.set_committed_sequence(9);
  EXPECT_EQ(text(), "nothing");
  EXPECT_FALSE(AccountFrames(row, IntSet()).has_value());
  left->set_unframed_records(10);
  EXPECT_EQ(text(), "lost PROCESS_EXIT: 10 records (no answer)");
}

TEST_F(LedgerTest, ARefusedPayloadHasItsReason) {
  Frames frames(MakeIdentity("run", 0, 1));
  Add(&frames, 0)->mutable_step_begin();
  AddCall(&frames, 1, "refused");
  AddCall(&frames, 2, "gone");
  AddEnd(&frames, 3, 2, 2);
  v1::LossEvent* const loss = Add(&frames, kFirstAddedOrder)->mutable_loss();
  loss->set_reason(v1::LOSS_REASON_COLLECTOR_REFUSED);
  loss->set_bytes(7);
  loss->set_detail("given up");
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  v1::UploadFrame empty;
  empty.set_sequence(frames.size() + 1);
  v1::RefusalRow refusal;
  refusal.set_sequence(empty.sequence());
  refusal.set_payload_digest(DigestOf("refused"));
  refusal.set_payload_bytes(7);
  refusal.set_reason("a wrong checksum");
  ASSERT_TRUE(store->Commit({{&frames.identity(), &empty, "", &refusal}}).ok());
  const auto refused = RefusedPayloadsOf(store.get(), "run");
  ASSERT_TRUE(refused.ok());
  const v1::StepLedger ledger = Account(store.get(), *refused).exact;
  ASSERT_EQ(ledger.gaps_size(), 3);
  EXPECT_EQ(ledger.gaps(0).reason(), "COLLECTOR_REFUSED");
  EXPECT_EQ(ledger.gaps(0).payloads(), 1u);
  EXPECT_EQ(ledger.gaps(0).entry(), "Torch.add.1.forward");
  EXPECT_EQ(ledger.gaps(0).detail(),
            "Torch.add.1.forward.output.0.pt: frame 6, a piece of a payload of "
            "7 bytes: a wrong checksum");
  EXPECT_EQ(ledger.gaps(1).reason(), "NOT_STORED");
  // What the agent gave up has its own reason, and is counted where it is
  // missing.
  EXPECT_EQ(ledger.gaps(2).payloads(), 0u);
  EXPECT_EQ(ledger.gaps(2).detail(), "given up");
  EXPECT_EQ(ledger.expected_payloads(), 2u);
  EXPECT_EQ(ledger.stored_payloads(), 0u);
}

TEST_F(LedgerTest, AnUnfinishedStepIsOpen) {
  Frames frames(MakeIdentity("run", 0, 1));
  Add(&frames, 0)->mutable_step_begin();
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  EXPECT_EQ(Account(store.get()).exact.state(), v1::StepLedger::STATE_OPEN);
  EXPECT_FALSE(Account(store.get()).exact.has_expected_records());
}

}  // namespace
}  // namespace rankprobe
