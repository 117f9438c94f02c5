// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/queue/frame_encoding.h"

#include <utility>

#include "agent/runtime/queue/record_cutter.h"
#include "common/io/checksum_field.h"
#include "common/io/crc32c.h"
#include "common/records/call_values.h"
#include "google/protobuf/io/coded_stream.h"

namespace rankprobe {
namespace {

using google::protobuf::io::CodedOutputStream;

// UploadFrame and RecordBatch are encoded by hand, so that their contents are
// not copied into messages first.
constexpr uint32_t kSequenceTag = 1 << 3, kBatchTag = 3 << 3 | 2,
                   kChunkTag = 4 << 3 | 2;
constexpr uint32_t kStepTag = 1 << 3, kRecordTag = 2 << 3 | 2;
constexpr uint32_t kDataTag = 4 << 3 | 2;

void AppendVarint(uint64_t value, std::string* out) {
  uint8_t bytes[10];
  const uint8_t* const end =
      CodedOutputStream::WriteVarint64ToArray(value, bytes);
  out->append(reinterpret_cast<const char*>(bytes),
              static_cast<size_t>(end - bytes));
}

void Begin(uint64_t sequence, EncodedFrame* out) {
  out->sequence = sequence;
  out->head.assign(1, static_cast<char>(kSequenceTag));
  AppendVarint(sequence, &out->head);
  out->tail = {};
  out->tail_owner.reset();
  out->foot.clear();
}

// Completes a frame whose tail has this checksum.
void Finish(uint32_t tail_crc32c, EncodedFrame* out) {
  out->foot = ChecksumField(
      Crc32cCombine(Crc32c(out->head), tail_crc32c, out->tail.size()));
}

}  // namespace

EncodedBatch::EncodedBatch(std::string encoded)
    : bytes(std::move(encoded)), crc32c(Crc32c(bytes)) {}

std::vector<EncodedBatch> EncodeRecords(
    int64_t step, const std::vector<std::unique_ptr<RecordBuffer>>& buffers,
    std::vector<v1::LossEvent>* losses) {
  std::vector<EncodedBatch> batches;
  std::string bytes;
  for (const auto& buffer : buffers) {
    for (v1::Record& record : *buffer->batch()->mutable_records()) {
      size_t size = record.ByteSizeLong();
      if (ExceedsLimits(record, size)) {
        v1::LossEvent loss;
        const bool kept = CutRecord(kMaxRecordBytes, &record, &loss);
        if (loss.records() + loss.payloads() > 0)
          losses->push_back(std::move(loss));
        if (!kept) continue;
        size = record.ByteSizeLong();
      }
      if (!bytes.empty() && bytes.size() + size + 16 > kChunkBytes)
        batches.emplace_back(std::exchange(bytes, {}));
      if (bytes.empty()) {
        bytes.push_back(static_cast<char>(kStepTag));
        AppendVarint(static_cast<uint64_t>(step), &bytes);
      }
      bytes.push_back(static_cast<char>(kRecordTag));
      AppendVarint(size + kChecksumFieldBytes, &bytes);
      const size_t at = bytes.size();
      bytes.resize(at + size);
      record.SerializeWithCachedSizesToArray(
          reinterpret_cast<uint8_t*>(bytes.data()) + at);
      bytes += ChecksumField(Crc32c(absl::string_view(bytes).substr(at)));
    }
  }
  if (!bytes.empty()) batches.emplace_back(std::move(bytes));
  return batches;
}

void CountRecord(const v1::Record& record, BatchContent* content) {
  if (record.has_loss()) {
    content->lost_records += record.loss().records();
    content->lost_payloads += record.loss().payloads();
    return;
  }
  ++content->records;
  if (!record.has_call()) return;
  ForEachTensor(record.call(), [content](const v1::TensorSummary& tensor) {
    content->payloads += tensor.has_payload() ? 1 : 0;
  });
}

BatchContent CountBatch(absl::string_view batch) {
  using google::protobuf::io::CodedInputStream;
  BatchContent content;
  CodedInputStream in(reinterpret_cast<const uint8_t*>(batch.data()),
                      static_cast<int>(batch.size()));
  // The batch was encoded by this file: the step once, then records.
  for (uint32_t tag = in.ReadTag(); tag != 0; tag = in.ReadTag()) {
    uint64_t value = 0;
    if (!in.ReadVarint64(&value)) break;
    if (tag == kStepTag) {
      content.step = static_cast<int64_t>(value);
      continue;
    }
    std::string bytes;
    if (tag != kRecordTag || !in.ReadString(&bytes, static_cast<int>(value)))
      break;
    v1::Record record;
    if (!record.ParseFromString(bytes)) record.Clear();
    CountRecord(record, &content);
  }
  return content;
}

void EncodeUndeliverable(uint64_t sequence, const v1::UndeliverableFrame& what,
                         EncodedFrame* out) {
  v1::UploadFrame frame;
  frame.set_sequence(sequence);
  *frame.mutable_undeliverable() = what;
  Begin(sequence, out);
  out->head = frame.SerializeAsString();
  Finish(0, out);
}

void EncodeEmpty(uint64_t sequence, EncodedFrame* out) {
  Begin(sequence, out);
  Finish(0, out);
}

void EncodeBatch(uint64_t sequence, std::shared_ptr<const EncodedBatch> batch,
                 EncodedFrame* out) {
  Begin(sequence, out);
  out->head.push_back(static_cast<char>(kBatchTag));
  AppendVarint(batch->bytes.size(), &out->head);
  out->tail = batch->bytes;
  Finish(batch->crc32c, out);
  out->tail_owner = std::move(batch);
}

void EncodeChunk(uint64_t sequence, const ChunkToEncode& chunk,
                 std::shared_ptr<const void> owner, EncodedFrame* out) {
  Begin(sequence, out);
  v1::PayloadChunk fields;
  fields.set_digest(chunk.digest->data(), chunk.digest->size());
  fields.set_length_bytes(chunk.payload_bytes);
  fields.set_offset_bytes(chunk.offset);
  if (chunk.place.has_value()) {
    fields.mutable_lane()->set_offset_bytes(*chunk.place);
    fields.mutable_lane()->set_length_bytes(chunk.data.size());
    out->head.push_back(static_cast<char>(kChunkTag));
    AppendVarint(fields.ByteSizeLong(), &out->head);
    fields.AppendToString(&out->head);
    return Finish(0, out);
  }
  out->tail = chunk.data;
  out->tail_owner = std::move(owner);
  fields.set_crc32c(Crc32c(chunk.data));
  std::string head = fields.SerializeAsString();
  head.push_back(static_cast<char>(kDataTag));
  AppendVarint(chunk.data.size(), &head);
  out->head.push_back(static_cast<char>(kChunkTag));
  AppendVarint(head.size() + chunk.data.size(), &out->head);
  out->head += head;
  Finish(fields.crc32c(), out);
}

}  // namespace rankprobe
