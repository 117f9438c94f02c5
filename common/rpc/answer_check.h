// SPDX-License-Identifier: Apache-2.0
// Check that an answer of many messages is complete. A flip in the length that gRPC
// writes before a message makes it wait for bytes that are others', and what it has of
// them when the answer ends is dropped without a word. Thread-safe.
#ifndef RANKPROBE_COMMON_RPC_ANSWER_CHECK_H_
#define RANKPROBE_COMMON_RPC_ANSWER_CHECK_H_

#include <grpcpp/support/status.h>

#include <cstdint>

namespace rankprobe {

// Metadata behind an answer in many messages: how many they are.
inline constexpr char kMessagesKey[] = "rankprobe-messages";

// Of the last request or answer that was read in this thread and matches its
// checksum.
uint32_t ChecksumOfThread();

// What a call ends with of which an answer was damaged (AnswerWasDamaged).
grpc::Status DamagedAnswer();

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_RPC_ANSWER_CHECK_H_
