// SPDX-License-Identifier: Apache-2.0
#include "collector/ingest/frame_decoding.h"

#include <grpcpp/support/slice.h>

#include <string>

#include "common/io/checksum_field.h"
#include "common/io/crc32c.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

absl::Status DecodeBytes(const std::string& bytes, v1::UploadFrame* frame,
                         bool* data_checked) {
  // In two pieces, as the network may deliver it.
  const grpc::Slice pieces[2] = {grpc::Slice(bytes.substr(0, bytes.size() / 2)),
                                 grpc::Slice(bytes.substr(bytes.size() / 2))};
  grpc::ByteBuffer buffer(pieces, 2);
  return DecodeFrame(&buffer, frame, data_checked);
}

// Decodes the bytes as if an agent had sent them.
absl::Status Decode(std::string bytes, v1::UploadFrame* frame) {
  AppendChecksum(&bytes);
  bool data_checked = false;
  return DecodeBytes(bytes, frame, &data_checked);
}

v1::UploadFrame Frame(const std::string& entry) {
  v1::UploadFrame frame;
  frame.set_sequence(42);
  frame.mutable_batch()->add_records()->mutable_call()->set_entry(entry);
  return frame;
}

TEST(FrameDecodingTest, GoodBytesAreTheFrame) {
  v1::UploadFrame frame;
  ASSERT_TRUE(Decode(Frame("e").SerializeAsString(), &frame).ok());
  frame.clear_crc32c();
  EXPECT_EQ(frame.SerializeAsString(), Frame("e").SerializeAsString());
}

TEST(FrameDecodingTest, EachSingleFlipIsFound) {
  v1::UploadFrame chunk;
  chunk.set_sequence(7);
  chunk.mutable_chunk()->set_digest("0123456789abcdef");
  chunk.mutable_chunk()->set_length_bytes(64);
  chunk.mutable_chunk()->set_crc32c(Crc32c(std::string(64, 'x')));
  chunk.mutable_chunk()->set_data(std::string(64, 'x'));
  for (const v1::UploadFrame& sent : {Frame("Aten.add.0.forward"), chunk}) {
    std::string bytes = sent.SerializeAsString();
    AppendChecksum(&bytes);
    v1::UploadFrame frame;
    bool data_checked = false;
    ASSERT_TRUE(DecodeBytes(bytes, &frame, &data_checked).ok());
    for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      std::string flipped = bytes;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
      EXPECT_TRUE(absl::IsDataLoss(DecodeBytes(flipped, &frame, &data_checked)))
          << bit;
      EXPECT_FALSE(frame.has_batch() || frame.has_chunk()) << bit;
    }
  }
}

// Data at the end is read once; data with a wrong checksum is left to the check
// of the chunk.
TEST(FrameDecodingTest, DataAtTheEndIsCheckedWithTheFrame) {
  const std::string data(300, 'd');
  const auto decode = [&](uint32_t crc32c, bool* data_checked) {
    v1::PayloadChunk head;
    head.set_length_bytes(300);
    head.set_crc32c(crc32c);
    std::string inner = head.SerializeAsString();
    inner += "\x22\xac\x02" + data;  // field 4, 300 bytes
    std::string bytes = "\x08\x05\x22";
    bytes.push_back(static_cast<char>(inner.size() % 128 + 128));
    bytes.push_back(static_cast<char>(inner.size() / 128));
    bytes += inner;
    AppendChecksum(&bytes);
    v1::UploadFrame frame;
    EXPECT_TRUE(DecodeBytes(bytes, &frame, data_checked).ok());
    EXPECT_EQ(frame.chunk().data(), data);
  };
  bool checked = false;
  decode(Crc32c(data), &checked);
  EXPECT_TRUE(checked);
  decode(Crc32c(data) + 1, &checked);
  EXPECT_FALSE(checked);
}

// P19, P20, P21, D01: the number is found.
TEST(FrameDecodingTest, BadBytesKeepTheirNumber) {
  const auto refused = [](const std::string& bytes) {
    v1::UploadFrame frame = Frame("left over");
    EXPECT_TRUE(absl::IsInvalidArgument(Decode(bytes, &frame)));
    EXPECT_FALSE(frame.has_batch());
    return frame.sequence();
  };
  EXPECT_EQ(refused(Frame("\xff\xfe").SerializeAsString()), 42u) << "UTF-8";
  const std::string good = Frame(std::string(300, 'e')).SerializeAsString();
  EXPECT_EQ(refused(good.substr(0, good.size() - 7)), 42u) << "cut off";
  std::string lying = good;
  lying[5] = '\x7f';
  EXPECT_EQ(refused(lying), 42u) << "inner length";
  v1::UploadFrame deep = Frame("deep");
  v1::Value* value =
      deep.mutable_batch()->mutable_records(0)->mutable_call()->mutable_debug();
  for (int i = 0; i < 100; ++i) value = value->mutable_list()->add_items();
  EXPECT_EQ(refused(deep.SerializeAsString()), 42u) << "depth";
}

// P22, P23, P24: there is no number.
TEST(FrameDecodingTest, NonsenseHasNoNumber) {
  v1::UploadFrame frame;
  EXPECT_FALSE(Decode("\x08" + std::string(11, '\xff'), &frame).ok());
  EXPECT_EQ(frame.sequence(), 0u);
  EXPECT_FALSE(Decode(std::string(300, '\x0b'), &frame).ok());
  EXPECT_EQ(frame.sequence(), 0u);
  EXPECT_FALSE(Decode("\xee\xdd\xcc\xbb\xaa\x99", &frame).ok());
  EXPECT_EQ(frame.sequence(), 0u);
}

}  // namespace
}  // namespace rankprobe
