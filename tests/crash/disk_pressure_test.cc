// SPDX-License-Identifier: Apache-2.0
// The collector's disk fills up: from 70 % on payloads stay with the rank, which
// waits or leaves them out by its policy, from 90 % on records alone are taken. No
// barrier waits for either, and the ledger has each payload by its reason.
#include <grpcpp/grpcpp.h>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "rankprobe/v1/control.grpc.pb.h"
#include "tests/crash/steps_fixture.h"

namespace rankprobe::crash {
namespace {

constexpr char kDisk[] = "COLLECTOR_DISK";

class DiskPressureServerTest : public StepsTest {
 protected:
  void SetUp() override {
    config_.disk_high_percent = 70;
    config_.disk_full_percent = 90;
    config_.min_free_bytes = 0;
    StepsTest::SetUp();
    control_ = v1::ControlService::NewStub(
        grpc::CreateChannel(address(), grpc::InsecureChannelCredentials()));
  }

  v1::DiskState Disk() {
    grpc::ClientContext context;
    v1::ListAgentsResponse agents;
    EXPECT_TRUE(control_->ListAgents(&context, {}, &agents).ok());
    EXPECT_EQ(agents.disks_size(), 1);
    return agents.disks_size() == 1 ? agents.disks(0) : v1::DiskState();
  }
  // The collector looks ten times a second.
  void Fill(uint64_t percent, v1::DiskState::Level level) {
    fs_.SetCapacity(fs_.used_bytes() * 100 / percent);
    const int64_t began = clock_.MonotonicNanos();
    while (Disk().level() != level) {
      ASSERT_LT(clock_.MonotonicNanos() - began, 20'000'000'000);
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  // A step whose payload is left out: the rank has heard of it by then.
  void AwaitCredit(Session* session, int64_t* step, bool taken) {
    const int64_t began = clock_.MonotonicNanos();
    while ((Step(session, (*step)++) == v1::LOSS_REASON_UNSPECIFIED) != taken) {
      ASSERT_LT(clock_.MonotonicNanos() - began, 20'000'000'000);
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  void Flush(Session* session) {
    const absl::Status status =
        session->Flush(v1::DURABILITY_COMMITTED, absl::Seconds(20));
    EXPECT_TRUE(status.ok()) << status;
  }
  std::vector<v1::Event> DiskEvents() {
    grpc::ClientContext context;
    v1::ListEventsRequest request;
    request.set_run("run");
    v1::ListEventsResponse response;
    EXPECT_TRUE(control_->ListEvents(&context, request, &response).ok());
    std::vector<v1::Event> events;
    for (const v1::Event& event : response.events())
      if (event.kind() == v1::Event::KIND_DISK) events.push_back(event);
    return events;
  }

  std::unique_ptr<v1::ControlService::Stub> control_;
};

TEST_F(DiskPressureServerTest, EachPayloadIsStoredOrListedAndNobodyWaits) {
  std::unique_ptr<Session> session =
      Connect(0, 8 << 20, OverflowPolicy::kStatsOnly);
  int64_t step = 0;
  for (; step < 40; ++step)
    EXPECT_EQ(Step(session.get(), step), v1::LOSS_REASON_UNSPECIFIED);
  Flush(session.get());
  EXPECT_EQ(Disk().level(), v1::DiskState::LEVEL_ROOM);

  for (const auto& [percent, level] :
       {std::pair(75, v1::DiskState::LEVEL_HIGH),
        std::pair(93, v1::DiskState::LEVEL_FULL)}) {
    // What is on its way when it begins, too: a tenth of what is there, so that
    // 75 % stay under 90 % when none of it had arrived.
    for (int i = 0; i < 4; ++i) Step(session.get(), step++);
    Fill(static_cast<uint64_t>(percent), level);
    AwaitCredit(session.get(), &step, /*taken=*/false);
    const int64_t end = step + 20;
    for (; step < end; ++step) {
      EXPECT_EQ(Step(session.get(), step), v1::LOSS_REASON_COLLECTOR_DISK);
      const int64_t began = clock_.MonotonicNanos();
      Flush(session.get());
      // A policy of waiting would have waited for ten seconds.
      EXPECT_LT(clock_.MonotonicNanos() - began, 9'000'000'000);
    }
  }
  Fill(10, v1::DiskState::LEVEL_ROOM);
  AwaitCredit(session.get(), &step, /*taken=*/true);
  for (int i = 0; i < 10; ++i)
    EXPECT_EQ(Step(session.get(), step++), v1::LOSS_REASON_UNSPECIFIED);
  Flush(session.get());

  EXPECT_EQ(shed_, 0u) << "no record is lost";
  const Account account = AccountAll();
  EXPECT_EQ(account.records, submitted_);
  EXPECT_TRUE(account.lost_records.empty());
  ASSERT_EQ(account.lost_payloads.size(), 1u);
  EXPECT_GE(account.lost_payloads.at(kDisk), 40 * kRefsPerStep);
  EXPECT_EQ(account.payloads + account.lost_payloads.at(kDisk),
            static_cast<uint64_t>(step) * kRefsPerStep);
  EXPECT_EQ(session->GetStats().lost_payloads * kRefsPerStep,
            account.lost_payloads.at(kDisk));
  const std::vector<v1::Event> events = DiskEvents();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_TRUE(absl::StrContains(events[1].outcome(), "records alone"));
  EXPECT_TRUE(absl::StrContains(events[2].outcome(), "taken again"));
}

// An agent that does not know of it sends them: they are refused one by one.
TEST_F(DiskPressureServerTest, WhatIsSentAllTheSameIsListed) {
  std::unique_ptr<Session> session =
      Connect(0, 64 << 20, OverflowPolicy::kDropNewest);
  int64_t step = 0;
  for (; step < 10; ++step) Step(session.get(), step);
  Flush(session.get());
  Fill(75, v1::DiskState::LEVEL_HIGH);
  session.reset();
  // Whose first words the acks overtake.
  for (int life = 0; life < 10; ++life) {
    session = Connect(0, 64 << 20, OverflowPolicy::kDropNewest);
    for (int i = 0; i < 10; ++i) Step(session.get(), step++);
    Flush(session.get());
    session.reset();
  }
  const Account account = AccountAll();
  EXPECT_EQ(account.records, submitted_);
  EXPECT_EQ(account.payloads, 10 * kRefsPerStep);
  EXPECT_EQ(account.lost_payloads.at(kDisk), 100 * kRefsPerStep);
}

// It has said nothing since, so no ack tells it.
TEST_F(DiskPressureServerTest, ARankThatIsSilentHearsOfRoom) {
  std::unique_ptr<Session> session =
      Connect(0, 8 << 20, OverflowPolicy::kStatsOnly);
  int64_t step = 0;
  for (; step < 10; ++step) Step(session.get(), step);
  Flush(session.get());
  Fill(75, v1::DiskState::LEVEL_HIGH);
  AwaitCredit(session.get(), &step, /*taken=*/false);
  Flush(session.get());
  Fill(10, v1::DiskState::LEVEL_ROOM);
  const int64_t began = clock_.MonotonicNanos();
  v1::LossReason reason = v1::LOSS_REASON_UNSPECIFIED;
  while (session->ReservePayload(64 << 10, &reason) == nullptr) {
    ASSERT_EQ(reason, v1::LOSS_REASON_COLLECTOR_DISK);
    ASSERT_LT(clock_.MonotonicNanos() - began, 20'000'000'000);
    absl::SleepFor(absl::Milliseconds(1));
  }
}

TEST_F(DiskPressureServerTest, APolicyOfWaitingWaitsOnceAndForRoom) {
  block_deadline_ = absl::Milliseconds(200);
  std::unique_ptr<Session> session =
      Connect(0, 8 << 20, OverflowPolicy::kBlock);
  int64_t step = 0;
  for (; step < 10; ++step) Step(session.get(), step);
  Flush(session.get());
  Fill(75, v1::DiskState::LEVEL_HIGH);
  AwaitCredit(session.get(), &step, /*taken=*/false);
  const uint64_t waited = session->GetStats().blocked_ns;
  EXPECT_GE(waited, 200'000'000u);
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(Step(session.get(), step++), v1::LOSS_REASON_COLLECTOR_DISK);
  Flush(session.get());
  EXPECT_EQ(session->GetStats().blocked_ns, waited);
  Fill(10, v1::DiskState::LEVEL_ROOM);
  AwaitCredit(session.get(), &step, /*taken=*/true);
  Flush(session.get());
  const Account account = AccountAll();
  EXPECT_EQ(account.records, submitted_);
  EXPECT_EQ(account.payloads + account.lost_payloads.at(kDisk),
            static_cast<uint64_t>(step) * kRefsPerStep);
}

}  // namespace
}  // namespace rankprobe::crash
