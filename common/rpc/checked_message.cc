// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/checked_message.h"

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/proto_buffer_writer.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/io/checksum_field.h"
#include "common/io/crc32c.h"

namespace rankprobe {
namespace {

thread_local bool damage_of_thread = false;
thread_local uint32_t checksum_of_thread = 0;

std::vector<grpc::Slice> SlicesOf(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  if (!bytes.Dump(&slices).ok()) slices.clear();
  return slices;
}

absl::string_view ViewOf(const grpc::Slice& slice) {
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

uint32_t Crc32cOfFirst(const std::vector<grpc::Slice>& slices, size_t count) {
  uint32_t crc = 0;
  for (const grpc::Slice& slice : slices) {
    const absl::string_view piece = ViewOf(slice).substr(0, count);
    crc = Crc32c(piece, crc);
    count -= piece.size();
    if (count == 0) break;
  }
  return crc;
}

}  // namespace

grpc::ByteBuffer ToCheckedBytes(const google::protobuf::MessageLite& message) {
  std::string encoded = message.SerializeAsString();
  AppendChecksum(&encoded);
  const grpc::Slice slice(encoded);
  return grpc::ByteBuffer(&slice, 1);
}

uint32_t Crc32cOf(const grpc::ByteBuffer& bytes, size_t count) {
  return Crc32cOfFirst(SlicesOf(bytes), count);
}

namespace {

// The checksum in the last bytes, which may be in several slices.
std::optional<uint32_t> ChecksumAtEnd(const std::vector<grpc::Slice>& slices) {
  std::string field;
  for (auto slice = slices.rbegin();
       slice != slices.rend() && field.size() < kChecksumFieldBytes; ++slice) {
    const absl::string_view view = ViewOf(*slice);
    const size_t wanted =
        std::min(view.size(), kChecksumFieldBytes - field.size());
    field.insert(0, std::string(view.substr(view.size() - wanted)));
  }
  return ParseChecksumField(field);
}

// Whether slices that end with the checksum `told` match it.
bool Matches(const std::vector<grpc::Slice>& slices, size_t length,
             uint32_t told) {
  return told == Crc32cOfFirst(slices, length - kChecksumFieldBytes);
}

}  // namespace

bool MatchesChecksum(const grpc::ByteBuffer& bytes, uint32_t* crc32c) {
  const std::vector<grpc::Slice> slices = SlicesOf(bytes);
  const std::optional<uint32_t> stated = ChecksumAtEnd(slices);
  if (!stated.has_value() || !Matches(slices, bytes.Length(), *stated))
    return false;
  *crc32c = *stated;
  return true;
}

bool TakeDamageOfThread() { return std::exchange(damage_of_thread, false); }

uint32_t ChecksumOfThread() { return checksum_of_thread; }

grpc::Status SerializeWithChecksum(const google::protobuf::MessageLite& message,
                                   grpc::ByteBuffer* bytes) {
  grpc::ByteBuffer encoded;
  bool own = false;
  if (grpc::Status status = grpc::GenericSerialize<grpc::ProtoBufferWriter,
                                                   grpc::protobuf::MessageLite>(
          message, &encoded, &own);
      !status.ok())
    return status;
  std::vector<grpc::Slice> slices = SlicesOf(encoded);
  slices.emplace_back(ChecksumField(Crc32cOfFirst(slices, encoded.Length())));
  *bytes = grpc::ByteBuffer(slices.data(), slices.size());
  return grpc::Status::OK;
}

grpc::Status ParseWithChecksum(CallPart part, grpc::ByteBuffer* bytes,
                               google::protobuf::MessageLite* message) {
  damage_of_thread = false;
  size_t length = bytes->Length();
  const std::vector<grpc::Slice> slices = SlicesOf(*bytes);
  const std::optional<uint32_t> stated = ChecksumAtEnd(slices);
  // gRPC passes an empty message if it does not know the flags before the
  // received bytes.
  if (!stated.has_value() || !Matches(slices, length, *stated)) {
    damage_of_thread = part == CallPart::kAnswer;
    bytes->Clear();
    return grpc::Status(grpc::StatusCode::DATA_LOSS,
                        "the message was damaged in transit");
  }
  checksum_of_thread = *stated;
  length -= kChecksumFieldBytes;
  bool parsed = false;
  {
    grpc::ProtoBufferReader reader(bytes);
    parsed = reader.status().ok() && message->ParseFromBoundedZeroCopyStream(
                                         &reader, static_cast<int>(length));
  }
  bytes->Clear();
  return parsed ? grpc::Status::OK
                : grpc::Status(grpc::StatusCode::INTERNAL,
                               "the bytes are no such message");
}

grpc::Status ParseChecked(grpc::ByteBuffer* bytes,
                          google::protobuf::MessageLite* message) {
  uint32_t crc32c = 0;
  if (!MatchesChecksum(*bytes, &crc32c)) {
    message->Clear();
    bytes->Clear();
    return grpc::Status::OK;
  }
  bool parsed = false;
  {
    grpc::ProtoBufferReader reader(bytes);
    parsed = reader.status().ok() && message->ParseFromZeroCopyStream(&reader);
  }
  bytes->Clear();
  return parsed ? grpc::Status::OK
                : grpc::Status(grpc::StatusCode::INTERNAL,
                               "the bytes are not a message of this type");
}

}  // namespace rankprobe
