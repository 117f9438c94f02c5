// SPDX-License-Identifier: Apache-2.0
// Items of a FrameQueue that are not frames yet: records, payloads and
// barriers. Plain values, used under the queue's lock, except that destroying a
// payload takes that lock.
#ifndef RANKPROBE_AGENT_RUNTIME_QUEUE_QUEUED_ITEM_H_
#define RANKPROBE_AGENT_RUNTIME_QUEUE_QUEUED_ITEM_H_

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "agent/runtime/queue/buffers.h"

namespace rankprobe {

class FrameQueue;

using PayloadDigest = std::array<uint8_t, 16>;

// Returns its bytes to the queue's budget when it is destroyed.
class QueuedPayload : public PayloadBuffer {
 public:
  QueuedPayload(FrameQueue* queue, uint64_t size, std::shared_ptr<char> memory)
      : queue_(queue), size_(size), memory_(std::move(memory)) {}
  ~QueuedPayload() override;
  char* data() override { return memory_.get(); }
  uint64_t size() const override { return size_; }
  const std::shared_ptr<char>& memory() const { return memory_; }

 private:
  FrameQueue* const queue_;
  const uint64_t size_;
  std::shared_ptr<char> memory_;
};
// Payloads to release without the lock: declare it before the lock is taken.
using GonePayloads = std::vector<std::shared_ptr<QueuedPayload>>;

struct PayloadItem {
  PayloadDigest digest;
  std::shared_ptr<QueuedPayload> payload;
};
// The place of a barrier among the frames, once it has one.
struct FlushMarker {
  uint64_t sequence = 0;
  bool placed = false;
};
using QueuedItem = std::variant<std::unique_ptr<RecordBuffer>, PayloadItem,
                                std::shared_ptr<FlushMarker>>;

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_QUEUE_QUEUED_ITEM_H_
