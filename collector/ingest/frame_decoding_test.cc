// SPDX-License-Identifier: Apache-2.0
#include "collector/ingest/frame_decoding.h"

#include <grpcpp/support/slice.h>

#include <string>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

absl::Status Decode(const std::string& bytes, v1::UploadFrame* frame) {
  // In two pieces, as the network may bring it.
  const grpc::Slice pieces[2] = {grpc::Slice(bytes.substr(0, bytes.size() / 2)),
                                 grpc::Slice(bytes.substr(bytes.size() / 2))};
  grpc::ByteBuffer buffer(pieces, 2);
  return DecodeFrame(&buffer, frame);
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
  EXPECT_EQ(frame.SerializeAsString(), Frame("e").SerializeAsString());
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

// P22, P23, P24: there is none.
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
