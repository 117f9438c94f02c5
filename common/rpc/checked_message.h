// SPDX-License-Identifier: Apache-2.0
// Messages that carry a checksum (common/io/checksum_field.h) over a
// connection. Without TLS only TCP's 16-bit checksum would detect a byte that
// changes in transit. Generated stubs and services write and read the types
// that checked_types.h lists with it. Thread-safe: pure functions.
//
// A message that does not match is passed on as an empty message without a
// checksum, so that the reader can end the stream with a reason (IsDamaged): if
// reading fails, gRPC reports the reason to neither side.
#ifndef RANKPROBE_COMMON_RPC_CHECKED_MESSAGE_H_
#define RANKPROBE_COMMON_RPC_CHECKED_MESSAGE_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <cstddef>
#include <cstdint>

#include "google/protobuf/message_lite.h"

namespace rankprobe {

// Serializes the message, which has no checksum itself, and appends one.
grpc::ByteBuffer ToCheckedBytes(const google::protobuf::MessageLite& message);

// Whether the bytes end with the checksum of the bytes before it; `*crc32c` is
// then that checksum.
bool MatchesChecksum(const grpc::ByteBuffer& bytes, uint32_t* crc32c);
// Checksum of the first `count` bytes; there must be as many.
uint32_t Crc32cOf(const grpc::ByteBuffer& bytes, size_t count);

// Whether a message that CheckedTraits has read is damaged.
template <typename Message>
bool IsDamaged(const Message& message) {
  return !message.has_crc32c();
}

grpc::Status ParseChecked(grpc::ByteBuffer* bytes,
                          google::protobuf::MessageLite* message);

// The same for a request or an answer, without a copy.
grpc::Status SerializeWithChecksum(const google::protobuf::MessageLite& message,
                                   grpc::ByteBuffer* bytes);
enum class CallPart : uint8_t { kRequest, kAnswer };
// Returns DATA_LOSS for damaged bytes and for a message without a checksum.
grpc::Status ParseWithChecksum(CallPart part, grpc::ByteBuffer* bytes,
                               google::protobuf::MessageLite* message);
// Whether ParseWithChecksum has found a damaged answer in this thread since the
// last call of this function.
bool TakeDamageOfThread();
// The checksum of the last message that this thread has read and that matched.
uint32_t ChecksumOfThread();

// Trailing metadata of a streamed answer: the number of its messages. If a bit
// flips in the length that gRPC writes before a message, gRPC takes the next
// messages for a part of it, and drops them without an error when the stream
// ends.
inline constexpr char kMessagesKey[] = "rankprobe-messages";

template <typename Message, CallPart kPart>
class CallTraits {
 public:
  static grpc::Status Serialize(const Message& message, grpc::ByteBuffer* bytes,
                                bool* own_buffer) {
    *own_buffer = true;
    return SerializeWithChecksum(message, bytes);
  }
  static grpc::Status Deserialize(grpc::ByteBuffer* bytes, Message* message) {
    return ParseWithChecksum(kPart, bytes, message);
  }
};

template <typename Message>
class CheckedTraits {
 public:
  static grpc::Status Serialize(const Message& message, grpc::ByteBuffer* bytes,
                                bool* own_buffer) {
    *own_buffer = true;
    if (!message.has_crc32c()) {
      *bytes = ToCheckedBytes(message);
      return grpc::Status::OK;
    }
    // The message was received from elsewhere, and may have been changed since.
    Message copy = message;
    copy.clear_crc32c();
    *bytes = ToCheckedBytes(copy);
    return grpc::Status::OK;
  }
  static grpc::Status Deserialize(grpc::ByteBuffer* bytes, Message* message) {
    return ParseChecked(bytes, message);
  }
};

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_RPC_CHECKED_MESSAGE_H_
