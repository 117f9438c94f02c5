// SPDX-License-Identifier: Apache-2.0
// Payloads of one process that were refused because the disk was full, as long
// as records may refer to them, with their frames, for an agent that was not
// informed. The newest are kept, which bounds the memory.
//
// Threads: thread-safe, no waits.
#ifndef RANKPROBE_COLLECTOR_INGEST_NO_ROOM_PAYLOADS_H_
#define RANKPROBE_COLLECTOR_INGEST_NO_ROOM_PAYLOADS_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/base/limits.h"

namespace rankprobe {

class NoRoomPayloads {
 public:
  // Records follow their payload closely; later references are resolved by the
  // step that they are in.
  static constexpr size_t kMaxDigests = 16384;
  static constexpr size_t kMaxFrames = 1024;

  // Returns true if that payload was not refused before.
  bool Add(uint64_t sequence, absl::string_view digest) {
    absl::MutexLock lock(&mutex_);
    frames_.push_back(sequence);
    if (frames_.size() > kMaxFrames) frames_.pop_front();
    const Digest bytes = Of(digest);
    if (!digests_.insert(bytes).second) return false;
    order_.push_back(bytes);
    while (order_.size() > kMaxDigests) {
      digests_.erase(order_.front());
      order_.pop_front();
    }
    return true;
  }
  // Called when the payload is sent again, from its beginning.
  void Forget(absl::string_view digest) {
    absl::MutexLock lock(&mutex_);
    digests_.erase(Of(digest));
  }
  bool Has(absl::string_view digest) const {
    absl::MutexLock lock(&mutex_);
    return digests_.contains(Of(digest));
  }
  std::vector<uint64_t> Frames() const {
    absl::MutexLock lock(&mutex_);
    return {frames_.begin(), frames_.end()};
  }

 private:
  using Digest = std::array<char, kPayloadDigestBytes>;
  // `digest` is from a chunk or a reference, which has been validated.
  static Digest Of(absl::string_view digest) {
    Digest bytes{};
    std::copy_n(digest.begin(), std::min(digest.size(), bytes.size()),
                bytes.begin());
    return bytes;
  }

  mutable absl::Mutex mutex_;
  absl::flat_hash_set<Digest> digests_ ABSL_GUARDED_BY(mutex_);
  // By age; some were forgotten.
  std::deque<Digest> order_ ABSL_GUARDED_BY(mutex_);
  std::deque<uint64_t> frames_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_INGEST_NO_ROOM_PAYLOADS_H_
