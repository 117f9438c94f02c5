// SPDX-License-Identifier: Apache-2.0
#include "collector/ingest/frame_decoding.h"

#include <grpcpp/support/proto_buffer_reader.h>

#include "common/io/checksum_field.h"
#include "common/io/crc32c.h"
#include "common/rpc/checked_message.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"

namespace rankprobe {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// Returns the top-level field `sequence`, the last one as in protobuf; 0 if the
// bytes have none before they become invalid.
uint64_t FindSequence(grpc::ByteBuffer* untrusted) {
  grpc::ProtoBufferReader reader(untrusted);
  if (!reader.status().ok()) return 0;
  CodedInputStream in(&reader);
  uint64_t sequence = 0;
  for (uint32_t tag = in.ReadTag(); tag != 0; tag = in.ReadTag()) {
    if (tag == WireFormatLite::MakeTag(v1::UploadFrame::kSequenceFieldNumber,
                                       WireFormatLite::WIRETYPE_VARINT)) {
      uint64_t value = 0;
      if (!in.ReadVarint64(&value)) break;
      sequence = value;
    } else if (!WireFormatLite::SkipField(&in, tag)) {
      break;
    }
  }
  return sequence;
}

// Agents put the data at the end, so its checksum follows from that of the
// frame and the data is read only once. `crc32c` is that of the frame without
// its checksum.
bool DataMatches(const grpc::ByteBuffer& bytes, uint32_t crc32c,
                 const v1::PayloadChunk& chunk) {
  const size_t data = chunk.data().size();
  const size_t checked = bytes.Length() - kChecksumFieldBytes;
  return data <= checked && Crc32cCombine(Crc32cOf(bytes, checked - data),
                                          chunk.crc32c(), data) == crc32c;
}

}  // namespace

absl::Status DecodeFrame(grpc::ByteBuffer* untrusted, v1::UploadFrame* frame,
                         bool* data_checked) {
  frame->Clear();
  *data_checked = false;
  uint32_t crc32c = 0;
  if (!MatchesChecksum(*untrusted, &crc32c)) {
    return absl::DataLossError(
        "a frame was damaged in transit: it does not match its checksum");
  }
  {
    grpc::ProtoBufferReader reader(untrusted);
    if (reader.status().ok() && frame->ParseFromZeroCopyStream(&reader)) {
      *data_checked =
          frame->has_chunk() && DataMatches(*untrusted, crc32c, frame->chunk());
      return absl::OkStatus();
    }
  }
  frame->Clear();
  frame->set_sequence(FindSequence(untrusted));
  return absl::InvalidArgumentError(
      "the bytes are not an upload frame: cut off, not UTF-8 where text "
      "stands, or nested deeper than 100 messages");
}

}  // namespace rankprobe
