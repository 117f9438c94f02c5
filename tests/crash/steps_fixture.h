// SPDX-License-Identifier: Apache-2.0
// Steps of a rank in a collector whose disk fills up: five records, of which three
// refer to one payload of 64 KiB, and what became of them.
#ifndef RANKPROBE_TESTS_CRASH_STEPS_FIXTURE_H_
#define RANKPROBE_TESTS_CRASH_STEPS_FIXTURE_H_

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/archive/ledger.h"
#include "tests/crash/server_fixture.h"
#include "tests/crash/workload.h"

namespace rankprobe::crash {

class StepsTest : public ServerTest {
 protected:
  static constexpr uint64_t kRefsPerStep = 3;

  // Counts what was shed; why the payload was, UNSPECIFIED if it was not.
  v1::LossReason Step(Session* session, int64_t step) {
    std::string data(64 << 10, '\0');
    std::mt19937_64 random(static_cast<uint64_t>(step));
    for (char& c : data) c = static_cast<char>(random());
    Payload payload = MakePayload(std::move(data));
    v1::LossReason reason = v1::LOSS_REASON_UNSPECIFIED;
    std::unique_ptr<PayloadBuffer> buffer =
        session->ReservePayload(payload.data.size(), &reason);
    if (buffer != nullptr) {
      std::memcpy(buffer->data(), payload.data.data(), payload.data.size());
      session->SubmitPayload(payload.digest, std::move(buffer));
    }
    for (uint64_t order = 0; order < 5; ++order) {
      auto records = std::make_unique<RecordBuffer>();
      records->batch()->set_step(step);
      v1::Record* const record = records->Add();
      record->set_order(order);
      if (order == 0) {
        record->mutable_step_begin();
      } else if (order < 4) {
        v1::CallPhase* const call = record->mutable_call();
        call->set_kind(v1::CALL_KIND_API_FORWARD);
        call->set_entry(absl::StrCat("Torch.op.", order, ".forward"));
        v1::PayloadRef* const ref = call->mutable_output()
                                        ->add_items()
                                        ->mutable_tensor()
                                        ->mutable_payload();
        ref->set_length_bytes(payload.data.size());
        if (reason == v1::LOSS_REASON_UNSPECIFIED) {
          ref->set_digest(payload.digest.data(), 16);
        } else {
          ref->set_lost(reason);
        }
      } else {
        record->mutable_step_end()->set_call_phases(kRefsPerStep);
        record->mutable_step_end()->set_payloads(kRefsPerStep);
      }
      submitted_ += 1;
      shed_ += session->SubmitRecords(std::move(records)) ? 0 : 1;
    }
    return reason;
  }

  // Of all steps: what is here, and payloads and records that are not, by reason.
  struct Account {
    uint64_t records = 0, payloads = 0;
    std::map<std::string, uint64_t> lost_records, lost_payloads;
  };
  Account AccountAll() {
    Account account;
    const auto steps = store_->ListSteps("run");
    EXPECT_TRUE(steps.ok());
    for (const v1::StepInfo& info : *steps) {
      const auto ledger = AccountStep(store_, "run", info, {});
      EXPECT_TRUE(ledger.ok()) << ledger.status();
      account.records += ledger->stored_records();
      account.payloads += ledger->stored_payloads();
      for (const v1::LedgerGap& gap : ledger->gaps()) {
        if (gap.records() > 0)
          account.lost_records[gap.reason()] += gap.records();
        if (gap.payloads() > 0)
          account.lost_payloads[gap.reason()] += gap.payloads();
      }
    }
    return account;
  }

  uint64_t submitted_ = 0, shed_ = 0;
};

}  // namespace rankprobe::crash

#endif  // RANKPROBE_TESTS_CRASH_STEPS_FIXTURE_H_
