// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/queue/record_cutter.h"

#include <string>
#include <vector>

#include "agent/runtime/queue/frame_encoding.h"
#include "common/io/crc32c.h"
#include "common/records/cut_value.h"
#include "common/records/record_checksum.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

v1::Record Call() {
  v1::Record record;
  record.set_order(1);
  record.mutable_call()->set_entry("Torch.stack.0.forward");
  record.mutable_call()->set_kind(v1::CALL_KIND_API_FORWARD);
  return record;
}

v1::Value* AddTensor(v1::ValueList* list) {
  v1::Value* const value = list->add_items();
  v1::TensorSummary* const tensor = value->mutable_tensor();
  tensor->set_dtype(v1::DTYPE_FLOAT32);
  tensor->mutable_stats()->set_max_f(1);
  tensor->mutable_payload()->set_digest(std::string(16, 'd'));
  return value;
}

TEST(RecordCutterTest, WhatFitsIsLeftAlone) {
  const v1::Record record = Call();
  EXPECT_FALSE(ExceedsLimits(record, record.ByteSizeLong()));
  EXPECT_TRUE(ExceedsLimits(record, kMaxRecordBytes + 1));
}

TEST(RecordCutterTest, AListEndsWhereTheRoomEndsAndSaysItsTrueSize) {
  v1::Record record = Call();
  record.mutable_call()->mutable_input_args()->add_items()->mutable_scalar();
  v1::ValueList* const list =
      record.mutable_call()->mutable_input_args()->add_items()->mutable_list();
  for (int i = 0; i < 1000; ++i) AddTensor(list);
  record.mutable_call()->mutable_output()->add_items()->mutable_scalar();
  v1::LossEvent loss;
  ASSERT_TRUE(CutRecord(10'000, &record, &loss));
  EXPECT_LE(record.ByteSizeLong(), 10'000u);
  const v1::CallPhase& call = record.call();
  ASSERT_EQ(call.input_args().items_size(), 2);
  const v1::ValueList& cut = call.input_args().items(1).list();
  const v1::CutValue& end = cut.items(cut.items_size() - 1).cut();
  EXPECT_EQ(end.type(), "list");
  EXPECT_EQ(end.size(), 1000u);
  EXPECT_EQ(end.kept(), static_cast<uint64_t>(cut.items_size() - 1));
  EXPECT_GT(end.kept(), 100u);
  EXPECT_EQ(end.limit(), "bytes");
  EXPECT_EQ(loss.records(), 0u);
  EXPECT_EQ(loss.payloads(), 1000 - end.kept());
  EXPECT_EQ(loss.reason(), v1::LOSS_REASON_TOO_LARGE);
  EXPECT_EQ(loss.entry(), "Torch.stack.0.forward");
}

TEST(RecordCutterTest, DictsTextsAndSavedValuesAreCut) {
  v1::Record record = Call();
  v1::ValueMap* const kwargs = record.mutable_call()->mutable_input_kwargs();
  for (int i = 0; i < 300; ++i) {
    v1::NamedValue* const item = kwargs->add_items();
    item->set_name("k");
    item->mutable_value()->mutable_scalar()->set_s(std::string(100, 's'));
  }
  v1::LossEvent loss;
  ASSERT_TRUE(CutRecord(5000, &record, &loss));
  EXPECT_LE(record.ByteSizeLong(), 5000u);
  EXPECT_EQ(kwargs->items(kwargs->items_size() - 1).name(), "rankprobe_cut");
  EXPECT_EQ(kwargs->items(kwargs->items_size() - 1).value().cut().size(), 300u);
  EXPECT_EQ(loss.payloads(), 0u);

  record = Call();
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "\xc3\xa9";
  v1::ScalarValue* const scalar =
      record.mutable_call()->mutable_debug()->mutable_scalar();
  scalar->set_type("str");
  scalar->set_s(text);
  ASSERT_TRUE(CutRecord(1701, &record, &loss));
  const v1::CutValue& cut = record.call().debug().cut();
  EXPECT_EQ(cut.type(), "str");
  EXPECT_EQ(cut.size(), 2000u);
  EXPECT_EQ(cut.kept(), cut.text().size());
  EXPECT_EQ(cut.kept() % 2, 0u) << "whole characters";
  EXPECT_GT(cut.kept(), 0u);

  record = Call();
  v1::ValueList list;
  *record.mutable_call()->mutable_debug() = *AddTensor(&list);
  record.mutable_call()->mutable_debug()->mutable_tensor()->set_type(
      std::string(5000, 't'));
  loss.Clear();
  ASSERT_TRUE(CutRecord(4000, &record, &loss));
  EXPECT_EQ(record.call().debug().cut().limit(), "bytes");
  EXPECT_EQ(loss.payloads(), 1u);
}

TEST(RecordCutterTest, WhatTheFrontEndCutKeepsItsTrueSize) {
  v1::Record record = Call();
  v1::ValueList* const list =
      record.mutable_call()->mutable_output()->add_items()->mutable_list();
  for (int i = 0; i < 999; ++i) AddTensor(list);
  SetCut("list", 123'456, 999, "tensors", list->add_items());
  v1::LossEvent loss;
  ASSERT_TRUE(CutRecord(10'000, &record, &loss));
  EXPECT_EQ(list->items(list->items_size() - 1).cut().size(), 123'456u);
}

TEST(RecordCutterTest, StacksAndErrorsAreShortened) {
  v1::Record record;
  for (int i = 0; i < 5000; ++i) record.mutable_stack()->add_frames("f");
  EXPECT_TRUE(ExceedsLimits(record, record.ByteSizeLong()));
  v1::LossEvent loss;
  ASSERT_TRUE(CutRecord(kMaxRecordBytes, &record, &loss));
  EXPECT_EQ(record.stack().frames_size(), kMaxStackFrames);
  EXPECT_EQ(record.stack().frames(kMaxStackFrames - 1), "... 905 more frames");
  EXPECT_EQ(loss.records() + loss.payloads(), 0u);
  record.mutable_error()->set_message(std::string(2 << 20, 'x'));
  ASSERT_TRUE(CutRecord(kMaxRecordBytes, &record, &loss));
  EXPECT_EQ(record.error().message().size(), kMaxTextBytes);
}

TEST(RecordCutterTest, WhatCannotBeCutIsLostAndCounted) {
  v1::Record record = Call();
  record.mutable_call()->set_entry(std::string(5000, 'n'));
  AddTensor(record.mutable_call()->mutable_output());
  EXPECT_TRUE(ExceedsLimits(record, record.ByteSizeLong()));
  v1::LossEvent loss;
  EXPECT_FALSE(CutRecord(kMaxRecordBytes, &record, &loss));
  EXPECT_EQ(loss.records(), 1u);
  EXPECT_EQ(loss.payloads(), 1u);
  record.mutable_step_begin()->set_dump_path(std::string(5000, 'p'));
  loss.Clear();
  EXPECT_FALSE(CutRecord(4000, &record, &loss));
  EXPECT_EQ(loss.records(), 1u);
}

TEST(RecordCutterTest, BatchesCarryTheRestAndEachFitsAFrame) {
  std::vector<std::unique_ptr<RecordBuffer>> buffers;
  buffers.push_back(std::make_unique<RecordBuffer>());
  *buffers[0]->Add() = Call();
  v1::Record* const large = buffers[0]->Add();
  *large = Call();
  for (int i = 0; i < 30'000; ++i)
    AddTensor(large->mutable_call()->mutable_output());
  v1::Record* const nameless = buffers[0]->Add();
  *nameless = Call();
  nameless->mutable_call()->set_entry(std::string(5000, 'n'));
  *buffers[0]->Add() = Call();
  std::vector<v1::LossEvent> losses;
  const std::vector<EncodedBatch> batches = EncodeRecords(7, buffers, &losses);
  uint64_t records = 0, payloads = 0;
  for (const auto& [bytes, crc32c] : batches) {
    EXPECT_EQ(crc32c, Crc32c(bytes));
    EXPECT_LE(bytes.size(), kChunkBytes);
    v1::RecordBatch batch;
    ASSERT_TRUE(batch.ParseFromString(bytes));
    EXPECT_EQ(batch.step(), 7);
    for (const v1::Record& record : batch.records()) {
      std::string encoded;
      EXPECT_TRUE(record.has_crc32c() && EncodeRecord(record, &encoded).ok());
    }
    const BatchContent content = CountBatch(bytes);
    EXPECT_EQ(content.step, 7);
    records += content.records;
    payloads += content.payloads;
  }
  EXPECT_EQ(records, 3u);
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_EQ(losses[0].payloads() + payloads, 30'000u);
  EXPECT_EQ(losses[1].records(), 1u);
}

TEST(RecordCutterTest, ABatchThatCannotBeParsedIsCountedAllTheSame) {
  v1::RecordBatch batch;
  batch.set_step(3);
  *batch.add_records() = Call();
  batch.add_records()->mutable_call()->set_entry("\xff\xfe");
  batch.add_records()->mutable_loss()->set_records(4);
  const BatchContent content = CountBatch(batch.SerializeAsString());
  EXPECT_EQ(content.step, 3);
  EXPECT_EQ(content.records, 2u);
}

}  // namespace
}  // namespace rankprobe
