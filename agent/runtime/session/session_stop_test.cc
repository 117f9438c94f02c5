// SPDX-License-Identifier: Apache-2.0
// Reports of a session about a connected, silent collector, for which
// collector the end of a step waits, and what is sent at the end.
#include <grpcpp/grpcpp.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "agent/runtime/session/session.h"
#include "agent/runtime/triggers/trigger_watcher.h"
#include "common/base/clock.h"
#include "common/testing/scratch_directory.h"
#include "gtest/gtest.h"
#include "rankprobe/v1/agent.grpc.pb.h"

namespace rankprobe {
namespace {

constexpr absl::Duration kStopTestPatience = absl::Seconds(30);
constexpr absl::Duration kNobodyWaitsSoLong = absl::Hours(1);

// Welcomes and reads, and acknowledges nothing or each frame.
class SilentCollector final : public v1::AgentService::Service {
 public:
  grpc::Status Session(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<v1::Directive, v1::AgentEvent>*
                           stream) override {
    v1::Directive directive;
    directive.mutable_welcome()->set_session_id("session");
    directive.mutable_welcome()->set_credit_bytes(1 << 20);
    stream->Write(directive);
    for (v1::AgentEvent event; stream->Read(&event);) {
    }
    return grpc::Status::OK;
  }
  grpc::Status Upload(grpc::ServerContext* context,
                      grpc::ServerReaderWriter<v1::UploadAck, v1::UploadFrame>*
                          stream) override {
    for (v1::UploadFrame frame; stream->Read(&frame);) {
      records += frame.batch().records_size();
      if (!acknowledges || frame.sequence() == 0) continue;
      v1::UploadAck ack;
      ack.set_received(frame.sequence());
      ack.set_committed(frame.sequence());
      ack.set_synced(frame.sequence());
      stream->Write(ack);
    }
    return grpc::Status::OK;
  }

  std::atomic<bool> acknowledges{false};
  std::atomic<int> records{0};
};

class SessionStopTest : public ::testing::Test {
 protected:
  SessionStopTest() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(&collector_);
    server_ = builder.BuildAndStart();
    options_.collector = "127.0.0.1:" + std::to_string(port);
    options_.identity.set_run("run");
    options_.identity.set_host("host");
    options_.identity.set_pid(1);
    options_.drain_deadline = absl::Milliseconds(10);
  }
  void Connect() {
    auto session = Session::Create(std::move(options_), &clock_);
    ASSERT_TRUE(session.ok()) << session.status();
    session_ = *std::move(session);
    ASSERT_TRUE(session_->WaitConnected(kStopTestPatience).ok());
  }
  void Record() {
    auto records = std::make_unique<RecordBuffer>();
    records->batch()->set_step(1);
    records->Add()->set_order(0);
    ASSERT_TRUE(session_->SubmitRecords(std::move(records)));
  }
  void TearDown() override {
    session_.reset();
    server_->Shutdown(std::chrono::system_clock::now());
  }

  SilentCollector collector_;
  std::unique_ptr<grpc::Server> server_;
  SystemClock clock_;
  SessionOptions options_;
  std::unique_ptr<Session> session_;
};

TEST_F(SessionStopTest, ASilenceIsSeen) {
  Connect();
  EXPECT_EQ(session_->GetStats().silence, absl::ZeroDuration())
      << "nothing was sent";
  Record();
  const absl::Time give_up = absl::Now() + kStopTestPatience;
  // However often the connection is established again in the meantime.
  while (session_->GetStats().silence < absl::Milliseconds(50) &&
         absl::Now() < give_up) {
    EXPECT_FALSE(
        session_->Flush(v1::DURABILITY_COMMITTED, absl::Milliseconds(5)).ok());
  }
  EXPECT_GE(session_->GetStats().silence, absl::Milliseconds(50));
}

TEST_F(SessionStopTest, WhatIsNotKeptIsNotWaitedForAsIfItWouldBe) {
  const testing::ScratchDirectory spool;
  options_.spool_directory = spool.path() + "/kept";
  options_.stop_barrier = StopBarrier::kKept;
  Connect();
  Record();
  EXPECT_TRUE(session_->Keep());
  v1::LossReason reason;
  std::unique_ptr<PayloadBuffer> payload =
      session_->ReservePayload(100, &reason);
  ASSERT_NE(payload, nullptr);
  session_->SubmitPayload(std::array<uint8_t, 16>{1}, std::move(payload));
  Record();
  EXPECT_FALSE(session_->Keep()) << "payloads are not written twice";
  EXPECT_TRUE(session_->FlushToSpool(kNobodyWaitsSoLong).ok());
}

TEST_F(SessionStopTest, AFlightThatIsRequestedInTheLastStepIsSent) {
  collector_.acknowledges = true;
  options_.drain_deadline = kStopTestPatience;
  Connect();
  v1::TriggerSpec spec;
  spec.mutable_flight()->set_steps(4);
  session_->watcher()->Configure(spec);
  session_->watcher()->BeginStep(1);
  auto records = std::make_unique<RecordBuffer>();
  records->batch()->set_step(1);
  records->Add()->set_order(0);
  session_->watcher()->KeepFlight(std::move(records));
  session_->watcher()->RequestFlight();
  session_->watcher()->EndStep();
  session_.reset();
  EXPECT_EQ(collector_.records, 1);
}

}  // namespace
}  // namespace rankprobe
