// SPDX-License-Identifier: Apache-2.0
// Digests of the payloads that a FrameQueue has sent, with the step they were
// sent in. Used under the queue's lock. Nothing fails.
#ifndef RANKPROBE_AGENT_RUNTIME_QUEUE_KNOWN_PAYLOADS_H_
#define RANKPROBE_AGENT_RUNTIME_QUEUE_KNOWN_PAYLOADS_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "agent/runtime/queue/queued_item.h"
#include "common/base/dedup_window.h"

namespace rankprobe {

class KnownPayloads {
 public:
  // `remember` false: equal payloads are sent again.
  explicit KnownPayloads(bool remember) : remember_(remember) {}

  void NoteStep(int64_t step) { newest_step_ = step; }
  bool Has(const PayloadDigest& digest) const {
    const auto it = sent_.find(digest);
    // After a while the collector may have dropped the bytes by retention.
    return remember_ && it != sent_.end() &&
           newest_step_ - it->second <= kAgentRemembersSteps;
  }
  void Add(const PayloadDigest& digest) {
    if (sent_.size() >= kMost) sent_.clear();
    sent_[digest] = newest_step_;
  }
  // Returns false if the digest was not known.
  bool Forget(const PayloadDigest& digest) { return sent_.erase(digest) > 0; }
  void ForgetAll() { sent_.clear(); }

 private:
  static constexpr size_t kMost = 1 << 20;

  const bool remember_;
  absl::flat_hash_map<PayloadDigest, int64_t> sent_;
  int64_t newest_step_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_QUEUE_KNOWN_PAYLOADS_H_
