// SPDX-License-Identifier: Apache-2.0
#include "collector/ingest/decoded_size.h"

#include <string>

#include "collector/ingest/frame_validator.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

// Adds items until the frame has about a mebibyte.
template <typename Add>
v1::UploadFrame Full(Add add) {
  v1::UploadFrame frame;
  frame.set_sequence(1);
  frame.mutable_batch();
  while (frame.ByteSizeLong() < 1 << 20) {
    for (int i = 0; i < 8192; ++i) add(frame.mutable_batch());
  }
  return frame;
}

v1::ValueList* FirstList(v1::RecordBatch* batch) {
  if (batch->records().empty()) {
    v1::CallPhase* const call = batch->add_records()->mutable_call();
    call->set_entry("Torch.cat.0.forward");
    call->set_kind(v1::CALL_KIND_API_FORWARD);
  }
  return batch->mutable_records(0)->mutable_call()->mutable_input_args();
}

uint64_t Estimate(const v1::UploadFrame& frame) {
  return SizeOf(frame, frame.ByteSizeLong()).memory;
}

absl::Status Check(const v1::UploadFrame& frame) {
  return CheckContent(frame, SizeOf(frame, frame.ByteSizeLong()));
}

TEST(DecodedSizeTest, IsNeverFarBelowTheTruth) {
  const v1::UploadFrame frames[] = {
      Full([](v1::RecordBatch* b) { b->add_records()->mutable_loss(); }),
      Full([](v1::RecordBatch* b) { FirstList(b)->add_items(); }),
      Full([](v1::RecordBatch* b) {
        v1::ScalarValue* s = FirstList(b)->add_items()->mutable_scalar();
        s->set_type("int");
        s->set_i(1);
      }),
      Full([](v1::RecordBatch* b) {
        v1::TensorSummary* t = FirstList(b)->add_items()->mutable_tensor();
        t->set_type("torch.Tensor");
        t->add_shape(3);
        t->mutable_stats()->set_max_f(1);
        t->mutable_payload()->set_digest(std::string(16, 'd'));
      }),
      Full([](v1::RecordBatch* b) {
        v1::TensorSummary* t = FirstList(b)->add_items()->mutable_tensor();
        for (int i = 0; i < 4; ++i) t->add_extra()->set_i(i);
      }),
      Full([](v1::RecordBatch* b) {
        FirstList(b)->add_items()->mutable_map()->add_items()->mutable_value();
      }),
      Full([](v1::RecordBatch* b) {
        b->add_records()->mutable_stack()->add_frames();
      }),
      Full([](v1::RecordBatch* b) {
        b->add_records()->mutable_trace()->add_items();
      }),
  };
  for (const v1::UploadFrame& frame : frames) {
    const double ratio = static_cast<double>(Estimate(frame)) /
                         static_cast<double>(frame.SpaceUsedLong());
    EXPECT_GT(ratio, 0.9) << frame.batch().records(0).ShortDebugString();
    EXPECT_LT(ratio, 4) << frame.batch().records(0).ShortDebugString();
  }
  v1::UploadFrame chunk;
  chunk.mutable_chunk()->set_data(std::string(1 << 20, 'x'));
  EXPECT_LT(Estimate(chunk), (1 << 20) + 4096u);
}

// M01: a mebibyte of empty records takes dozens in memory.
TEST(DecodedSizeTest, FramesOfEmptyMessagesAreRefused) {
  const v1::UploadFrame losses =
      Full([](v1::RecordBatch* b) { b->add_records()->mutable_loss(); });
  EXPECT_EQ(Check(losses).code(), absl::StatusCode::kInvalidArgument);
  // A frame that an agent may well send.
  const v1::UploadFrame integers = Full([](v1::RecordBatch* b) {
    v1::ScalarValue* s = FirstList(b)->add_items()->mutable_scalar();
    s->set_type("int");
    s->set_i(1);
  });
  EXPECT_TRUE(Check(integers).ok()) << Estimate(integers);
  // The size in the arena into which it was parsed.
  ReceivedFrame received;
  ASSERT_TRUE(received->ParseFromString(integers.SerializeAsString()));
  const FrameSize size = SizeOf(received, integers.ByteSizeLong());
  EXPECT_TRUE(CheckContent(*received, size).ok()) << size.memory;
}

// What a frame contained before is still in its arena.
TEST(DecodedSizeTest, WhatIsGivenUpInAFrameCounts) {
  v1::UploadFrame last;
  last.mutable_chunk()->set_data("12345678");
  last.mutable_chunk()->set_digest(std::string(16, 'd'));
  last.mutable_chunk()->set_length_bytes(8);
  const std::string bytes = Full([](v1::RecordBatch* b) {
                              b->add_records()->mutable_loss();
                            }).SerializeAsString() +
                            last.SerializeAsString();
  ReceivedFrame received;
  ASSERT_TRUE(received->ParseFromString(bytes));
  ASSERT_TRUE(received->has_chunk()) << "nothing of the records is left";
  EXPECT_LT(SizeOf(*received, bytes.size()).memory, 2 * bytes.size());
  const FrameSize size = SizeOf(received, bytes.size());
  EXPECT_GT(size.memory, kMaxDecodedBytes);
  EXPECT_EQ(CheckContent(*received, size, /*own_checksum=*/true).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace rankprobe
