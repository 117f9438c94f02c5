// SPDX-License-Identifier: Apache-2.0
// Operators' actions over a disk that does not answer.
#include "collector/rpc/control_service.h"

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "collector/rpc/worker_pool.h"
#include "collector/store/store.h"
#include "common/base/clock.h"
#include "common/base/logger.h"
#include "common/testing/fault_file_system.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMostWaiting = 2;

class ControlServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    StoreOptions options;
    options.data_dir = "/d";
    options.min_free_bytes = 0;
    store_ = *Store::Open(options, &fs_, &clock_);
    ControlPlane::Options control;
    control.own_thread = true;
    control_ = std::make_unique<ControlPlane>(control, store_.get(),
                                              store_.get(), &clock_);
    audit_ = *AuditLog::Open("/d/audit.jsonl", &fs_, &clock_);
    auditor_ = std::make_unique<Auditor>(
        audit_.get(), std::make_shared<const Authorizer>(std::nullopt, false),
        &logger_);
    service_ =
        std::make_unique<ControlService>(control_.get(), &audited_, &pool_);
    service_->SetAuditor(auditor_.get());
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = v1::ControlService::NewStub(
        grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                            grpc::InsecureChannelCredentials()));
  }
  void TearDown() override {
    Answer();
    audited_.Wait();
    server_->Shutdown();
    server_.reset();
  }

  // From now on the disk does not answer syncs.
  void Hang() {
    fs_.SetDelay([this](const std::string& op) {
      if (op != "Sync") return;
      if (!asked_.HasBeenNotified()) asked_.Notify();
      answers_.WaitForNotification();
    });
  }
  void Answer() {
    if (!answers_.HasBeenNotified()) answers_.Notify();
  }

  struct Call {
    grpc::ClientContext context;
    v1::ShipFlightResponse response;
    absl::Notification over;
    grpc::Status status;
  };
  std::unique_ptr<Call> Ship() {
    auto call = std::make_unique<Call>();
    v1::ShipFlightRequest request;
    request.set_run("run");
    stub_->async()->ShipFlight(&call->context, &request, &call->response,
                               [c = call.get()](const grpc::Status& status) {
                                 c->status = status;
                                 c->over.Notify();
                               });
    return call;
  }

  ManualClock clock_;
  testing::FaultFileSystem fs_;
  const Logger logger_{/*fd=*/2, Logger::Severity::kError, &clock_};
  absl::Notification asked_, answers_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<ControlPlane> control_;
  std::unique_ptr<AuditLog> audit_;
  std::unique_ptr<Auditor> auditor_;
  DiskQueue audited_{/*own_thread=*/true, {kMostWaiting, 1 << 20}};
  WorkerPool pool_{/*threads=*/1, /*max_queued=*/8};
  std::unique_ptr<ControlService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::ControlService::Stub> stub_;
};

TEST_F(ControlServiceTest, WhatWaitsForTheAuditLogIsBounded) {
  Hang();
  std::vector<std::unique_ptr<Call>> calls;
  calls.push_back(Ship());
  // The first action waits for the disk; the next ones wait after it.
  asked_.WaitForNotification();
  v1::SetConfigRequest large;
  large.set_run("run");
  large.set_config_json(std::string(600 << 10, ' '));
  v1::SwitchResult result;
  grpc::ClientContext context;
  const grpc::Status refused = stub_->SetConfig(&context, large, &result);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("nothing was done"));
  // Only a limited number of small requests waits, and the rest is answered at
  // once.
  for (size_t i = 0; i < kMostWaiting + 3; ++i) calls.push_back(Ship());
  size_t answered = 0;
  while (answered < 3) {
    answered = 0;
    for (const auto& call : calls) {
      if (!call->over.WaitForNotificationWithTimeout(absl::Milliseconds(20)))
        continue;
      ++answered;
      EXPECT_EQ(call->status.error_code(),
                grpc::StatusCode::RESOURCE_EXHAUSTED);
    }
  }
  EXPECT_EQ(answered, 3u);
  Answer();
  // Accepted requests are done, and answered.
  for (const auto& call : calls) call->over.WaitForNotification();
}

}  // namespace
}  // namespace rankprobe
