// SPDX-License-Identifier: Apache-2.0
// Check that a streamed answer is complete. If a bit flips in the length that gRPC
// writes before a message, gRPC takes the messages behind it for its bytes, and drops
// them without an error when the stream ends. Thread-safe.
#ifndef RANKPROBE_COMMON_RPC_ANSWER_CHECK_H_
#define RANKPROBE_COMMON_RPC_ANSWER_CHECK_H_

#include <cstdint>

namespace rankprobe {

// Trailing metadata of a streamed answer: the number of its messages.
inline constexpr char kMessagesKey[] = "rankprobe-messages";

// The checksum of the last message that this thread has read and that matches it
// (ParseWithChecksum).
uint32_t ChecksumOfThread();

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_RPC_ANSWER_CHECK_H_
