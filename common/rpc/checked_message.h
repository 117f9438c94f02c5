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

// The message's bytes, the checksum behind them. It has none itself.
grpc::ByteBuffer ToCheckedBytes(const google::protobuf::MessageLite& message);

// Whether the bytes end with the checksum of what is before it; `*crc32c` is that
// checksum then.
bool MatchesChecksum(const grpc::ByteBuffer& bytes, uint32_t* crc32c);
// Of the first `count` bytes, which are there.
uint32_t Crc32cOf(const grpc::ByteBuffer& bytes, size_t count);

// Of one that was read by CheckedTraits.
template <typename Message>
bool IsDamaged(const Message& message) {
  return !message.has_crc32c();
}

grpc::Status ParseChecked(grpc::ByteBuffer* bytes,
                          google::protobuf::MessageLite* message);

// The same without a copy, of a request or an answer.
grpc::Status SerializeWithChecksum(const google::protobuf::MessageLite& message,
                                   grpc::ByteBuffer* bytes);
enum class CallPart : uint8_t { kRequest, kAnswer };
// DATA_LOSS, of a message without a checksum, too.
grpc::Status ParseWithChecksum(CallPart part, grpc::ByteBuffer* bytes,
                               google::protobuf::MessageLite* message);
// Whether ParseWithChecksum has met with a damaged answer in this thread since
// this was asked last.
bool TakeDamageOfThread();
// The checksum of the last message that this thread has read and that matches it.
uint32_t ChecksumOfThread();

// Trailing metadata of a streamed answer: the number of its messages. If a bit flips
// in the length that gRPC writes before a message, gRPC takes the messages behind it
// for its bytes, and drops them without an error when the stream ends.
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
    // It was read from elsewhere, and may have been changed since.
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
