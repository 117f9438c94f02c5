// SPDX-License-Identifier: Apache-2.0
// A server-side bidirectional stream whose writes are queued from any thread.
// Deletes itself when gRPC has finished with it and no task of it runs
// elsewhere; others hold a Handle, whose calls then do nothing.
#ifndef RANKPROBE_COLLECTOR_RPC_SERVER_STREAM_H_
#define RANKPROBE_COLLECTOR_RPC_SERVER_STREAM_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_callback.h>

#include <deque>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/checked_message.h"

namespace rankprobe {

// A text may quote a caller's input of any length. A client accepts 8 KiB of
// metadata, in which a byte may need three, and would otherwise report that
// limit instead.
inline constexpr size_t kMaxStatusTextBytes = 2000;
inline grpc::Status ToGrpc(const absl::Status& status) {
  const absl::string_view text = status.message();
  const auto code = static_cast<grpc::StatusCode>(status.code());
  if (text.size() <= kMaxStatusTextBytes)
    return grpc::Status(code, std::string(text));
  size_t end = kMaxStatusTextBytes;
  // Do not cut inside a UTF-8 character.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80)
    --end;
  return grpc::Status(
      code, absl::StrCat(text.substr(0, end), ".. (", text.size(), " bytes)"));
}

// `Wire` is the type that gRPC gets for a response: the message or its bytes.
template <typename Request, typename Response, typename Wire = Response>
class ServerStream : public grpc::ServerBidiReactor<Request, Wire> {
 public:
  class Handle {
   public:
    explicit Handle(ServerStream* stream) : stream_(stream) {}
    void Send(const Response& response) {
      absl::MutexLock lock(&mutex_);
      if (stream_ != nullptr) stream_->Enqueue(response);
    }
    // Continues reading after OnMessage did not.
    void Resume() {
      absl::MutexLock lock(&mutex_);
      if (stream_ != nullptr) stream_->ReadNext();
    }
    void End(const absl::Status& status) {
      absl::MutexLock lock(&mutex_);
      if (stream_ != nullptr) stream_->FinishOnce(status);
    }

   private:
    friend class ServerStream;
    void Drop() {
      absl::MutexLock lock(&mutex_);
      stream_ = nullptr;
    }
    absl::Mutex mutex_;
    ServerStream* stream_ ABSL_GUARDED_BY(mutex_);
  };

  // Beyond `max_queued` the stream of a peer that does not read is ended.
  explicit ServerStream(size_t max_queued)
      : max_queued_(max_queued), handle_(std::make_shared<Handle>(this)) {}

  std::shared_ptr<Handle> handle() const { return handle_; }

  // Ends the stream once; later calls do nothing.
  void FinishOnce(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    if (finished_) return;
    finished_ = true;
    this->Finish(ToGrpc(status));
  }

 protected:
  // Called when one message has been read, or the peer has half-closed.
  virtual void OnMessage(Request* untrusted) = 0;
  virtual void OnPeerClosed() { FinishOnce(absl::OkStatus()); }
  // Called when the stream is over; nothing is called after this.
  virtual void OnGone() = 0;

  void ReadNext() {
    absl::MutexLock lock(&mutex_);
    StartNextRead();
  }

  // Runs a task that may wait for the disk on another thread, because gRPC has
  // few threads and all ranks need them. The argument is the memory that the
  // task holds. Returns false if the queue is full. Null: runs in place.
  using Runner = std::function<bool(std::function<void()>, size_t)>;
  // Runs `task` elsewhere instead of continuing with the message that was read.
  // The task returns whether to read on; the stream and the message, of `bytes`
  // bytes, stay valid until then. If the stream is over before the task begins,
  // the task is not run, because another stream of the same peer may already
  // exist.
  void GoOnElsewhere(const Runner& run, size_t bytes,
                     std::function<bool()> task) {
    if (run == nullptr) {
      if (task()) ReadNext();
      return;
    }
    {
      absl::MutexLock lock(&mutex_);
      elsewhere_ = true;
    }
    if (run([this, task = std::move(
                       task)] { ComeBack(/*read_on=*/!IsOver() && task()); },
            bytes))
      return;
    FinishOnce(absl::ResourceExhaustedError(
        "too many wait for the collector's disk; try again"));
    ComeBack(/*read_on=*/false);
  }

  // Called with the newest queued response when another is queued; may merge
  // them.
  virtual bool Merge(Response* queued, const Response& next) { return false; }

 private:
  // After Finish the stream may be deleted at any moment.
  void StartNextRead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_) return;
    incoming_.Clear();
    this->StartRead(&incoming_);
  }

  bool IsOver() {
    absl::MutexLock lock(&mutex_);
    return finished_ || gone_;
  }

  void ComeBack(bool read_on) {
    {
      absl::MutexLock lock(&mutex_);
      elsewhere_ = false;
      if (!gone_) {
        if (read_on) StartNextRead();
        return;
      }
    }
    OnGone();
    delete this;
  }

  void Enqueue(const Response& response) {
    absl::MutexLock lock(&mutex_);
    if (finished_) return;
    if (!queue_.empty() && Merge(&queue_.back(), response)) return;
    if (queue_.size() >= max_queued_) {
      finished_ = true;
      this->Finish(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                                "the peer does not read"));
      return;
    }
    queue_.push_back(response);
    WriteNext();
  }

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || queue_.empty() || finished_) return;
    writing_ = true;
    if constexpr (std::is_same_v<Response, Wire>) {
      outgoing_ = std::move(queue_.front());
    } else {
      outgoing_ = ToCheckedBytes(queue_.front());
    }
    queue_.pop_front();
    this->StartWrite(&outgoing_);
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      OnMessage(&incoming_);
    } else {
      OnPeerClosed();
    }
  }
  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (ok) WriteNext();
  }
  void OnCancel() override { FinishOnce(absl::CancelledError("cancelled")); }
  void OnDone() override {
    handle_->Drop();
    {
      absl::MutexLock lock(&mutex_);
      gone_ = true;
      // ComeBack calls OnGone and deletes the stream.
      if (elsewhere_) return;
    }
    OnGone();
    delete this;
  }

  const size_t max_queued_;
  const std::shared_ptr<Handle> handle_;
  Request incoming_;
  Wire outgoing_;
  absl::Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool elsewhere_ ABSL_GUARDED_BY(mutex_) = false;
  // gRPC has finished with the stream.
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Response> queue_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_RPC_SERVER_STREAM_H_
