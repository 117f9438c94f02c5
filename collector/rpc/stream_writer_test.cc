// SPDX-License-Identifier: Apache-2.0
#include "collector/rpc/stream_writer.h"

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "collector/rpc/worker_pool.h"
#include "gtest/gtest.h"
#include "rankprobe/v1/archive.grpc.pb.h"

namespace rankprobe {
namespace {

// Streams messages of one size, numbered by their offsets, until it has written
// `messages` or cannot write.
class Source final : public v1::ArchiveService::CallbackService {
 public:
  Source(uint64_t messages, size_t bytes, absl::Duration patience)
      : messages_(messages), bytes_(bytes), patience_(patience) {}

  grpc::ServerWriteReactor<v1::TensorBytes>* GetTensor(
      grpc::CallbackServerContext* context,
      const v1::GetTensorRequest* /*request*/) override {
    auto* const stream = new StreamWriter<v1::TensorBytes>(context, patience_);
    EXPECT_TRUE(pool_.Run([this, handle = stream->handle()] {
      absl::Status status;
      for (uint64_t i = 0; i < messages_ && status.ok(); ++i) {
        v1::TensorBytes message;
        message.set_offset_bytes(i);
        message.set_data(std::string(bytes_, static_cast<char>('a' + i % 26)));
        status = handle->Write(std::move(message));
      }
      handle->Finish(status);
      absl::MutexLock lock(&mutex_);
      status_ = status;
      over_.Notify();
    }));
    return stream;
  }

  absl::Status Wait() {
    over_.WaitForNotification();
    absl::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  const uint64_t messages_;
  const size_t bytes_;
  const absl::Duration patience_;
  absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  absl::Notification over_;
  WorkerPool pool_{/*threads=*/1, /*max_queued=*/1};
};

class Running {
 public:
  explicit Running(Source* source) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(source);
    server_ = builder.BuildAndStart();
    stub_ = v1::ArchiveService::NewStub(
        grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                            grpc::InsecureChannelCredentials()));
  }
  ~Running() { server_->Shutdown(); }

  auto Ask(grpc::ClientContext* context) {
    return stub_->GetTensor(context, v1::GetTensorRequest());
  }

 private:
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::ArchiveService::Stub> stub_;
};

void ExpectAll(uint64_t messages, size_t bytes) {
  Source source(messages, bytes, absl::InfiniteDuration());
  Running running(&source);
  grpc::ClientContext context;
  const auto reader = running.Ask(&context);
  v1::TensorBytes message;
  uint64_t next = 0;
  for (; reader->Read(&message); ++next) {
    ASSERT_EQ(message.offset_bytes(), next);
    ASSERT_EQ(message.data(),
              std::string(bytes, static_cast<char>('a' + next % 26)));
  }
  EXPECT_EQ(next, messages);
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(source.Wait().ok());
}

TEST(StreamWriterTest, SmallMessagesComeInTheirOrder) { ExpectAll(20000, 40); }
TEST(StreamWriterTest, SoDoThoseThatWaitAlone) { ExpectAll(40, 600 << 10); }
TEST(StreamWriterTest, AndNone) { ExpectAll(0, 0); }

TEST(StreamWriterTest, AReaderThatTakesNothingIsEnded) {
  Source source(100000, 1000, absl::Milliseconds(50));
  Running running(&source);
  grpc::ClientContext context;
  const auto reader = running.Ask(&context);
  EXPECT_TRUE(absl::IsCancelled(source.Wait()));
  v1::TensorBytes message;
  while (reader->Read(&message)) {
  }
  EXPECT_FALSE(reader->Finish().ok());
}

TEST(StreamWriterTest, AReaderThatGoesEndsTheWork) {
  Source source(100000, 1000, absl::InfiniteDuration());
  Running running(&source);
  grpc::ClientContext context;
  const auto reader = running.Ask(&context);
  v1::TensorBytes message;
  ASSERT_TRUE(reader->Read(&message));
  context.TryCancel();
  EXPECT_TRUE(absl::IsCancelled(source.Wait()));
  EXPECT_FALSE(reader->Finish().ok());
}

}  // namespace
}  // namespace rankprobe
