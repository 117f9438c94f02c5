// SPDX-License-Identifier: Apache-2.0
// Bounded buffer between the worker that makes an answer and the connection
// that writes it. The worker's side is HttpReply; the other side is for the
// connection's strand. Thread-safe.
#ifndef RANKPROBE_WEB_HTTP_REPLY_STREAM_H_
#define RANKPROBE_WEB_HTTP_REPLY_STREAM_H_

#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "web/http/http_message.h"

namespace rankprobe {

class ReplyStream final : public HttpReply {
 public:
  // The worker calls `wake` without a lock when there are bytes to take. With
  // `close`, the answer announces that it is the connection's last.
  ReplyStream(std::function<void()> wake, bool close)
      : wake_(std::move(wake)), close_(close) {}

  void Send(int status, absl::string_view content_type,
            std::string body) override;
  void Begin(int status, absl::string_view content_type) override;
  bool Write(absl::string_view piece) override;
  void OnGone(std::function<void()> callback) override;
  // Called when the handler has returned or thrown.
  void HandlerDone();

  // Moves bytes into `out`, which must be empty. Returns false if there are
  // none at present.
  bool Take(std::string* out);
  // Whether all bytes were taken and the handler has returned.
  bool finished() const;
  // Called when the client has disconnected.
  void Gone();

 private:
  const std::function<void()> wake_;
  const bool close_;
  mutable absl::Mutex mutex_;
  std::string head_ ABSL_GUARDED_BY(mutex_);
  std::string pending_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> on_gone_ ABSL_GUARDED_BY(mutex_);
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  bool chunked_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool end_taken_ ABSL_GUARDED_BY(mutex_) = false;
  bool handler_done_ ABSL_GUARDED_BY(mutex_) = false;
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;
  // The strand was notified and has not taken bytes since.
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_HTTP_REPLY_STREAM_H_
