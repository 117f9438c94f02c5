// SPDX-License-Identifier: Apache-2.0
#include "web/http/reply_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace rankprobe {
namespace {

// From this size on, the worker waits.
constexpr size_t kMostPending = 256 << 10;

}  // namespace

void ReplyStream::Send(int status, absl::string_view content_type,
                       std::string body) {
  bool wake = false;
  {
    const absl::MutexLock lock(&mutex_);
    if (begun_) return;
    begun_ = ended_ = true;
    const size_t length = body.size();
    head_ = ResponseHead(status, content_type, &length, close_);
    pending_ = std::move(body);
    wake = !std::exchange(woken_, true);
  }
  if (wake) wake_();
}

void ReplyStream::Begin(int status, absl::string_view content_type) {
  bool wake = false;
  {
    const absl::MutexLock lock(&mutex_);
    if (begun_) return;
    begun_ = chunked_ = true;
    head_ = ResponseHead(status, content_type, nullptr, close_);
    wake = !std::exchange(woken_, true);
  }
  if (wake) wake_();
}

bool ReplyStream::Write(absl::string_view piece) {
  bool wake = false;
  {
    const absl::MutexLock lock(&mutex_);
    const auto has_room = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return gone_ || pending_.size() < kMostPending;
    };
    mutex_.Await(absl::Condition(&has_room));
    if (gone_ || !chunked_ || ended_) return false;
    absl::StrAppend(&pending_, piece);
    wake = !piece.empty() && !std::exchange(woken_, true);
  }
  if (wake) wake_();
  return true;
}

void ReplyStream::OnGone(std::function<void()> callback) {
  const absl::MutexLock lock(&mutex_);
  if (gone_ && callback) {
    callback();
  } else {
    on_gone_ = std::move(callback);
  }
}

void ReplyStream::HandlerDone() {
  // Has no effect if the handler has begun an answer.
  Send(500, kJsonType, ErrorJson("INTERNAL", "the request has no answer"));
  {
    const absl::MutexLock lock(&mutex_);
    ended_ = handler_done_ = true;
    on_gone_ = nullptr;
  }
  wake_();
}

bool ReplyStream::Take(std::string* out) {
  const absl::MutexLock lock(&mutex_);
  woken_ = false;
  *out = std::exchange(head_, "");
  if (!chunked_) {
    absl::StrAppend(out, pending_);
  } else {
    if (!pending_.empty()) {
      absl::StrAppend(out, absl::Hex(pending_.size()), "\r\n", pending_,
                      "\r\n");
    }
    if (ended_ && !std::exchange(end_taken_, true))
      absl::StrAppend(out, "0\r\n\r\n");
  }
  // Also releases the memory of a large answer.
  std::string().swap(pending_);
  return !out->empty();
}

bool ReplyStream::finished() const {
  const absl::MutexLock lock(&mutex_);
  return handler_done_ && head_.empty() && pending_.empty() &&
         (!chunked_ || end_taken_);
}

void ReplyStream::Gone() {
  const absl::MutexLock lock(&mutex_);
  if (std::exchange(gone_, true)) return;
  // Runs with the lock held, so that the callback is not running when
  // OnGone(nullptr) returns.
  if (on_gone_) std::exchange(on_gone_, nullptr)();
}

}  // namespace rankprobe
