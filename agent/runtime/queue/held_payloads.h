// SPDX-License-Identifier: Apache-2.0
// Payload bytes that wait for the end of their call: reference mode sends them
// only if the call turns out to differ. A token in the record marks their
// place; it is replaced by a reference or removed before the record is sent.
//
// Ownership: of one open call; must not outlive the counter it is given.
// Not thread-safe: guarded by the Recorder's lock.
#ifndef RANKPROBE_AGENT_RUNTIME_QUEUE_HELD_PAYLOADS_H_
#define RANKPROBE_AGENT_RUNTIME_QUEUE_HELD_PAYLOADS_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "agent/runtime/queue/buffers.h"
#include "common/records/call_values.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

class HeldPayloads {
 public:
  struct Item {
    uint64_t length_bytes = 0;
    // Null if the bytes could not be kept; `lost` is the reason.
    std::unique_ptr<PayloadBuffer> buffer;
    v1::LossReason lost = v1::LOSS_REASON_UNSPECIFIED;
    bool lost_to_budget = false;
  };

  // `held_bytes` counts the bytes of all calls together.
  explicit HeldPayloads(uint64_t* held_bytes) : held_bytes_(held_bytes) {}
  ~HeldPayloads() {
    for (const Item& item : items_) Release(item);
  }
  HeldPayloads(const HeldPayloads&) = delete;
  HeldPayloads& operator=(const HeldPayloads&) = delete;

  void Add(Item item, v1::TensorSummary* tensor) {
    if (item.buffer != nullptr) *held_bytes_ += item.length_bytes;
    tensor->mutable_payload()->set_length_bytes(items_.size());
    items_.push_back(std::move(item));
  }
  // Returns the item for a tensor's token; null if it has none.
  Item* Of(const v1::TensorSummary& tensor) {
    if (!tensor.has_payload() ||
        tensor.payload().length_bytes() >= items_.size())
      return nullptr;
    return &items_[static_cast<size_t>(tensor.payload().length_bytes())];
  }
  // Passes the buffer to the session, which counts it from then on.
  std::unique_ptr<PayloadBuffer> Take(Item* item) {
    Release(*item);
    return std::move(item->buffer);
  }

 private:
  void Release(const Item& item) {
    if (item.buffer != nullptr) *held_bytes_ -= item.length_bytes;
  }

  uint64_t* const held_bytes_;
  std::vector<Item> items_;
};

// Removes the tokens: names stay, and no payload is sent.
inline void DropPayloads(v1::CallPhase* phase) {
  ForEachTensor(phase,
                [](v1::TensorSummary* tensor) { tensor->clear_payload(); });
}

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_QUEUE_HELD_PAYLOADS_H_
