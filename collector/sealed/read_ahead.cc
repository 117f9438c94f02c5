// SPDX-License-Identifier: Apache-2.0
#include "collector/sealed/read_ahead.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

constexpr uint64_t kFirstBytes = 256 << 10;
constexpr uint64_t kMostBytes = 8 << 20;
// Gaps up to this size are read and skipped instead of ending the range.
constexpr uint64_t kHoleBytes = 256 << 10;
// Larger parts are requested one by one.
constexpr uint64_t kSmallBytes = 4 << 20;
constexpr uint64_t kKeptBytes = 32 << 20;
constexpr size_t kKeptSpans = 32;

}  // namespace

absl::StatusOr<std::string> ReadAhead::Get(const std::string& key,
                                           uint64_t object_bytes,
                                           uint64_t offset, uint64_t bytes) {
  if (bytes > kSmallBytes) return store_->Get(key, offset, bytes);
  Span span;
  span.key = key;
  span.offset = offset;
  span.next = kFirstBytes;
  uint64_t wanted = bytes;
  {
    absl::MutexLock lock(&mutex_);
    for (auto it = spans_.begin(); it != spans_.end(); ++it) {
      if (it->key != key || offset < it->offset) continue;
      const uint64_t at = offset - it->offset, size = it->bytes.size();
      if (at < size && bytes <= size - at) {
        spans_.splice(spans_.begin(), spans_, it);
        return it->bytes.substr(at, bytes);
      }
      if (at > size + kHoleBytes) continue;
      // The part follows the span, or crosses its end.
      const uint64_t most = kKeptBytes / std::max<size_t>(4, spans_.size());
      wanted = std::max(bytes, std::min(it->next, most));
      span.next = std::min(2 * it->next, kMostBytes);
      kept_bytes_ -= size;
      spans_.erase(it);
      break;
    }
  }
  if (offset < object_bytes)
    wanted = std::max(bytes, std::min(wanted, object_bytes - offset));
  absl::StatusOr<std::string> got = store_->Get(key, offset, wanted);
  // If the longer range reaches past the end of the object, the part alone may
  // still be inside it.
  if (absl::IsOutOfRange(got.status()) && wanted > bytes)
    got = store_->Get(key, offset, bytes);
  RP_RETURN_IF_ERROR(got.status());
  std::string part = got->substr(0, bytes);
  span.bytes = *std::move(got);
  absl::MutexLock lock(&mutex_);
  Keep(std::move(span));
  return part;
}

void ReadAhead::Keep(Span span) {
  kept_bytes_ += span.bytes.size();
  spans_.push_front(std::move(span));
  while (spans_.size() > kKeptSpans || kept_bytes_ > kKeptBytes) {
    kept_bytes_ -= spans_.back().bytes.size();
    spans_.pop_back();
  }
}

void ReadAhead::Forget(const std::string& key) {
  absl::MutexLock lock(&mutex_);
  for (auto it = spans_.begin(); it != spans_.end();) {
    if (it->key != key) {
      ++it;
      continue;
    }
    kept_bytes_ -= it->bytes.size();
    it = spans_.erase(it);
  }
}

uint64_t ReadAhead::kept_bytes() const {
  absl::MutexLock lock(&mutex_);
  return kept_bytes_;
}

}  // namespace rankprobe
