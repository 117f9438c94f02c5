// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/checked_message.h"

#include <grpcpp/support/slice.h>

#include <string>
#include <vector>

#include "common/rpc/checked_types.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

v1::Directive Plan() {
  v1::Directive directive;
  v1::PlanSpec* const plan = directive.mutable_prepare()->mutable_plan();
  plan->set_epoch(3);
  plan->set_config_json(R"({"task": "statistics", "level": "L1"})");
  return directive;
}

std::string BytesOf(const v1::Directive& message) {
  grpc::ByteBuffer bytes;
  bool own = false;
  EXPECT_TRUE(
      grpc::SerializationTraits<v1::Directive>::Serialize(message, &bytes, &own)
          .ok());
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(bytes.Dump(&slices).ok());
  std::string text;
  for (const grpc::Slice& slice : slices)
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return text;
}

v1::Directive Read(const std::string& text) {
  // In pieces, none of which contains the complete checksum.
  const size_t cut = text.size() < 3 ? 0 : text.size() - 3;
  const grpc::Slice pieces[2] = {grpc::Slice(text.substr(0, cut)),
                                 grpc::Slice(text.substr(cut))};
  grpc::ByteBuffer bytes(pieces, 2);
  v1::Directive message;
  message.mutable_abort()->set_epoch(99);
  EXPECT_TRUE(
      grpc::SerializationTraits<v1::Directive>::Deserialize(&bytes, &message)
          .ok());
  return message;
}

TEST(CheckedMessageTest, EachSingleFlipIsFound) {
  const std::string text = BytesOf(Plan());
  const v1::Directive whole = Read(text);
  EXPECT_FALSE(IsDamaged(whole));
  EXPECT_EQ(whole.prepare().plan().config_json(),
            Plan().prepare().plan().config_json());
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    std::string flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    const v1::Directive read = Read(flipped);
    EXPECT_TRUE(IsDamaged(read)) << bit;
    EXPECT_EQ(read.ByteSizeLong(), 0u) << bit;
  }
  EXPECT_TRUE(IsDamaged(Read("")));
}

// A leaf passes on what its root sent.
TEST(CheckedMessageTest, WhatWasReadIsSentOnWithItsOwnChecksum) {
  v1::Directive read = Read(BytesOf(Plan()));
  read.mutable_prepare()->mutable_plan()->set_epoch(4);
  const v1::Directive again = Read(BytesOf(read));
  EXPECT_FALSE(IsDamaged(again));
  EXPECT_EQ(again.prepare().plan().epoch(), 4u);
}

// Cut by a flip in the length or in the flags that gRPC writes before it.
TEST(CheckedMessageTest, ARequestThatWasCutIsNotServed) {
  v1::DeleteRequest request;
  request.add_steps(3);
  for (size_t size = 0; size < 70; ++size) {
    request.set_run(std::string(size, 'r'));
    grpc::ByteBuffer bytes;
    ASSERT_TRUE(SerializeWithChecksum(request, &bytes).ok());
    grpc::Slice whole;
    ASSERT_TRUE(bytes.TrySingleSlice(&whole).ok() ||
                bytes.DumpToSingleSlice(&whole).ok());
    for (size_t length = 0; length <= whole.size(); ++length) {
      const grpc::Slice cut(whole.begin(), length);
      grpc::ByteBuffer arrived(&cut, 1);
      v1::DeleteRequest read;
      EXPECT_EQ(ParseWithChecksum(CallPart::kRequest, &arrived, &read).ok(),
                length == whole.size());
      if (length == whole.size())
        EXPECT_EQ(read.SerializeAsString(), request.SerializeAsString());
    }
  }
}

}  // namespace
}  // namespace rankprobe
