// SPDX-License-Identifier: Apache-2.0
#include "common/records/record_checksum.h"

#include <string>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

v1::Record SomeRecord() {
  v1::Record record;
  record.set_order(3);
  record.mutable_call()->set_entry("Aten.add.0.forward");
  record.mutable_call()->set_kind(v1::CALL_KIND_API_FORWARD);
  return record;
}

TEST(RecordChecksumTest, EachSingleFlipIsFound) {
  std::string bytes;
  ASSERT_TRUE(EncodeRecord(SomeRecord(), &bytes).ok());
  v1::Record read;
  ASSERT_TRUE(DecodeRecord(bytes, &read).ok());
  EXPECT_EQ(read.call().entry(), "Aten.add.0.forward");
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    EXPECT_TRUE(absl::IsDataLoss(DecodeRecord(flipped, &read))) << bit;
  }
  EXPECT_TRUE(absl::IsDataLoss(DecodeRecord("", &read)));
}

TEST(RecordChecksumTest, OneThatHasAChecksumKeepsIt) {
  v1::Record record = SomeRecord();
  SealRecord(&record);
  std::string bytes, again;
  ASSERT_TRUE(EncodeRecord(record, &bytes).ok());
  v1::Record read;
  ASSERT_TRUE(DecodeRecord(bytes, &read).ok());
  EXPECT_EQ(read.crc32c(), record.crc32c());
  ASSERT_TRUE(EncodeRecord(read, &again).ok());
  EXPECT_EQ(bytes, again);
  // Changed between the two.
  read.set_order(4);
  EXPECT_TRUE(absl::IsDataLoss(EncodeRecord(read, &again)));
}

}  // namespace
}  // namespace rankprobe
