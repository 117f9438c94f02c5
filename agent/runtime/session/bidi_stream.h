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
  // `wake` and `on_read` are called from gRPC's threads, without locks held.
  // `on_read` receives each response in order; it returns false if the driving
  // thread need not see the response.
  explicit BidiStream(std::function<void()> wake,
                      std::function<bool(const Response&)> on_read = nullptr)
      : wake_(std::move(wake)), on_read_(std::move(on_read)) {}

  grpc::ClientContext* context() { return &context_; }

  // Starts the call. The stub must have bound this reactor to it.
  void Start() {
    // Writes are started outside of gRPC's callbacks: without a hold the call
    // could end, and its memory be released, between CanWrite and Write.
    this->AddHold();
    held_ = true;
    this->StartRead(&incoming_);
    this->StartCall();
  }

  // Whether Write may be called. If not, `wake` is called once that may have
  // changed.
  bool CanWrite() {
    absl::MutexLock lock(&mutex_);
    wake_when_written_ = wake_when_written_ || writing_;
    return held_ && !writing_ && !write_failed_ && !read_ended_;
  }

  // Sends one request; CanWrite() must hold. `more`: `wake` is called once it
  // is written. `followed`: another request follows immediately, and gRPC may
  // send both in one packet.
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

  // No more responses will be read. The status is available once done() is
  // true, which may be later.
  bool ended() const {
    absl::MutexLock lock(&mutex_);
    return read_ended_ || done_;
  }
  // The other side has ended the stream, or the stream has failed.
  bool done() {
    {
      absl::MutexLock lock(&mutex_);
      if (!read_ended_) return done_;
    }
    Finish();
    return true;
  }
  // Requires done(). DATA_LOSS: a response was damaged in transit.
  grpc::Status status() const {
    absl::MutexLock lock(&mutex_);
    return damaged_ ? grpc::Status(grpc::StatusCode::DATA_LOSS,
                                   "what the collector sent was damaged in "
                                   "transit: its checksum does not match")
                    : status_;
  }

  // Cancels the stream and waits until gRPC has released it.
  void Close() {
    context_.TryCancel();
    Finish();
  }

 private:
  // Removes the hold and waits for OnDone; nothing is started on the call any
  // more. After a read that failed because the bytes were not a message, the
  // rest stays unread, and gRPC does not deliver the status before it is read:
  // such a call is cancelled after a second.
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
      // No further read is started, so gRPC would not report the end of the
      // call either.
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
    // Under the lock: as soon as it is released, Close may return and
    // everything that `wake` uses may be destroyed. Hence `wake` must not take
    // a lock that is held while a method of this class is called.
    absl::MutexLock lock(&mutex_);
    status_ = status;
    done_ = true;
    ended_.NotifyAll();
    wake_();
  }

  const std::function<void()> wake_;
  const std::function<bool(const Response&)> on_read_;
  // Used only by the driving thread.
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
