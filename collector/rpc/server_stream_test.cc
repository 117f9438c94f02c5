// SPDX-License-Identifier: Apache-2.0
#include "collector/rpc/server_stream.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "rankprobe/v1/agent.grpc.pb.h"

namespace rankprobe {
namespace {

// Handles the sessions of agents with streams whose messages wait elsewhere.
class SlowService final : public v1::AgentService::CallbackService {
 public:
  class Stream final : public ServerStream<v1::AgentEvent, v1::Directive> {
   public:
    explicit Stream(SlowService* service)
        : ServerStream(/*max_queued=*/8), service_(service) {
      ReadNext();
    }

   private:
    void OnMessage(v1::AgentEvent* untrusted) override {
      GoOnElsewhere(
          [this](std::function<void()> task, size_t bytes) {
            EXPECT_GT(bytes, 0u);
            absl::MutexLock lock(&service_->mutex_);
            service_->waiting_.push_back(std::move(task));
            return true;
          },
          untrusted->ByteSizeLong(),
          [this] {
            ++service_->handled;
            return true;
          });
    }
    void OnGone() override { service_->gone.Notify(); }
    void OnCancel() override {
      FinishOnce(absl::CancelledError("cancelled"));
      service_->cancelled.Notify();
    }
    SlowService* const service_;
  };

  grpc::ServerBidiReactor<v1::AgentEvent, v1::Directive>* Session(
      grpc::CallbackServerContext*) override {
    return new Stream(this);
  }

  // Waits for a task and takes it.
  std::function<void()> NextTask() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](std::vector<std::function<void()>>* tasks) {
          return !tasks->empty();
        },
        &waiting_));
    std::function<void()> task = std::move(waiting_.front());
    waiting_.erase(waiting_.begin());
    return task;
  }

  std::atomic<int> handled{0};
  absl::Notification cancelled, gone;

 private:
  absl::Mutex mutex_;
  std::vector<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
};

class ServerStreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    stub_ = v1::AgentService::NewStub(
        grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                            grpc::InsecureChannelCredentials()));
    stream_ = stub_->Session(&context_);
    v1::AgentEvent event;
    event.mutable_hello();
    ASSERT_TRUE(stream_->Write(event));
  }
  void TearDown() override {
    context_.TryCancel();
    stream_->Finish();
    server_->Shutdown();
  }

  SlowService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::AgentService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AgentEvent, v1::Directive>>
      stream_;
};

// Q3b
TEST(ToGrpcTest, ATextOfAnyLengthFitsTheMetadata) {
  const grpc::Status status = ToGrpc(
      absl::NotFoundError("no statistic \"" + std::string(1999 - 14, 'n') +
                          "\u00e9" + std::string(100'000, 'n') + "\""));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_LT(status.error_message().size(), kMaxStatusTextBytes + 30);
  EXPECT_EQ(status.error_message().substr(0, 14), "no statistic \"");
  EXPECT_EQ(status.error_message().substr(1998), "n.. (102002 bytes)");
  EXPECT_EQ(ToGrpc(absl::NotFoundError("short")).error_message(), "short");
}

TEST_F(ServerStreamTest, WhatWaitedIsDoneAndTheStreamReadOn) {
  service_.NextTask()();
  EXPECT_EQ(service_.handled, 1);
  v1::AgentEvent event;
  event.mutable_hello();
  ASSERT_TRUE(stream_->Write(event));
  service_.NextTask()();
  EXPECT_EQ(service_.handled, 2);
}

// The peer may have returned meanwhile: a message of its abandoned stream must
// not override those of the new one.
TEST_F(ServerStreamTest, AStreamThatIsOverHasNoSayAnyMore) {
  const std::function<void()> task = service_.NextTask();
  context_.TryCancel();
  service_.cancelled.WaitForNotification();
  task();
  EXPECT_EQ(service_.handled, 0);
  service_.gone.WaitForNotification();
}

}  // namespace
}  // namespace rankprobe
