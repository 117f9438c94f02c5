// SPDX-License-Identifier: Apache-2.0
#include "collector/ingest/lane_payload.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "collector/ingest/frame_validator.h"
#include "common/base/limits.h"
#include "common/io/crc32c.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

constexpr uint64_t kBytes = 4 << 20;

class LanePayloadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto memory = SharedMemory::Create(kBytes);
    ASSERT_TRUE(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
    auto reader =
        SharedMemoryReader::Adopt(::dup(memory_->fd()), uint64_t{1} << 40);
    ASSERT_TRUE(reader.ok()) << reader.status();
    reader_ = *std::move(reader);
  }
  static v1::UploadFrame Frame(uint64_t offset, uint64_t length) {
    v1::UploadFrame frame;
    frame.set_sequence(1);
    v1::PayloadChunk& chunk = *frame.mutable_chunk();
    chunk.set_digest(std::string(16, 'd'));
    chunk.set_length_bytes(length);
    chunk.mutable_lane()->set_offset_bytes(offset);
    chunk.mutable_lane()->set_length_bytes(length);
    return frame;
  }

  std::unique_ptr<SharedMemory> memory_;
  std::unique_ptr<SharedMemoryReader> reader_;
};

TEST_F(LanePayloadTest, AReferenceBecomesAFrameLikeAnyOther) {
  const std::string data(kChunkBytes, 'x');
  std::memcpy(memory_->data() + 12345, data.data(), data.size());
  v1::UploadFrame frame = Frame(12345, data.size());
  EXPECT_TRUE(IsOnLane(frame));
  ASSERT_TRUE(TakeFromLane(reader_.get(), &frame).ok());
  EXPECT_FALSE(IsOnLane(frame));
  EXPECT_EQ(frame.chunk().data(), data);
  EXPECT_EQ(frame.chunk().crc32c(), Crc32c(data));
  EXPECT_TRUE(CheckContent(frame, SizeOf(frame, data.size())).ok());
}

TEST_F(LanePayloadTest, OddReferencesAreRefusedAndHoldNothing) {
  const auto refused = [&](v1::UploadFrame frame,
                           const SharedMemoryReader* memory) {
    EXPECT_EQ(TakeFromLane(memory, &frame).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_FALSE(IsOnLane(frame));
    EXPECT_LE(frame.chunk().data().size(), 1u);
  };
  refused(Frame(0, 8), nullptr);
  refused(Frame(0, 0), reader_.get());
  refused(Frame(0, kChunkBytes + 1), reader_.get());
  refused(Frame(0, UINT64_MAX), reader_.get());
  refused(Frame(kBytes, 1), reader_.get());
  refused(Frame(kBytes - 1, 2), reader_.get());
  refused(Frame(UINT64_MAX, 2), reader_.get());
  refused(Frame(UINT64_MAX - 7, 16), reader_.get());
  v1::UploadFrame both = Frame(0, 8);
  both.mutable_chunk()->set_data("x");
  refused(both, reader_.get());
  both.mutable_chunk()->clear_data();
  both.mutable_chunk()->set_crc32c(1);
  refused(both, reader_.get());
}

// Any reference: bytes that are taken lie within the memory, have its content,
// and are no more.
TEST_F(LanePayloadTest, AnyReferenceIsTakenOrRefused) {
  std::mt19937_64 random(17);
  for (uint64_t at = 0; at < kBytes; at += 8) {
    const uint64_t word = random();
    std::memcpy(memory_->data() + at, &word, 8);
  }
  int taken = 0;
  for (int i = 0; i < 20000; ++i) {
    // Near the limits, and anywhere.
    const uint64_t edges[] = {0, kBytes, kChunkBytes, UINT64_MAX, random()};
    uint64_t offset = edges[random() % 5] + random() % 5 - 2;
    uint64_t length = edges[random() % 5] + random() % 5 - 2;
    if (random() % 2 == 0) offset %= kBytes + 2;
    if (random() % 2 == 0) length %= 5000;
    v1::UploadFrame frame = Frame(offset, length);
    const bool legal = length > 0 && length <= kChunkBytes &&
                       offset <= kBytes && length <= kBytes - offset;
    ASSERT_EQ(TakeFromLane(reader_.get(), &frame).ok(), legal)
        << offset << " " << length;
    if (!legal) continue;
    ++taken;
    ASSERT_EQ(frame.chunk().data().size(), length);
    ASSERT_EQ(std::memcmp(frame.chunk().data().data(), memory_->data() + offset,
                          length),
              0);
  }
  EXPECT_GT(taken, 1000);
}

// The rank writes during the read: what was taken has the checksum that it was
// given, whatever its content, and does not change any more.
TEST_F(LanePayloadTest, ChangesWhileItIsReadDoNotReachWhatWasTaken) {
  std::atomic<bool> stop{false};
  std::thread rank([&] {
    for (char c = 0; !stop; ++c) std::memset(memory_->data(), c, kBytes);
  });
  for (int i = 0; i < 200; ++i) {
    v1::UploadFrame frame = Frame(static_cast<uint64_t>(i) * 4096, kChunkBytes);
    EXPECT_TRUE(TakeFromLane(reader_.get(), &frame).ok());
    EXPECT_EQ(Crc32c(frame.chunk().data()), frame.chunk().crc32c());
    EXPECT_TRUE(CheckContent(frame, SizeOf(frame, kChunkBytes)).ok());
  }
  stop = true;
  rank.join();
}

}  // namespace
}  // namespace rankprobe
