// SPDX-License-Identifier: Apache-2.0
// gRPC calls whose work waits for the disk, done by a worker: server streams,
// whose writes wait for a reader, and unary calls.
//
// The call of a reader that takes nothing for a while is ended, so that it does
// not hold its worker. Work whose caller has disconnected before its turn is
// not begun.
// Threads: created by gRPC's threads, filled by one worker each.
#ifndef RANKPROBE_COLLECTOR_RPC_STREAM_WRITER_H_
#define RANKPROBE_COLLECTOR_RPC_STREAM_WRITER_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collector/rpc/server_stream.h"
#include "collector/rpc/worker_pool.h"
#include "common/base/monotonic_time.h"
#include "common/rpc/checked_message.h"

namespace rankprobe {

// How long a message may wait until the reader takes the one before it.
inline constexpr absl::Duration kReaderPatience = absl::Seconds(30);
// Small messages are queued together, because passing each to gRPC's threads
// and waiting for them takes longer than making it.
inline constexpr size_t kMostWaitingBytes = size_t{256} << 10;

// A server stream that a worker thread fills; Write waits for room.
template <typename Response>
class StreamWriter : public grpc::ServerWriteReactor<Response> {
 public:
  // The worker's side; remains usable after gRPC has deleted the stream.
  class Handle {
   public:
    Handle(StreamWriter* stream, grpc::CallbackServerContext* context,
           absl::Duration patience)
        : patience_(patience), stream_(stream), context_(context) {}

    // CANCELLED if the reader has disconnected, or has read nothing for too
    // long.
    absl::Status Write(Response response) {
      const size_t bytes = response.ByteSizeLong();
      absl::MutexLock lock(&mutex_);
      Await([this, bytes]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return bytes_ == 0 || bytes_ + bytes <= kMostWaitingBytes;
      });
      if (IsOver())
        return absl::CancelledError(
            "the reader has disconnected, or does not read");
      bytes_ += bytes;
      ++messages_;
      waiting_.push_back({std::move(response), bytes});
      WriteNext();
      return absl::OkStatus();
    }
    void Finish(const absl::Status& status) {
      absl::MutexLock lock(&mutex_);
      Await([this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !writing_; });
      if (stream_ == nullptr || std::exchange(finished_, true)) return;
      context_->AddTrailingMetadata(kMessagesKey, absl::StrCat(messages_));
      stream_->Finish(ToGrpc(status));
    }
    // Adds trailing metadata. Called before Finish.
    void AddTrailer(const std::string& key, const std::string& value) {
      absl::MutexLock lock(&mutex_);
      if (stream_ != nullptr && !finished_)
        context_->AddTrailingMetadata(key, value);
    }
    bool cancelled() const {
      absl::MutexLock lock(&mutex_);
      return IsOver();
    }

   private:
    friend class StreamWriter;
    struct Waiting {
      Response response;
      size_t bytes = 0;
    };

    bool IsOver() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return stream_ == nullptr || cancelled_;
    }
    // Waits until `ready` or IsOver. If the reader takes nothing for
    // `patience_`, cancels the call.
    template <typename Ready>
    void Await(const Ready& ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      while (!IsOver() && !ready()) {
        const uint64_t taken = taken_;
        const auto changed = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return IsOver() || taken_ != taken;
        };
        if (ready_.WaitFor(&mutex_, patience_, changed)) continue;
        cancelled_ = true;
        context_->TryCancel();
      }
    }
    void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      if (writing_ || waiting_.empty() || IsOver()) return;
      writing_ = true;
      outgoing_ = std::move(waiting_.front());
      waiting_.pop_front();
      stream_->StartWrite(&outgoing_.response);
    }
    void NoteWritten(bool ok) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      writing_ = false;
      bytes_ -= outgoing_.bytes;
      ++taken_;
      cancelled_ = cancelled_ || !ok;
      WriteNext();
      ready_.NotifyAll();
    }

    const absl::Duration patience_;
    mutable absl::Mutex mutex_;
    // Notified by every change that may end a wait.
    MonotonicCondVar ready_;
    StreamWriter* stream_ ABSL_GUARDED_BY(mutex_);
    // Valid as long as `stream_`.
    grpc::CallbackServerContext* const context_;
    // Belongs to gRPC while `writing_`.
    Waiting outgoing_ ABSL_GUARDED_BY(mutex_);
    std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
    // Bytes of the waiting messages and of the one being written.
    size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
    uint64_t messages_ ABSL_GUARDED_BY(mutex_) = 0;
    // Number of messages that the reader has taken.
    uint64_t taken_ ABSL_GUARDED_BY(mutex_) = 0;
    bool writing_ ABSL_GUARDED_BY(mutex_) = false;
    bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
    bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  };

  StreamWriter(grpc::CallbackServerContext* context, absl::Duration patience)
      : handle_(std::make_shared<Handle>(this, context, patience)) {}
  std::shared_ptr<Handle> handle() { return handle_; }

 private:
  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&handle_->mutex_);
    handle_->NoteWritten(ok);
  }
  void OnCancel() override {
    absl::MutexLock lock(&handle_->mutex_);
    handle_->cancelled_ = true;
    handle_->ready_.NotifyAll();
  }
  void OnDone() override {
    {
      absl::MutexLock lock(&handle_->mutex_);
      handle_->stream_ = nullptr;
      handle_->ready_.NotifyAll();
    }
    delete this;
  }

  const std::shared_ptr<Handle> handle_;
};

// Runs `work(handle)` on the pool and finishes the stream with its status.
template <typename Response, typename Work>
grpc::ServerWriteReactor<Response>* RunStream(
    grpc::CallbackServerContext* context, WorkerPool* pool, Work work) {
  auto* const stream = new StreamWriter<Response>(context, kReaderPatience);
  auto handle = stream->handle();
  if (!pool->Run([handle, work = std::move(work)] {
        if (!handle->cancelled()) return handle->Finish(work(handle.get()));
        handle->Finish(absl::CancelledError("the caller has disconnected"));
      })) {
    handle->Finish(
        absl::ResourceExhaustedError("too many calls are waiting; try again"));
  }
  return stream;
}

template <typename Work>
grpc::ServerUnaryReactor* RunUnary(grpc::CallbackServerContext* context,
                                   WorkerPool* pool, Work work) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  if (!pool->Run([context, reactor, work = std::move(work)] {
        if (!context->IsCancelled()) return reactor->Finish(ToGrpc(work()));
        reactor->Finish(grpc::Status::CANCELLED);
      })) {
    reactor->Finish(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                                 "too many calls are waiting; try again"));
  }
  return reactor;
}

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_RPC_STREAM_WRITER_H_
