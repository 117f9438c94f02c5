// SPDX-License-Identifier: Apache-2.0
// Fixture of the tests of the frame queue: a queue with a manual clock, records
// and payloads to submit, and frames as a collector reads them.
#ifndef RANKPROBE_AGENT_RUNTIME_QUEUE_TESTING_FRAME_QUEUE_FIXTURE_H_
#define RANKPROBE_AGENT_RUNTIME_QUEUE_TESTING_FRAME_QUEUE_FIXTURE_H_

#include <memory>
#include <string>
#include <vector>

#include "agent/runtime/queue/frame_queue.h"
#include "common/io/checksum_field.h"
#include "gtest/gtest.h"

namespace rankprobe::testing {

inline constexpr uint64_t kUnboundedCredit = uint64_t{1} << 40;

class FrameQueueTest : public ::testing::Test {
 protected:
  void Make(uint64_t budget, OverflowPolicy policy,
            absl::Duration deadline = absl::ZeroDuration()) {
    queue_ = std::make_unique<FrameQueue>(
        FrameQueue::Options{budget, budget, policy, deadline}, &clock_, [] {});
  }

  static std::unique_ptr<RecordBuffer> Records(int64_t step, int count,
                                               size_t text = 10) {
    auto buffer = std::make_unique<RecordBuffer>();
    buffer->batch()->set_step(step);
    for (int i = 0; i < count; ++i) {
      v1::Record* record = buffer->Add();
      record->set_order(static_cast<uint64_t>(i));
      record->mutable_call()->set_entry(std::string(text, 'e'));
    }
    return buffer;
  }

  bool Payload(char tag, uint64_t size) {
    v1::LossReason reason;
    auto buffer = queue_->Reserve(size, &reason);
    if (buffer == nullptr) return false;
    for (uint64_t i = 0; i < size; ++i) {
      buffer->data()[i] = static_cast<char>(tag + i % 7);
    }
    FrameQueue::Digest digest{};
    digest[0] = static_cast<uint8_t>(tag);
    queue_->SubmitPayload(digest, std::move(buffer));
    return true;
  }

  // The next frame as the collector reads it.
  bool Next(uint64_t credit, v1::UploadFrame* frame) {
    EncodedFrame encoded;
    if (!queue_->NextFrame(credit, &encoded)) return false;
    std::string bytes = encoded.head;
    bytes.append(encoded.tail.data(), encoded.tail.size());
    bytes += encoded.foot;
    EXPECT_TRUE(MatchesChecksum(bytes));
    EXPECT_TRUE(frame->ParseFromString(bytes));
    EXPECT_EQ(frame->sequence(), encoded.sequence);
    return true;
  }

  std::vector<v1::UploadFrame> Drain(uint64_t credit = kUnboundedCredit) {
    std::vector<v1::UploadFrame> frames;
    v1::UploadFrame frame;
    while (Next(credit, &frame)) frames.push_back(frame);
    return frames;
  }

  void Commit(uint64_t sequence) {
    v1::UploadAck ack;
    ack.set_committed(sequence);
    queue_->Ack(ack);
  }

  uint64_t Used() {
    SessionStats stats;
    queue_->FillStats(&stats);
    return stats.queue_bytes;
  }

  ManualClock clock_;
  std::unique_ptr<FrameQueue> queue_;
};

}  // namespace rankprobe::testing

#endif  // RANKPROBE_AGENT_RUNTIME_QUEUE_TESTING_FRAME_QUEUE_FIXTURE_H_
