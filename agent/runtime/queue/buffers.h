// SPDX-License-Identifier: Apache-2.0
// Buffers passed to the session: records on their arena, and bytes of payloads
// that count against its budget. Used by one thread at a time.
#ifndef RANKPROBE_AGENT_RUNTIME_QUEUE_BUFFERS_H_
#define RANKPROBE_AGENT_RUNTIME_QUEUE_BUFFERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "google/protobuf/arena.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

// Behaviour when the byte budget is used up.
enum class OverflowPolicy { kBlock, kStatsOnly, kDropNewest };

// Records being built, with the arena that holds them. The owner may reuse it.
class RecordBuffer {
 public:
  RecordBuffer();
  v1::Record* Add() { return batch_->add_records(); }
  v1::RecordBatch* batch() { return batch_; }
  google::protobuf::Arena* arena() { return arena_.get(); }
  // Bytes this buffer holds in memory; approximate, cheap.
  size_t ApproxBytes() const { return arena_->SpaceUsed(); }

 private:
  std::unique_ptr<google::protobuf::Arena> arena_;
  v1::RecordBatch* batch_;
};

// Bytes of one payload within the session's budget. If it is destroyed without
// being submitted, the budget gets its bytes back.
class PayloadBuffer {
 public:
  virtual ~PayloadBuffer() = default;
  virtual char* data() = 0;
  virtual uint64_t size() const = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_QUEUE_BUFFERS_H_
