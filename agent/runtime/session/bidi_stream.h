// SPDX-License-Identifier: Apache-2.0
// A client-side bidirectional stream driven by one thread: gRPC's callbacks
// only set flags, queue what was read and wake that thread.
//
// Ownership: the driving thread; destroyed only after done() or Close().
// Threads: all public methods from the driving thread; callbacks from gRPC's.
// Failure: done() becomes true with status(); nothing throws or blocks, except
// that Close waits until gRPC has released the stream after a cancellation.
#ifndef RANKPROBE_AGENT_RUNTIME_SESSION_BIDI_STREAM_H_
#define RANKPROBE_AGENT_RUNTIME_SESSION_BIDI_STREAM_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/monotonic_time.h"
#include "common/rpc/checked_message.h"

namespace rankprobe {

template <typename Request, typename Response>
class BidiStream : public grpc::ClientBidiReactor<Request, Response> {
 public:
  // `wake` is called from gRPC threads, without locks held. So is `on_read`,
  // with each response in order; false: the driving thread need not see it.
  explicit BidiStream(std::function<void()> wake,
                      std::function<bool(const Response&)> on_read = nullptr)
      : wake_(std::move(wake)), on_read_(std::move(on_read)) {}

  grpc::ClientContext* context() { return &context_; }

  // After the stub has bound this reactor.
  void Start() {
    // Writes are started outside of gRPC's callbacks: without a hold the call
    // could end, and its memory go, between CanWrite and Write.
    this->AddHold();
    held_ = true;
    this->StartRead(&incoming_);
    this->StartCall();
  }

  // False: the driving thread is woken when that may have changed.
  bool CanWrite() {
    absl::MutexLock lock(&mutex_);
    wake_when_written_ = wake_when_written_ || writing_;
    return held_ && !writing_ && !write_failed_ && !read_ended_;
  }

  // Needs CanWrite(). `more`: be woken when it is written. `followed`: another one
  // will be written right behind it, and they may leave in one go.
  void Write(Request request, bool more = true, bool followed = false) {
    {
      absl::MutexLock lock(&mutex_);
      writing_ = true;
      wake_when_written_ = more;
    }
    outgoing_ = std::move(request);
    grpc::WriteOptions options;
    if (followed) options.set_buffer_hint();
    this->StartWrite(&outgoing_, options);
  }

  bool Pop(Response* response) {
    absl::MutexLock lock(&mutex_);
    if (read_.empty()) return false;
    *response = std::move(read_.front());
    read_.pop_front();
    return true;
  }

  // Nothing comes any more. done() says why, and may take a while to know.
  bool ended() const {
    absl::MutexLock lock(&mutex_);
    return read_ended_ || done_;
  }
  // The other side has ended the stream, or it has failed.
  bool done() {
    {
      absl::MutexLock lock(&mutex_);
      if (!read_ended_) return done_;
    }
    Finish();
    return true;
  }
  // Of a stream that is done. DATA_LOSS: what came was damaged in transit.
  grpc::Status status() const {
    absl::MutexLock lock(&mutex_);
    return damaged_ ? grpc::Status(grpc::StatusCode::DATA_LOSS,
                                   "what the collector sent was damaged on "
                                   "the way: its checksum does not match")
                    : status_;
  }

  // Ends the stream and waits until gRPC is done with it.
  void Close() {
    context_.TryCancel();
    Finish();
  }

 private:
  // Lets go of the call; nothing is started on it any more. A read that failed
  // because what came is not a message leaves the rest unread, and gRPC tells no
  // status before it is read: such a call is given up.
  void Finish() {
    if (std::exchange(held_, false)) this->RemoveHold();
    {
      absl::MutexLock lock(&mutex_);
      if (ended_.WaitFor(&mutex_, absl::Seconds(1),
                         [this]()
                             ABSL_NO_THREAD_SAFETY_ANALYSIS { return done_; }))
        return;
    }
    context_.TryCancel();
    absl::MutexLock lock(&mutex_);
    ended_.Wait(&mutex_,
                [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return done_; });
  }

  void OnReadDone(bool ok) override {
    if (const bool damaged = ok && IsDamaged(incoming_); !ok || damaged) {
      {
        absl::MutexLock lock(&mutex_);
        read_ended_ = true;
        damaged_ = damaged;
      }
      // Nothing that follows is read, so that gRPC would tell no end either.
      if (damaged) context_.TryCancel();
      wake_();
      return;
    }
    if (!on_read_ || on_read_(incoming_)) {
      {
        absl::MutexLock lock(&mutex_);
        read_.push_back(std::move(incoming_));
      }
      wake_();
    }
    this->StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override {
    bool wake = !ok;
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      write_failed_ = write_failed_ || !ok;
      wake = wake || wake_when_written_;
    }
    if (wake) wake_();
  }
  void OnDone(const grpc::Status& status) override {
    // Under the lock: once it is free, Close may return and everything that
    // `wake` touches may be gone. So `wake` takes no lock that is held while a
    // method of this class is called.
    absl::MutexLock lock(&mutex_);
    status_ = status;
    done_ = true;
    ended_.NotifyAll();
    wake_();
  }

  const std::function<void()> wake_;
  const std::function<bool(const Response&)> on_read_;
  // Of the driving thread.
  bool held_ = false;
  grpc::ClientContext context_;
  Request outgoing_;
  Response incoming_;
  mutable absl::Mutex mutex_;
  MonotonicCondVar ended_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool wake_when_written_ ABSL_GUARDED_BY(mutex_) = false;
  bool write_failed_ ABSL_GUARDED_BY(mutex_) = false;
  bool read_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool damaged_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
  std::deque<Response> read_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_SESSION_BIDI_STREAM_H_
