// SPDX-License-Identifier: Apache-2.0
#include "collector/ingest/refusal.h"

#include <string>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

TEST(RefusalTest, SaysWhatTheFrameHeld) {
  v1::UploadFrame frame;
  frame.set_sequence(7);
  EXPECT_FALSE(RefusalOf(frame, "unreadable").has_step());
  frame.mutable_batch()->set_step(3);
  frame.mutable_batch()->add_records();
  frame.mutable_batch()->add_records();
  const v1::RefusalRow records = RefusalOf(frame, "deep");
  EXPECT_EQ(records.sequence(), 7u);
  EXPECT_EQ(records.step(), 3);
  EXPECT_EQ(records.records(), 2u);
  EXPECT_EQ(records.reason(), "deep");
  frame.mutable_chunk()->set_digest(std::string(16, 'd'));
  frame.mutable_chunk()->set_length_bytes(5);
  EXPECT_EQ(RefusalOf(frame, "crc").payload_digest(), std::string(16, 'd'));
  EXPECT_EQ(RefusalOf(frame, "crc").payload_bytes(), 5u);
  // A text that is not a digest names no payload.
  frame.mutable_chunk()->set_digest(std::string(1 << 20, 'd'));
  EXPECT_EQ(RefusalOf(frame, "digest").payload_digest(), "");
}

// A reason quotes names; cutting one inside a character would make a message
// that no agent can parse.
TEST(RefusalTest, ReasonsAreBoundedAndValidText) {
  std::string name;
  while (name.size() < 3000) name += "\u00e9";
  const std::string bytes =
      RefusalOf(v1::UploadFrame(), "x" + name + "\x1b[2J").SerializeAsString();
  EXPECT_LT(bytes.size(), 1000u);
  v1::RefusalRow row;
  ASSERT_TRUE(row.ParseFromString(bytes)) << "not UTF-8";
  EXPECT_NE(row.reason(), "");
  EXPECT_EQ(RefusalOf(v1::UploadFrame(), "\x1b[2J").reason().find('\x1b'),
            std::string::npos);
}

}  // namespace
}  // namespace rankprobe
