// SPDX-License-Identifier: Apache-2.0
// A received frame with its arena: a frame of records consists of thousands of
// small pieces, which are allocated and freed together.
//
// Move-only value; one thread at a time.
#ifndef RANKPROBE_COLLECTOR_INGEST_RECEIVED_FRAME_H_
#define RANKPROBE_COLLECTOR_INGEST_RECEIVED_FRAME_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "google/protobuf/arena.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

class ReceivedFrame {
 public:
  // An empty frame.
  ReceivedFrame()
      : arena_(std::make_unique<google::protobuf::Arena>(Options())),
        frame_(google::protobuf::Arena::CreateMessage<v1::UploadFrame>(
            arena_.get())) {}
  // Copies the frame.
  explicit ReceivedFrame(const v1::UploadFrame& frame) : ReceivedFrame() {
    *frame_ = frame;
  }
  // A moved-from object may only be destroyed or assigned to.
  ReceivedFrame(ReceivedFrame&& other) noexcept
      : arena_(std::move(other.arena_)),
        frame_(std::exchange(other.frame_, nullptr)) {}
  ReceivedFrame& operator=(ReceivedFrame&& other) noexcept {
    arena_ = std::move(other.arena_);
    frame_ = std::exchange(other.frame_, nullptr);
    return *this;
  }
  ~ReceivedFrame() = default;
  ReceivedFrame(const ReceivedFrame&) = delete;
  ReceivedFrame& operator=(const ReceivedFrame&) = delete;

  v1::UploadFrame* get() { return frame_; }
  const v1::UploadFrame& operator*() const { return *frame_; }
  v1::UploadFrame& operator*() { return *frame_; }
  const v1::UploadFrame* operator->() const { return frame_; }
  v1::UploadFrame* operator->() { return frame_; }

  // Returns the arena's size, including what was parsed and discarded. Strings
  // and bytes are allocated elsewhere.
  uint64_t bytes() const { return arena_->SpaceAllocated(); }

 private:
  // Most frames of a step are small, or near 1 MiB.
  static google::protobuf::ArenaOptions Options() {
    google::protobuf::ArenaOptions options;
    options.start_block_size = 1 << 10;
    options.max_block_size = 64 << 10;
    return options;
  }

  std::unique_ptr<google::protobuf::Arena> arena_;
  v1::UploadFrame* frame_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_INGEST_RECEIVED_FRAME_H_
